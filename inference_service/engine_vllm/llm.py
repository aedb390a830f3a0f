"""vLLM's `AsyncLLM` as a generator. Imports vLLM, and is imported only where that is installed."""

import time
from collections.abc import AsyncGenerator
from typing import Any

from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.inputs.engine import tokens_input
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.metrics.loggers import StatLoggerBase

from inference_service.engine_vllm.generator import GeneratorDead, Load, OnStep, Sampled
from inference_service.engine_vllm.requests import Request

_CPU_ROWS = 512
"""Tokens of one step on a CPU: a step of vLLM's usual number may take longer than an engine that hangs."""
_STOP_S = 8.0
"""How long the processes of vLLM may take to end before they are killed."""


class LlmGenerator:
    """Implements `Generator`. Made and used on the thread of one event loop."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        """`arguments` are of `AsyncEngineArgs`. Raises whatever vLLM does."""
        self.on_step: OnStep = lambda requests, tokens: None
        if current_platform.is_cpu():
            arguments = {"max_num_batched_tokens": _CPU_ROWS, **arguments}
        self._stats = _Stats(self)
        self._llm = AsyncLLM.from_engine_args(
            AsyncEngineArgs(**arguments, disable_log_stats=True), stat_loggers=[self._stats.made_for]
        )
        self._count = 0
        config = self._llm.vllm_config
        self.context_limit: int = config.model_config.max_model_len
        self.vocabulary: int = config.model_config.get_vocab_size()
        self.device: str = str(config.device_config.device_type)
        self.tensor_parallel_size: int = config.parallel_config.tensor_parallel_size
        self.pipeline_parallel_size: int = config.parallel_config.pipeline_parallel_size
        cache = config.cache_config
        self.load = Load(0, cache.num_gpu_blocks or 0, cache.block_size or 0, 0)

    @property
    def is_dead(self) -> bool:
        return bool(self._llm.errored)

    async def generate(self, request: Request) -> AsyncGenerator[Sampled, None]:
        self._count += 1
        prompt = tokens_input(list(request.ids), cache_salt=request.cache_salt)
        parameters = SamplingParams(**request.parameters(), output_kind=RequestOutputKind.DELTA)
        outputs = self._llm.generate(prompt, parameters, f"request-{self._count}-{time.monotonic_ns()}")
        try:
            async for output in outputs:
                yield Sampled(output.outputs[0].token_ids, output.num_cached_tokens or 0)
        except EngineDeadError as error:
            raise GeneratorDead(str(error)) from error
        finally:
            await outputs.aclose()

    def stop(self) -> None:
        self._llm.shutdown(timeout=_STOP_S)


class _Stats(StatLoggerBase):  # type: ignore[misc]
    """Hands on what vLLM's scheduler says of each step."""

    def __init__(self, generator: LlmGenerator) -> None:
        self._generator = generator

    def made_for(self, vllm_config: Any, engine_index: int = 0) -> "_Stats":
        """Take the place of the factory that vLLM asks for."""
        return self

    def record(
        self,
        scheduler_stats: Any,
        iteration_stats: Any,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        generator = self._generator
        requests = tokens = 0
        if scheduler_stats is not None:
            requests = scheduler_stats.num_running_reqs
            load, found = generator.load, scheduler_stats.prefix_cache_stats
            generator.load = Load(
                round(scheduler_stats.kv_cache_usage * load.blocks),
                load.blocks,
                load.block_tokens,
                load.prefix_tokens + (found.hits if found is not None else 0),
            )
        if iteration_stats is not None:
            tokens = iteration_stats.num_prompt_tokens + iteration_stats.num_generation_tokens
            requests = max(requests, 1)
        generator.on_step(requests, tokens)

    def log_engine_initialized(self) -> None:
        """Nothing: the worker says so."""
