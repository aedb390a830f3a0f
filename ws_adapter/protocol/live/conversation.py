"""A running Live session: its audio in both directions."""

from collections import deque
from collections.abc import Sequence
from typing import Final

import numpy as np
from msgspec import Struct

from ws_adapter.protocol.core.answer import Answer, Outcome
from ws_adapter.protocol.core.blobs import Blobs, Saved, ago, samples_of
from ws_adapter.protocol.core.speech import WINDOW, SavedEdges, SpeechEdges
from ws_adapter.protocol.duplex.flow import UnitFlow
from ws_adapter.protocol.duplex.input import BURST_LEAD_S, SECOND_S
from ws_adapter.protocol.live.events import LiveUsage
from ws_adapter.protocol.live.input_speech import InputSpeech, SavedInputSpeech
from ws_adapter.protocol.live.playout import SLICE_S, Playout, SavedPlayout
from ws_adapter.protocol.live.resampler import SavedResampler
from ws_adapter.protocol.live.settings import Settings
from ws_adapter.protocol.live.sound import InputConverter, OutputConverter, SavedInputConverter
from ws_adapter.protocol.wire.codec import NO_AUDIO, Samples

MOST_UNREPORTED: Final = 8
"""The most answers that may wait for an event that reports them."""


PATIENCE_S: Final = 1.25
"""The seconds without input after which silence is fed in its place."""

MOST_DELAYED_S: Final = 5.0
"""The most seconds of delayed input that may come at once and do not count as an upload."""

MOST_SILENCE: Final = 10
"""The seconds of silence within which a model has to begin to speak about a text."""

INTERRUPTS_MS: Final = 250
"""The length of speech in ms that interrupts an answer: a cough or a word of assent is shorter."""


class SavedSilenceSchedule(Struct, frozen=True):
    """The state of a `SilenceSchedule`."""

    due_ago: float | None
    is_muted: bool
    left: int
    came_ago: float


class SavedConversation(Struct, frozen=True):
    """The state of a `Conversation`."""

    is_muted: bool
    ear: SavedInputConverter
    mouth: SavedResampler | None
    input_speech: SavedInputSpeech | None
    speech: SavedEdges
    detecting: tuple[tuple[int, bool], ...]
    """Samples that wait for scores, and whether they overlap an answer."""
    playout: SavedPlayout
    units: int
    context_ratio: float | None
    turn: SavedSilenceSchedule
    heard_until_ago: float


class Conversation:
    """The audio of a running session in both directions.

    `settings` are those of its `session.start`. An append has at most `most_s` seconds of audio.
    `transcribes`: the user's speech is transcribed. `unit_s` is the length of a unit of the model.
    """

    def __init__(
        self, settings: Settings, most_s: float, *, transcribes: bool = False, unit_s: float = SECOND_S
    ) -> None:
        self.is_muted = False
        self.is_congested = False
        """Whether the client exerts back-pressure."""
        self.most_bytes = settings.format.bytes_per_s * most_s
        """The most bytes of one append."""
        self.input_converter = InputConverter(settings.format, unit_s)
        self.speech = interruption()
        """The user's speech over the current answer."""
        self.input_speech = InputSpeech() if transcribes else None
        self.playout = Playout(settings.format, min(SLICE_S, unit_s))
        self.answers: deque[Answer] = deque(maxlen=MOST_UNREPORTED)
        """Answers to units that no event has reported yet."""
        self.usage = LiveUsage(0.0)
        self._units = 0
        """The number of units of input."""
        self.context_ratio: float | None = None
        self.silence = SilenceSchedule(unit_s)
        self.upload = Upload()
        self._unit_s = unit_s
        self._output_converter = OutputConverter(settings.format)
        self._detecting: deque[tuple[Samples, bool]] = deque()
        """Samples that wait for scores, and whether they overlap an answer."""

    @property
    def held_bytes(self) -> int:
        """The bytes of waiting sound, without the units."""
        return self.input_converter.waiting_bytes + (
            self.input_speech.held_bytes if self.input_speech is not None else 0
        )

    def detecting(self, samples: Samples, *, is_over: bool) -> bool:
        """Return whether speech is to be detected in these samples; `is_over`: they overlap an answer."""
        if self.input_speech is not None:
            self.input_speech.hear(samples)
        elif not is_over:
            return False
        self._detecting.append((samples, is_over))
        return True

    def lost(self, size: int) -> Samples:
        """Account for `size` lost samples; return the silence that speech detection gets for them."""
        return self.input_speech.skip(size) if self.input_speech is not None else NO_AUDIO.samples

    def over(self, scores: Sequence[float]) -> list[float]:
        """Return the scores of sound that overlaps an answer."""
        over: list[float] = []
        for score in scores:
            left, was_over = WINDOW, bool(self._detecting) and self._detecting[0][1]
            while left and self._detecting:
                samples, is_over = self._detecting.popleft()
                if samples.size > left:
                    self._detecting.appendleft((samples[left:], is_over))
                left -= min(left, samples.size)
            over += [score] if was_over else []
        return over

    def hear(self, data: bytes) -> Samples:
        """Return the samples for the model that are available now."""
        return self.input_converter.hear(
            data if not self.is_muted else self.input_converter.format.silence(len(data))
        )

    def is_saying(self, flow: UnitFlow) -> bool:
        """Return whether the model's speech is playing, or is about to."""
        return flow.answers.response_id is not None or not self.playout.is_empty

    def take(self, answer: Answer) -> None:
        """Take the answer to a unit: its speech waits for playback.

        A unit without speech that closes a response stops the playback.
        """
        self.answers.append(answer)
        if answer.outcome is not Outcome.DROPPED:
            self._units += 1
            self.usage = LiveUsage(round(self._units * self._unit_s, 3))
        if answer.context_limit:
            self.context_ratio = answer.context_tokens / answer.context_limit
        if answer.ends_turn:
            self.silence.spoken()
        if answer.outcome is Outcome.SPEECH:
            self.playout.put(
                self._output_converter.say(answer.audio, ends_turn=answer.ends_turn), answer.text
            )
        elif answer.response_id is not None:
            self.stop()

    def save(self, now: float, blobs: Blobs) -> SavedConversation:
        """Return the state."""
        return SavedConversation(
            self.is_muted,
            self.input_converter.save(),
            self._output_converter.save(),
            self.input_speech.save(blobs) if self.input_speech is not None else None,
            self.speech.save(),
            tuple((blobs.keep(samples), is_over) for samples, is_over in self._detecting),
            self.playout.save(now, blobs),
            self._units,
            self.context_ratio,
            self.silence.save(now),
            now - self.upload.heard_until,
        )

    def restore(self, saved: SavedConversation, blobs: Saved, now: float) -> Samples:
        """Go on from a saved state; return the samples in which speech is to be detected."""
        self.is_muted = saved.is_muted
        self.input_converter.restore(saved.ear)
        self._output_converter.restore(saved.mouth)
        self.playout.restore(saved.playout, blobs, now)
        self._units, self.context_ratio = saved.units, saved.context_ratio
        self.usage = LiveUsage(round(self._units * self._unit_s, 3))
        self.silence.restore(saved.turn, now)
        self.upload.heard_until = now - saved.heard_until_ago
        if self.input_speech is not None and saved.input_speech is not None:
            self.input_speech.restore(saved.input_speech, blobs)
        self.speech.restore(saved.speech)
        awaited = samples_of(blobs, [number for number, _ in saved.detecting])
        kinds = (is_over for _, is_over in saved.detecting)
        self._detecting.extend(zip(awaited, kinds, strict=True))
        return np.concatenate([NO_AUDIO.samples, *awaited])

    def stop(self) -> None:
        """Drop the waiting speech of the model."""
        self.playout.drop()
        self._output_converter.stop()


