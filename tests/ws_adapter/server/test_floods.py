"""Attack: clients that send as much as they can. They are cut; a neighbour's conversation does not change."""

import asyncio
import base64
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
from websockets.asyncio.client import connect

from tests.conformance.support.client import BINARY, PING, PONG, TEXT, RawClient
from tests.conformance.support.stack import Stack, running_stack, shipped_worker
from tests.storm.floods import FLOODS, Cut, NotLetIn, flood, flood_pages
from tests.support.scripted_engine import EVERYTHING, ScriptedEngine, listen
from tests.ws_adapter.support.conversation import append, codes
from tests.ws_adapter.support.stage import Client, ManualClock, Stage, serving, until
from ws_adapter.access.rate_limit import LINES
from ws_adapter.protocol.wire.limits import EVENTS_WINDOW_S
from ws_adapter.web.message import SMALL_BURST

SLOTS = 8
UNITS = 3
BEHIND_PROXY: dict[str, Any] = {"trusted_proxies": ("127.0.0.0/8",)}


@asynccontextmanager
async def stage_with_room(**options: Any) -> AsyncIterator[Stage]:
    engine = ScriptedEngine(listen(), repeat=True, slots=SLOTS, info=EVERYTHING)
    async with serving(engine, **options) as stage:
        yield stage


async def talk(client: Client) -> list[tuple[str, bool]]:
    """A few units, each answered before the next: what is told of them, and whether any was dropped."""
    told = []
    for _ in range(UNITS):
        await client.send(append(1))
        answer = await client.next()
        told.append((answer["kind"], answer["metrics"].get("dropped", False)))
    return told


QUIET = [("listen", False)] * UNITS


@pytest.mark.parametrize("name", FLOODS)
async def test_flooder_is_cut_and_its_neighbour_talks_on(name: str) -> None:
    async with stage_with_room() as stage, stage.client() as neighbour:
        await neighbour.begin()
        assert await talk(neighbour) == QUIET

        flooding = asyncio.create_task(flood(stage.address, FLOODS[name]))
        during = await talk(neighbour)
        cut = await flooding

        assert (cut.error, cut.close) == ("rate_limited", 1008)
        assert cut.answered < 3 * SMALL_BURST
        assert during == QUIET
        assert await talk(neighbour) == QUIET
        await stage.until(free_slots=SLOTS - 1)


PIECES = 1500
"""Of 100 ms: half as many again as are read at once."""


async def upload(client: Client, pieces: int) -> None:
    frame = json.dumps(append(0.1))
    for _ in range(pieces):
        await client.socket.send(frame)


