"""From the messages of a chat to the prompt that the engine feeds: on the media thread."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from antiphon.semconv import Reason
from inference_service.engine.api import ChatMessage, Clip, Content, Picture, TurnInput
from inference_service.engine.intake import Intake
from inference_service.errors import UnitRefused
from inference_service.media.image import decode_frame
from inference_service.media.mel import HOP, SAMPLE_RATE, MelStream
from inference_service.models.chat_template import ChatTemplate, Media, Message, TemplateRefused

_SECOND = SAMPLE_RATE // HOP
"""Mel frames of a second."""
_MARKS = 2
"""Round a picture and round a clip."""
_IDS_AT_ONCE = 1024
_SECONDS_AT_ONCE = 8
_PICTURES_AT_ONCE = 4
"""What one tick embeds and encodes of a prompt at most: a long one does not hold up the other sessions."""


@dataclass(frozen=True)
class Dialogue:
    """What a model is in a chat."""

    template: ChatTemplate
    limit: int
    """Tokens of the context."""
    ends: frozenset[int]
    """Ids that end an answer."""
    forbidden: Tensor
    """Ids that no answer may hold."""
    opens_with_space: bool = False
    """Whether its answers begin with a space, because all its words do; it is not shown."""
    speaks: bool = False
    clip_marks: tuple[int, int] = (0, 0)
    """The ids round a clip."""
    second_tokens: int = 0
    """Embeddings of a second of a clip; 0 for a model that hears nothing."""
    side: int = 0
    """Width and height of its pictures."""
    picture_tokens: int = 0
    """Embeddings of one picture with the marks round it; 0 for a model that sees nothing."""


@dataclass(frozen=True)
class Words:
    """Ids of a prompt."""

    ids: list[int]


@dataclass(frozen=True)
class Sight:
    """A picture, uint8 [side, side, 3]."""

    pixels: Tensor


@dataclass(frozen=True)
class Sound:
    """Whole seconds of a clip, log-mel [frames, 80]; `begins` for its first ones."""

    mel: Tensor
    begins: bool


Passage = Words | Sight | Sound


@dataclass(frozen=True)
class Prompt:
    """A rendered conversation, in portions of which a tick takes one."""

    portions: list[list[Passage]]
    text_tokens: int
    audio_tokens: int
    vision_tokens: int
    pictures: int
    speaks: bool = False
    """Whether the answer is to be said aloud."""


class TurnIntake(Intake[Prompt]):
    """Renders conversations with the model's chat template and decodes what they show and play."""

    is_quick = False

    def __init__(self, dialogue: Dialogue, system_prompt: str) -> None:
        self._dialogue = dialogue
        self._system_prompt = system_prompt

    def prepare(self, content: Content) -> Prompt:
        if not isinstance(content, TurnInput):
            raise TypeError(f"A chat takes TurnInput, not {type(content).__name__}.")
        media = list(_media(content.messages))
        self._check_length(self._least(content, media), "at least ")
        rendered = self._rendered(content)
        counts = self._count(rendered, media)
        self._check_length(sum(counts), "")
        passages = list(self._passages(rendered, iter(media)))
        pictures = sum(isinstance(passage, Sight) for passage in passages)
        speaks = content.speaks and self._dialogue.speaks
        return Prompt(list(_portions(passages)), *counts, pictures, speaks)

    def _least(self, content: TurnInput, media: list[tuple[str, Picture | Clip]]) -> int:
        """How many tokens the prompt has at least."""
        texts = [part for message in content.messages for part in message.parts if isinstance(part, str)]
        return sum(map(self._dialogue.template.least_tokens, texts)) + sum(
            self._tokens(part) for _, part in media
        )

    def _tokens(self, part: Picture | Clip) -> int:
        if isinstance(part, Picture):
            return self._dialogue.picture_tokens
        return _MARKS + _seconds(part) * self._dialogue.second_tokens

    def _check_length(self, tokens: int, about: str) -> None:
        limit = self._dialogue.limit
        if tokens >= limit:
            raise UnitRefused(
                Reason.INPUT_TOO_LONG,
                f"turn.messages has {about}{tokens} tokens; at most {limit - 1} leave room for an answer in "
                f"the context of {limit}. Send fewer or shorter messages.",
                "turn.messages",
            )

    def _rendered(self, content: TurnInput) -> list[list[int] | Media]:
        messages: list[Message] = [
            (message.role, [_in_template(part) for part in message.parts]) for message in content.messages
        ]
        if self._system_prompt and messages[0][0] != "system":
            messages.insert(0, ("system", [self._system_prompt]))
        try:
            return self._dialogue.template.prompt(
                messages,
                enable_thinking=content.enable_thinking,
                use_tts_template=content.use_tts_template or (content.speaks and self._dialogue.speaks),
            )
        except TemplateRefused as refused:
            raise UnitRefused(
                Reason.CONTENT_UNSUPPORTED,
                f"turn.messages: the model's chat template refuses them ({refused}).",
                "turn.messages",
            ) from None

    def _count(
        self, rendered: list[list[int] | Media], media: list[tuple[str, Picture | Clip]]
    ) -> tuple[int, int, int]:
        """Tokens of text, with the marks round media, of audio and of pictures."""
        text = sum(len(piece) for piece in rendered if isinstance(piece, list))
        clips = [self._tokens(part) - _MARKS for _, part in media if isinstance(part, Clip)]
        pictures = [self._tokens(part) - _MARKS for _, part in media if isinstance(part, Picture)]
        return text + _MARKS * len(media), sum(clips), sum(pictures)

    def _passages(
        self, rendered: list[list[int] | Media], media: Iterator[tuple[str, Picture | Clip]]
    ) -> Iterator[Passage]:
        """The prompt with its media decoded, each passage small enough for one tick."""
        begin, end = self._dialogue.clip_marks
        for piece in rendered:
            if isinstance(piece, list):
                for at in range(0, len(piece), _IDS_AT_ONCE):
                    yield Words(piece[at : at + _IDS_AT_ONCE])
                continue
            field, part = next(media)
            if isinstance(part, Picture):
                pixels = decode_frame(part.data, field=f"{field}.image", side=self._dialogue.side)
                yield Sight(torch.from_numpy(pixels))
            else:
                yield Words([begin])
                yield from _sounds(part)
                yield Words([end])


