"""Transcription by the duplex model, second by second."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

import numpy as np
import torch
from torch import Tensor

from inference_service.device.rows import Rows
from inference_service.device.transfer import upload
from inference_service.engine.batch.context import Context
from inference_service.engine.batch.noise import Noise
from inference_service.engine.guard import blame
from inference_service.engine.runtime import Runtime
from inference_service.interface.engine import SessionFailed, Sink
from inference_service.interface.setups import Content, TranscribeSetup, WindowMode
from inference_service.media.mel import HOP, SAMPLE_RATE, MelStream
from inference_service.media.memo import digest
from inference_service.media.pool import Priority
from inference_service.models.audio_encoder import AudioState
from inference_service.models.tokenizer import SpecialTokens, Tokenizer
from inference_service.session.base.session import Preprocessor, SessionKind, Stage
from inference_service.session.kinds.components import Ear
from inference_service.session.kinds.text import Detokenizer
from inference_service.session.kinds.transcription import (
    ChunkFeatures,
    TranscriptionSession,
    chunk_of,
    priority_of,
)

FRAMES = SAMPLE_RATE // HOP
"""Mel frames of a second."""
MOST_TOKENS = 48
"""Limit of text tokens for one second, above the fastest speech."""
_MARKS = 3
"""`<unit>`, `<|chunk_eos|>` and `</unit>`."""


class DuplexTranscriptionPreprocessor(Preprocessor[ChunkFeatures]):
    """The preparation of chunks of any length: it cuts them into whole seconds.

    It fills up the last second of an utterance with silence, and adds one second of silence.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._mel = MelStream()
        self._rest = np.zeros(0, np.float32)
        self._has_sound = self._is_over = False

    def priority(self, content: Content | None) -> Priority:
        return priority_of(content)

    def prepare(self, content: Content) -> ChunkFeatures:
        chunk, sound = chunk_of(content)
        begins = chunk.begins or self._is_over
        if begins:
            self._begin()
        self._has_sound |= len(sound) > 0
        self._is_over = chunk.ends
        pcm = np.concatenate([self._rest, sound])
        if chunk.ends and self._has_sound:
            pcm = np.pad(pcm, (0, -len(pcm) % SAMPLE_RATE + SAMPLE_RATE))
        whole = len(pcm) // SAMPLE_RATE * SAMPLE_RATE
        self._rest = pcm[whole:]
        return ChunkFeatures(torch.from_numpy(self._mel.feed(pcm[:whole])), begins, chunk.ends)


@dataclass(eq=False)
class DuplexTranscription(TranscriptionSession):
    """A transcription session of the duplex model.

    An utterance is the prompt, then for each second `<unit>`, its audio, the words that have ended in it,
    `<|chunk_eos|>` and `</unit>`. The last two are carried into the next forward.
    """

    _: KW_ONLY
    special: SpecialTokens
    forbidden: Tensor
    """Ids that are neither text nor `<|chunk_eos|>`."""
    prompt: list[int]
    second_tokens: int
    """Embeddings of one second of audio."""
    initial_ear: AudioState
    """The encoder's state at the start of a stream."""
    ear: AudioState
    ear_before: AudioState
    """The encoder's state before the running second."""
    written: int = 0
    """Tokens decided in the running second."""

    def restart(self) -> None:
        self.context.restart()
        self.ear = self.initial_ear

    @property
    def longest_second(self) -> int:
        """Tokens that a second can add."""
        return self.second_tokens + MOST_TOKENS + _MARKS

    @property
    def has_room(self) -> bool:
        prompt = 0 if self.context.tokens else len(self.prompt)
        return self.context.has_room_for(prompt + self.longest_second)

    @property
    def forbidden_tokens(self) -> Tensor:
        return self.forbidden

    @property
    def ending_tokens(self) -> tuple[int, ...]:
        return (self.special.chunk_eos,)

    def next_second(self) -> Tensor:
        """Return the frames to encode, [100, bands]."""
        assert self.mel is not None
        return self.mel[:FRAMES]

    def next_tokens(self) -> list[int]:
        """Return the ids before the next second: the prompt, or the end of the previous second."""
        prompt = [] if self.context.tokens else self.prompt
        self.run.text_rows += len(prompt) + self.context.closing + 1
        return [*prompt, *self.context.carry(), self.special.unit]

    def start_second(self, audio: Tensor, ear: AudioState) -> None:
        """Queue `next_tokens` and the embeddings [n, hidden] of `next_second`."""
        assert self.mel is not None
        tokens, name = Rows.of_ids(self.next_tokens()), digest(self.next_second().numpy())
        self.mel = self.mel[FRAMES:]
        self.run.audio_rows += len(audio)
        self.ear_before, self.ear = self.ear, ear
        self.written = 0
        second = Rows.join([tokens, Rows.of(audio, name)])
        self.to_feed = self.context.begin(second)
        self.run.cached += len(second) - len(self.to_feed)
        self.stage = Stage.PREFILL

    def decided(self, token: int) -> int | None:
        self.written += 1
        if token == self.special.chunk_eos or self.written == MOST_TOKENS:
            self.pass_over()
            return None
        self.say(token)
        return token

    def feed(self, token: int) -> None:
        self.to_feed = Rows.of_ids([token])

    def pass_over(self) -> None:
        if not self.context.units:
            self.context.end_prompt(len(self.prompt))
        self.context.end_unit([self.special.chunk_eos, self.special.unit_end])
        self.step_over()

    def undo(self) -> None:
        self.context.rewind()
        self.ear = self.ear_before