async def test_file_far_faster_than_real_time_is_slowed_down_and_its_neighbour_talks_on() -> None:
    clock = ManualClock()
    async with stage_with_room(clock=clock, silence_tail_units=0) as stage, stage.client() as neighbour:
        await neighbour.begin()
        async with stage.client() as client:
            await client.begin()
            sending = asyncio.create_task(upload(client, PIECES))
            answers = [await client.expect("response.output.delta") for _ in range(90)]
            assert await talk(neighbour) == QUIET

            await clock.advance(EVENTS_WINDOW_S)
            answers += [await client.expect("response.output.delta") for _ in range(PIECES // 10 - 90)]
            await sending
            await client.send({"type": "session.close"})
            closed = await client.expect("session.closed")

        assert {answer["kind"] for answer in answers} == {"listen"}
        assert closed["reason"] == "user_stop"


async def test_client_that_uploads_and_never_reads_is_bounded_and_leaves_its_slot() -> None:
    """Attack: hours of sound as fast as the socket takes them, from a client that vanishes behind them."""
    clock = ManualClock()
    async with stage_with_room(clock=clock) as stage, stage.client() as neighbour:
        await neighbour.begin()
        socket = await connect(stage.url, max_queue=1, compression=None)
        sending = asyncio.create_task(upload(Client(socket), 36_000))
        for _ in range(5):
            assert await talk(neighbour) == QUIET
        assert not sending.done()

        sending.cancel()
        socket.transport.abort()
        for _ in range(4):
            await clock.advance(EVENTS_WINDOW_S)
        assert await talk(neighbour) == QUIET
        await stage.until(free_slots=SLOTS - 1)


async def test_upload_to_live_is_held_back_without_losing_a_second() -> None:
    engine = ScriptedEngine(listen(), repeat=True, slots=SLOTS, info=EVERYTHING)
    async with serving(engine) as stage:
        async with stage.client("/v1/live/sessions") as client:
            format = {"type": "audio/pcm", "rate": 16_000}
            session = {"model": "scripted", "audio": {"format": format}}
            await client.send({"type": "session.start", "session": session})
            await client.expect("session.started")
            second = base64.b64encode(bytes(32_000)).decode()
            for _ in range(80):
                await client.send({"type": "session.input_audio.append", "audio": second})
            while True:
                event = await client.next()
                if event["type"] == "session.usage.updated" and event["usage"]["seconds"] >= 80:
                    break

    assert len(engine.sessions[-1].heard) == 80


async def test_flood_after_a_refusal_is_cut_too() -> None:
    """A client rejected after the upgrade has no session, but can still flood."""
    async with stage_with_room() as stage:
        what = FLOODS["pings"]
        turned_away = type(what)("/v1/realtime?mode=nothing", what.frame)

        cut = await flood(stage.address, turned_away)

        assert (cut.error, cut.close) == ("unsupported_mode", 1008)


async def test_many_small_frames_at_a_talkers_pace_and_large_fragments_are_no_flood() -> None:
    """50 events a second of 20 ms each, with pings between them: more of both than any client sends."""
    async with stage_with_room() as stage:
        async with stage.client() as talker:
            await talker.begin()
            for _ in range(UNITS):
                for _ in range(50):
                    await talker.send(append(0.02))
                    await talker.socket.ping()
                assert (await talker.next())["kind"] == "listen"
        client = await RawClient.connect(stage.address.removeprefix("http://"), "/v1/realtime?mode=audio")
        await client.expect("session.queue_done")
        text = json.dumps({"type": "x", "padding": "x" * 12 * 2**20}).encode()
        parts = [text[start : start + 4096] for start in range(0, len(text), 4096)]
        assert len(parts) > 3 * SMALL_BURST
        for number, part in enumerate(parts):
            await client.frame(TEXT if number == 0 else 0, part, fin=number == len(parts) - 1)

        assert codes([await client.expect("error:unknown_event")]) == ["unknown_event"]
        client.vanish()


async def test_nothing_of_a_flood_is_read_once_it_is_too_much() -> None:
    """Of what came at once all is thrown away after the frame that was too much, also a Close."""
    async with stage_with_room() as stage:
        client = await RawClient.connect(stage.address.removeprefix("http://"), "/v1/realtime?mode=audio")
        await client.expect("session.queue_done")
        await client.flood(PING, b"", 5 * SMALL_BURST)
        await client.frame(BINARY, b"canary")  # which would end it with 1003

        pongs = 0
        while (answer := await client.read())[0] == PONG:
            pongs += 1

        assert pongs < 3 * SMALL_BURST  # 200 a second are forgiven while they come
        assert json.loads(answer[1])["error"]["code"] == "rate_limited"
        client.vanish()


def coming_from(address: str) -> dict[str, str]:
    return {"X-Forwarded-For": address}


async def test_frames_of_an_address_are_counted_over_all_its_connections() -> None:
    """Attack: each connection stays within its own limit. Large frames cost more than small ones."""
    clock = ManualClock()
    options = {"frames_per_s_per_address": 10, "clock": clock, **BEHIND_PROXY}
    async with stage_with_room(**options) as stage:
        flooders = coming_from("203.0.113.5")
        async with (
            stage.client(additional_headers=coming_from("203.0.113.6")) as neighbour,
            stage.client(additional_headers=flooders) as first,
            stage.client(additional_headers=flooders) as second,
        ):
            await neighbour.begin()
            await first.begin()
            await second.begin()
            for _ in range(49):  # of the 100 that may come at once, two have begun
                await first.socket.ping()
            for _ in range(49):
                await (await second.socket.ping())
            assert await talk(neighbour) == QUIET

            await second.socket.ping()

            events, close = await second.end()
            assert (codes(events), close) == (["rate_limited"], 1008)
            assert "your address" in events[0]["error"]["message"]
            assert await talk(neighbour) == QUIET
            await clock.advance(2)
            await first.send(append(1))  # a second of audio counts as three
            assert (await first.next())["kind"] == "listen"


async def test_pages_are_refused_to_a_flooder_and_served_to_its_neighbour() -> None:
    async with stage_with_room(**BEHIND_PROXY) as stage, stage.client() as neighbour:
        await neighbour.begin()
        flooding = asyncio.create_task(flood_pages(stage.address, "/status", "203.0.113.5"))
        assert await talk(neighbour) == QUIET

        assert 600 <= await flooding < 1200
        assert (await stage.request("/status", headers=coming_from("203.0.113.6")))[0] == 200


CANARY = "canary of a client"


async def test_the_log_has_nothing_that_a_client_wrote(caplog: pytest.LogCaptureFixture) -> None:
    wrong: list[tuple[str, Any]] = [
        ("/v1/realtime?mode=audio", {"type": CANARY}),
        ("/v1/realtime?mode=audio", {"type": "session.init", "payload": {"voice": CANARY}}),
        ("/v1/realtime?mode=audio", {"type": "session.close", "reason": CANARY}),
        (f"/v1/realtime?mode={CANARY.replace(' ', '%20')}", None),
        ("/v1/realtime?mode=chat", {"type": "session.init", "payload": {"model": CANARY}}),
        ("/v1/realtime?mode=transcription", {"type": "session.update", "model": CANARY}),
        (f"/ws/duplex/{CANARY.replace(' ', '_')}", {"type": "client_diagnostic", "text": CANARY}),
        ("/ws/chat", {"messages": [{"role": CANARY, "content": CANARY}]}),
    ]
    with caplog.at_level(logging.DEBUG, "ws_adapter"):
        async with stage_with_room() as stage:
            for target, event in wrong:
                async with stage.client(target, user_agent_header=CANARY) as client:
                    if event is not None:
                        await client.socket.send(json.dumps(event))
                        if event["type" if "type" in event else "messages"] == "client_diagnostic":
                            await until(lambda: "the client has a diagnostic" in caplog.messages)
                        else:
                            await client.next()
            for path in (f"/{CANARY}", f"/api/queue/{CANARY}", f"/status?{CANARY}"):
                await stage.request(path.replace(" ", "_"), "PATCH")

    lines = "".join(str(vars(record)) for record in caplog.records)
    assert len(caplog.records) > len(wrong)
    assert CANARY not in lines
    assert CANARY.replace(" ", "_") not in lines
    assert "sha256" in lines


async def test_lines_of_the_log_are_counted_by_address(caplog: pytest.LogCaptureFixture) -> None:
    """Attack: each of many connections has as many errors as it may."""
    clock = ManualClock()
    each = 19
    with caplog.at_level(logging.INFO, "ws_adapter.observability.session_telemetry"):
        async with stage_with_room(clock=clock) as stage:
            for _ in range(LINES // each + 3):
                async with stage.client("/v1/realtime?mode=transcription") as client:
                    await client.expect("session.created")
                    for _ in range(each):
                        await client.socket.send("0")
                        await client.expect("error")

    assert caplog.messages.count("an error is sent to the client") == LINES


GUARDED = ("--max-cpu", "0.7", "--max-loop-lag-ms", "250", "--trusted-proxies", "127.0.0.0/8")
"""The defaults: what an adapter has that is exposed."""

ROUNDS = 3


async def test_process_under_all_floods_admits_new_sessions() -> None:
    """Attack: from one address a flood of every sort, again as soon as it is cut, and of pages. The adapter
    cuts and refuses before its own guard against overload turns anybody else away."""
    with shipped_worker(slots=SLOTS) as worker, running_stack(worker, options=GUARDED) as stack:
        async with _from_elsewhere(stack) as neighbour:
            await neighbour.begin()
            assert await talk(neighbour) == QUIET
            attack = asyncio.create_task(_attack(stack.address))
            while not attack.done():
                assert await talk(neighbour) == QUIET
                async with _from_elsewhere(stack) as newcomer:
                    await newcomer.begin()

            cuts, pages = await attack
            assert await talk(neighbour) == QUIET
            assert "Traceback" not in stack.log.text
            assert "canary" not in stack.log.text
    assert {(cut.error, cut.close) for cut in cuts} == {("rate_limited", 1008)}
    assert len(cuts) >= len(FLOODS)
    assert pages < 1200


async def _attack(address: str) -> tuple[list[Cut], int]:
    pages = asyncio.create_task(flood_pages(address, "/status", "203.0.113.5"))
    cuts = []
    for _ in range(ROUNDS):
        for what in FLOODS.values():
            with suppress(NotLetIn):
                cuts.append(await flood(address, what, coming_from("203.0.113.5")))
    return cuts, await pages


@asynccontextmanager
async def _from_elsewhere(stack: Stack) -> AsyncIterator[Client]:
    """A client that comes from another address than the attack."""
    url = stack.url("/v1/realtime?mode=audio")
    async with connect(url, additional_headers=coming_from("203.0.113.6")) as socket:
        yield Client(socket)
