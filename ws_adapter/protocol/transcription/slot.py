"""The slot of a transcription session: it serves one utterance after another, and is kept between them."""

from collections import deque
from typing import Final

from ws_adapter.protocol.core.actions import (
    LeaveSlot,
    OpenWorkerSession,
    RunSegment,
    TakeSlot,
)
from ws_adapter.protocol.core.blobs import ago
from ws_adapter.protocol.core.config import TranscriptionSetup
from ws_adapter.protocol.core.machine import Action
from ws_adapter.protocol.core.signals import Ready
from ws_adapter.protocol.core.state import SlotPhase
from ws_adapter.protocol.transcription.saved import SavedSlot
from ws_adapter.protocol.transcription.utterance import Utterance, as_floats
from ws_adapter.protocol.wire.limits import MOST_AT_WORKER

_RECHECK_S: Final = 1.0
"""The seconds between two checks whether others want an idle slot."""


class TranscriptionSlot:
    """A session's slot; its methods return the actions that move it to the wanted state.

    `idle_s` is the time for which it is kept without an utterance.
    """

    def __init__(self, idle_s: float) -> None:
        self.phase = SlotPhase.NONE
        self.granted_at = 0.0
        self.prompt_tokens = 0
        self.look_at: float | None = None
        """The time of the next check whether others wait for it."""
        self.away_at: float | None = None
        """The time at which its draining worker shuts down."""
        self.last_unit = 0
        self.at_worker: deque[int] = deque()
        """The bytes of each open unit."""
        self._idle_s = idle_s
        self._model = ""
        self._window = 0
        self._vacant_at: float | None = None
        """The time since which it has had no utterance; None while it has one."""

    @property
    def has_worker(self) -> bool:
        """Whether it is attached to a worker, not only queued."""
        return self.phase in (SlotPhase.OPENING, SlotPhase.READY)

    @property
    def has_room(self) -> bool:
        """Whether the worker has room for a segment."""
        return self.phase is SlotPhase.READY and self.look_at is None and len(self.at_worker) < self._window

    def save(self, now: float, *, has_journal: bool) -> SavedSlot | None:
        """Return the state; None if no other worker can replace the present one."""
        if not has_journal or self.phase is not SlotPhase.READY:
            return None
        return SavedSlot(
            now - self.granted_at,
            self.prompt_tokens,
            ago(self.look_at, now),
            self.last_unit,
            tuple(self.at_worker),
            self._model,
            self._window,
        )

    def restore(self, saved: SavedSlot, now: float) -> None:
        """Go on from a saved state, in the middle of an utterance."""
        self.phase, self.granted_at = SlotPhase.READY, now - saved.granted_ago
        self.prompt_tokens, self.last_unit = saved.prompt_tokens, saved.last_unit
        self.look_at = None if saved.look_ago is None else now - saved.look_ago
        self.at_worker = deque(saved.at_worker)
        self._model, self._window = saved.model, saved.window

    def want(self, model: str) -> list[Action]:
        """Ask for a slot of a worker with this model, empty for any."""
        self.phase = SlotPhase.WANTED
        return [TakeSlot(model)]

    def open(self, model: str, now: float) -> list[Action]:
        """Send the settings to the new slot's worker."""
        self.phase, self._model = SlotPhase.OPENING, model
        self.granted_at = now
        self.last_unit = 0
        return [OpenWorkerSession(TranscriptionSetup(model))]

    def begun(self, ready: Ready) -> None:
        """Note that the worker took the settings."""
        self.phase = SlotPhase.READY
        self._window = min(ready.max_units_in_flight, MOST_AT_WORKER)
        self.prompt_tokens = ready.prompt_tokens

    def displaced(self) -> None:
        """Handle a worker lost before it took the settings; another one follows."""
        self.phase = SlotPhase.WANTED
        self.away_at = None

    def run(self, utterance: Utterance, segment: bytes) -> RunSegment:
        """Send a segment of the utterance to the worker, as the unit after `last_unit`."""
        self.last_unit += 1
        self.at_worker.append(len(segment))
        begins, ends = self.last_unit == utterance.first_unit, self.last_unit == utterance.last_unit
        return RunSegment(self.last_unit, as_floats(segment), begins=begins, ends=ends)

    def reconsider(self, now: float) -> None:
        """Have the next `tick` check, before the next utterance, whether another session waits."""
        self.look_at = now if self.has_worker else None

    def occupy(self) -> None:
        """Mark the slot as busy."""
        self._vacant_at = None

    def rest(self, now: float) -> list[Action]:
        """Keep the slot for a while without an utterance, or give up a place in the queue."""
        if self.phase is SlotPhase.NONE:
            return []
        if self.phase is SlotPhase.WANTED or self.away_at is not None:
            return self.leave()
        if self._vacant_at is None:
            self._vacant_at = self.look_at = now
        return []

    def is_kept(self, next_model: str | None, now: float, others_wait: bool) -> bool:
        """Return whether the slot is kept between two utterances; a `next_model` of None means that no
        next one exists yet."""
        self.look_at = None
        if others_wait or self.away_at is not None:
            return False
        if next_model is not None:
            return next_model == self._model
        assert self._vacant_at is not None
        until = self._vacant_at + self._idle_s
        self.look_at = min(now + _RECHECK_S, until)
        return now < until

    def leave(self) -> list[Action]:
        """Give the slot back."""
        self.forget()
        return [LeaveSlot()]

    def forget(self) -> None:
        """Forget the slot."""
        self.phase = SlotPhase.NONE
        self.at_worker.clear()
        self._vacant_at = self.look_at = self.away_at = None
