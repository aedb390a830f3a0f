"""Admit sessions on a clock that goes by the time that ticks and units are said to have taken."""

import pytest

from inference_service.interface.engine import Ticked
from inference_service.session.admission import LEAST_UNITS, WINDOW_S, Admission

ROWS = 12
"""Of a unit that listens."""


class Machine:
    """A worker that ticks once for all units that came in a tenth of a second."""

    def __init__(self, tick_s: float, row_s: float) -> None:
        self.now = 1000.0
        self.sessions = 0
        self.tick_s = tick_s
        self.row_s = row_s
        self.admission = Admission(lambda: self.now)
        self._backlog_s = 0.0
        self._number = 0

    def enter(self, count: int = 1) -> int:
        """So many sessions come, one by one; how many may."""
        came = 0
        while came < count and self.admission.has_time():
            self.admission.enter()
            came += 1
        self.sessions += came
        return came

    def leave(self, count: int) -> None:
        for _ in range(count):
            self.admission.leave()
        self.sessions -= count

    def run(self, seconds: int) -> None:
        """Each session's unit a second comes and is answered, late if there is too much of it."""
        for turn in range(10 * seconds):
            units = (self.sessions * (turn % 10 + 1)) // 10 - self.sessions * (turn % 10) // 10
            self.now += 0.1
            if not units:
                self._backlog_s = max(0.0, self._backlog_s - 0.1)
                continue
            took = self.tick_s + self.row_s * ROWS * units
            self._backlog_s = max(0.0, self._backlog_s + took - 0.1)
            self._number += 1
            spent = min(took, 0.1 + self._backlog_s)
            tick = Ticked(self._number, self.now - spent, self.now, units, ROWS * units)
            self.admission.ticked([tick])
            for _ in range(units):
                self.admission.answered((self.now, took + self._backlog_s))


def busy(tick_s: float, row_s: float, sessions: int, seconds: int) -> Machine:
    """A worker in which so many sessions have been talking for so long."""
    machine = Machine(tick_s, row_s)
    machine.enter(sessions)
    machine.run(seconds)
    return machine


def carried(machine: Machine) -> int:
    """Sessions that come one every five seconds, until one is refused or there are 200."""
    while machine.sessions < 200 and machine.enter():
        machine.run(5)
    return machine.sessions


def test_fast_machine_admits_all_sessions_at_once_and_later() -> None:
    machine = Machine(tick_s=0.002, row_s=0.00002)
    assert machine.enter(64) == 64
    machine.run(3)
    assert machine.enter(64) == 64
    machine.run(40)
    assert machine.enter(64) == 64


def test_one_session_does_not_stand_for_a_crowd_that_shares_its_ticks() -> None:
    """A tick takes 30 ms alone, and 31 with ten in it: what one session takes is no price of a session."""
    machine = busy(0.03, 0.00001, 1, 40)
    assert machine.enter(63) == 63


def test_a_session_that_speaks_alone_does_not_tell_what_the_next_speaker_costs() -> None:
    """Ticks that hear, decode and speak differ by what a stage costs for anybody."""
    now = 1000.0
    admission = Admission(lambda: now)
    admission.enter()
    for unit in range(40):
        for rows, speaking, spent in [(14, 0, 0.02), *[(1, 0, 0.005)] * 7, *[(0, 1, 0.012)] * 25]:
            admission.ticked([Ticked(unit, now, now + spent, 1, rows, speaking=speaking)])
        now += 1.0
        admission.answered((now, 0.4))
    for _ in range(63):
        assert admission.has_time()
        admission.enter()


@pytest.mark.parametrize("row_s", [0.001, 0.0005])
def test_a_slow_machine_takes_as_many_as_it_answers_in_time(row_s: float) -> None:
    machine = Machine(tick_s=0.01, row_s=row_s)
    most = int(0.9 / (row_s * ROWS))
    held = carried(machine)
    assert 0.7 * most <= held <= most + 1
    machine.run(60)
    assert not machine.enter()


def test_unmeasured_new_sessions_count_towards_load() -> None:
    machine = busy(0.01, 0.001, 33, 40)
    assert 20 <= machine.enter(100) <= 50


def test_departed_sessions_free_capacity() -> None:
    machine = Machine(tick_s=0.01, row_s=0.001)
    held = carried(machine)
    machine.leave(held // 2)
    assert machine.enter()


def test_a_slow_minute_is_forgotten() -> None:
    machine = busy(0.01, 0.004, 20, 20)
    assert not machine.enter()
    machine.row_s = 0.0001
    machine.run(int(WINDOW_S) + 2)
    assert machine.enter(20) == 20


def test_late_units_with_fast_ticks_block_no_admission() -> None:
    machine = busy(0.002, 0.00002, 8, 10)
    for _ in range(LEAST_UNITS):
        machine.admission.answered((machine.now, 3.0))
    assert machine.enter(8) == 8


def test_work_without_deadline_blocks_no_admission() -> None:
    machine = busy(0.002, 0.00002, 8, 10)
    for i in range(300):
        machine.now += 0.1
        machine.admission.ticked([Ticked(i, machine.now - 0.1, machine.now, 1, 128, rest_s=0.1)])
    machine.run(5)
    assert machine.enter(8) == 8


def test_units_faster_than_real_time_block_no_admission() -> None:
    machine = Machine(tick_s=0.01, row_s=0.0005)
    machine.enter(4)
    for number in range(1200):  # four units in every tick, tick by tick: ten times as fast as they are said
        rows = ROWS * (3 + number % 2)
        machine.now += 0.01 + 0.0005 * rows
        machine.admission.ticked([Ticked(number, machine.now - 0.01 - 0.0005 * rows, machine.now, 4, rows)])
        for _ in range(4):
            machine.admission.answered((machine.now, 0.04))
    assert machine.enter(16) == 16


def test_the_first_one_always_comes() -> None:
    machine = busy(3.0, 0.0, 1, 60)
    assert not machine.enter()
    machine.leave(1)
    assert machine.enter()
