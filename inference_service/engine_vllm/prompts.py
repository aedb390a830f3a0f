"""Prompts of chats with vLLM, whose own processor prepares pictures, clips and videos."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from antiphon.contract import Reason
from inference_service.engine_vllm.generator import Expanded, Generator, MediaInput, MediaRefused, medium_name
from inference_service.errors import UnitRefused
from inference_service.interface.setups import (
    Clip,
    Content,
    Picture,
    Tenant,
    TurnInput,
    Video,
)
from inference_service.media.image import decode_picture
from inference_service.media.pool import Priority
from inference_service.models.chat_template import PART_JOINT, Media, Message, TemplateRefused
from inference_service.session.kinds.prompt import (
    ChatPreprocessor,
    Dialogue,
    Prompt,
    Words,
    prompt_tools,
)
from inference_service.video.messages import Order
from inference_service.video.process import VideoReader

MOST_VIDEO_S: Final = 600.0
"""Limit of seconds of all videos of a turn."""
FRAME_PIXELS: Final = 602_112
"""Limit of pixels of a frame of a video: 768 squares of 28 x 28, the maximum of Qwen2.5-VL.

One frame of each second is read.
"""
_KINDS: Final = {Picture: Media.PICTURE, Clip: Media.CLIP, Video: Media.VIDEO}
_LACKS: Final = {
    Media.PICTURE: "sees no pictures",
    Media.CLIP: "hears no audio",
    Media.VIDEO: "sees no videos",
}

Expand = Callable[[list[int], Sequence[MediaInput]], Expanded]
"""The generator's `expand`, for any thread. Raises `MediaRefused`, and `TimeoutError`."""


@dataclass(frozen=True)
class MediaPrompt(Prompt):
    """A prompt with media."""

    payload: Any = None
    """The payload for `Request`."""


