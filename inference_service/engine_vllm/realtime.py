"""Folders of models for vLLM's realtime interface, and the engine that transcribes with such a model."""

from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

from inference_service.checkpoints.files import read_json
from inference_service.checkpoints.hub import model_name
from inference_service.engine_vllm.engine import SessionFactory, VllmEngine
from inference_service.engine_vllm.folder import RunningVllm, positions_of
from inference_service.engine_vllm.generator import Generator
from inference_service.engine_vllm.transcription import HearingRules, VllmTranscription, hear_silence
from inference_service.errors import ConfigurationError
from inference_service.interface.engine import Deliver, Sink
from inference_service.interface.setups import TranscribeSetup
from inference_service.models.errors import CheckpointError
from inference_service.models.tekken import Tekken
from inference_service.models.voxtral import Pacing, parse_pacing
from inference_service.session.kinds.transcription import transcriber_info

BEGIN, PAD = "<s>", "[STREAMING_PAD]"
_FILES: Final = ("params.json", "consolidated.safetensors", "tekken.json")
_MELS_PER_ROW: Final = 2
"""Mel frames in a row of the encoder, whose second convolution has this stride."""


@dataclass(frozen=True)
class RealtimeFolder:
    """Implements `ServedFolder` with the name, tokens and pace of a model."""

    name: str
    tekken: Tekken
    pacing: Pacing
    positions: int | None
    has_mistral_layout: bool = True

    def rules(self, limit: int) -> HearingRules:
        """Return the rules of hearing for utterances of at most `limit` tokens."""
        pad = self.tekken.control(PAD)
        pads = self.pacing.prompt_tokens - 1
        return HearingRules(self.tekken, self.pacing, (self.tekken.control(BEGIN), *[pad] * pads), pad, limit)

    async def compute_first(self, generator: Generator, context_limit: int) -> None:
        await hear_silence(generator, self.rules(context_limit))

    def assemble(self, vllm: RunningVllm) -> VllmEngine:
        limit, most = vllm.context_limit, vllm.whole_contexts
        if vllm.slots is not None and vllm.slots > most:
            # An utterance that waits for its next sound keeps its place in the cache.
            raise ConfigurationError(
                f"vLLM's cache holds {most} utterances of {limit} tokens at a time, not {vllm.slots}. Pass "
                f"--slots {most}, a smaller --max-model-len or a greater --gpu-memory-utilization."
            )
        factory: SessionFactory = partial(_open, self.rules(limit), vllm.generator, vllm.deliver)
        model = replace(
            transcriber_info(self.name, self.pacing, limit, vllm.generator.vocabulary),
            engine=vllm.info,
            sampling_without_effect=frozenset({"length_penalty"}),
            supports_background=False,
        )
        return VllmEngine(
            vllm.generator,
            vllm.thread,
            {TranscribeSetup: factory},
            model,
            vllm.slots or most,
            vllm.deliver,
            vllm.on_fatal,
        )


def read_realtime(folder: Path) -> RealtimeFolder:
    """Read the tokens and the pace of a Voxtral Realtime model. Raises `CheckpointError`."""
    for name in _FILES:
        if not (folder / name).is_file():
            raise CheckpointError(
                f"{folder} has no {name}. vLLM reads Voxtral Realtime in Mistral's own layout: "
                f"{', '.join(_FILES)}."
            )
    raw, params = read_json(folder, "tekken.json"), read_json(folder, "params.json")
    try:
        factor = params["multimodal"]["whisper_model_args"]["downsample_args"]["downsample_factor"]
    except (KeyError, TypeError):
        raise CheckpointError(f"{folder / 'params.json'} is not of Voxtral Realtime.") from None
    pacing = parse_pacing(raw.get("audio") or {}, _MELS_PER_ROW * factor)
    return RealtimeFolder(model_name(folder), Tekken(raw), pacing, positions_of(folder))


def _open(
    rules: HearingRules, generator: Generator, deliver: Deliver, name: str, setup: TranscribeSetup, sink: Sink
) -> VllmTranscription:
    return VllmTranscription(name, sink, setup, rules, generator, deliver)
