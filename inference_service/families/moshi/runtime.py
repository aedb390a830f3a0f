"""The runtime of Moshi: a tick encodes a frame of each session's user and computes the model's frame."""

import time
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from inference_service.checkpoints.moshi.folder import MoshiCheckpoint
from inference_service.device.rows import Rows
from inference_service.device.transfer import download, upload
from inference_service.engine.batch.decoder import PackedDecoder
from inference_service.engine.batch.rolling import SLACK
from inference_service.engine.guard import blame
from inference_service.engine.runtime import Runtime
from inference_service.families.moshi.codes import FrameCodes
from inference_service.families.moshi.kind import FrameKind
from inference_service.families.moshi.rewind import MOST
from inference_service.families.moshi.session import FrameSession
from inference_service.interface.engine import ModelInfo
from inference_service.interface.setups import (
    DuplexSettings,
    DuplexSetup,
    Mode,
    UnitFormat,
    Window,
    WindowMode,
)
from inference_service.session.base.session import Session

SETTINGS = DuplexSettings(
    force_listen_count=0,
    temperature=0.7,
    top_k=25,
    top_p=1.0,
    text_repetition_penalty=1.0,
    length_penalty=1.0,
    tts_temperature=0.8,
)
"""Sampling settings of Kyutai's and NVIDIA's servers."""


_WITHOUT_EFFECT = frozenset(
    (
        "max_new_speak_tokens_per_chunk",
        "text_repetition_window_size",
        "length_penalty",
        "listen_top_k",
    )
)
"""Settings of models that first decide in each unit whether to speak, and then write an answer."""
GROUPED = UnitFormat(1.0, 16_000)
"""The usual format of units, that of the public protocols: frames are grouped by 12 and 13. A session may ask
for single frames, at the codec's rate or at 16 kHz.
"""


def slot_capacity(window: int) -> int:
    """Return the rows of a session's slot in the temporal transformer's cache, with those for rewinds."""
    return window + MOST + SLACK


def codec_capacity(window: int) -> int:
    """Return the rows of a slot in either cache of the codec."""
    return window + SLACK


class MoshiRuntime(Runtime):
    """Loaded weights, with the caches of the temporal transformer and of both halves of the codec."""

    def __init__(self, checkpoint: MoshiCheckpoint, slots: int) -> None:
        model, codec = checkpoint.model, checkpoint.model.codec
        embeddings = model.embeddings.text
        language = PackedDecoder(model.temporal, slots, slot_capacity(model.window), embeddings=embeddings)
        super().__init__(info_of(checkpoint), language, model.head)
        rows = codec_capacity(int(codec.network.config.sliding_window))
        self.ear = PackedDecoder(codec.encoder, slots, rows)
        self.mouth = PackedDecoder(codec.decoder, slots, rows)
        self.codes = FrameCodes(model.depth, self.device)
        self._codec = codec
        self.kinds[DuplexSetup] = FrameKind(self, checkpoint, self.ear, self.mouth)

    @property
    def decoders(self) -> list[PackedDecoder]:
        return [self.language, self.ear, self.mouth]

    def speak(self, sessions: Sequence[Session[Any]]) -> None:
        """Sample the codes of every frame in one region, and decode the sound of all audible ones in one
        pass.
        """
        frames = cast(Sequence[FrameSession], sessions)
        hidden = [session.last_hidden for session in frames]
        drawn = [session.code_numbers(self._codec.codes) for session in frames]
        heats, uniforms = zip(*drawn, strict=True)
        saying = [row for row, session in enumerate(frames) if session.is_audible]
        first = np.array([frames[row].said.first for row in saying], np.int64)
        arrays = self.codes.arrays([it.drawn_text for it in frames], heats, uniforms)
        texts, numbers, first_there, rows = upload(self.device, *arrays, first, np.array(saying, np.int64))
        codes = self.codes.draw(torch.stack(cast(list[Tensor], hidden)), texts, numbers)
        spoken_at = time.monotonic()
        sound: Tensor = numbers.new_zeros(0, self._codec.samples)
        states: list[tuple[Tensor | None, ...]] = []
        if saying:
            late = codes.index_select(0, rows)[:, 1:].clamp(min=0)
            sound, states = self._say(
                [frames[row] for row in saying], torch.cat([first_there[:, None], late], dim=1)
            )
        drawn_codes, pcm = download(codes.to(torch.int32), sound)
        parts = {row: (pcm[at], states[at]) for at, row in enumerate(saying)}
        for row, session in enumerate(frames):
            with blame(session):
                own = None
                if row in parts:
                    own, session.mouth_state = parts[row]
                    session.mouth.advance(self._codec.rows)
                session.spoken(drawn_codes[row].tolist(), own, spoken_at)

    def _say(
        self, sessions: Sequence[FrameSession], codes: Tensor
    ) -> tuple[Tensor, list[tuple[Tensor | None, ...]]]:
        """Return sound [n, samples] of codes [n, codes], and the state of each mouth after it."""
        codec, split = self._codec, self._codec.mouth_split
        made, begun = codec.read(codes, [it.mouth_state[:split] for it in sessions])
        segments = [it.mouth.segment(Rows.of(own)) for it, own in zip(sessions, made, strict=True)]
        attended = torch.stack(self.mouth.forward(segments))
        sound, ended = codec.say(attended, [it.mouth_state[split:] for it in sessions])
        return sound, [(*one, *other) for one, other in zip(begun, ended, strict=True)]

    @torch.inference_mode()
    def capture(self) -> None:
        super().capture()
        if self.device.type != "cpu":
            hidden = self.language.cache.keys.new_zeros(1, self.language.backbone.config.hidden_size)
            self.codes.capture(self.language.cache.slots, hidden)

    def clear(self, slot: int) -> None:
        for decoder in self.decoders:
            decoder.cache.clear(slot)


def info_of(checkpoint: MoshiCheckpoint) -> ModelInfo:
    """Return the description of a model."""
    model, codec = checkpoint.model, checkpoint.model.codec
    frame_s = codec.samples / codec.sample_rate_hz
    return ModelInfo(
        name=checkpoint.name,
        context_limit=model.window,
        input_sample_rate_hz=GROUPED.sample_rate_hz,
        output_sample_rate_hz=codec.sample_rate_hz,
        unit_seconds=GROUPED.seconds,
        reads_prompts=checkpoint.reads_prompts,
        without_effect=_WITHOUT_EFFECT,
        other_formats=(
            UnitFormat(frame_s, codec.sample_rate_hz),
            UnitFormat(frame_s, GROUPED.sample_rate_hz),
        ),
        yields=True,
        duplex_defaults=SETTINGS,
        window=Window(),
        modes=frozenset({Mode.AUDIO}),
        windows=frozenset({WindowMode.OFF}),
        voice_ids=frozenset(checkpoint.voices),
        vocabulary=model.texts,
        speech_codes=codec.size,
        codes_per_unit=model.codes,
    )
