"""The worker's slots: one for each session, free again only once its caches are clean."""

from collections.abc import Callable
from enum import Enum, auto

from inference_service.errors import LeaseInvalid, NoFreeSlot, StaleLease
from inference_service.session.leases import Lease, LeaseRules


class SlotState(Enum):
    """The states of a slot between two sessions."""

    FREE = auto()
    HELD = auto()
    """The first stream of a session is open, but not all of them."""
    ATTACHED = auto()
    """All streams of a session are open."""
    CLEANING = auto()
    """The session is over, and its caches are not clean yet."""


class SlotTable:
    """The slots: a session with a lease gets the slot that the lease names, others get any free slot.

    With binding leases, the last `unleased` slots are for sessions without a lease, and the others for
    sessions with one. Without binding leases the epoch of a lease is not checked, and a session gets another
    slot if that of its lease is not free.
    """

    def __init__(self, count: int, rules: LeaseRules | None = None) -> None:
        self._rules = rules or LeaseRules()
        self._states = [SlotState.FREE] * count
        self._epochs = [0] * count  # of the lease with which its session came, 0 without one
        self._lowest_epochs = [0] * count  # of a lease that may still have the slot
        self.highest_epoch = 0
        """The highest epoch of all leases seen."""
        self.freed: Callable[[int, int], None] = lambda slot, epoch: None
        """Called when a slot is clean, with the epoch of its session's lease, or 0."""

    @property
    def count(self) -> int:
        """The number of slots."""
        return len(self._states)

    @property
    def free_count(self) -> int:
        """The number of free slots for sessions with a lease."""
        return self.leased - len(self.held())

    def number_of(self, state: SlotState) -> int:
        """Return the number of slots in `state`."""
        return self._states.count(state)

    def state(self, slot: int) -> SlotState:
        """Return the state of `slot`."""
        return self._states[slot]

    @property
    def leased(self) -> int:
        """The number of slots for leases, which are the first ones."""
        return self.count - self._rules.unleased if self._rules.binding else self.count

    def held(self) -> list[tuple[int, int]]:
        """Return the leased slots that are not free, each with the epoch of its session's lease, or 0."""
        return [
            (slot, self._epochs[slot])
            for slot in range(self.leased)
            if self._states[slot] is not SlotState.FREE
        ]

    def revoke(self, slot: int, epoch: int) -> SlotState:
        """Revoke a lease, used or not; return the state of its slot."""
        self._lowest_epochs[slot] = max(self._lowest_epochs[slot], epoch + 1)
        return self._states[slot]

    def acquire(self, lease: Lease | None = None) -> int:
        """Acquire a free slot, which is then HELD. Raises `NoFreeSlot`, and with a lease `LeaseInvalid` or
        `StaleLease`.
        """
        if lease is None:
            slot = self._any_free()
        elif self._rules.binding:
            slot = self._leased(lease)
        else:
            is_free = lease.slot < self.count and self._states[lease.slot] is SlotState.FREE
            slot = lease.slot if is_free else self._any_free()
        self._states[slot] = SlotState.HELD
        self._epochs[slot] = lease.epoch if lease is not None else 0
        return slot

    def _any_free(self) -> int:
        first = self.leased if self._rules.binding else 0
        for slot in range(first, self.count):
            if self._states[slot] is SlotState.FREE:
                return slot
        slots = self.count - first
        raise NoFreeSlot(f"All {slots} slots of this worker are taken.", slots=slots)

    def _leased(self, lease: Lease) -> int:
        slot, epoch = lease.slot, lease.epoch
        if slot >= self.leased:
            raise LeaseInvalid(f"The lease names slot {slot}; this worker has {self.leased}.", slot=slot)
        lowest = self._lowest_epochs[slot]
        if epoch < lowest:
            raise StaleLease(
                f"The lease of slot {slot} with epoch {epoch} is used or outdated: ask for a new one.",
                slot=slot,
                epoch=epoch,
                lowest_epoch=lowest,
            )
        self._lowest_epochs[slot] = epoch
        self.highest_epoch = max(self.highest_epoch, epoch)
        if self._states[slot] is not SlotState.FREE:
            raise NoFreeSlot(f"Slot {slot} has a session, or is being cleaned.", slot=slot)
        self._lowest_epochs[slot] = epoch + 1
        return slot

    def attach(self, slot: int) -> None:
        """Note that the session in a HELD slot has all its streams."""
        self._move(slot, SlotState.ATTACHED, SlotState.HELD)

    def clean(self, slot: int) -> None:
        """Note that the session in the slot is over and its caches are being cleaned."""
        self._move(slot, SlotState.CLEANING, SlotState.HELD, SlotState.ATTACHED)

    def free(self, slot: int) -> None:
        """Free a CLEANING slot."""
        self._move(slot, SlotState.FREE, SlotState.CLEANING)
        self.freed(slot, self._epochs[slot])

    def _move(self, slot: int, to: SlotState, *allowed: SlotState) -> None:
        if self._states[slot] not in allowed:
            raise ValueError(f"slot {slot} cannot go from {self._states[slot].name} to {to.name}")
        self._states[slot] = to
