"""A chat session that can say its answers aloud."""

from dataclasses import KW_ONLY, dataclass, field

import torch
from torch import Tensor

from inference_service.api.engine import End, Piece
from inference_service.engine.batch.speech import SpeechJob
from inference_service.engine.sessions.base import SpeakingSession, Stage
from inference_service.engine.sessions.chat import POISONED, ChatSession
from inference_service.engine.sessions.components import MouthState
from inference_service.engine.sessions.speech_groups import SpeechGroups


@dataclass(eq=False)
class SpokenChatSession(ChatSession, SpeakingSession):
    """A chat session of a model with a voice.

    Where a turn is to be spoken, decoding pauses while a group of words is said. After its last word the
    token that ends a turn for the speech head is fed, for its hidden state.
    """

    _: KW_ONLY
    groups: SpeechGroups
    hidden: list[Tensor] = field(default_factory=list)
    """Hidden states, each [hidden], of the answer's tokens that have been fed, and of the turn's end."""
    voiced: int = 0
    """Tokens of the answer that the voice has."""

    @property
    def mouth(self) -> MouthState | None:  # type: ignore[override]
        return self.groups.mouth

    @property
    def speaks(self) -> bool:
        """Whether this turn is to be spoken."""
        return self.run.unit.input is not None and self.run.unit.input.speaks

    def fed(self, hidden: Tensor) -> None:
        if self.stage is Stage.DECODE and self.speaks:
            self.hidden += hidden.clone().unbind()

    def go_on(self) -> None:
        if not self.speaks:
            return
        self._recite()
        if self.run.finish is not None:
            self.groups.end(self.hidden[-1])
        if self.groups.next():
            self.run.begin_speech()
            self.stage = Stage.SPEAK
        elif self.run.finish is not None:
            self.finish(End.TURN)

    def _recite(self) -> None:
        """Hands the voice what has been shown and is in the context."""
        run, template = self.run, self.dialogue.template
        until = min(run.released, len(self.hidden))
        for i in range(self.voiced, until):
            if template.is_text(run.said[i]):
                self.groups.add(run.said[i], template.decode([run.said[i]]), self.hidden[i])
        self.voiced = until

    def close(self, token: int | None) -> int | None:
        if not self.speaks or not self.run.announced:
            return super().close(token)
        if token is None:
            self.to_feed = self.groups.end_rows
        return token

    def feed(self, token: int, embeds: Tensor) -> None:
        is_last = self.run.finish is not None
        self.to_feed = torch.cat([embeds, self.groups.end_rows]) if is_last else embeds

    def speech_job(self) -> SpeechJob | None:
        return None if self.is_cancelled else self.groups.job

    def spoken(self, audio: Tensor | None, spoken_at: float) -> None:
        run, job = self.run, self.groups.job
        assert job is not None
        run.codes += len(job.codes)
        run.end_speech(spoken_at)
        if self.is_cancelled:
            self.finish(End.CANCELLED)
            return
        if job.poisoned:
            run.failure = POISONED
            self.finish(End.FAILED)
            return
        if audio is not None and len(audio):
            self.events.append(Piece(run.number, audio=audio.numpy()))
        if self.groups.next():
            run.begin_speech()
        elif run.finish is not None:
            self.finish(End.TURN)
        else:
            self.stage = Stage.DECODE

    def begin_generate(self) -> bool:
        begins = super().begin_generate()
        if begins:
            is_own = self.run.generator is self.generator
            self.groups.generator = None if is_own else self.run.generator
        return begins

    def leave(self) -> None:
        super().leave()
        self.ear = self.groups.mouth = self.running = None

    def finish(self, end: End) -> None:
        self.groups.hush()
        self.hidden, self.voiced = [], 0
        super().finish(end)