def _media(messages: tuple[ChatMessage, ...]) -> Iterator[tuple[str, Picture | Clip]]:
    """All pictures and clips with their paths."""
    for i, message in enumerate(messages):
        for j, part in enumerate(message.parts):
            if not isinstance(part, str):
                yield f"turn.messages[{i}].content[{j}]", part


def _in_template(part: str | Picture | Clip) -> str | Media:
    if isinstance(part, str):
        return part
    return Media.PICTURE if isinstance(part, Picture) else Media.CLIP


def _seconds(clip: Clip) -> int:
    return -(-len(clip.pcm) // SAMPLE_RATE)


def _sounds(clip: Clip) -> Iterator[Sound]:
    """A clip, filled up with silence to whole seconds."""
    pcm = np.pad(clip.pcm, (0, _seconds(clip) * SAMPLE_RATE - len(clip.pcm)))
    stream, size = MelStream(), SAMPLE_RATE * _SECONDS_AT_ONCE
    for at in range(0, len(pcm), size):
        yield Sound(torch.from_numpy(stream.hear(pcm[at : at + size])), begins=at == 0)


def _portions(passages: list[Passage]) -> Iterator[list[Passage]]:
    """As many passages at a time as one tick may take."""
    portion: list[Passage] = []
    for passage in passages:
        if portion and sum(map(_share, [*portion, passage])) > 1:
            yield portion
            portion = []
        portion.append(passage)
    if portion:
        yield portion


def _share(passage: Passage) -> float:
    match passage:
        case Words(ids):
            return len(ids) / _IDS_AT_ONCE
        case Sight():
            return 1 / _PICTURES_AT_ONCE
        case Sound(mel):
            return len(mel) / (_SECOND * _SECONDS_AT_ONCE)
