"""Rendering of chat messages into the prompt that the engine feeds, in the media pool."""

import logging
import math
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import takewhile

from torch import Tensor

from antiphon.contract import Reason
from inference_service.device.rows import Rows
from inference_service.errors import UnitRefused
from inference_service.interface.setups import (
    NO_TOOLS,
    ChatMessage,
    Clip,
    Content,
    Picture,
    ToolMode,
    Tools,
    TurnInput,
    Video,
)
from inference_service.media.pool import Priority
from inference_service.models.chat_template import PART_JOINT, ChatTemplate, Media, Message, TemplateRefused
from inference_service.session.base.session import Preprocessor
from inference_service.session.kinds.components import (
    ROWS_PER_SECOND,
    Measure,
    Senses,
    Sound,
    View,
)
from inference_service.session.kinds.reference_voice import ReferenceVoice
from inference_service.session.kinds.videos import Frame, Seen, unroll
from inference_service.tools.grammar import CallGrammar, Constraint
from inference_service.tools.reader import AnswerReader, Thinking

logger = logging.getLogger(__name__)

DEFAULT_TTS_MODE = "default"
"""The callers' name for a model's usual way of speaking."""
_MARKS = 2
"""Marks round a picture and round a clip."""
_IDS_AT_ONCE = 1024
_SECONDS_AT_ONCE = 2
_PICTURES_AT_ONCE = 4
"""Limits of a portion of a prompt, which one tick embeds and encodes: a long prompt must not delay other
sessions.
"""


@dataclass(frozen=True)
class Dialogue:
    """The facts about a model that rendering a chat needs."""

    template: ChatTemplate
    limit: int
    """Tokens of the context."""
    ends: frozenset[int]
    """Ids that end an answer."""
    forbidden: Tensor
    """Ids that are never sampled in an answer."""
    opens_with_space: bool = False
    """Whether its answers begin with a space, as all its words do; the space is not shown."""
    speaks: bool = False
    senses: Senses | None = None
    """The senses; None for a model that takes only text."""
    clip_marks: tuple[int, int] = (0, 0)
    """The ids round a clip."""
    picture: "PictureRules | None" = None
    """The form of a picture; None for a model without vision."""
    hearing_opens_speech: bool = False
    """Whether a prompt with a clip ends like one for a spoken answer."""
    omni_joint: str = PART_JOINT
    """Text between the parts of a message in `omni_mode`."""
    interleaves_videos: bool = False
    """Whether a video's sound stands in pieces between its frames; else it follows them in one piece."""
    grammar: CallGrammar | None = None
    """The grammar of tool calls; None for a model that cannot be forced to call a tool."""


@dataclass(frozen=True)
class PictureRules:
    """The form of a picture in a prompt."""

    slice_tokens: int
    """Embeddings of a slice with the marks round it."""
    number_marks: tuple[int, int] | None = None
    """The ids round the number of a picture; None if pictures have no numbers."""
    line_end: tuple[int, ...] = ()
    """Ids between the rows of its details."""
    max_slices: int = 1
    """Most slices that it is cut into."""

    def tokens(self, measure: Measure) -> int:
        """Return the number of its embeddings and of the ids between them."""
        return measure.slices * self.slice_tokens + max(0, measure.rows - 1) * len(self.line_end)


@dataclass(frozen=True)
class Words:
    """Ids of a prompt."""

    ids: list[int]


@dataclass(frozen=True)
class PromptPicture:
    """A picture."""

    view: View


Passage = Words | PromptPicture | Sound


@dataclass(frozen=True)
class Prompt:
    """A rendered conversation, in portions for one tick each."""

    portions: list[list[Passage]]
    text_tokens: int
    audio_tokens: int
    vision_tokens: int
    slices: int
    speaks: bool = False
    """Whether the answer is spoken."""
    tools: Tools = NO_TOOLS
    """The tools that the prompt names."""
    thinking: Thinking = Thinking.NO
    constraint: Constraint | None = None
    """The constraint on the answer; None if it may be anything."""
    ignored_fields: tuple[str, ...] = ()
    """Paths of settings that were given and have no effect."""
    begun: tuple[int, ...] = ()
    """The first ids of the answer, which another session has sampled; the portions end with them."""

    def reader(self, template: ChatTemplate) -> AnswerReader | None:
        """Return the reader that splits the answer; None for an answer that can only be text."""
        if not self.tools.offered and self.thinking is Thinking.NO:
            return None
        names = frozenset(tool.name for tool in self.tools.offered)
        return AnswerReader(template.calls if names else None, names, self.thinking, _new_id)


