"""Transcription by Voxtral Realtime, one token for every 80 ms."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import numpy as np
import torch
from torch import Tensor
from transformers import VoxtralRealtimeFeatureExtractor

from inference_service.checkpoints.voxtral import VoxtralCheckpoint
from inference_service.device.rows import Rows
from inference_service.device.transfer import upload
from inference_service.engine.batch.decoder import PackedDecoder
from inference_service.engine.batch.noise import Noise
from inference_service.engine.batch.rolling import RollingContext
from inference_service.engine.guard import blame
from inference_service.engine.runtime import Runtime
from inference_service.interface.engine import SessionFailed, Sink
from inference_service.interface.setups import Content, TranscribeSetup, Window
from inference_service.media.memo import digest
from inference_service.media.pool import Priority
from inference_service.models.tekken import Tekken
from inference_service.models.voxtral import ConvState, Pacing
from inference_service.session.base.session import Preprocessor, SessionKind, Stage
from inference_service.session.kinds.text import Detokenizer
from inference_service.session.kinds.transcription import (
    ChunkFeatures,
    PaddedSound,
    TranscriptionSession,
    chunk_of,
    priority_of,
)

HEARD_AT_ONCE = 32
"""Limit of the sound that a session encodes in one tick, in tokens; the rest of a long chunk waits."""
BEGIN, PAD = "<s>", "[STREAMING_PAD]"


class VoxtralPreprocessor(Preprocessor[ChunkFeatures]):
    """Cuts chunks of any length into the mel frames of whole tokens.

    Silence precedes and follows an utterance. A frame is centred on its hop, so it needs half a window of
    later sound.
    """

    def __init__(self, features: VoxtralRealtimeFeatureExtractor, pacing: Pacing) -> None:
        self._features = features
        self._pacing = pacing
        centre = features.n_fft // 2
        self._sound = PaddedSound(pacing, centre, centre)

    def priority(self, content: Content | None) -> Priority:
        return priority_of(content)

    def prepare(self, content: Content) -> ChunkFeatures:
        chunk, sound = chunk_of(content)
        begins = self._sound.add(chunk, sound)
        return ChunkFeatures(self._mel(), begins, chunk.ends)

    def _mel(self) -> Tensor:
        """Return the frames [n * mels_per_token, bands] that are complete."""
        hop, width = self._features.hop_length, self._features.n_fft
        tokens = ((len(self._sound.rest) - width) // hop + 1) // self._pacing.mels_per_token
        if tokens < 1:
            return torch.zeros(0, self._features.feature_size)
        frames = tokens * self._pacing.mels_per_token
        # The extractor drops the last frame, so it is given one too many.
        pcm = np.pad(self._sound.rest[: (frames - 1) * hop + width], (0, hop))
        self._sound.rest = self._sound.rest[frames * hop :]
        mel: Tensor = self._features(
            pcm, center=False, sampling_rate=self._features.sampling_rate, return_tensors="pt"
        )["input_features"]
        return mel[0].T


@dataclass(eq=False)
class VoxtralTranscription(TranscriptionSession):
    """A transcription session of a Voxtral Realtime model.

    Each row of the decoder is an audio embedding plus the embedding of the token decided on the row before.
    An utterance begins with a prompt of padding tokens, fed at once with as many audio embeddings.
    """

    _: KW_ONLY
    tekken: Tekken
    prompt: list[int]
    pad_token: int
    """The token that is fed where none was decided."""
    silence: Tensor
    """Mel frames of the silence before an utterance."""
    heard_at_once: int
    """Limit of frames that are encoded in one tick."""
    ear: RollingContext
    """The encoder's context."""
    unheard: ConvState
    """The state of the convolutions at the start of a stream."""
    past: ConvState
    audio: Rows
    """Audio embeddings that wait to be fed."""
    token: int | None = None
    """The token that is fed with the next row of audio; None before the prompt."""
    is_lost: bool = False
    """Whether the utterance cannot go on; then the next unit begins a new one."""

    def restart(self) -> None:
        self.context.restart()
        self.ear.restart()
        self.past, self.audio = self.unheard, self.audio[:0]
        self.token, self.is_lost = None, False

    def open_unit(self) -> bool:
        unit = self.queue.first
        if self.is_lost and unit and unit.input and not unit.input.begins:
            unit.input = ChunkFeatures(torch.cat([self.silence, unit.input.mel]), True, unit.input.ends)
        return super().open_unit()

    def next_frames(self) -> Tensor:
        """Return the frames to encode, [n, bands]."""
        assert self.mel is not None
        return self.mel[: self.heard_at_once]

    def hear(self, audio: Tensor) -> None:
        """Queue audio embeddings [n, hidden] of `next_frames`; with too few of them, wait for more sound."""
        assert self.mel is not None
        names = [digest(frames.numpy()) for frames in self.next_frames().chunk(max(1, len(audio)))]
        heard = [Rows.of(row, name) for row, name in zip(audio.split(1), names, strict=True)]
        self.mel = self.mel[self.heard_at_once :]
        self.audio = Rows.join([self.audio, *heard])
        tokens = [self.token] if self.token is not None else self.prompt
        if len(self.audio) >= len(tokens):
            self._feed(tokens)
        if self.to_feed is not None or len(self.mel):
            self.stage = Stage.PREFILL
        else:
            self.heard()

    def _feed(self, tokens: list[int]) -> None:
        heard, self.audio = self.audio[: len(tokens)], self.audio[len(tokens) :]
        self.to_feed = self.context.begin(heard.plus(tokens))
        self.run.cached += len(tokens) - len(self.to_feed)
        self.run.audio_rows += len(tokens)

    def taken(self) -> None:
        if self.token is None:
            self.context.end_prompt()
        super().taken()

    def decided(self, token: int) -> int | None:
        self.token = token
        if self.tekken.spelling(token):
            self.say(token)
        if len(self.audio):
            return token
        self.step_over()
        return None

    def feed(self, token: int) -> None:
        self._feed([token])

    def pass_over(self) -> None:
        self.token = self.pad_token
        if len(self.audio):
            self._feed([self.pad_token] * len(self.audio))
            self.stage = Stage.PREFILL
        else:
            self.step_over()

    def undo(self) -> None:
        self.is_lost = True


