"""Sessions whose worker is lost, hangs or leaves: another worker goes on, and the client need not know."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from antiphon.contract import Reason
from antiphon_service.pools import STABLE
from antiphon_service.semconv import FailoverOutcome
from inference_service.interface.engine import SessionFailed
from tests.support.scrape import scrape
from tests.support.scripted_engine import (
    EVERYTHING,
    INFO,
    REPLAYING,
    Play,
    RunningWorker,
    Script,
    ScriptedEngine,
    hang,
    listen,
    running_worker,
    speak,
    turn_end,
)
from tests.ws_adapter.support import live_conversation as live
from tests.ws_adapter.support import realtime_ga_conversation as realtime
from tests.ws_adapter.support.conversation import Event, append
from tests.ws_adapter.support.stage import Client, Stage, running_adapter, until

pytestmark = pytest.mark.usefixtures("patience")

LONG_S = 600.0
TALK = (listen(), speak("Hello"), speak(" there"), turn_end(" you"), listen())


@dataclass
class Backend:
    """Workers that come and go behind one adapter; the newest has the most free slots."""

    engines: list[ScriptedEngine]
    workers: list[RunningWorker]
    exits: list[AsyncExitStack]
    stage: Stage
    lost: set[int] = field(default_factory=set)

    def lose(self, number: int) -> None:
        """Break the device of a worker: it ends at once."""
        self.lost.add(number)
        self.engines[number].break_device()

    async def end(self, number: int) -> None:
        """Tell a worker twice to end."""
        await self.exits[number].aclose()

    @property
    def at(self) -> int:
        """Number of the one worker that has a session."""
        running = [number for number in range(len(self.engines)) if number not in self.lost]
        (number,) = [number for number in running if is_held(self.engines[number])]
        return number

    async def value(self, name: str, **labels: str) -> float | None:
        """A metric of the adapter."""
        assert self.stage.adapter.admin_port is not None
        return (await scrape(self.stage.adapter.admin_port)).value(name, **labels)

    async def outcome(self, outcome: FailoverOutcome) -> float | None:
        """How many failovers had this outcome."""
        return await self.value("antiphon_failovers_total", outcome=outcome.value)


def is_held(engine: ScriptedEngine) -> bool:
    return any(not session.is_closed for session in engine.sessions)


@asynccontextmanager
async def backend(
    *plays: Play,
    workers: int = 2,
    slots: int = 1,
    info: Any = REPLAYING,
    names: Sequence[str] = (),
    **options: Any,
) -> AsyncIterator[Backend]:
    """`names` are the revisions of the workers, all `stable` where there are none."""
    engines = [ScriptedEngine(*plays, slots=slots, info=info) for _ in range(workers)]
    options = {"silence_tail_units": 0, "max_lag_s": LONG_S, "admin_port": 0, **options}
    async with AsyncExitStack() as exits:
        own = [await exits.enter_async_context(AsyncExitStack()) for _ in engines]
        running = [
            await stack.enter_async_context(
                running_worker(engine, slots=slots, drain_timeout_s=LONG_S, revision=revision)
            )
            for stack, engine, revision in zip(own, engines, names or [STABLE] * workers, strict=True)
        ]
        stage = await exits.enter_async_context(
            running_adapter(*(worker.address for worker in running), **options)
        )
        await stage.until(workers=workers)
        yield Backend(engines, running, own, stage)


async def units(client: Client, count: int) -> list[Event]:
    """Send so many seconds, each once the one before is answered; return what is told."""
    told: list[Event] = []
    for _ in range(count):
        await client.send(append(1.0))
        told += await answer(client)
    return told


async def answer(client: Client) -> list[Event]:
    """All events of one unit, behind that of the end of a turn, if there was one."""
    told = [await client.next()]
    while (
        told[-1]["type"] == "session.moved"
        or told[-1].get("kind") == "text"
        or told[-1].get("reason") == "turn_end"
    ):
        told.append(await client.next())
    return told


def text_of(events: list[Event]) -> str:
    return "".join(event.get("text", "") for event in events if event.get("kind") == "text")


async def fails(client: Client) -> None:
    """The session ends as one whose worker is lost for good."""
    events, code = await client.end()
    assert [event["type"] for event in events] == ["error", "session.closed"]
    assert code == 1011


async def next_engine(home: Backend, first: int, unit: int) -> ScriptedEngine:
    """The other one of two workers, once it was given this unit."""
    second = home.engines[1 - first]
    await until(lambda: second.sessions and unit in second.session.given)
    return second


async def test_session_that_loses_its_worker_stays_at_its_revision() -> None:
    names = ["canary", "stable", "canary"]
    options = {"workers": 3, "names": names, "revisions": ("scripted=canary:1,stable:1",)}
    async with backend(*TALK, **options) as home, home.stage.client() as client:
        await client.begin()
        told = await units(client, 2)
        assert names[home.at] == "canary"
        home.lose(home.at)  # the next turn is that of the other revision
        told += await units(client, 2)
        assert text_of(told) == "Hello there you"
        assert names[home.at] == "canary"
        assert await home.value("antiphon_leases_total", outcome="lost", revision="canary") == 1


@pytest.mark.parametrize("is_told_to_end", [False, True])
@pytest.mark.parametrize("step", ["prefill", "generate", "finalize"])
async def test_worker_lost_in_a_unit_another_one_answers_it(step: str, is_told_to_end: bool) -> None:
    plays = (listen(), speak("Hello"), replace(speak(" there"), hold=step), turn_end(" you"), listen())
    async with backend(*plays) as home, home.stage.client() as client:
        await client.begin()
        told = await units(client, 2)
        first = home.at
        await client.send(append(1.0))
        await until(lambda: 3 in home.engines[first].session.heard)
        if step == "finalize":
            told += await answer(client)
        if is_told_to_end:
            await home.end(first)
        else:
            home.lose(first)
        second = await next_engine(home, first, 3)
        second.session.release(step, 3)
        if step != "finalize":
            told += await answer(client)
        told += await units(client, 2)
        assert text_of(told) == "Hello there you"
        assert [event["type"] for event in told].count("session.moved") == 1
        assert list(second.session.replayed) == [1, 2] + [3] * (step == "finalize")
        assert list(second.session.heard) == [1, 2, 3, 4, 5]
        assert await home.outcome(FailoverOutcome.CONTINUED) == 1
        assert await home.value("antiphon_replayed_units_total") == len(second.session.replayed)


async def test_events_of_ws_duplex_tell_of_the_move() -> None:
    async with backend(*TALK) as home, home.stage.client("/ws/duplex/adx_1") as client:
        await client.expect_until("queue_done")
        await client.send({"type": "prepare"})
        await client.expect("prepared")
        chunk = {"type": "audio_chunk", "audio_base64": append(1.0)["input"]["audio"]}
        texts = []
        for unit in range(5):
            await client.send(chunk)
            if unit == 2:
                home.engines[home.at].break_device()
            while (event := await client.next())["type"] != "result":
                assert event["type"] == "session.moved"
            texts.append(event["text"])
        assert texts == ["", "Hello", " there", " you", ""]


async def test_worker_that_drains_keeps_its_session_while_no_slot_is_free() -> None:
    async with backend(*TALK) as home, AsyncExitStack() as clients:
        one = await clients.enter_async_context(home.stage.client())
        await one.begin()
        first = home.at
        told = await units(one, 1)
        other = await clients.enter_async_context(home.stage.client())
        await other.begin()
        home.workers[first].worker.interrupt()
        await home.stage.until(workers=1)
        told += await units(one, 2)
        assert len(home.engines[1 - first].sessions) == 1
        await other.socket.close()
        await until(lambda: len(home.engines[1 - first].sessions) == 2)
        told += await units(one, 1)
        assert text_of(told) == "Hello there you"


@pytest.mark.parametrize("step", ["generate", "finalize"])
async def test_worker_that_drains_finishes_the_unit_that_it_has(step: str) -> None:
    plays = (listen(), replace(speak("Hello"), hold=step), turn_end(" there"), listen())
    async with backend(*plays) as home, home.stage.client() as client:
        await client.begin()
        told = await units(client, 1)
        first = home.at
        await client.send(append(1.0))
        await until(lambda: 2 in home.engines[first].session.heard)
        home.workers[first].worker.interrupt()
        await home.stage.until(workers=1)
        await client.send(append(1.0))
        home.engines[first].session.release(step, 2)
        second = (await next_engine(home, first, 2)).session
        second.release(step, 2)
        told += await answer(client) + await answer(client) + await units(client, 1)
        assert text_of(told) == "Hello there"
        assert list(second.replayed) == [1, 2]
        assert list(second.heard) == [1, 2, 3, 4]


async def test_all_sessions_of_a_lost_worker_go_on() -> None:
    async with backend(*TALK, slots=8) as home, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(home.stage.client()) for _ in range(8)]
        for client in clients:
            await client.begin()
        told = [await units(client, 2) for client in clients]
        lost, kept = home.engines if len(home.engines[0].sessions) else home.engines[::-1]
        moving = len(lost.sessions)
        lost.break_device()
        await until(lambda: len(kept.sessions) == 8)
        for client, events in zip(clients, told, strict=True):
            events += await units(client, 2)
        assert [text_of(events) for events in told] == ["Hello there you"] * 8
        assert await home.outcome(FailoverOutcome.CONTINUED) == moving


async def test_live_session_goes_on_at_another_worker() -> None:
    plays = (listen(), replace(speak("word"), hold="generate"), turn_end(" you"))
    async with backend(*plays) as home:
        async with home.stage.client("/v1/live/sessions") as client:
            await client.send(live.start(model=REPLAYING.name))
            await client.expect_until("session.started")
            first = home.at
            await client.send(live.append(1.0), live.append(1.0))
            await until(lambda: 2 in home.engines[first].session.heard)
            home.lose(first)
            second = await next_engine(home, first, 2)
            second.session.release("generate", 2)
            await client.send(live.append(1.0))
            said = ""
            while "you" not in said:
                event = await client.next()
                said += event["delta"] if event["type"] == "session.output_transcript.delta" else ""
            assert said == "word you"
            assert list(second.session.replayed) == [1]


async def test_realtime_session_of_a_model_that_takes_turns_goes_on() -> None:
    plays = (listen(), replace(speak("word"), hold="generate"), turn_end(" you"), listen())
    info = replace(EVERYTHING, replays_units=True)
    async with backend(*plays, info=info) as home:
        async with home.stage.client(f"/v1/realtime?model={info.name}") as client:
            await client.expect_until("session.created")
            await client.send(
                realtime.update(**realtime.SEMANTIC), realtime.append(1.0), realtime.append(1.0)
            )
            await until(
                lambda: any(2 in engine.sessions[-1].heard for engine in home.engines if engine.sessions)
            )
            first = home.at
            home.lose(first)
            second = await next_engine(home, first, 2)
            second.session.release("generate", 2)
            await client.send(realtime.append(1.0))
            done = await client.expect_until("response.done")
            (item,) = done["response"]["output"]
            assert item["content"][0]["transcript"] == "word you"
            truncate = {"type": "conversation.item.truncate", "content_index": 0, "audio_end_ms": 500}
            await client.send({**truncate, "item_id": item["id"]})
            await client.expect_until("conversation.item.truncated")
            await until(lambda: ("rewind", 2, 12_000) in second.session.calls)
            assert list(second.session.replayed) == [1]


@pytest.mark.parametrize(
    ("info", "options"),
    [
        (INFO, {}),
        (REPLAYING, {"journal_s": 0}),
        (REPLAYING, {"journal_mib": 0}),
        (REPLAYING, {"journal_s": 2}),
    ],
    ids=["model", "seconds", "bytes", "long turn"],
)
async def test_turn_longer_than_the_journal_ends_with_its_worker(info: Any, options: dict[str, Any]) -> None:
    plays = [speak("word")] * 4
    async with backend(*plays, info=info, **options) as home, home.stage.client() as client:
        await client.begin()
        await units(client, 4)
        first = home.at
        home.lose(first)
        await fails(client)
        if options.get("journal_s"):
            assert await home.outcome(FailoverOutcome.NO_JOURNAL) == 1
        assert not home.engines[1 - first].sessions


@pytest.mark.parametrize("outcome", [FailoverOutcome.NO_SLOT, FailoverOutcome.REFUSED])
async def test_no_other_worker_ends_the_session_as_ever(outcome: FailoverOutcome) -> None:
    """There is none, or it refuses the session."""
    workers = 1 if outcome is FailoverOutcome.NO_SLOT else 2
    async with backend(*TALK, workers=workers, no_worker_grace_s=0.1) as home, home.stage.client() as client:
        await client.begin()
        await units(client, 1)
        first = home.at
        for other in {0, workers - 1} - {first}:
            refusal = SessionFailed(Reason.KV_EXHAUSTED, "No memory is left.")
            home.engines[other].script = Script(TALK, refuses=refusal)
        home.lose(first)
        await fails(client)
        assert await home.outcome(outcome) == 1
        assert await home.value("antiphon_journal_bytes") == 0


async def test_input_that_breaks_its_worker_breaks_two_and_no_third() -> None:
    plays = (listen(), Play(breaks_device=True))
    async with backend(*plays, workers=3) as home, home.stage.client() as client:
        await client.begin()
        await units(client, 1)
        await client.send(append(1.0))
        events, code = await client.end()
        assert [event["type"] for event in events] == ["session.moved", "error", "session.closed"]
        assert code == 1011
        assert await home.outcome(FailoverOutcome.CONTINUED) == 1
        assert await home.outcome(FailoverOutcome.SUSPECT) == 1
        (spared,) = [engine for engine in home.engines if not engine.sessions]
        assert not spared.is_stopped


async def test_journal_that_breaks_its_workers_breaks_three_and_no_fourth() -> None:
    """The input was answered before the worker broke: then only the number of losses tells."""
    async with backend(*TALK, workers=4) as home, home.stage.client() as client:
        await client.begin()
        told = await units(client, 1)
        for lost in range(3):
            home.engines[home.at].break_device()
            if lost < 2:
                await until(lambda lost=lost: sum(bool(e.sessions) for e in home.engines) == lost + 2)  # type: ignore[misc]
                told += await units(client, 1)
        await fails(client)
        assert text_of(told) == "Hello there"
        assert sum(bool(engine.sessions) for engine in home.engines) == 3


async def test_client_that_leaves_while_its_session_moves_leaves_nothing() -> None:
    async with backend(*TALK, workers=1, no_worker_grace_s=LONG_S) as home:
        async with home.stage.client() as client:
            await client.begin()
            await units(client, 1)
            home.lose(0)
            await home.stage.until_queue(1)
            await client.send({"type": "session.close"})
            await client.end()
        await home.stage.until_queue(0)
        assert await home.outcome(FailoverOutcome.LEFT) == 1
        assert await home.value("antiphon_journal_bytes") == 0


async def test_hang_of_a_unit_is_over_when_its_worker_is_lost() -> None:
    """A client that is muted hears nothing of the unit, also from the next worker."""
    async with backend(hang("generate"), speak("Hello")) as home, home.stage.client() as client:
        await client.begin()
        first = home.at
        await client.send(append(1.0), append(1.0, force_listen=True))
        await until(lambda: 1 in home.engines[first].session.heard)
        home.engines[first].break_device()
        (await next_engine(home, first, 1)).session.release("generate", 1)
        told = await answer(client) + await answer(client)
        assert text_of(told) == ""
