"""Sections 6.4 `force_listen` and 6.3 stale units, for both dialects."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.conformance.realtime.test_input import as_base64, picture
from tests.conformance.support.client import Client, Event, kind, kinds, narrow_socket
from tests.conformance.support.stack import Stack, Worker, running_stack
from tests.conformance.support.words import G2, G3, TELLS, Words, both, plays, told
from tests.support.scripted_engine import End, Play, Script, hang, listen, speak, turn_end


async def answers(client: Client, words: Words, units: int) -> list[Event]:
    """The first event of each of the next units; in G3 speech is told by its text."""
    found: list[Event] = []
    while len(found) < units:
        event = await client.next()
        if words is G2 or "chunk_index" in event:
            found.append(event)
    return found


async def last_of(client: Client, words: Words) -> None:
    """Reads what is left of a speaking unit in G3: its audio."""
    if words is G3:
        await client.expect("audio")


def is_listen(event: Event, words: Words) -> bool:
    return kind(event) == words.listen


def holding(text: str) -> Play:
    """A unit that says something and is not done before it is released or cancelled."""
    return Play(says=((text, 0.1),), end=End.CHUNK, hold="generate")


# ------------------------------------------------------------------------------------ 6.4 force_listen


@both
async def test_force_listen_silences_the_open_response(stack: Stack, words: Words) -> None:
    """6.4: nothing further of the open response is sent; units in flight are cancelled, one listen each.

    The first listen carries the open `response_id` and closes the response.
    """
    async with stack.client() as client:
        await words.begin(client, speak("One"), holding("two"), *[speak("wrong")] * 2, speak("Four"))
        await client.send(words.append(input_id="a"))
        (spoken,) = await answers(client, words, 1)
        await last_of(client, words)
        await client.send(words.append(input_id="b"), words.append(input_id="c"))
        await client.send(words.append(input_id="d", force_listen=True))
        b, c, d = events = await client.take(3)
        assert kinds(events) == [words.listen] * 3
        assert [event["input_id"] for event in events] == ["b", "c", "d"]
        assert b["response_id"] == spoken["response_id"]
        assert "response_id" not in c
        assert "response_id" not in d
        await client.send(words.append(input_id="e"))
        assert (await client.next())["text"] == "Four"


@both
async def test_force_listen_stops_the_first_unit_of_an_answer(stack: Stack, words: Words) -> None:
    """6.4: a unit in flight of whose answer nothing was sent is cancelled too; no response opens."""
    async with stack.client() as client:
        await words.begin(client, holding("One"), speak("wrong"), speak("Two"))
        await client.send(words.append(input_id="a"))
        assert kind(await client.ask({"type": "x"})) == "error:unknown_event"
        await client.send(words.append(input_id="b", force_listen=True))
        events = await client.take(2)
        assert kinds(events) == [words.listen] * 2
        assert [event["input_id"] for event in events] == ["a", "b"]
        assert not any("response_id" in event for event in events)
        await client.send(words.append())
        assert (await client.next())["text"] == "Two"


@both
async def test_force_listen_holds_for_what_waits_before_it(stack: Stack, words: Words) -> None:
    """6.4: every unit cut from the append, and every one still waiting before it, runs so."""
    async with stack.client() as client:
        key = f"{words.name}-waits"
        script = Script((hang("generate"), listen(), *[speak("wrong")] * 4, TELLS), key=key)
        await words.begin_script(client, script)
        await client.send(*[words.append() for _ in range(4)], words.append(32_000, force_listen=True))
        assert kind(await client.ask({"type": "x"})) == "error:unknown_event"
        stack.worker.release(key, "generate", 1)
        heard = await told(client, words)
        # Two were at the worker already.
        assert [unit["force_listen"] for unit in heard["units"]] == [False] * 2 + [True] * 4 + [False]


@both
async def test_model_speaks_again_after_force_listen(stack: Stack, words: Words) -> None:
    """6.4: the response is closed; the next speech opens another."""
    async with stack.client() as client:
        await words.begin(client, speak("One"), speak("wrong"), turn_end("Two"))
        ids = []
        for forced in (False, True, False):
            await client.send(words.append(force_listen=forced))
            ids.append((await answers(client, words, 1))[0].get("response_id"))
            if not forced:
                await last_of(client, words)
        assert ids[0] == ids[1]
        assert ids[2] not in (None, ids[0])


@both
async def test_force_listen_on_each_append(stack: Stack, words: Words) -> None:
    """6.4 and row 11.12: `force_listen` on each append for a while: one listen per unit."""
    async with stack.client() as client:
        await words.begin(client, *[speak("wrong")] * 5, turn_end("Now"))
        await client.send(*[words.append(input_id=str(n), force_listen=True) for n in range(5)])
        events = await client.take(5)
        assert kinds(events) == [words.listen] * 5
        assert [event["input_id"] for event in events] == list("01234")
        assert not any("response_id" in event for event in events)
        await client.send(words.append())
        assert (await client.next())["text"] == "Now"


@both
async def test_force_listen_takes_back_what_was_not_sent(stack: Stack, words: Words) -> None:
    """6.4: no speech that waits in the outbox is sent; each unit that loses its answer gets one listen.

    The client reads nothing until it has interrupted; its buffers hold less than a second of audio.
    """
    units = 8
    narrow = await narrow_socket(stack.address.removeprefix("http://"))
    async with stack.client(sock=narrow, max_queue=1) as client, stack.client() as other:
        await words.begin(client, *[speak("word", seconds=2.0)] * units, listen(), TELLS)
        await G3.begin(other)
        await client.send(*[words.append(input_id=str(n)) for n in range(units)])
        for _ in range(10):  # by then the adapter has turned to the first client many times
            await other.send(G3.append())
            await other.expect("listen")
        await client.send(words.append(input_id=str(units), force_listen=True))
        for _ in range(10):
            await other.send(G3.append())
            await other.expect("listen")

        events = await answers(client, words, units + 1)

        assert [event["input_id"] for event in events] == [str(n) for n in range(units + 1)]
        spoken = [event for event in events if not is_listen(event, words)]
        listens = events[len(spoken) :]
        assert kinds(listens) == [words.listen] * len(listens), "after the interruption nothing is spoken"
        # Of a unit that was being sent the text may be out already: then it is its listen that closes.
        closing, *others = [event for event in client.events if kinds([event]) == [words.listen]]
        assert closing["response_id"] == spoken[0]["response_id"]
        assert not any("response_id" in event for event in others)
        heard = await told(client, words)
        spoke_at_the_worker = [unit["force_listen"] for unit in heard["units"]].index(True)
        assert len(spoken) < spoke_at_the_worker, "some speech was taken back"


# -------------------------------------------------------------------------------------- 6.3 stale units


@pytest.fixture(scope="module")
def hasty(scripted: Worker) -> Iterator[Stack]:
    """Input is old after 0.2 s; no silence is fed."""
    with running_stack(scripted, options=("--max-lag-s", "2", "--silence-tail-units", "0")) as stack:
        yield stack


@pytest.fixture(scope="module")
def cramped(scripted: Worker) -> Iterator[Stack]:
    """Three units may wait, which is also what fits into the bytes that may wait."""
    with running_stack(scripted, options=("--max-waiting-units", "3", "--max-waiting-mib", "0.2")) as stack:
        yield stack


def dropped(event: Event) -> tuple[bool, int]:
    """Whether it answers a dropped unit, and how many there are so far."""
    return event["metrics"].get("dropped", False), event["metrics"].get("dropped_total", 0)


async def age(client: Client) -> None:
    """Everything sent has arrived and grows old."""
    assert kind(await client.ask({"type": "x"})) == "error:unknown_event"
    await asyncio.sleep(2.5)


@both
async def test_stale_unit_is_dropped_and_answered(hasty: Stack, words: Words) -> None:
    """6.3: dropped if a newer append waits behind it and it has waited more than `max_lag_s`.

    Each is answered by one listen with `dropped:true` and `dropped_total`, in its place.
    """
    async with hasty.client() as client:
        key = f"{words.name}-stale"
        await words.begin_script(client, plays(hang("generate"), key=key))
        await client.send(*[words.append(input_id=name) for name in "abcde"])
        await age(client)
        hasty.worker.release(key, "generate", 1)
        events = await client.take(5)
        assert kinds(events) == [words.listen] * 5
        assert [event["input_id"] for event in events] == list("abcde")
        assert [dropped(event) for event in events] == [
            (False, 0),
            (False, 0),
            (True, 1),
            (True, 2),
            (False, 2),
        ]
        assert {k: v for k, v in events[2]["metrics"].items() if k != "wall_clock_ms"} == {
            "dropped": True,
            "dropped_total": 1,
        }


@both
async def test_units_of_the_newest_append_never_drop_each_other(hasty: Stack, words: Words) -> None:
    """6.3: units of the newest append never drop each other, however long they wait."""
    async with hasty.client() as client:
        key = f"{words.name}-newest"
        await words.begin_script(client, plays(hang("generate"), key=key))
        await client.send(words.append(6 * 16_000))
        await age(client)
        hasty.worker.release(key, "generate", 1)
        assert [dropped(event) for event in await client.take(6)] == [(False, 0)] * 6


@both
async def test_more_than_the_bound_of_waiting_units(cramped: Stack, words: Words) -> None:
    """6.3: at once, oldest first, beyond `max_waiting_units`; the newest append may exceed it."""
    async with cramped.client() as client:
        key = f"{words.name}-units"
        await words.begin_script(client, plays(hang("generate"), key=key))
        await client.send(*[words.append(input_id=name) for name in "abcdefg"])
        assert kind(await client.ask({"type": "x"})) == "error:unknown_event"
        cramped.worker.release(key, "generate", 1)
        events = await client.take(7)
        assert [event["input_id"] for event in events] == list("abcdefg")
        assert [dropped(event)[0] for event in events] == [False] * 2 + [True] * 2 + [False] * 3
        await client.send(words.append(8 * 16_000))
        assert [dropped(event) for event in await client.take(8)] == [(False, 2)] * 8


@both
async def test_more_than_the_bound_of_waiting_bytes(cramped: Stack, words: Words) -> None:
    """6.3: at once, oldest first, beyond `max_waiting_mib` of decoded input, pictures included."""
    async with cramped.client("/v1/realtime?mode=video") as client:
        key = f"{words.name}-bytes"
        await words.begin_script(client, plays(hang("generate"), key=key))
        heavy = as_base64(picture() + bytes(70_000))
        await client.send(*[words.append(video_frames=[heavy]) for _ in range(5)])
        assert kind(await client.ask({"type": "x"})) == "error:unknown_event"
        cramped.worker.release(key, "generate", 1)
        assert [dropped(e)[0] for e in await client.take(5)] == [False] * 2 + [True] * 2 + [False]


@both
async def test_no_listen_for_a_dropped_unit_while_a_response_is_open(hasty: Stack, words: Words) -> None:
    """6.3: while a response is open no listen is sent for it; the speaking unit's `dropped_total` is raised.

    Row 11.15: no listen inside an open turn except a real interruption.
    """
    async with hasty.client() as client:
        key = f"{words.name}-open"
        script = (speak("One"), holding("two"), speak("three"), turn_end("four"))
        await words.begin_script(client, plays(*script, key=key))
        await client.send(words.append(input_id="a"))
        await answers(client, words, 1)
        await last_of(client, words)
        await client.send(*[words.append(input_id=name) for name in "bcdef"])
        await age(client)
        hasty.worker.release(key, "generate", 2)
        b, c, f = await answers(client, words, 3)
        assert [event["input_id"] for event in (b, c, f)] == ["b", "c", "f"]
        assert [event["text"] for event in (b, c, f)] == ["two", "three", "four"]
        assert [dropped(event) for event in (b, c, f)] == [(False, 0), (False, 0), (False, 2)]
        assert len({event["response_id"] for event in (b, c, f)}) == 1


@both
async def test_force_listen_of_a_dropped_unit_moves_on(hasty: Stack, words: Words) -> None:
    """6.3: `force_listen` of a dropped unit moves to the next unit."""
    async with hasty.client() as client:
        key = f"{words.name}-moves"
        script = (hang("generate"), listen(), speak("wrong"), TELLS)
        await words.begin_script(client, plays(*script, key=key))
        await client.send(words.append(), words.append(), words.append(level=0.3, force_listen=True))
        await client.send(words.append(level=0.4))
        await age(client)
        hasty.worker.release(key, "generate", 1)
        assert kinds(await client.take(4)) == [words.listen] * 4
        heard = (await told(client, words))["units"]
        assert [(unit["audio"][0], unit["force_listen"]) for unit in heard] == [
            (0.1, False),
            (0.1, False),
            (0.4, True),
            (0.1, False),
        ]


@both
async def test_held_input_is_bounded(narrow: Stack, words: Words) -> None:
    """Section 2 with 6.3: input behind a held init is held under the backlog's bound, and does not age."""
    async with narrow.client() as holder, narrow.client() as client:
        await G3.begin(holder)
        client.ignored = {"session.queue_update"}
        await client.expect("session.queued")
        await client.send(words.init(), *[words.append(input_id=str(n)) for n in range(40)])
        assert kind(await client.ask({"type": "x"})) == "error:unknown_event"
        await holder.socket.close()
        await client.expect("session.queue_done", "session.created")
        events = await client.take(32)
        assert [event["input_id"] for event in events] == [str(n) for n in range(8, 40)]
        assert dropped(events[-1]) == (False, 8)
