"""The slots that this adapter holds for its sessions."""

from collections import Counter
from dataclasses import dataclass
from typing import Final

from antiphon_service.semconv import SlotState
from ws_adapter.dispatch.base import Lease
from ws_adapter.protocol.core.kind import Kind


@dataclass(slots=True, eq=False)
class LeasedSlot:
    """A slot; `since` is when it was granted, in seconds of the adapter's clock."""

    lease: Lease
    kind: Kind
    since: float
    state: SlotState = SlotState.GRANTED
    session_id: str = ""
    is_paused: bool = False
    """Whether the client has paused the session."""


@dataclass(slots=True)
class SlotTotals:
    """Work of one slot since the start of this adapter: sessions, units, and milliseconds of the units."""

    requests: int = 0
    units: int = 0
    busy_ms: float = 0.0

    @property
    def mean_ms(self) -> float:
        """The mean duration of a unit in milliseconds."""
        return round(self.busy_ms / self.units, 1) if self.units else 0.0


MOST_TOTALS: Final = 4096
"""The most slots with totals. A bound is needed because a restarted worker has a new name."""


class Leases:
    """The slots that this adapter holds, the oldest first."""

    def __init__(self) -> None:
        self._held: dict[LeasedSlot, None] = {}
        self.totals: dict[tuple[str, int], SlotTotals] = {}
        """Totals by worker and slot, the last granted slot last."""

    def granted(self, lease: Lease, kind: Kind, now: float, session_id: str = "") -> LeasedSlot:
        """Record that a session got a slot; return the slot."""
        held = LeasedSlot(lease, kind, now, session_id=session_id)
        self._held[held] = None
        place = lease.worker_id, lease.slot
        totals = self.totals.pop(place, None) or SlotTotals()
        totals.requests += 1
        self.totals[place] = totals
        if len(self.totals) > MOST_TOTALS:
            del self.totals[next(iter(self.totals))]
        return held

    def totals_of(self, held: LeasedSlot) -> SlotTotals:
        """Return the totals of a slot."""
        return self.totals.get((held.lease.worker_id, held.lease.slot)) or SlotTotals()

    def returned(self, held: LeasedSlot) -> None:
        """Record that the slot was given back."""
        del self._held[held]

    def held(self) -> list[LeasedSlot]:
        """Return the slots that are held now."""
        return list(self._held)

    def states(self) -> Counter[SlotState]:
        """Return the number of slots in each state."""
        return Counter(held.state for held in self.held())