class VoxtralKind(SessionKind[VoxtralTranscription]):
    """The transcription kind of a Voxtral model, whose encoder `ear` looks back `ear_reach` rows."""

    def __init__(
        self, runtime: Runtime, checkpoint: VoxtralCheckpoint, ear: PackedDecoder, ear_reach: int
    ) -> None:
        self._runtime = runtime
        self._model, self._tekken, self._features = checkpoint.model, checkpoint.tekken, checkpoint.features
        self._ear = ear
        self._ear_reach = ear_reach
        pacing = self._model.pacing
        self._pad = self._tekken.control(PAD)
        pads = pacing.left_pad_tokens + pacing.delay_tokens
        self._prompt = [self._tekken.control(BEGIN), *[self._pad] * pads]
        lead_in = np.zeros(pacing.left_pad_tokens * pacing.samples_per_token, np.float32)
        silence = self._features(lead_in, sampling_rate=pacing.sample_rate_hz, return_tensors="pt")
        self._silence = silence["input_features"][0].T

    def open(self, session_id: str, slot: int, setup: TranscribeSetup, sink: Sink) -> VoxtralTranscription:
        runtime, unheard, pacing = self._runtime, self._model.initial_state(), self._model.pacing
        reach = runtime.info.context_limit
        return VoxtralTranscription(
            session_id,
            slot,
            sink,
            RollingContext(runtime.language, slot, Window(), reach, setup.tenant, reach=reach),
            VoxtralPreprocessor(self._features, pacing),
            setup,
            Noise(setup.seed),
            Detokenizer(self._tekken.decode),
            tekken=self._tekken,
            prompt=self._prompt,
            pad_token=self._pad,
            silence=self._silence,
            heard_at_once=HEARD_AT_ONCE * pacing.mels_per_token,
            ear=RollingContext(self._ear, slot, Window(), self._ear_reach, reach=self._ear_reach),
            unheard=unheard,
            past=unheard,
            audio=Rows.of_ids([]),
        )

    def start(self, session: VoxtralTranscription) -> SessionFailed | None:
        session.ready(len(self._prompt))
        return None

    def hear(self, sessions: Sequence[VoxtralTranscription]) -> None:
        """Encode the next frames of each session, all in one forward of the encoder."""
        mels = upload(self._runtime.device, *(session.next_frames().numpy() for session in sessions))
        rows, pasts = self._model.embed(mels, [session.past for session in sessions])
        segments = [session.ear.segment(Rows.of(new)) for session, new in zip(sessions, rows, strict=True)]
        for session, past, hidden in zip(sessions, pasts, self._ear.forward(segments), strict=True):
            with blame(session):
                session.past = past
                session.ear.advance(len(hidden))
                session.hear(self._model.project(hidden))
