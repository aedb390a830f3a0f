"""What a Live session has from its beginning on: its sound in both directions."""

from collections import deque
from typing import Final

from ws_adapter.protocol.core.answer import Answer, Outcome
from ws_adapter.protocol.core.speech import SpeechEdges
from ws_adapter.protocol.duplex.flow import UnitFlow
from ws_adapter.protocol.live.events import LiveUsage
from ws_adapter.protocol.live.playout import Playout
from ws_adapter.protocol.live.settings import Settings
from ws_adapter.protocol.live.sound import Ear, Mouth
from ws_adapter.protocol.wire.codec import Samples

MOST_UNTOLD: Final = 8
"""Answers that may wait for an event to go with."""


INTERRUPTS_MS: Final = 250
"""So much speech over an answer ends it: a cough or a word of assent is shorter."""


class Conversation:
    """See above; `settings` are those of its `session.start`, and an append has at most `most_s` of sound."""

    def __init__(self, settings: Settings, most_s: float) -> None:
        self.is_muted = False
        self.is_congested = False
        """The client does not read."""
        self.most_bytes = settings.format.bytes_per_s * most_s
        """Of one append."""
        self.ear = Ear(settings.format)
        self.speech = interruption()
        """What the user says over the answer that is being said."""
        self.playout = Playout(settings.format)
        self.answers: deque[Answer] = deque(maxlen=MOST_UNTOLD)
        """Of units of which no event has told yet."""
        self.usage = LiveUsage(0.0)
        self.context_ratio: float | None = None
        self._mouth = Mouth(settings.format)

    def hear(self, data: bytes) -> Samples:
        """What the model is to hear now."""
        return self.ear.hear(data if not self.is_muted else self.ear.format.silence(len(data)))

    def is_saying(self, flow: UnitFlow) -> bool:
        """Whether the user hears the model, or is about to."""
        return flow.answers.response_id is not None or not self.playout.is_empty

    def take(self, answer: Answer) -> None:
        """A second is answered: speech waits to be heard, and a listen that is no end of a turn stops it."""
        self.answers.append(answer)
        self.usage = LiveUsage(self.usage.seconds + (answer.outcome is not Outcome.DROPPED))
        if answer.context_limit:
            self.context_ratio = answer.context_tokens / answer.context_limit
        if answer.outcome is Outcome.SPEECH:
            self.playout.put(self._mouth.say(answer.audio, ends_turn=answer.ends_turn), answer.text)
        elif answer.response_id is not None:
            self.stop()

    def stop(self) -> None:
        """The model is silent from now on."""
        self.playout.drop()
        self._mouth.stop()


def interruption() -> SpeechEdges:
    """Hears when speech over an answer has become an interruption."""
    return SpeechEdges(speech_ms=INTERRUPTS_MS)
