"""The slots that this adapter holds for its sessions."""

from collections import Counter
from dataclasses import dataclass

from antiphon.semconv import SlotState
from ws_adapter.dispatch.base import Lease
from ws_adapter.protocol.core.kind import Kind


@dataclass(slots=True, eq=False)
class Held:
    """A slot; `since` is when it was granted, in seconds of the adapter's clock."""

    lease: Lease
    kind: Kind
    since: float
    state: SlotState = SlotState.GRANTED


class Leases:
    """All of them, the oldest first."""

    def __init__(self) -> None:
        self._held: dict[Held, None] = {}

    def granted(self, lease: Lease, kind: Kind, now: float) -> Held:
        """A session got a slot."""
        held = Held(lease, kind, now)
        self._held[held] = None
        return held

    def returned(self, held: Held) -> None:
        """It is somebody else's."""
        del self._held[held]

    def held(self) -> list[Held]:
        """Those that are held now."""
        return list(self._held)

    def states(self) -> Counter[SlotState]:
        """How many are in each state."""
        return Counter(held.state for held in self.held())
