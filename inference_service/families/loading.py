"""Loading of a checkpoint into an engine, and its warm-up."""

import logging

import torch

from inference_service.checkpoints.location import find
from inference_service.config.shared_prompts import read_shared_prompts
from inference_service.errors import ConfigurationError
from inference_service.interface.engine import Deliver, Engine, OnFatal
from inference_service.kernels import selection
from inference_service.options import WorkerOptions

logger = logging.getLogger(__name__)


def usable_device(name: str) -> torch.device:
    """Return the device of that name, a CUDA device with its number.

    Raises `ConfigurationError` if this machine or build of torch has none.
    """
    try:
        device = torch.device(name)
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", torch.cuda.current_device())
        torch.empty(1, device=device).cpu()
    except (RuntimeError, AssertionError) as error:  # a build without CUDA raises the latter
        reason = str(error).splitlines()[0].partition(". ")[0]
        raise ConfigurationError(
            f"Cannot use the device {name!r} ({reason}). Pass --device cpu, or one that torch can use here."
        ) from None
    return device


def load_engine(options: WorkerOptions, deliver: Deliver, on_fatal: OnFatal) -> Engine:
    """Load the checkpoint that `options` name, start the engine and warm it up.

    Raises `CheckpointError` if the checkpoint cannot be used, `ConfigurationError` if the device or the file
    of shared prompts cannot be used, or if another engine of this process computes with other kernels.
    """
    selection.select(options.kernels)
    torch.set_num_threads(options.threads or 1)
    device = usable_device(options.device)
    prompts = read_shared_prompts(options.shared_prompts) if options.shared_prompts is not None else []
    # These imports take seconds; errors in the device or the prompts are raised before them.
    from inference_service.device import compiling
    from inference_service.device.graph import make_current
    from inference_service.device.preparations import PREPARATIONS
    from inference_service.engine.engine import LiveEngine
    from inference_service.families import table
    from inference_service.families.capacity import usual_slots
    from inference_service.families.warmup import warm_up

    make_current(device)
    compiling.choose(options.compile)
    if device.type == "cpu" and selection.state() == "missing":
        logger.warning(
            "CPU kernels missing: steps take about twice as long. Install gcc and python3-dev, and then "
            "antiphon again."
        )
    logger.info("loading the model", extra={"model": options.model, "kernels": selection.state()})
    with PREPARATIONS.under_way():
        build = table.load(
            find(options.model), device, options.context_limit, options.dtype, options.speech, options.ear
        )
        build.try_out(1, warm_up)
        slots = options.slots or usual_slots(build)
        runtime = build(slots)
        runtime.share(prompts)
        runtime.capture()
    return LiveEngine(runtime, slots, deliver, on_fatal)
