"""`force_listen`, and units that are stale, in both dialects of `/v1/realtime`."""

from tests.conformance.support.client import Client, Event, kind, kinds, narrow_socket
from tests.conformance.support.clockwork import clockwork
from tests.conformance.support.stack import Stack
from tests.conformance.support.words import G2, G3, TELLS, Words, both, told, without
from tests.support.scripted_engine import End, Play, hang, listen, speak


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
