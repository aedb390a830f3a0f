"""The slot of a session: taken when it opens, and again on demand after it was lost."""

from enum import Enum, auto
from typing import Final

from ws_adapter.protocol.core.actions import (
    CancelUnits,
    LeaveSlot,
    OpenWorkerSession,
    RunTurn,
    TakeSlot,
)
from ws_adapter.protocol.core.config import ChatSetup, WorkerSetup
from ws_adapter.protocol.core.machine import Action
from ws_adapter.protocol.core.signals import Ready
from ws_adapter.protocol.core.turn import Turn
from ws_adapter.protocol.realtime_ga.saved.session import SavedSlot

OPENS_S: Final = 15.0
"""The seconds after which a worker gets the setup even if no response waits, so that settings can come."""


class WorkerSlotPhase(Enum):
    """The states of the slot."""

    NONE = auto()
    WANTED = auto()
    """The session waits in the queue."""
    HELD = auto()
    """A worker waits for the setup."""
    OPENING = auto()
    READY = auto()
    RUNNING = auto()
    """A turn is at the worker."""


class WorkerSlot:
    """The slot; its methods return the actions that move it to the wanted state."""

    def __init__(self, model: str) -> None:
        """`model` is the model that every worker has to serve."""
        self.model = model
        self.phase = WorkerSlotPhase.NONE
        self.ready: Ready | None = None
        self.setup: WorkerSetup | None = None
        """The setup at the worker."""
        self.unit = 0
        """The number of the last unit that was run."""
        self.due_at: float | None = None
        """The deadline for the slot, or for its setup."""
        self._is_going_away = False

    def save(self, *, has_journal: bool) -> SavedSlot | None:
        """Return the state; None if no other worker can replace the present one."""
        if not has_journal or self.phase not in (WorkerSlotPhase.READY, WorkerSlotPhase.RUNNING):
            return None
        setup = self.setup if isinstance(self.setup, ChatSetup) else None
        return SavedSlot(self.phase is WorkerSlotPhase.RUNNING, self.ready, setup, self.unit)

    def restore(self, saved: SavedSlot, setup: WorkerSetup | None) -> None:
        """Go on from a saved state; `setup` is that of the model's own turns, if it takes them.

        If neither setup is known, the worker has an outdated one: an empty `ChatSetup` stands for it, and the
        slot is given back.
        """
        self.phase = WorkerSlotPhase.RUNNING if saved.is_running else WorkerSlotPhase.READY
        self.ready, self.setup = saved.ready, saved.setup or setup or ChatSetup()
        self.unit = saved.unit

    def want(self, by: float) -> list[Action]:
        """Queue for a slot, with `by` as the deadline."""
        self.phase, self.due_at = WorkerSlotPhase.WANTED, by
        return [TakeSlot(self.model)]

    def granted(self, now: float) -> None:
        """Handle a worker that waits for the settings."""
        self.phase, self.due_at = WorkerSlotPhase.HELD, now + OPENS_S
        self.unit, self.setup, self.ready = 0, None, None
        self._is_going_away = False

    def open(self, setup: WorkerSetup) -> list[Action]:
        """Send the settings of the session to the worker."""
        self.phase, self.setup, self.due_at = WorkerSlotPhase.OPENING, setup, None
        return [OpenWorkerSession(setup)]

    def begun(self, ready: Ready) -> None:
        """Note that the worker takes turns."""
        self.phase, self.ready = WorkerSlotPhase.READY, ready

    def run(self, turn: Turn) -> list[Action]:
        """Have the worker answer a turn."""
        self.phase = WorkerSlotPhase.RUNNING
        self.unit += 1
        return [RunTurn(self.unit, turn)]

    def cancel(self) -> list[Action]:
        """Cancel the running turn."""
        return [CancelUnits(self.unit)] if self.phase is WorkerSlotPhase.RUNNING else []

    def finalized(self) -> list[Action]:
        """Handle the closed turn."""
        if self.phase is WorkerSlotPhase.RUNNING:
            self.phase = WorkerSlotPhase.READY
        return self.leave() if self._is_going_away else []

    def going_away(self) -> list[Action]:
        """Handle a draining worker: the running turn may finish."""
        self._is_going_away = True
        return self.leave() if self.phase in (WorkerSlotPhase.HELD, WorkerSlotPhase.READY) else []

    def lost(self) -> None:
        """Handle a lost slot."""
        self.phase, self.due_at, self._is_going_away = WorkerSlotPhase.NONE, None, False

    def leave(self) -> list[Action]:
        """Give back the slot, or the place in the queue."""
        if self.phase is WorkerSlotPhase.NONE:
            return []
        self.lost()
        return [LeaveSlot()]
