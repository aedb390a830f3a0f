"""A Voxtral Realtime model on its device: it hears and writes."""

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch

from inference_service.api.engine import ModelInfo, SessionFailed, Sink
from inference_service.api.setups import DuplexSettings, Mode, Sampling, SessionSetup, TranscribeSetup, Window
from inference_service.checkpoints.voxtral import VoxtralCheckpoint
from inference_service.engine.batch.decoder import PackedDecoder
from inference_service.engine.batch.memory import bytes_per_row
from inference_service.engine.batch.rolling import SLACK, RollingContext
from inference_service.engine.guard import blame
from inference_service.engine.runtime import Runtime
from inference_service.engine.sessions.base import Session
from inference_service.engine.text.textstream import Detokenizer
from inference_service.families.footprint import Footprint
from inference_service.families.voxtral_session import VoxtralPreprocessor, VoxtralTranscription
from inference_service.families.working_memory import forward_bytes
from inference_service.models.errors import CheckpointError

HEARD_AT_ONCE = 32
"""Tokens' worth of sound that a session hears in one tick; more of a long chunk waits for the next."""
BEGIN, PAD = "<s>", "[STREAMING_PAD]"


class VoxtralRuntime(Runtime):
    """Loaded weights and the caches of both stacks, each a slab that its sliding window bounds."""

    def __init__(self, checkpoint: VoxtralCheckpoint, slots: int) -> None:
        model, self._tekken, self._features = checkpoint.model, checkpoint.tekken, checkpoint.features
        config = model.network.config
        self._reach = _reach(config.text_config)
        self._ear_reach = _reach(config.audio_config)
        slack = max(SLACK, model.pacing.prompt_tokens, HEARD_AT_ONCE * model.rows_per_token)
        footprint = _footprint(checkpoint, self._reach + slack, self._ear_reach + slack)
        footprint.require(slots, model.network.device)
        condition = {"t_cond": model.condition()}
        language = PackedDecoder(model.language, slots, self._reach + slack, condition)
        super().__init__(
            _info(checkpoint, self._reach), language, model.language.embed_tokens, model.network.lm_head
        )
        self.ear = PackedDecoder(model.encoder, slots, self._ear_reach + slack)
        self.model = model
        pads = model.pacing.left_pad_tokens + model.pacing.delay_tokens
        self._pad = self._tekken.control(PAD)
        self._prompt = [self._tekken.control(BEGIN), *[self._pad] * pads]
        self._pad_embedding = self.embed([self._pad]).detach()
        lead_in = np.zeros(model.pacing.left_pad_tokens * model.pacing.samples_per_token, np.float32)
        self._silence = self._features(
            lead_in, sampling_rate=model.pacing.sample_rate_hz, return_tensors="pt"
        )["input_features"][0].T

    def open(self, session_id: str, slot: int, setup: SessionSetup, sink: Sink) -> VoxtralTranscription:
        if not isinstance(setup, TranscribeSetup):
            raise TypeError(f"This model takes no {type(setup).__name__}.")
        deaf = self.model.initial_state()
        return VoxtralTranscription(
            session_id,
            slot,
            sink,
            RollingContext(self.language, slot, Window(), self._reach, reach=self._reach),
            VoxtralPreprocessor(self._features, self.model.pacing),
            setup,
            torch.Generator().manual_seed(setup.seed),
            Detokenizer(self._tekken.decode),
            tekken=self._tekken,
            prompt=self._prompt,
            pad=self._pad_embedding,
            pad_token=self._pad,
            silence=self._silence,
            heard_at_once=HEARD_AT_ONCE * self.model.pacing.mels_per_token,
            ear=RollingContext(self.ear, slot, Window(), self._ear_reach, reach=self._ear_reach),
            deaf=deaf,
            past=deaf,
            audio=self._pad_embedding[:0],
        )

    def start(self, session: Session[Any]) -> SessionFailed | None:
        cast(VoxtralTranscription, session).ready(len(self._prompt))
        return None

    def hear(self, sessions: Sequence[Session[Any]]) -> None:
        """Encodes the next frames of each session, all in one forward of the encoder."""
        writers = cast(Sequence[VoxtralTranscription], sessions)
        mels = [writer.next_frames().to(self.device) for writer in writers]
        rows, pasts = self.model.embed(mels, [writer.past for writer in writers])
        segments = [writer.ear.segment(new) for writer, new in zip(writers, rows, strict=True)]
        for writer, past, hidden in zip(writers, pasts, self.ear.forward(segments), strict=True):
            with blame(writer):
                writer.past = past
                writer.ear.advance(len(hidden))
                ids = writer.hear(self.model.project(hidden))
                writer.start_step(self.embed(ids))

    def clear(self, slot: int) -> None:
        super().clear(slot)
        self.ear.cache.clear(slot)


def _reach(config: Any) -> int:
    """The sliding window of a stack; without one an utterance would grow without end."""
    if not config.sliding_window:
        raise CheckpointError(f"config.json states no sliding_window for its {config.model_type}.")
    return int(config.sliding_window)


def _footprint(checkpoint: VoxtralCheckpoint, rows: int, ear_rows: int) -> Footprint:
    """Memory of its sessions, whose caches have so many rows, and all of which may hear in one step."""
    network, heard = checkpoint.model.network, HEARD_AT_ONCE * checkpoint.model.rows_per_token
    text, audio = network.config.text_config, network.config.audio_config
    dtype, device = network.dtype, network.device
    return Footprint(
        {},
        {
            "context": rows * bytes_per_row(text, dtype),
            "ear": ear_rows * bytes_per_row(audio, dtype),
            "hearing": forward_bytes(audio, dtype, heard, ear_rows, device),
        },
        working={"forward": forward_bytes(text, dtype, Runtime.budget, rows, device)},
    )


def _info(checkpoint: VoxtralCheckpoint, reach: int) -> ModelInfo:
    pacing = checkpoint.model.pacing
    return ModelInfo(
        name=checkpoint.name,
        context_limit=reach,
        input_sample_rate_hz=pacing.sample_rate_hz,
        output_sample_rate_hz=0,
        unit_seconds=pacing.samples_per_token / pacing.sample_rate_hz,
        duplex_defaults=DuplexSettings(),
        window=Window(),
        modes=frozenset({Mode.TRANSCRIBE}),
        sampling_defaults=Sampling(max_new_tokens=reach, temperature=0.0, top_p=1.0),
        speaks=False,
        vocabulary=checkpoint.tekken.size,
    )
