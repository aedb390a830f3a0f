"""Conversion of the worker's options to vLLM's. Imports no vLLM."""

import os
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

from inference_service.engine_vllm.plugin import WORKER
from inference_service.options import MOST_SLOTS, WorkerOptions

_USUAL = {
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
}
"""Defaults of vLLM's variables that the operator has not set. Usage reports are off. Logs go to standard
error, because standard output is the worker's. Processes are spawned, because gRPC's threads break forks.
"""


def prepare_environment(options: WorkerOptions, environment: MutableMapping[str, str] = os.environ) -> None:
    """Set the variables that vLLM reads at import; existing values stay."""
    for name, value in _USUAL.items():
        environment.setdefault(name, value)
    environment[WORKER] = str(os.getpid())
    if options.threads is not None:
        environment.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        environment["OMP_NUM_THREADS"] = str(options.threads)


def engine_arguments(
    options: WorkerOptions, folder: Path, positions: int | None = None, *, has_mistral_layout: bool = False
) -> dict[str, Any]:
    """Return the keyword arguments of vLLM's `AsyncEngineArgs`.

    `positions` is the number of the model's positions. vLLM counts the last sampled token, which needs no
    entry of the context. So it gets one token more than the limit of a context, where the model allows it.
    """
    arguments: dict[str, Any] = {
        "model": str(folder),
        "runner": "generate",
        "dtype": options.dtype or "auto",
        "max_num_seqs": options.slots or MOST_SLOTS,
        "enable_prefix_caching": True,
        "mm_processor_cache_gb": 0,  # a cancel may drop a request that the cache counts on
        "trust_remote_code": False,
        "load_format": "safetensors",
        "generation_config": "vllm",
        "enforce_eager": options.compile == "off",
        "seed": (options.seed or 0) % 2**31,
        "tensor_parallel_size": options.tensor_parallel_size or 1,
        "pipeline_parallel_size": options.pipeline_parallel_size or 1,
    }
    if has_mistral_layout:
        arguments |= dict.fromkeys(("tokenizer_mode", "config_format", "load_format"), "mistral")
    if options.context_limit is not None:
        longest = options.context_limit + 1
        arguments["max_model_len"] = longest if positions is None else min(longest, positions)
    if options.distributed_executor_backend is not None:
        arguments["distributed_executor_backend"] = options.distributed_executor_backend
    if options.quantization is not None:
        arguments["quantization"] = options.quantization
    if options.gpu_memory_utilization is not None:
        arguments["gpu_memory_utilization"] = options.gpu_memory_utilization
    return arguments
