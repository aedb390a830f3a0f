"""Folders of language models, and the engine that serves chats and token streams with such a model."""

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch

from inference_service.checkpoints.causal import CausalFolder, read_folder
from inference_service.engine_vllm.chat import VllmChat
from inference_service.engine_vllm.engine import SessionFactory, VllmEngine
from inference_service.engine_vllm.folder import RunningVllm, positions_of
from inference_service.engine_vllm.generator import SAMPLE_RATE, Expanded, Generator, MediaInput, Request
from inference_service.engine_vllm.loop import LoopThread
from inference_service.engine_vllm.tokens import StreamRules, VllmStream
from inference_service.interface.engine import Deliver, ModelInfo, Sink
from inference_service.interface.setups import (
    COMMON,
    ChatSetup,
    DuplexSettings,
    Mode,
    Sampling,
    SessionSetup,
    TokensSetup,
    Window,
)
from inference_service.models.chat_template import Media
from inference_service.models.errors import CheckpointError
from inference_service.session.kinds.prompt import Dialogue

_EXPAND_S = 60.0
"""Limit in seconds for preparing the media of a turn, including the wait for other turns."""


@dataclass(frozen=True)
class TextFolder:
    """Implements `ServedFolder`."""

    about: CausalFolder
    positions: int | None
    has_mistral_layout: bool = False

    async def compute_first(self, generator: Generator, context_limit: int) -> None:
        request = Request((0,), 1, Sampling(temperature=0.0), frozenset(), 0, COMMON)
        async with aclosing(generator.generate(request)) as steps:
            async for _ in steps:
                pass

    def assemble(self, vllm: RunningVllm) -> VllmEngine:
        about, vocabulary = self.about, vllm.generator.vocabulary
        if about.tokens > vocabulary:
            raise CheckpointError(f"The tokenizer has {about.tokens} tokens; the model has {vocabulary}.")
        limit = vllm.context_limit
        return VllmEngine(
            vllm.generator,
            vllm.thread,
            _kinds(about, vllm.generator, vllm.thread, vllm.deliver, limit),
            _model_info(about, limit, vllm),
            vllm.slots or vllm.whole_contexts,
            vllm.deliver,
            vllm.on_fatal,
        )


def read_text(folder: Path) -> TextFolder:
    """Read the tokenizer, chat template and sizes of a language model. Raises `CheckpointError`."""
    return TextFolder(read_folder(folder), positions_of(folder))


def _kinds(
    about: CausalFolder, generator: Generator, thread: LoopThread, deliver: Deliver, limit: int
) -> Mapping[type[SessionSetup], SessionFactory]:
    rules = StreamRules(about.tokenizer, about.ends, limit)

    def stream(name: str, setup: TokensSetup, sink: Sink) -> VllmStream:
        return VllmStream(name, sink, setup, rules, generator, deliver)

    def expand(ids: list[int], media: Sequence[MediaInput]) -> Expanded:
        return thread.run(generator.expand(ids, media), _EXPAND_S)

    def chat(dialogue: Dialogue, name: str, setup: ChatSetup, sink: Sink) -> VllmChat:
        return VllmChat(name, sink, setup, dialogue, generator, deliver, expand)

    kinds: dict[type[SessionSetup], SessionFactory] = {TokensSetup: stream}
    if about.template is not None:
        nothing = torch.empty(0, dtype=torch.long)
        kinds[ChatSetup] = partial(chat, Dialogue(about.template, limit, about.ends, nothing))
    return kinds


def _model_info(about: CausalFolder, limit: int, vllm: RunningVllm) -> ModelInfo:
    template, media = about.template, vllm.generator.media
    sees = bool(media & {Media.PICTURE, Media.VIDEO})
    return ModelInfo(
        name=about.name,
        context_limit=limit,
        input_sample_rate_hz=SAMPLE_RATE if Media.CLIP in media else 0,
        output_sample_rate_hz=0,
        unit_seconds=0.0,
        duplex_defaults=DuplexSettings(),
        window=Window(),
        modes=frozenset({Mode.TOKENS} | ({Mode.CHAT} if template is not None else set())),
        sampling_defaults=about.sampling,
        sees=sees,
        max_slices=int(sees),
        speaks=False,
        vocabulary=vllm.generator.vocabulary,
        calls_tools=template is not None and template.calls is not None,
        engine=vllm.info,
        sampling_without_effect=frozenset({"length_penalty"}),
    )