class ChatPreprocessor(Preprocessor[Prompt]):
    """The preparation of conversations: the model's chat template, and decoding of media."""

    def __init__(self, dialogue: Dialogue, system_prompt: str, voice: ReferenceVoice | None = None) -> None:
        self._dialogue = dialogue
        self._system_prompt = system_prompt
        self.voice = voice

    def priority(self, content: Content | None) -> Priority:
        if content is None:
            return Priority.SOUND if self.voice is None else self.voice.priority
        if isinstance(content, TurnInput) and any(_videos(content)):
            return Priority.VIDEOS
        return Priority.REST

    def begin(self) -> None:
        if self.voice is not None:
            self.voice.begin()

    def prepare(self, content: Content) -> Prompt:
        if not isinstance(content, TurnInput):
            raise TypeError(f"A chat takes TurnInput, not {type(content).__name__}.")
        least = self._least(content, list(_media(content.messages, {})))
        self._check_length(least, "at least ")
        shown = self._unrolled(content, least)
        media = list(_media(content.messages, shown))
        rendered = self._rendered(content, media, shown)
        measures = list(self._measured(content, media))
        counts = self._count(content, rendered, measures, media)
        self._check_length(sum(counts) + len(content.begun), "")
        passages = list(self._passages(content, rendered, iter(media)))
        slices = sum(len(passage.view.slices) for passage in passages if isinstance(passage, PromptPicture))
        speaks = content.speaks and self._dialogue.speaks
        tools, thinking = prompt_tools(content.tools), self._thinking(content, rendered)
        constraint = self._constraint(tools, thinking)
        ignored = self._ignored(content)
        if content.begun:
            self._check_begun(content.begun)
            passages.append(Words(list(content.begun)))
        portions = list(_portions(passages))
        return Prompt(portions, *counts, slices, speaks, tools, thinking, constraint, ignored, content.begun)

    def _check_begun(self, begun: tuple[int, ...]) -> None:
        """Refuse control tokens in the given beginning of an answer: they could open a message."""
        if not set(begun).isdisjoint({*self._dialogue.ends, *self._dialogue.forbidden.tolist()}):
            problem = "recorded.sampled_ids holds an id that cannot be part of an answer."
            raise UnitRefused(Reason.PARAMS_INVALID, problem, "recorded.sampled_ids")

    def _ignored(self, content: TurnInput) -> tuple[str, ...]:
        return tuple(_without_effect(content, self._dialogue))

    def _thinking(self, content: TurnInput, rendered: list[list[int] | Media]) -> Thinking:
        if not content.enable_thinking or not self._dialogue.template.thinks:
            return Thinking.NO
        return Thinking.BEGUN if self._dialogue.template.opens_thought(rendered) else Thinking.MAY

    def _constraint(self, tools: Tools, thinking: Thinking) -> Constraint | None:
        if tools.mode is not ToolMode.REQUIRED:
            return None
        if self._dialogue.grammar is None:
            raise UnitRefused(
                Reason.CONTENT_UNSUPPORTED,
                "turn.tool_choice: this model cannot be made to call a tool; let it choose.",
                "turn.tool_choice",
            )
        return self._dialogue.grammar.constraint(tools, thinking)

    def _unrolled(self, content: TurnInput, least: int) -> dict[Video, tuple[Seen, ...]]:
        """Return the frames and clips of a turn's videos; `least` is the fewest tokens of all else."""
        dialogue = self._dialogue
        if dialogue.senses is None or dialogue.picture is None:
            return {}
        rules = dialogue.picture

        def tokens(measures: list[Measure], clips: list[int]) -> int:
            assert dialogue.senses is not None
            heard = sum(_MARKS + dialogue.senses.clip_tokens(samples) for samples in clips)
            return sum(map(rules.tokens, measures)) + heard

        def check(more: int) -> None:
            self._check_length(least + more, "at least ")

        return unroll(
            list(_videos(content)),
            dialogue.senses,
            tokens,
            check,
            max_slices=content.max_slice_nums or 1,
            hears=content.omni_mode,
            interleaves=dialogue.interleaves_videos,
            watch=self.watch,
        )

    def _least(self, content: TurnInput, media: list["Medium"]) -> int:
        """Return the fewest tokens that the prompt can have."""
        texts = [part for message in content.messages for part in message.parts if isinstance(part, str)]
        rules = self._dialogue.picture
        picture = rules.tokens(Measure()) if rules else 0
        return sum(map(self._dialogue.template.least_tokens, texts)) + sum(
            self._clip_tokens(part) if isinstance(part, Clip) else picture for _, part in media
        )

    def _clip_tokens(self, clip: Clip) -> int:
        assert self._dialogue.senses is not None
        return _MARKS + self._dialogue.senses.clip_tokens(len(clip.pcm))

    def _check_length(self, tokens: int, about: str) -> None:
        limit = self._dialogue.limit
        if tokens >= limit:
            raise UnitRefused(
                Reason.INPUT_TOO_LONG,
                f"turn.messages has {about}{tokens} tokens; at most {limit - 1} leave room for an answer in "
                f"the context of {limit}. Send fewer or shorter messages.",
                "turn.messages",
            )

    def _rendered(
        self, content: TurnInput, media: list["Medium"], shown: dict[Video, tuple[Seen, ...]]
    ) -> list[list[int] | Media]:
        messages = [
            Message(it.role, list(_in_template(it.parts, shown)), it.calls, it.call_id)
            for it in content.messages
        ]
        if self._system_prompt and messages[0].role != "system":
            messages.insert(0, Message("system", [self._system_prompt]))
        dialogue = self._dialogue
        hears = dialogue.hearing_opens_speech and any(isinstance(part, Clip) for _, part in media)
        try:
            return dialogue.template.prompt(
                messages,
                enable_thinking=content.enable_thinking,
                use_tts_template=content.use_tts_template or hears or (content.speaks and dialogue.speaks),
                joint=dialogue.omni_joint if content.omni_mode else PART_JOINT,
                tools=prompt_tools(content.tools).offered,
            )
        except TemplateRefused as refused:
            raise UnitRefused(
                Reason.CONTENT_UNSUPPORTED,
                f"turn.messages: the model's chat template refuses them ({refused}).",
                "turn.messages",
            ) from None

    def _measured(self, content: TurnInput, media: list["Medium"]) -> Iterator[Measure]:
        """Yield the size in slices of each picture, before any is decoded."""
        for field, part in media:
            if isinstance(part, Picture):
                assert self._dialogue.senses is not None
                yield self._dialogue.senses.measure(
                    part.data, field=f"{field}.image", max_slices=content.max_slice_nums
                )
            elif isinstance(part, Frame):
                yield part.measure

    def _count(
        self,
        content: TurnInput,
        rendered: list[list[int] | Media],
        measures: list[Measure],
        media: list["Medium"],
    ) -> tuple[int, int, int]:
        """Return the tokens of text, audio and pictures; text includes the marks round media and picture
        numbers.
        """
        text = sum(len(piece) for piece in rendered if isinstance(piece, list))
        clips = [self._clip_tokens(part) for _, part in media if isinstance(part, Clip)]
        pictures = slices = 0
        if rules := self._dialogue.picture:
            slices = sum(measure.slices for measure in measures)
            pictures = slices * (rules.slice_tokens - _MARKS)
            text += sum(map(rules.tokens, measures)) - pictures
            text += sum(len(self._number(content, i)) for i in range(len(measures)))
        return text + _MARKS * len(clips), sum(clips) - _MARKS * len(clips), pictures

    def _number(self, content: TurnInput, index: int) -> list[int]:
        """Return the ids that number a picture; empty where pictures have no numbers."""
        rules = self._dialogue.picture
        if rules is None or rules.number_marks is None or content.use_image_id is False:
            return []
        begin, end = rules.number_marks
        return [begin, *self._dialogue.template.encode(str(index)), end]

    def _passages(
        self,
        content: TurnInput,
        rendered: list[list[int] | Media],
        media: Iterator["Medium"],
    ) -> Iterator[Passage]:
        """Yield the prompt with its media decoded, in passages small enough for one tick."""
        dialogue, pictures = self._dialogue, 0
        begin, end = dialogue.clip_marks
        for piece in rendered:
            if isinstance(piece, list):
                for at in range(0, len(piece), _IDS_AT_ONCE):
                    yield Words(piece[at : at + _IDS_AT_ONCE])
                continue
            field, part = next(media)
            assert dialogue.senses is not None
            if isinstance(part, Clip):
                yield Words([begin])
                yield from dialogue.senses.sounds(part.pcm)
                yield Words([end])
                continue
            if number := self._number(content, pictures):
                yield Words(number)
            pictures += 1
            if isinstance(part, Frame):
                yield PromptPicture(part.view)
                continue
            yield PromptPicture(
                dialogue.senses.look(part.data, field=f"{field}.image", max_slices=content.max_slice_nums)
            )


