"""When a session may move to another worker."""

from typing import Any, cast

import pytest

from antiphon.contract import Reason
from antiphon.v1 import inference_service_pb2 as pb
from antiphon_service.semconv import FailoverOutcome
from tests.ws_adapter.worker.test_journal import SECOND, done, hear, journal_of
from ws_adapter.protocol.core.actions import RunUnit
from ws_adapter.session.failover import ATTEMPT_S, CRASH_WINDOW_S, MOST_ATTEMPTS, MOST_CRASHES, Failover
from ws_adapter.worker.journal import Journals


class Worker:
    """A fake worker session that records the writes of a failover."""

    journal: object = None

    def __init__(self) -> None:
        self.units: list[int] = []
        self.cancelled: list[int] = []
        self.rewinds: list[tuple[int, int | None]] = []

    def write_unit(self, unit: int, parts: object) -> None:
        self.units.append(unit)

    def cancel(self, unit: int) -> None:
        self.cancelled.append(unit)

    def rewind(self, unit: int, heard_samples: int | None) -> None:
        self.rewinds.append((unit, heard_samples))


def failover_with(worker: Worker, answered: int) -> Failover:
    """A session whose worker has answered so many units."""
    failover = Failover(journal_of())
    for unit in range(1, answered + 1):
        run(failover, worker, unit)
        done(failover.journal, unit)
        failover.journal.finalized(unit)
    return failover


def run(failover: Failover, worker: Worker | None, unit: int) -> None:
    failover.run(cast("Any", worker), RunUnit(unit, SECOND, force_listen=False), "", None)


@pytest.mark.parametrize("reason", [Reason.WORKER_LOST, Reason.ENGINE_FATAL, Reason.UNIT_TIMEOUT])
def test_input_at_two_lost_workers_goes_to_no_third(reason: Reason) -> None:
    worker = Worker()
    failover = failover_with(worker, 2)
    run(failover, worker, 3)
    assert failover.lost(reason, 0.0) is None
    second = Worker()
    failover.go_on(cast("Any", second))
    assert second.units == [3]
    assert failover.lost(reason, 1.0) is FailoverOutcome.SUSPECT


def test_input_that_was_answered_meanwhile_is_above_suspicion() -> None:
    worker = Worker()
    failover = failover_with(worker, 2)
    run(failover, worker, 3)
    assert failover.lost(Reason.WORKER_LOST, 0.0) is None
    failover.go_on(cast("Any", worker))
    done(failover.journal, 3)
    run(failover, worker, 4)
    assert failover.lost(Reason.WORKER_LOST, 1.0) is None


def test_more_crashes_than_allowed_in_the_window_end_the_session_and_nothing_else_counts() -> None:
    often, seldom, drained = (failover_with(Worker(), 1) for _ in range(3))
    for crash in range(MOST_CRASHES):
        assert often.lost(Reason.WORKER_LOST, float(crash)) is None
    assert often.lost(Reason.WORKER_LOST, 5.0) is FailoverOutcome.SUSPECT
    for crash in range(3 * MOST_CRASHES):
        assert seldom.lost(Reason.WORKER_LOST, crash * (CRASH_WINDOW_S + 1)) is None
        assert drained.lost(Reason.DRAINING, float(crash)) is None
    assert drained.lost(Reason.WORKER_LOST, 9.0) is None


def test_attempts_of_one_failover_are_bounded_and_without_enough_journal_there_is_none() -> None:
    failover = failover_with(Worker(), 1)
    failover.lost(Reason.WORKER_LOST, 0.0)
    pauses = [failover.next_attempt_s() for _ in range(MOST_ATTEMPTS)]
    assert pauses == [number * ATTEMPT_S for number in range(MOST_ATTEMPTS - 1)] + [None]
    failover = Failover(journal_of(Journals(1.0, 2**20)))
    hear(failover.journal, pb.UNIT_END_CHUNK, pb.UNIT_END_CHUNK)
    assert failover.lost(Reason.WORKER_LOST, 0.0) is FailoverOutcome.NO_JOURNAL


def test_units_that_come_while_the_session_moves_wait_in_order() -> None:
    worker = Worker()
    failover = failover_with(worker, 1)
    run(failover, worker, 2)
    failover.lost(Reason.WORKER_LOST, 0.0)
    run(failover, None, 3)
    failover.rewind(None, 1, 50)
    failover.cancel(None, 3)
    second = Worker()
    assert failover.go_on(cast("Any", second)) == []
    assert (second.units, second.rewinds, second.cancelled) == ([2, 3], [(1, 50)], [])
    assert not failover.is_moving


def test_units_that_come_while_the_worker_is_left_are_not_sent_to_it() -> None:
    worker = Worker()
    failover = failover_with(worker, 1)
    run(failover, worker, 2)
    failover.is_leaving = True
    run(failover, worker, 3)
    assert not failover.is_idle
    done(failover.journal, 2)
    failover.journal.finalized(2)
    assert failover.is_idle
    failover.stay(cast("Any", worker))
    assert worker.units == [1, 2, 3]
