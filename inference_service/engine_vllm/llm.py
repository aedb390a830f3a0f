"""vLLM's `AsyncLLM` as a generator. This module imports vLLM, so it is imported only where vLLM is
installed.
"""

import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any, Final

from PIL import Image
from vllm import SamplingParams
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.engine.protocol import StreamingInput
from vllm.inputs import TokensPrompt
from vllm.inputs.engine import tokens_input
from vllm.model_executor.model_loader import get_model_cls
from vllm.platforms import current_platform
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.metrics.loggers import StatLoggerBase

from inference_service.engine_vllm.generator import (
    SAMPLE_RATE,
    Expanded,
    GeneratorDead,
    Load,
    MediaInput,
    MediaRefused,
    OnStep,
    Request,
    Sampled,
    medium_name,
)
from inference_service.interface.setups import COMMON, Sampling
from inference_service.models.chat_template import Media

_CPU_ROWS = 512
"""Limit of tokens of one step on a CPU: a step of vLLM's default size could take long enough to count as a
hang.
"""
_STOP_S = 8.0
"""Seconds that vLLM's processes have to end before they are killed."""
_MODALITIES: Final = {Media.PICTURE: "image", Media.CLIP: "audio", Media.VIDEO: "video"}
_KINDS: Final = {modality: kind for kind, modality in _MODALITIES.items()}


class LlmGenerator:
    """Implements `Generator`. Created and used on the thread of one event loop."""

    def __init__(self, arguments: dict[str, Any]) -> None:
        """Start vLLM; `arguments` are those of `AsyncEngineArgs`. Raises whatever vLLM raises."""
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
        processor = self._llm.renderer.mm_processor
        limits = processor.info.get_supported_mm_limits() if processor is not None else {}
        self.media = frozenset(kind for kind, name in _MODALITIES.items() if name in limits)
        self.most_embeddings: int = self._llm.input_processor.mm_encoder_cache_size
        cache = config.cache_config
        self.load = Load(0, cache.num_gpu_blocks or 0, cache.block_size or 0, 0)
        # vLLM counts all kinds of layers: those of an encoder or a sliding window take blocks of their own.
        self.whole_contexts = int(cache.kv_cache_max_concurrency or 0)

    @property
    def is_dead(self) -> bool:
        return bool(self._llm.errored)

    def placeholder(self, kind: Media, number: int) -> str:
        model = get_model_cls(self._llm.vllm_config.model_config)
        return str(model.get_placeholder_str(_MODALITIES[kind], number) or "")

    async def expand(self, ids: list[int], media: Sequence[MediaInput]) -> Expanded:
        data: dict[str, list[Any]] = {}
        names: dict[str, list[str]] = {}
        for medium in media:
            modality = _MODALITIES[medium.kind]
            data.setdefault(modality, []).append(_item(medium))
            names.setdefault(modality, []).append(medium.name)
        prompt = TokensPrompt(prompt_token_ids=ids, multi_modal_data=data, multi_modal_uuids=names)
        try:
            made = await self._llm.renderer.process_for_engine_async(prompt, time.time())
        except (ValueError, TypeError, RuntimeError, IndexError, AssertionError) as error:
            # The model's processor raises errors of all these types.
            raise MediaRefused(" ".join(str(error).split())[:200] or type(error).__name__) from error
        counts = tuple(
            (_KINDS[modality], int(place.get_num_embeds()))
            for modality, places in made["mm_placeholders"].items()
            for place in places
        )
        return Expanded(tuple(made["prompt_token_ids"]), counts, made)

    async def generate(self, request: Request) -> AsyncGenerator[Sampled, None]:
        if request.payload is None:
            prompt = tokens_input(list(request.ids), cache_salt=request.cache_salt)
        else:
            prompt = {**request.payload}
            if request.cache_salt is not None:
                prompt["cache_salt"] = request.cache_salt
        outputs = self._llm.generate(prompt, _parameters(request), self._named())
        try:
            async for output in outputs:
                yield Sampled(output.outputs[0].token_ids, output.num_cached_tokens or 0)
        except EngineDeadError as error:
            raise GeneratorDead(str(error)) from error
        finally:
            await outputs.aclose()

    async def listen(self, steps: AsyncGenerator[Request, None]) -> AsyncGenerator[Sampled, None]:
        first = _parameters(Request((0,), 1, Sampling(temperature=0.0), frozenset(), 0, COMMON))
        outputs = self._llm.generate(self._heard(steps), first, self._named())
        try:
            async for output in outputs:
                if output.outputs[0].token_ids:
                    yield Sampled(output.outputs[0].token_ids)
        except EngineDeadError as error:
            raise GeneratorDead(str(error)) from error
        finally:
            await outputs.aclose()

    async def _heard(self, steps: AsyncGenerator[Request, None]) -> AsyncGenerator[StreamingInput, None]:
        async for step in steps:
            name = medium_name(step.tenant, Media.CLIP.name, step.payload.tobytes())
            prompt = TokensPrompt(
                prompt_token_ids=list(step.ids),
                multi_modal_data={"audio": (step.payload, None)},
                multi_modal_uuids={"audio": [name]},
            )
            made = await self._llm.renderer.process_for_engine_async(prompt, time.time())
            if step.cache_salt is not None:
                made["cache_salt"] = step.cache_salt
            yield StreamingInput(made, _parameters(step))

    def _named(self) -> str:
        self._count += 1
        return f"request-{self._count}-{time.monotonic_ns()}"

    def stop(self) -> None:
        self._llm.shutdown(timeout=_STOP_S)


def _parameters(request: Request) -> SamplingParams:
    return SamplingParams(**request.parameters(), output_kind=RequestOutputKind.DELTA)


def _item(medium: MediaInput) -> Any:
    match medium.kind:
        case Media.PICTURE:
            return Image.fromarray(medium.content, "RGB")
        case Media.CLIP:
            return medium.content, SAMPLE_RATE
        case Media.VIDEO:
            frames = len(medium.content)
            about = {
                "fps": medium.frames_per_s,
                "duration": frames / medium.frames_per_s,
                "total_num_frames": frames,
                "frames_indices": list(range(frames)),
                "video_backend": "opencv",
                "do_sample_frames": False,
            }
            return medium.content, about


class _Stats(StatLoggerBase):  # type: ignore[misc]
    """Passes on the statistics of each step of vLLM's scheduler."""

    def __init__(self, generator: LlmGenerator) -> None:
        self._generator = generator

    def made_for(self, vllm_config: Any, engine_index: int = 0) -> "_Stats":
        """Return itself, as the factory that vLLM asks for."""
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
        """Log nothing: the worker logs its start."""