class DuplexTranscriptionKind(SessionKind[DuplexTranscription]):
    """The transcriptions of a duplex model."""

    def __init__(
        self,
        runtime: Runtime,
        encoder: Ear,
        tokenizer: Tokenizer,
        prompt: str,
        second_tokens: int,
    ) -> None:
        self._runtime = runtime
        self._encoder = encoder
        self._tokenizer = tokenizer
        self._prompt = tokenizer.encode_template(prompt)
        self._second_tokens = second_tokens
        size = runtime.language.backbone.config.vocab_size
        written = {tokenizer.special.chunk_eos}
        self._forbidden = torch.tensor(
            [i for i in range(size) if not tokenizer.is_text(i) and i not in written], device=runtime.device
        )

    def open(self, session_id: str, slot: int, setup: TranscribeSetup, sink: Sink) -> DuplexTranscription:
        info = self._runtime.info
        initial_ear = self._encoder.initial_state()
        return DuplexTranscription(
            session_id,
            slot,
            sink,
            Context(self._runtime.language, slot, info.window, info.context_limit, setup.tenant),
            DuplexTranscriptionPreprocessor(),
            setup,
            Noise(setup.seed),
            Detokenizer(self._tokenizer.decode),
            special=self._tokenizer.special,
            forbidden=self._forbidden,
            prompt=self._prompt,
            second_tokens=self._second_tokens,
            initial_ear=initial_ear,
            ear=initial_ear,
            ear_before=initial_ear,
        )

    def start(self, session: DuplexTranscription) -> SessionFailed | None:
        """Check that the prompt fits; it is fed with the first second of each utterance."""
        room = session.context.limit
        if session.context.window.mode is WindowMode.BASIC:
            room = session.context.window.low_tokens
        needed = len(self._prompt) + 2 * session.longest_second
        if needed > room:
            return SessionFailed(
                "CONFIG_INVALID",
                f"a transcription needs a context of {needed} tokens; this worker has {room}",
            )
        session.ready(len(self._prompt))
        return None

    def hear(self, sessions: Sequence[DuplexTranscription]) -> None:
        """Encode the next second of each session in one batch."""
        if not sessions:
            return
        self._slide(sessions)
        seconds = upload(self._runtime.device, *(session.next_second().numpy() for session in sessions))
        heard, states = self._encoder.encode(seconds, [session.ear for session in sessions])
        for session, audio, state in zip(sessions, heard, states, strict=True):
            with blame(session):
                session.start_second(audio, state)

    def _slide(self, sessions: Sequence[DuplexTranscription]) -> None:
        """Slide the window within a unit of many seconds."""
        sliding = [session for session in sessions if session.context.must_slide]
        if sliding:
            self._runtime.settle([session.context for session in sliding])
            for session in sliding:
                with blame(session):
                    session.dropped_units += session.context.slide()
