"""What has been asked of a session and is not yet done."""

from collections import deque
from dataclasses import dataclass
from typing import Generic

from inference_service.api.engine import Failure
from inference_service.api.setups import UnitOverrides
from inference_service.engine.sessions.preprocessing import Prepared


@dataclass
class QueuedUnit(Generic[Prepared]):
    """A unit's prepared input and, once they have come, its orders to generate and finalise."""

    number: int
    input: Prepared | None
    """None if it cannot be used; `failure` says why."""
    arrival: float
    failure: Failure | None = None
    force_listen: bool = False
    overrides: UnitOverrides | None = None
    rejection: Failure | None = None
    """Why its order to generate cannot be followed; it has come all the same."""
    finalize: bool = False
    keep_last_token: bool = False


class UnitQueue(Generic[Prepared]):
    """The units of one session that are not closed yet, oldest first, and how far it is cancelled."""

    def __init__(self) -> None:
        self._units: deque[QueuedUnit[Prepared]] = deque()
        self._cancelled_to = 0

    @property
    def first(self) -> QueuedUnit[Prepared] | None:
        """The unit that is or will be worked on."""
        return self._units[0] if self._units else None

    def prefill(self, unit: QueuedUnit[Prepared]) -> None:
        """A unit has come."""
        self._units.append(unit)

    def generate(self, number: int, force_listen: bool, overrides: UnitOverrides) -> None:
        """The unit may be decided as soon as it is heard."""
        for unit in self._units:
            if unit.number == number:
                unit.force_listen, unit.overrides = force_listen, overrides

    def reject(self, number: int, failure: Failure) -> None:
        """The unit is to fail as soon as it is heard."""
        for unit in self._units:
            if unit.number == number:
                unit.rejection, unit.overrides = failure, UnitOverrides()

    def finalize(self, number: int, *, keep_last_token: bool = False) -> None:
        """The unit may be closed as soon as it is done."""
        for unit in self._units:
            if unit.number == number:
                unit.finalize, unit.keep_last_token = True, keep_last_token

    def cancel(self, number: int) -> None:
        """Units up to and including `number` end CANCELLED, also those not yet come."""
        self._cancelled_to = max(self._cancelled_to, number)

    def is_cancelled(self, unit: QueuedUnit[Prepared]) -> bool:
        """Whether the unit is to end without another word."""
        return unit.number <= self._cancelled_to

    def close_first(self) -> None:
        """The first unit is closed."""
        self._units.popleft()