class Upload:
    """Detection of clients that upload faster than real time instead of streaming a microphone.

    Input that the network delayed comes at once and is no upload.
    """

    def __init__(self) -> None:
        self.heard_until = float("-inf")
        """The time at which all input so far would end if it were played in real time since its arrival."""

    def came(self, seconds: float, now: float, *, is_quiet: bool) -> bool:
        """Count input; return whether it is further ahead of real time than streamed input can be.

        `is_quiet`: no input or output waits. Then no client counts as ahead.
        """
        if is_quiet:
            self.heard_until = min(self.heard_until, now)
        self.heard_until = max(self.heard_until, now - MOST_DELAYED_S) + seconds
        return self.heard_until - now > BURST_LEAD_S


class SilenceSchedule:
    """The schedule of silent units for a client that sends no audio.

    They are due while the client is muted, and while the model is to speak about a text.
    """

    def __init__(self, unit_s: float = SECOND_S) -> None:
        self.due_at: float | None = None
        """The time at which the next unit of silence is due; None if none is."""
        self._unit_s = unit_s
        self._is_muted = False
        self._left = 0
        """The units of silence that may pass until the model speaks."""
        self._came_at = float("-inf")

    def came(self, now: float) -> None:
        """Note that the client sent sound."""
        self._came_at = now
        self._settle(now + PATIENCE_S)

    def muted(self, is_muted: bool, now: float) -> None:
        """Note that the client mutes or unmutes."""
        self._is_muted = is_muted
        self._settle(max(now, self._came_at + PATIENCE_S))

    def wanted(self, now: float) -> None:
        """Note that the model got a text to speak about."""
        self._left = round(MOST_SILENCE / self._unit_s)
        self._settle(max(now, self._came_at + PATIENCE_S))

    def fed(self, now: float, *, is_speaking: bool) -> None:
        """Count a unit of silence that was fed."""
        self._left -= not is_speaking and self._left > 0
        due_at = now if self.due_at is None else self.due_at
        self._settle(max(due_at, now - self._unit_s) + self._unit_s)

    def spoken(self) -> None:
        """Note the end of the model's turn."""
        self._left = 0
        self._settle(self.due_at)

    def save(self, now: float) -> SavedSilenceSchedule:
        """Return the state."""
        return SavedSilenceSchedule(ago(self.due_at, now), self._is_muted, self._left, now - self._came_at)

    def restore(self, saved: SavedSilenceSchedule, now: float) -> None:
        """Go on from a saved state."""
        self.due_at = None if saved.due_ago is None else now - saved.due_ago
        self._is_muted, self._left = saved.is_muted, saved.left
        self._came_at = now - saved.came_ago

    def _settle(self, at: float | None) -> None:
        self.due_at = at if self._is_muted or self._left else None


def interruption() -> SpeechEdges:
    """Return the detector of speech that interrupts an answer."""
    return SpeechEdges(speech_ms=INTERRUPTS_MS)
