"""Items that are transcribed beside a conversation: their order, their bounds, and how they give way."""

import pytest

from antiphon.contract import Reason
from tests.ws_adapter.support.conversation import ready_signal
from ws_adapter.protocol.core.actions import CancelUnits, LeaveSlot, OpenWorkerSession, RunSegment, TakeSlot
from ws_adapter.protocol.core.config import TranscriptionSetup
from ws_adapter.protocol.core.machine import Transcribe
from ws_adapter.protocol.core.signals import Failed, Finalized, GoingAway, Piece, Signal, UnitDone, UnitEnd
from ws_adapter.protocol.core.transcription import (
    InputTranscript,
    InputTranscriptDelta,
    InputTranscriptDone,
    InputTranscriptFailed,
    TranscriptionCode,
)
from ws_adapter.protocol.transcription.background import (
    MOST_ITEMS,
    MOST_S,
    RETRY_S,
    BackgroundTranscription,
    ItemUpdate,
    Step,
)

WAIT_S = 60.0
SECOND = bytes(4 * 16_000)


def item(name: str, seconds: float = 1.0, model: str = "") -> Transcribe:
    return Transcribe(name, bytes(round(seconds * 16_000) * 4), model, lambda news, now: [])


class Bench:
    """A machine, its clock and its worker, which writes down each second as its number."""

    def __init__(self, wait_s: float = WAIT_S) -> None:
        self.now = 1000.0
        self.others_wait = False
        self.machine = BackgroundTranscription(wait_s, lambda: self.others_wait)
        self.steps: list[Step] = []
        self.told: list[tuple[str, InputTranscript]] = []
        self.runs: list[RunSegment] = []
        self.has_slot = False

    def do(self, steps: list[Step]) -> list[Step]:
        for step in steps:
            match step:
                case ItemUpdate():
                    self.told.append((step.item.item_id, step.news))
                case TakeSlot():
                    assert not self.has_slot
                    self.has_slot = True
                case LeaveSlot():
                    assert self.has_slot
                    self.has_slot = False
                case RunSegment():
                    assert self.has_slot
                    self.runs.append(step)
        self.steps += steps
        return steps

    def ask(self, *items: Transcribe) -> None:
        for one in items:
            self.do(self.machine.ask(one, self.now))

    def grant(self) -> None:
        """A slot is there, and its worker ready."""
        self.do(self.machine.granted())
        self.do(self.machine.signal(ready_signal(), self.now))

    def worker(self, *signals: Signal) -> None:
        for signal in signals:
            self.do(self.machine.signal(signal, self.now))

    def write(self, text: str = "one", end: UnitEnd = UnitEnd.CHUNK) -> None:
        """The worker is done with the segment that it has."""
        unit = self.runs[-1].unit
        self.worker(Piece(unit, text, b""), UnitDone(unit, end, 10), Finalized(unit))

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.do(self.machine.tick(self.now))

    @property
    def ends(self) -> dict[str, InputTranscript]:
        """The final result of each item that is over."""
        return {name: news for name, news in self.told if not isinstance(news, InputTranscriptDelta)}

    def code(self, name: str) -> TranscriptionCode:
        news = self.ends[name]
        assert isinstance(news, InputTranscriptFailed)
        return news.code


@pytest.fixture
def bench() -> Bench:
    return Bench()


def begun(*items: Transcribe) -> Bench:
    """The first of these is at a worker."""
    bench = Bench()
    bench.ask(*items)
    bench.grant()
    return bench


