"""The runtime of a Voxtral Realtime model, which transcribes."""

from typing import Any

from inference_service.checkpoints.voxtral import VoxtralCheckpoint
from inference_service.engine.batch.decoder import PackedDecoder
from inference_service.engine.batch.memory import bytes_per_row
from inference_service.engine.batch.pages import slot_rows
from inference_service.engine.batch.rolling import SLACK
from inference_service.engine.runtime import Runtime
from inference_service.families.memory.footprint import Footprint
from inference_service.families.memory.working_memory import DECODER_SHAPES, forward_bytes, kernel_bytes
from inference_service.families.voxtral_session import HEARD_AT_ONCE, VoxtralKind
from inference_service.interface.setups import TranscribeSetup
from inference_service.models.errors import CheckpointError
from inference_service.session.kinds.transcription import transcriber_info


class VoxtralRuntime(Runtime):
    """Loaded weights and the caches of both stacks; sliding windows limit the size of the caches."""

    def __init__(self, checkpoint: VoxtralCheckpoint, slots: int) -> None:
        model, config = checkpoint.model, checkpoint.model.network.config
        reach = _reach(config.text_config)
        ear_reach = _reach(config.audio_config)
        slack = max(SLACK, model.pacing.prompt_tokens, HEARD_AT_ONCE * model.rows_per_token)
        footprint = _footprint(checkpoint, reach + slack, ear_reach + slack)
        footprint.require(slots, model.network.device)
        condition = {"t_cond": model.condition()}
        language = PackedDecoder(model.language, slots, reach + slack, condition, model.language.embed_tokens)
        super().__init__(
            transcriber_info(checkpoint.name, checkpoint.model.pacing, reach, checkpoint.tekken.size),
            language,
            model.network.lm_head,
        )
        self.ear = PackedDecoder(model.encoder, slots, ear_reach + slack)
        self.kinds[TranscribeSetup] = VoxtralKind(self, checkpoint, self.ear, ear_reach)

    @property
    def decoders(self) -> list[PackedDecoder]:
        return [self.language, self.ear]

    def clear(self, slot: int) -> None:
        super().clear(slot)
        self.ear.cache.clear(slot)


def _reach(config: Any) -> int:
    """Return the sliding window of a stack.

    Raises `CheckpointError` if there is none: the cache of an utterance would grow without limit.
    """
    if not config.sliding_window:
        raise CheckpointError(f"config.json states no sliding_window for its {config.model_type}.")
    return int(config.sliding_window)


def _footprint(checkpoint: VoxtralCheckpoint, rows: int, ear_rows: int) -> Footprint:
    """Return the memory of sessions with caches of these rows; all sessions may encode sound in one step."""
    network, heard = checkpoint.model.network, HEARD_AT_ONCE * checkpoint.model.rows_per_token
    text, audio = network.config.text_config, network.config.audio_config
    dtype, device = network.dtype, network.device
    return Footprint(
        {},
        {
            "context": slot_rows(rows) * bytes_per_row(text, dtype),
            "ear": slot_rows(ear_rows) * bytes_per_row(audio, dtype),
            "hearing": forward_bytes(audio, dtype, heard, ear_rows, device),
        },
        {"kernels": kernel_bytes(2 * DECODER_SHAPES, dtype, device)},
        working={"forward": forward_bytes(text, dtype, Runtime.budget, rows, device)},
    )
