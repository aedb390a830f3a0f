"""The path of a unit: from hand-made calls, from a real conversation, and in docs/unit.md."""

import asyncio
import re
import sys
from pathlib import Path
from types import CodeType

import pytest

from benchmarks.walk import document
from benchmarks.walk.__main__ import legs, walk
from benchmarks.walk.conversation import Kind, Unit
from benchmarks.walk.document import Leg
from benchmarks.walk.traced import Recorder
from benchmarks.walk.unit_path import Call, Span, UnitPath, caused, parted, span, unit_path
from docs.drawing.source_tree import repository
from tests.support.long import long

UNIT = Unit(10.0, 11.0, Kind.LISTENS)
NEXT = Unit(11.0, 12.0, Kind.SPEAKS)
REST = Span(0.0, 2.0)


def call(at: float, module: str, *, by: str = "", thread: str = "main") -> Call:
    """A call of `module.run`; `by` names what called it."""
    return Call(at, thread, not by, module, "run")


def test_calls_soon_after_sent_unit_are_attributed_to_it() -> None:
    assert span(UNIT) == Span(10.0, 10.6)
    assert span(Unit(10.0, 10.2, Kind.LISTENS)) == Span(10.0, 10.2)
    calls = [call(at, f"at {at}") for at in (9.9, 10.0, 10.5, 10.6, 11.1)]
    assert [[it.at for it in unit] for unit in caused(calls, [UNIT, NEXT], [REST])] == [[10.0, 10.5], [11.1]]


def test_background_calls_of_process_are_attributed_to_no_unit() -> None:
    at_rest = [call(0.5, "clock"), call(0.6, "worker"), call(0.7, "channel", by="worker")]
    at_work = [call(10.1, "socket"), call(10.2, "clock"), call(10.3, "engine", thread="engine")]
    at_work += [call(10.4, "clock", by="engine", thread="engine"), call(10.5, "worker")]
    at_work += [call(10.51, "channel", by="worker"), call(10.52, "channel")]
    at_work += [call(10.53, "session", by="channel")]
    (mine,) = caused(at_rest + at_work, [UNIT], [REST])
    assert [it.module for it in mine] == ["socket", "engine", "clock", "channel", "session"]


def test_a_way_is_parted_where_the_answer_begins() -> None:
    inwards = [call(1, "socket"), call(2, "answers", by="socket")]
    outwards = [call(3, "answers"), call(4, "socket", by="answers")]
    assert parted(inwards + outwards, "answers") == (inwards, outwards)
    assert parted(inwards, "answers") == (inwards, [])


def test_modules_stand_in_the_order_in_which_units_reach_them() -> None:
    first = [call(1, "socket"), call(2, "session", by="socket"), call(3, "socket", by="session")]
    second = [call(1, "socket"), call(2, "session", by="socket"), call(3, "worker")]
    third = [call(1, "session"), call(2, "worker", by="session"), call(3, "rarely", by="session")]
    assert unit_path([first, second, third]) == UnitPath(("socket", "session", "worker"), 3.0, 4 / 3)
    assert unit_path([]) == UnitPath((), 0.0, 0.0)


def test_each_kind_of_unit_has_a_way_through_both_processes() -> None:
    answers = "ws_adapter.worker.transport.call"
    adapter = [call(10.1, "in"), call(10.2, answers), call(11.1, "in"), call(11.2, answers)]
    worker = [call(10.15, "listen"), call(11.15, "speak")]
    found = legs([UNIT, NEXT], [REST], [*adapter, call(11.3, "out")], worker)
    assert [[leg.path.modules for leg in found[kind]] for kind in Kind] == [
        [("in",), ("listen",), (answers,)],
        [("in",), ("speak",), (answers, "out")],
    ]


def test_page_is_written_between_its_marks(tmp_path: Path) -> None:
    page = tmp_path / "unit.md"
    page.write_text("before\n<!-- benchmarks.walk -->\nold\n<!-- end -->\nafter\n")
    leg = Leg("worker", 1, UnitPath(("one", "two"), 3.4, 1.0))

    document.write({Kind.LISTENS: [leg]}, page)

    assert not leg.is_short
    assert page.read_text() == (
        "before\n<!-- benchmarks.walk -->\n### A listening unit\n\n"
        "- **worker: 2 modules (goal: at most 1), 3 calls, 1 hand-overs**\\\n  `one`, `two`\n"
        "<!-- end -->\nafter\n"
    )
    page.write_text("no marks")
    with pytest.raises(ValueError):
        document.write({}, page)


@pytest.mark.long
def test_page_quotes_modules_that_there_are() -> None:
    text = document.DOCUMENT.read_text().partition("<!-- benchmarks.walk -->")[2].partition("<!-- end -->")[0]
    quoted = re.findall(r"^- \*\*.*?: (\d+) modules.*\n  (.*)$", text, re.MULTILINE)
    modules = repository().files.keys()
    assert len(quoted) == 6
    for count, names in quoted:
        found = re.findall(r"`([\w.]+)`", names)
        assert len(found) == int(count)
        assert set(found) <= modules


class Everything(Recorder):
    """Takes the functions of this file for ours."""

    def module(self, code: CodeType) -> str:
        return code.co_name if code.co_filename == __file__ else ""


async def test_intermediate_awaiting_coroutine_is_recorded_once() -> None:
    came = asyncio.get_running_loop().create_future()

    async def reader() -> None:
        await came
        told()

    def told() -> None: ...

    async def session() -> None:
        await reader()
        await reader()

    recorder = Everything()
    task = asyncio.create_task(session())
    sys.setprofile(recorder.trace)
    try:
        await asyncio.sleep(0)
        came.set_result(None)
        await task
    finally:
        sys.setprofile(None)
    names = [code.co_name for _, _, _, code in recorder.calls]
    noted = [name for name in names if name in ("session", "reader", "told")]
    assert noted == ["session", "reader", "reader", "told", "reader", "told"]


@long
@pytest.mark.timeout(240)
def test_way_of_a_unit_leads_through_the_real_processes() -> None:
    found = walk()

    assert list(found) == list(Kind)
    for inwards, worker, outwards in found.values():
        assert inwards.path.modules[0] == "ws_adapter.web.websocket"
        assert "ws_adapter.protocol.duplex.machine" in inwards.path.modules
        assert "inference_service.engine.tick" in worker.path.modules
        assert outwards.path.modules[0] == "ws_adapter.worker.transport.call"
        assert "ws_adapter.session.outbox" in outwards.path.modules
        assert not {"antiphon_service.telemetry.lag", "ws_adapter.process.load"} & {*outwards.path.modules}
    assert "inference_service.engine.batch.speech" in found[Kind.SPEAKS][1].path.modules
    assert "inference_service.engine.batch.speech" not in found[Kind.LISTENS][1].path.modules