class VllmPreprocessor(ChatPreprocessor):
    """Renders conversations, and lets vLLM's processor turn their media into arrays."""

    def __init__(
        self, dialogue: Dialogue, system_prompt: str, generator: Generator, tenant: Tenant, expand: Expand
    ) -> None:
        super().__init__(dialogue, system_prompt)
        self._generator = generator
        self._tenant = tenant
        self._expand = expand

    def priority(self, content: Content | None) -> Priority:
        """Return the priority of a turn; turns with media have `VIDEOS`: vLLM prepares one at a time."""
        has_media = isinstance(content, TurnInput) and any(_media(content))
        return Priority.VIDEOS if has_media else super().priority(content)

    def prepare(self, content: Content) -> Prompt:
        if not isinstance(content, TurnInput):
            raise TypeError(f"A chat takes TurnInput, not {type(content).__name__}.")
        parts = list(_media(content))
        if not parts and self._dialogue.template.takes_text:
            return super().prepare(content)
        for field, part in parts:
            self._require(field, part)
        self._check_length(self._least(content, []) + len(parts), "at least ")
        rendered = self._rendered_for(content, {_KINDS[type(part)] for _, part in parts})
        ids = self._filled(rendered)
        self._check_length(len(ids), "at least ")
        expanded = Expanded(tuple(ids), (), None)
        if parts:
            expanded = self._expanded(ids, list(self._decoded(parts)))
            self._check_length(len(expanded.ids), "")
        audio = sum(count for kind, count in expanded.embeddings if kind is Media.CLIP)
        vision = sum(count for kind, count in expanded.embeddings if kind is not Media.CLIP)
        tools, thinking = prompt_tools(content.tools), self._thinking(content, rendered)
        return MediaPrompt(
            [[Words(list(expanded.ids))]],
            len(expanded.ids) - audio - vision,
            audio,
            vision,
            slices=sum(kind is Media.PICTURE for kind, _ in expanded.embeddings),
            tools=tools,
            thinking=thinking,
            constraint=self._constraint(tools, thinking),
            ignored_fields=self._ignored(content),
            payload=expanded.payload,
        )

    def _require(self, field: str, part: Picture | Clip | Video) -> None:
        """Refuse media that the model does not support."""
        kind = _KINDS[type(part)]
        problem = None if kind in self._generator.media else f"this model {_LACKS[kind]}"
        if isinstance(part, Video) and part.stack_frames > 1:
            field, problem = f"{field}.video.stack_frames", "the engine vllm sees one frame of each second"
        if problem is not None:
            raise UnitRefused(Reason.CONTENT_UNSUPPORTED, f"{field}: {problem}.", field)

    def _rendered_for(self, content: TurnInput, kinds: set[Media]) -> list[list[int] | Media]:
        """Return the prompt; the template marks the places of media itself where it can."""
        template = self._dialogue.template
        messages = [
            Message(it.role, list(map(_in_template, it.parts)), it.calls, it.call_id)
            for it in content.messages
        ]
        if self._system_prompt and messages[0].role != "system":
            messages.insert(0, Message("system", [self._system_prompt]))
        try:
            return template.prompt(
                messages,
                enable_thinking=content.enable_thinking,
                use_tts_template=content.use_tts_template,
                joint=PART_JOINT,
                tools=prompt_tools(content.tools).offered,
                in_lists=not template.takes_text or bool(kinds & template.media_marks),
            )
        except TemplateRefused as refused:
            raise UnitRefused(
                Reason.CONTENT_UNSUPPORTED,
                f"turn.messages: the model's chat template refuses them ({refused}).",
                "turn.messages",
            ) from None

    def _filled(self, rendered: list[list[int] | Media]) -> list[int]:
        """Return the ids of a prompt, with the model's own marks where the template has written none."""
        ids: list[int] = []
        counts = dict.fromkeys(Media, 0)
        for piece in rendered:
            if isinstance(piece, Media):
                counts[piece] += 1
                text = self._generator.placeholder(piece, counts[piece])
                ids += self._dialogue.template.encode(text)
            else:
                ids += piece
        return ids

    def _decoded(self, parts: Sequence[tuple[str, Picture | Clip | Video]]) -> Iterator[MediaInput]:
        left_s = MOST_VIDEO_S
        for field, part in parts:
            kind = _KINDS[type(part)]
            match part:
                case Picture(data):
                    yield MediaInput(
                        kind, decode_picture(data, field=f"{field}.image"), self._named(kind, data)
                    )
                case Clip(pcm):
                    yield MediaInput(kind, pcm, self._named(kind, pcm.tobytes()))
                case Video():
                    order = Order(left_s, FRAME_PIXELS)
                    with VideoReader(part.data, order, field=f"{field}.video", watch=self.watch) as reader:
                        frames = np.stack([pictures[0] for _, pictures in reader.pictures()])
                        left_s -= reader.seconds
                    yield MediaInput(kind, frames, self._named(kind, part.data))

    def _named(self, kind: Media, data: bytes) -> str:
        return medium_name(self._tenant, kind.name, data)

    def _expanded(self, ids: list[int], media: list[MediaInput]) -> Expanded:
        try:
            expanded = self._expand(ids, media)
        except MediaRefused as refused:
            raise UnitRefused(
                Reason.CONTENT_UNSUPPORTED,
                f"turn.messages: the model's processor refuses their media ({refused}).",
                "turn.messages",
            ) from None
        largest = max((count for _, count in expanded.embeddings), default=0)
        if largest > self._generator.most_embeddings:
            raise UnitRefused(
                Reason.INPUT_TOO_LONG,
                f"turn.messages holds a picture, clip or video of {largest} tokens; at most "
                f"{self._generator.most_embeddings} fit. Send a smaller one.",
                "turn.messages",
            )
        return expanded


def _media(content: TurnInput) -> Iterator[tuple[str, Picture | Clip | Video]]:
    """Yield all media, with the paths of their parts."""
    for i, message in enumerate(content.messages):
        for j, part in enumerate(message.parts):
            if not isinstance(part, str):
                yield f"turn.messages[{i}].content[{j}]", part


def _in_template(part: str | Picture | Clip | Video) -> str | Media:
    return part if isinstance(part, str) else _KINDS[type(part)]
