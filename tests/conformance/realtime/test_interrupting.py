"""`force_listen`, and units that are stale, in both dialects of `/v1/realtime`."""

from tests.conformance.realtime.test_input import as_base64, picture
from tests.conformance.support.client import Client, Event, kind, kinds, narrow_socket
from tests.conformance.support.clockwork import clockwork
from tests.conformance.support.stack import Stack
from tests.conformance.support.words import G2, G3, TELLS, Words, both, told, without
from tests.support.scripted_engine import End, Play, Script, hang, listen, speak


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


@both
async def test_force_listen_silences_the_open_response(stack: Stack, words: Words) -> None:
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
        after = await client.next()
        assert after["text"] == "Four"
        assert after["response_id"] != spoken["response_id"]


@both
async def test_force_listen_stops_the_first_unit_of_an_answer(stack: Stack, words: Words) -> None:
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
async def test_force_listen_drops_unsent_speech(stack: Stack, words: Words) -> None:
    """No speech that waits in the outbox is sent; each unit that loses its answer gets one listen.

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


def dropped(event: Event) -> tuple[bool, int]:
    """Whether it answers a dropped unit, and how many there are so far."""
    return event["metrics"].get("dropped", False), event["metrics"].get("dropped_total", 0)


async def everything_arrived(client: Client) -> None:
    assert kind(await client.ask({"type": "x"})) == "error:unknown_event"


@both
async def test_stale_unit_is_dropped_and_answered_in_its_place(words: Words) -> None:
    async with clockwork(silence_tail_units=0) as world, world.client() as client:
        await words.begin(client, hang("generate"))
        await client.send(*[words.append(input_id=name) for name in "abcde"])
        await everything_arrived(client)
        await world.advance(3.5)
        world.session.release("generate", 1)
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
        assert without(events[2]["metrics"], "wall_clock_ms") == {"dropped": True, "dropped_total": 1}


@both
async def test_more_waiting_bytes_than_allowed_drop_the_oldest_at_once(words: Words) -> None:
    heavy = as_base64(picture() + bytes(70_000))
    async with clockwork(max_waiting_mib=0.2) as world:
        async with world.client("/v1/realtime?mode=video") as client:
            await words.begin(client, hang("generate"))
            await client.send(*[words.append(video_frames=[heavy]) for _ in range(5)])
            await everything_arrived(client)
            world.session.release("generate", 1)
            assert [dropped(e)[0] for e in await client.take(5)] == [False] * 2 + [True] * 2 + [False]
            await client.send(words.append(8 * 16_000))
            assert [dropped(event) for event in await client.take(8)] == [(False, 2)] * 8
