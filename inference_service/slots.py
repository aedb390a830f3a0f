"""The worker's slots: room for so many sessions, each free again only once it is clean."""

from enum import Enum, auto

from inference_service.errors import NoFreeSlot


class SlotState(Enum):
    """Where a slot is between two sessions."""

    FREE = auto()
    HELD = auto()
    """A session's first stream has come; the others have not yet."""
    ATTACHED = auto()
    """A session has all its streams."""
    CLEANING = auto()
    """The session is over; its caches are not yet clean."""


class SlotTable:
    """Who may come in. Callers attach without a lease; when all slots are taken they are refused."""

    def __init__(self, count: int) -> None:
        self._states = [SlotState.FREE] * count

    @property
    def count(self) -> int:
        """All slots."""
        return len(self._states)

    @property
    def free_count(self) -> int:
        """Slots that a session could take now."""
        return self._states.count(SlotState.FREE)

    def state(self, slot: int) -> SlotState:
        """Where `slot` is."""
        return self._states[slot]

    def acquire(self) -> int:
        """A free slot, now HELD. Raises `NoFreeSlot`."""
        for slot, state in enumerate(self._states):
            if state is SlotState.FREE:
                self._states[slot] = SlotState.HELD
                return slot
        raise NoFreeSlot(f"All {self.count} slots of this worker are taken.", slots=self.count)

    def attach(self, slot: int) -> None:
        """The session in a HELD slot has all its streams."""
        self._move(slot, SlotState.ATTACHED, SlotState.HELD)

    def clean(self, slot: int) -> None:
        """The session in the slot is over and its caches are being cleaned."""
        self._move(slot, SlotState.CLEANING, SlotState.HELD, SlotState.ATTACHED)

    def free(self, slot: int) -> None:
        """A CLEANING slot is clean."""
        self._move(slot, SlotState.FREE, SlotState.CLEANING)

    def _move(self, slot: int, to: SlotState, *allowed: SlotState) -> None:
        if self._states[slot] not in allowed:
            raise ValueError(f"slot {slot} cannot go from {self._states[slot].name} to {to.name}")
        self._states[slot] = to