def test_item_is_written_second_by_second_and_the_slot_is_given_back() -> None:
    bench = begun(item("a", 2.5))
    for text in (" count", " up", " to"):
        bench.write(text)

    assert [len(run.audio) // 64_000 for run in bench.runs] == [1, 1, 0]
    assert [(run.begins, run.ends) for run in bench.runs] == [(True, False), (False, False), (False, True)]
    assert bench.told == [
        ("a", InputTranscriptDelta("count", 0.0, 1.0)),
        ("a", InputTranscriptDelta(" up", 1.0, 2.0)),
        ("a", InputTranscriptDelta(" to", 2.0, 2.5)),
        ("a", InputTranscriptDone("count up to", 2.5)),
    ]
    assert not bench.has_slot
    assert bench.machine.held_bytes == 0
    assert bench.machine.deadline is None


def test_session_at_the_worker_is_in_the_background_and_another_model_has_another_slot() -> None:
    bench = begun(item("a", model="one"), item("b", model="two"))
    bench.write()
    assert [step for step in bench.steps if isinstance(step, TakeSlot | OpenWorkerSession)] == [
        TakeSlot("one"),
        OpenWorkerSession(TranscriptionSetup("one", is_background=True)),
        TakeSlot("two"),
    ]


@pytest.mark.parametrize("others_wait", [False, True])
def test_items_follow_one_another_in_one_slot_unless_another_session_waits_for_it(others_wait: bool) -> None:
    bench = begun(item("a"), item("b"))
    bench.others_wait = others_wait
    assert len(bench.runs) == 1, "one segment at a time"
    bench.write("one")
    slots = [step for step in bench.steps if isinstance(step, LeaveSlot | TakeSlot)]
    assert slots == [TakeSlot("")] + [LeaveSlot(), TakeSlot("")] * others_wait
    assert list(bench.ends) == ["a"]
    if not others_wait:
        assert len(bench.runs) == 2
        assert bench.runs[-1].begins
        bench.write("two")
        assert list(bench.ends) == ["a", "b"]
        assert not bench.has_slot


def test_preempted_item_is_restarted_and_transcribed_once() -> None:
    bench = begun(item("a", 2.0))
    bench.write("one")
    bench.do(bench.machine.give_way(bench.now))
    assert not bench.has_slot
    bench.wait(RETRY_S)
    bench.grant()
    bench.write("one")
    bench.write(" two")

    assert [run.begins for run in bench.runs] == [True, False, True, False]
    assert [news for _, news in bench.told] == [
        InputTranscriptDelta("one", 0.0, 1.0),
        InputTranscriptDelta(" two", 1.0, 2.0),
        InputTranscriptDone("one two", 2.0),
    ]


@pytest.mark.parametrize("signal", [GoingAway(10.0), Failed(Reason.WORKER_LOST)])
def test_worker_that_leaves_before_an_item_has_begun_is_replaced(bench: Bench, signal: Signal) -> None:
    bench.ask(item("a"))
    bench.do(bench.machine.granted())
    bench.worker(signal)
    assert not bench.has_slot
    bench.wait(RETRY_S)
    bench.grant()
    bench.write("one")
    assert bench.ends["a"] == InputTranscriptDone("one", 1.0)


def test_refused_slot_is_looked_for_again_until_the_deadline(bench: Bench) -> None:
    bench.ask(item("a"))
    for _ in range(3):
        bench.do([LeaveSlot(), *bench.machine.refused(bench.now)])
        bench.wait(RETRY_S)
        assert bench.has_slot
    bench.wait(WAIT_S)
    assert bench.code("a") is TranscriptionCode.QUEUE_FULL
    assert not bench.has_slot


def test_item_that_takes_too_long_fails_and_the_next_one_goes_on() -> None:
    bench = begun(item("a"))
    bench.now += WAIT_S - 1
    bench.ask(item("b"))
    bench.wait(1.0)
    assert bench.code("a") is TranscriptionCode.TIMEOUT
    assert bench.steps[-2] == CancelUnits(1)
    bench.write("one", UnitEnd.CANCELLED)
    bench.write("two")
    assert bench.ends["b"] == InputTranscriptDone("two", 1.0)


def test_items_and_their_seconds_are_bounded_and_those_beyond_fail_at_once() -> None:
    bench = Bench()
    bench.ask(*[item(str(number), 0.1) for number in range(300)])
    assert len(bench.ends) == 300 - MOST_ITEMS
    assert {bench.code(name) for name in bench.ends} == {TranscriptionCode.BUFFER_FULL}
    assert bench.machine.held_bytes == MOST_ITEMS * len(SECOND) // 10
    bench = Bench()
    bench.ask(item("a", MOST_S), item("b"))
    assert bench.code("b") is TranscriptionCode.BUFFER_FULL


@pytest.mark.parametrize("is_begun", [True, False])
def test_cancelled_item_gets_no_further_events(bench: Bench, is_begun: bool) -> None:
    bench.ask(item("a"))
    if is_begun:
        bench.grant()
    bench.do(bench.machine.cancel("a", bench.now))
    assert not bench.has_slot
    assert bench.told == []
    assert bench.machine.deadline is None
    other = begun(item("a"), item("b"))
    other.do(other.machine.cancel("b", other.now))
    other.do(other.machine.cancel("unknown", other.now))
    other.write("one")
    assert other.ends == {"a": InputTranscriptDone("one", 1.0)}


def test_item_without_worker_fails_and_empty_item_needs_none(bench: Bench) -> None:
    bench.ask(item("a", 0.0))
    assert bench.ends == {"a": InputTranscriptDone("", 0.0)}
    assert not bench.has_slot
    bench.ask(item("b", model="unknown"))
    bench.do([LeaveSlot(), *bench.machine.unserved(TranscriptionCode.MODEL_NOT_FOUND, bench.now)])
    assert bench.code("b") is TranscriptionCode.MODEL_NOT_FOUND
    switched_off = Bench(wait_s=0.0)
    switched_off.ask(item("a"))
    assert switched_off.code("a") is TranscriptionCode.SERVICE_UNAVAILABLE
    assert not switched_off.has_slot


@pytest.mark.parametrize(
    ("done", "code"),
    [
        (UnitDone(1, UnitEnd.FAILED, 0, failure=Reason.AUDIO_INVALID), TranscriptionCode.INVALID_AUDIO),
        (UnitDone(1, UnitEnd.FAILED, 0, failure=Reason.INFERENCE_FAILED), TranscriptionCode.PROCESSING_ERROR),
        (UnitDone(1, UnitEnd.CONTEXT_FULL, 0), TranscriptionCode.CONTEXT_FULL),
    ],
)
def test_unit_that_fails_ends_its_item_with_a_code(done: UnitDone, code: TranscriptionCode) -> None:
    bench = begun(item("a", 3.0))
    bench.worker(done, Finalized(1))
    assert bench.code("a") is code
    assert not bench.has_slot


def test_worker_lost_in_the_middle_fails_the_item_alone() -> None:
    bench = begun(item("a"), item("b"))
    bench.worker(Failed(Reason.WORKER_LOST))
    bench.grant()
    bench.write("two")
    assert bench.code("a") is TranscriptionCode.PROCESSING_ERROR
    assert bench.ends["b"] == InputTranscriptDone("two", 1.0)