Medium = tuple[str, Picture | Clip | Frame]
"""A picture or a clip, with the path of the part that it comes from."""


def _media(messages: tuple[ChatMessage, ...], shown: dict[Video, tuple[Seen, ...]]) -> Iterator[Medium]:
    """Yield all pictures and clips, those of videos in their places."""
    for i, message in enumerate(messages):
        for j, part in enumerate(message.parts):
            field = f"turn.messages[{i}].content[{j}]"
            if isinstance(part, Video):
                yield from ((f"{field}.video", seen) for seen in shown.get(part, ()))
            elif not isinstance(part, str):
                yield field, part


def _videos(content: TurnInput) -> Iterator[tuple[str, Video]]:
    """Yield all videos with the paths of their files."""
    for i, message in enumerate(content.messages):
        for j, part in enumerate(message.parts):
            if isinstance(part, Video):
                yield f"turn.messages[{i}].content[{j}].video", part


def _new_id() -> str:
    return f"call_{secrets.token_hex(12)}"


def call_grammar(template: ChatTemplate, vocabulary: int, ends: frozenset[int]) -> CallGrammar | None:
    """Return the grammar that forces a model with this vocabulary to call tools; None if that is
    impossible.
    """
    if template.calls is None:
        return None
    try:
        return CallGrammar(template.tokenizer_json(), vocabulary, ends, template.calls, template.token)
    except ValueError as error:
        logger.warning("tool calls cannot be enforced for this model: %s", error)
        return None


