"""The duplex model writes down what it hears, second by second."""

from dataclasses import KW_ONLY, dataclass

import numpy as np
import torch
from torch import Tensor

from inference_service.api.setups import Content
from inference_service.engine.sessions.base import Stage
from inference_service.engine.sessions.preprocessing import Preprocessor
from inference_service.engine.sessions.transcription import Heard, TranscriptionSession, chunk_of, kind_of
from inference_service.media.mel import HOP, SAMPLE_RATE, MelStream
from inference_service.media.pool import Kind
from inference_service.models.audio_encoder import AudioState
from inference_service.models.tokenizer import SpecialTokens

FRAMES = SAMPLE_RATE // HOP
"""Mel frames of a second."""
MOST_TOKENS = 48
"""Tokens written down for one second at most; nobody says more."""
_MARKS = 3
"""`<unit>`, `<|chunk_eos|>` and `</unit>`."""


class DuplexTranscriptionPreprocessor(Preprocessor[Heard]):
    """Gathers chunks of any length into whole seconds.

    The last second of an utterance is filled up with silence, and one more of it follows.
    """

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._mel = MelStream()
        self._rest = np.zeros(0, np.float32)
        self._has_sound = self._is_over = False

    def kind(self, content: Content | None) -> Kind:
        return kind_of(content)

    def prepare(self, content: Content) -> Heard:
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
        return Heard(torch.from_numpy(self._mel.hear(pcm[:whole])), begins, chunk.ends)


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
    deaf: AudioState
    """The state of an encoder that has heard nothing."""
    ear: AudioState
    ear_before: AudioState
    """What it was before the running second."""
    written: int = 0
    """Tokens decided in the running second."""

    def restart(self) -> None:
        self.context.restart()
        self.ear = self.deaf

    @property
    def longest_second(self) -> int:
        """Tokens that a second can add."""
        return self.second_tokens + MOST_TOKENS + _MARKS

    @property
    def has_room(self) -> bool:
        prompt = 0 if self.context.tokens else len(self.prompt)
        return self.context.has_room_for(prompt + self.longest_second)

    @property
    def ending_tokens(self) -> tuple[int, ...]:
        return (self.special.chunk_eos,)

    def next_second(self) -> Tensor:
        """The frames to encode, [100, bands]."""
        assert self.mel is not None
        return self.mel[:FRAMES]

    def next_tokens(self) -> list[int]:
        """The ids that stand before the next second: the prompt or what closed the second before."""
        prompt = [] if self.context.tokens else self.prompt
        self.run.text_rows += len(prompt) + self.context.closing + 1
        return [*prompt, *self.context.carry(), self.special.unit]

    def start_second(self, tokens: Tensor, audio: Tensor, ear: AudioState) -> None:
        """Embeddings [n, hidden] of `next_tokens` and of the second after them are to be fed."""
        assert self.mel is not None
        self.mel = self.mel[FRAMES:]
        self.run.audio_rows += len(audio)
        self.ear_before, self.ear = self.ear, ear
        self.written = 0
        self.to_feed = torch.cat([tokens, audio])
        self.stage = Stage.PREFILL

    def allowed(self, logits: Tensor) -> Tensor:
        return logits.index_fill(0, self.forbidden, -torch.inf)

    def decided(self, token: int) -> int | None:
        self.written += 1
        if token == self.special.chunk_eos or self.written == MOST_TOKENS:
            self.pass_over()
            return None
        self.say(token)
        return token

    def feed(self, token: int, embeds: Tensor) -> None:
        self.to_feed = embeds

    def pass_over(self) -> None:
        if not self.context.units:
            self.context.end_prompt(len(self.prompt))
        self.context.end_unit([self.special.chunk_eos, self.special.unit_end])
        self.step_over()

    def undo(self) -> None:
        self.context.rewind()
        self.ear = self.ear_before