def shared_beginnings(template: ChatTemplate, system_prompt: str) -> Iterator[Rows]:
    """Yield the rows that begin every chat with this system prompt, as the template renders it.

    The beginning is the common prefix of the prompts of two different conversations, so it holds nothing of
    either. It is short or empty for a template that takes no system message, or places it elsewhere.
    """
    system = Message("system", [system_prompt])
    for for_speech in (False, True):
        try:
            first, second = (
                template.prompt([system, Message("user", [text])], use_tts_template=for_speech)
                for text in ("a", "1")
            )
        except TemplateRefused:
            return
        ids = [
            [token for piece in prompt if isinstance(piece, list) for token in piece]
            for prompt in (first, second)
        ]
        alike = takewhile(lambda pair: pair[0] == pair[1], zip(*ids, strict=False))
        yield Rows.of_ids([token for token, _ in alike])


def _without_effect(content: TurnInput, dialogue: Dialogue) -> Iterator[str]:
    """Yield the paths of a turn's settings that have no effect on this model."""
    template, pictures = dialogue.template, dialogue.picture
    if content.omni_mode and dialogue.omni_joint == PART_JOINT:
        yield "turn.omni_mode"
    if content.enable_thinking and not template.thinks:
        yield "turn.enable_thinking"
    if content.use_tts_template and not template.prepares_speech:
        yield "turn.use_tts_template"
    if content.max_slice_nums is not None and (pictures is None or pictures.max_slices <= 1):
        yield "turn.image.max_slice_nums"
    if content.use_image_id is not None and (pictures is None or pictures.number_marks is None):
        yield "turn.image.use_image_id"
    if content.tts_mode not in ("", DEFAULT_TTS_MODE):
        yield "turn.tts.mode"
    if content.language:
        yield "turn.tts.language"


def prompt_tools(tools: Tools) -> Tools:
    """Return the tools that the prompt names."""
    return NO_TOOLS if tools.mode is ToolMode.NONE else tools


def _in_template(
    parts: Iterable[str | Picture | Clip | Video | Frame], shown: dict[Video, tuple[Seen, ...]]
) -> Iterator[str | Media]:
    for part in parts:
        match part:
            case str():
                yield part
            case Video():
                yield from _in_template(shown.get(part, ()), shown)
            case Clip():
                yield Media.CLIP
            case _:
                yield Media.PICTURE


def _portions(passages: list[Passage]) -> Iterator[list[Passage]]:
    """Yield the passages in groups, each small enough for one tick."""
    portion: list[Passage] = []
    for passage in passages:
        if portion and sum(map(_share, [*portion, passage])) > 1:
            yield portion
            portion = []
        portion.append(passage)
    if portion:
        yield portion


def clip_rows(passage: Passage) -> int:
    """Return the number of audio embeddings of a passage; other passages need no encoder and count 0."""
    return math.ceil(passage.seconds * ROWS_PER_SECOND) if isinstance(passage, Sound) else 0


def _share(passage: Passage) -> float:
    match passage:
        case Words(ids):
            return len(ids) / _IDS_AT_ONCE
        case PromptPicture(view):
            return len(view.slices) / _PICTURES_AT_ONCE
        case Sound():
            return passage.seconds / _SECONDS_AT_ONCE
