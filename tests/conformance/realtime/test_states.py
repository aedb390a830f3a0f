"""Section 3.5: every cell of the state machine of `/v1/realtime` in both dialects, and their choice.

Cells are named by state and column. Each test states every event that its client gets.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.conformance.support.client import CLOSE as CLOSE_FRAME
from tests.conformance.support.client import Client, RawClient, kind, kinds
from tests.conformance.support.match import SOME_TEXT, TICKET_ID, TRACE_ID, Flag, Number, error
from tests.conformance.support.stack import Stack
from tests.conformance.support.words import CLOSE, G2, G3, Words, both, f32, without
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import Play, Script, hang, listen, speak

UNKNOWN = {"type": "session.nonsense"}


@asynccontextmanager
async def waiting(narrow: Stack) -> AsyncIterator[tuple[Client, Client]]:
    """A client that has the only slot, and one that is QUEUED."""
    async with narrow.client() as holder, narrow.client() as client:
        await G3.begin(holder)
        client.ignored = {"session.queue_update"}
        await client.expect("session.queued")
        yield holder, client


@asynccontextmanager
async def configuring(stack: Stack, words: Words, key: str, *plays: Play) -> AsyncIterator[Client]:
    """A client that is CONFIGURING until `ready 0` of its key is released."""
    script = Script((*plays, listen()), slow_start=True, key=f"{words.name}-{key}")
    async with stack.client() as client:
        await client.expect("session.queue_done")
        await client.send(words.init(script))
        yield client


def be_ready(stack: Stack, words: Words, key: str) -> None:
    stack.worker.release(f"{words.name}-{key}", "ready", 0)


async def leave(client: Client) -> None:
    await client.send(CLOSE)
    await client.end()


# ---------------------------------------------------------------------------------------------- QUEUED


@both
async def test_queued_init_is_validated_at_once_and_held(narrow: Stack, words: Words) -> None:
    """3.5 QUEUED/init: validate, hold. Section 2: an initialising event is validated at once and held."""
    async with waiting(narrow) as (holder, client):
        bad = words.init(**{words.config: {"top_k": 0}})
        assert await client.ask(bad) == error("invalid_payload", words.path(f"{words.config}.top_k"))
        await client.send(words.init())
        assert await client.ask(words.init()) == error("invalid_event")

        await leave(holder)

        await client.expect("session.queue_done")
        assert without(
            await client.next(), "metrics", "usage", "prompt_length", "server_send_ts", "mode"
        ) == {
            "type": "session.created",
            "session_id": words.session_id,
        }
        await client.send(CLOSE)
        events, code = await client.end()
        assert (kinds(events), code) == (["session.closed"], 1000)


@both
async def test_queued_input_without_an_init_is_not_ready(narrow: Stack, words: Words) -> None:
    """3.5 QUEUED/input: held if an init is held, else `not_ready`."""
    async with waiting(narrow) as (_, client):
        assert await client.ask(words.append(input_id="early")) == error("not_ready", input_id="early")
        await client.send(CLOSE)
        await client.end()


@both
async def test_queued_input_behind_an_init_is_held(narrow: Stack, words: Words) -> None:
    """3.5 QUEUED/input: held if an init is held; section 2: processed as if it had just arrived."""
    async with waiting(narrow) as (holder, client):
        await client.send(words.init(), words.append(input_id="a"), words.append(input_id="b"))
        await leave(holder)

        await client.expect("session.queue_done", "session.created")
        answers = await client.take(2)
        assert kinds(answers) == [words.listen] * 2
        assert [answer["input_id"] for answer in answers] == ["a", "b"]


@both
async def test_queued_close_removes_the_ticket(narrow: Stack, words: Words) -> None:
    """3.5 QUEUED/session.close: `session.closed`, 1000, ticket removed."""
    async with waiting(narrow) as (holder, client):
        ticket = client.events[0]["ticket_id"]
        assert (await narrow.request(f"/api/queue/{ticket}"))[1]["found"] is True
        await client.send(words.init(), CLOSE)
        assert (await client.end())[1] == 1000
        last = without(client.events[-1], "session_id")
        assert last == {"type": "session.closed", "reason": words.stopped}
        assert (await narrow.request(f"/api/queue/{ticket}"))[1] == {"found": False, "message": SOME_TEXT}
        await holder.send(G3.append())
        await holder.expect("listen")


async def test_queued_unknown_type(narrow: Stack) -> None:
    """3.5 QUEUED/unknown type: `unknown_event`."""
    async with waiting(narrow) as (_, client):
        assert await client.ask(UNKNOWN) == error("unknown_event", "type")


@both
async def test_queued_slot_assigned(narrow: Stack, words: Words) -> None:
    """3.5 QUEUED/other: slot assigned: `session.queue_done`, CONNECTED."""
    async with waiting(narrow) as (holder, client):
        assert client.events == [
            {
                "type": "session.queued",
                "position": 1,
                "estimated_wait_s": Number(),
                "estimate_is_guess": Flag(),
                "ticket_id": TICKET_ID,
                "queue_length": 1,
            }
        ]
        await leave(holder)
        assert await client.next() == {"type": "session.queue_done"}
        await client.send(words.init())
        await client.expect("session.created")


# ------------------------------------------------------------------------------------------- CONNECTED


@both
async def test_connected_invalid_init_stays_connected(stack: Stack, words: Words) -> None:
    """3.5 CONNECTED/init: CONFIGURING; invalid: error, stay. The client may send it again corrected."""
    async with stack.client() as client:
        await client.expect("session.queue_done")
        bad = words.init(**{words.prompt: 5})
        assert await client.ask(bad) == error("invalid_payload", words.path(words.prompt))
        assert kind(await client.ask(words.init())) == "session.created"


@both
async def test_connected_input_is_not_ready(stack: Stack, words: Words) -> None:
    """3.5 CONNECTED/input: `not_ready`; the example of section 3.2."""
    async with stack.client() as client:
        await client.expect("session.queue_done")
        assert await client.ask(words.append()) == {
            "type": "error",
            "error": {
                "code": "not_ready",
                "message": f"{words.input} before {words.opener}",
                "type": "client_error",
                "trace_id": TRACE_ID,
            },
        }


async def test_connected_close(stack: Stack) -> None:
    """3.5 CONNECTED/session.close: `session.closed`, 1000; no `session_id` before `session.created`."""
    async with stack.client() as client:
        await client.expect("session.queue_done")
        await client.send(CLOSE)
        assert await client.end() == ([{"type": "session.closed", "reason": "user_stop"}], 1000)


async def test_connected_unknown_type(stack: Stack) -> None:
    """3.5 CONNECTED/unknown type: `unknown_event`."""
    async with stack.client() as client:
        await client.expect("session.queue_done")
        assert await client.ask(UNKNOWN) == error("unknown_event", "type")


async def test_connected_init_timeout(impatient: Stack) -> None:
    """3.5 CONNECTED/other: init timeout: `session.closed{timeout}`, 1000."""
    async with impatient.client() as client:
        await client.expect("session.queue_done")
        events, code = await client.end()
        assert [without(event, "diagnostic") for event in events] == [
            {"type": "session.closed", "reason": "timeout"}
        ]
        assert code == 1000


# ----------------------------------------------------------------------------------------- CONFIGURING


@both
async def test_configuring_init_is_invalid(stack: Stack, words: Words) -> None:
    """3.5 CONFIGURING/init: `invalid_event`; the first one still counts."""
    async with configuring(stack, words, "again") as client:
        assert await client.ask(words.init()) == error("invalid_event")
        be_ready(stack, words, "again")
        await client.expect("session.created")


@both
async def test_configuring_input_is_held(stack: Stack, words: Words) -> None:
    """3.5 CONFIGURING/input: held; `SessionReady`: `session.created`, ACTIVE."""
    async with configuring(stack, words, "held") as client:
        await client.send(words.append(input_id="held"))
        assert await client.ask(words.append(level=99.0)) == error(
            "invalid_payload", f"{words.input_path}audio"
        )
        be_ready(stack, words, "held")
        await client.expect("session.created")
        assert (await client.expect(words.listen))["input_id"] == "held"


@both
async def test_configuring_close_cancels(stack: Stack, words: Words) -> None:
    """3.5 CONFIGURING/session.close: cancel, `session.closed`, 1000."""
    async with configuring(stack, words, "close") as client:
        await client.send(CLOSE)
        events, code = await client.end()
        assert [without(event, "session_id") for event in events] == [
            {"type": "session.closed", "reason": words.stopped}
        ]
        assert code == 1000


@both
async def test_configuring_unknown_type(stack: Stack, words: Words) -> None:
    """3.5 CONFIGURING/unknown type: `unknown_event`."""
    async with configuring(stack, words, "unknown") as client:
        assert await client.ask(UNKNOWN) == error("unknown_event", "type")
        be_ready(stack, words, "unknown")
        await client.expect("session.created")


# ---------------------------------------------------------------------------------------------- ACTIVE


@both
async def test_active_init_is_invalid(stack: Stack, words: Words) -> None:
    """3.5 ACTIVE/init: `invalid_event`; nothing changes. 4.1: a second `session.update` never closes."""
    async with stack.client() as client:
        await words.begin(client)
        assert await client.ask(words.init()) == error("invalid_event")
        await client.send(words.append())
        await client.expect(words.listen)


@both
async def test_active_input_is_accepted(stack: Stack, words: Words) -> None:
    """3.5 ACTIVE/input: accepted."""
    async with stack.client() as client:
        await words.begin(client)
        await client.send(words.append(input_id="in-7"))
        assert (await client.expect(words.listen))["input_id"] == "in-7"


@both
async def test_active_invalid_input_applies_nothing(stack: Stack, words: Words) -> None:
    """3.5 ACTIVE/input: invalid: error, nothing applied: neither its audio, nor its `force_listen`."""
    async with stack.client() as client:
        await words.begin(client, speak("Well"))
        await client.send(words.append(8000, input_id="half"))
        refused = await client.ask(words.append(8000, level=99.0, force_listen=True, input_id="bad"))
        assert refused == error("invalid_payload", f"{words.input_path}audio", input_id="bad")
        await client.send(words.append(8000, input_id="rest"))
        assert (await client.next())["text"] == "Well"


@both
async def test_active_close(stack: Stack, words: Words) -> None:
    """3.5 ACTIVE/session.close: CLOSING; running unit cancelled; `session.closed`, Close."""
    async with stack.client() as client:
        created = await words.begin(client, hang("generate"))
        await client.send(words.append(), CLOSE)
        events, code = await client.end()
        assert [without(event, "usage") for event in events] == [words.closed(created, words.stopped)]
        assert code == 1000


@both
async def test_active_unknown_type(stack: Stack, words: Words) -> None:
    """3.5 ACTIVE/unknown type: `unknown_event`."""
    async with stack.client() as client:
        await words.begin(client)
        assert await client.ask(UNKNOWN) == error("unknown_event", "type")


# ------------------------------------------------------------------------------------- CLOSING, CLOSED


async def until_cut(client: RawClient) -> float:
    """Seconds from the server's Close, which is not answered, to the end of the transport."""
    while (await client.read())[0] != CLOSE_FRAME:
        pass
    begin = time.monotonic()
    with pytest.raises(asyncio.IncompleteReadError):
        await client.read()
    return time.monotonic() - begin


async def handshake_cut(stack: Stack) -> float:
    """Seconds from connecting without a word to the end of the transport."""
    host, port = stack.address.removeprefix("http://").split(":")
    begin = time.monotonic()
    reader, writer = await asyncio.open_connection(host, int(port))
    async with asyncio.timeout(PATIENCE_S):
        await reader.read()
    writer.close()
    return time.monotonic() - begin


async def test_closing_ignores_everything_and_then_cuts(stack: Stack) -> None:
    """3.5 CLOSING: every event ignored. CLOSED: client's Close awaited 5 s, then the transport is cut.

    9.1: the same 5 s bound the opening handshake.
    """

    async def deaf(words: Words) -> float:
        async with stack.raw_client() as client:
            await client.expect("session.queue_done")
            await client.send(words.init(), words.append())
            await client.expect("session.created", words.listen)
            await client.send(CLOSE, words.append(), words.init(), CLOSE, UNKNOWN)
            await client.expect("session.closed")
            return await until_cut(client)

    waits = await asyncio.gather(deaf(G3), deaf(G2), handshake_cut(stack))
    assert min(waits) > 4.5


@both
@pytest.mark.parametrize("state", ["QUEUED", "CONNECTED", "CONFIGURING", "ACTIVE"])
async def test_dropped_connection_releases_at_once(narrow: Stack, words: Words, state: str) -> None:
    """3.5: a dropped connection in any state: no event, ticket or slot released at once, unit cancelled."""
    async with narrow.client() as holder:
        if state == "QUEUED":
            await G3.begin(holder)
        async with narrow.client() as client:
            await client.expect("session.queued")
            if state == "QUEUED":
                await client.send(words.init())
                client.vanish()
                await narrow.until_queue(0)
                return
            client.ignored = {"session.queue_update"}
            await holder.expect("session.queue_done")
            match state:
                case "CONFIGURING":
                    await holder.send(words.init(Script(slow_start=True)))
                case "ACTIVE":
                    await holder.send(words.init(Script((hang("generate"),))), words.append())
                    await holder.expect("session.created")
            holder.vanish()
            await client.expect("session.queue_done")


# ---------------------------------------------------------------------- the choice between the dialects


@both
async def test_first_initialising_event_fixes_the_dialect(stack: Stack, words: Words) -> None:
    """Section 1: `session.init` gives G3, `session.update` G2; the other's are then `unknown_event`."""
    other = G2 if words is G3 else G3
    async with stack.client() as client:
        created = await words.begin(client)
        assert created["session_id"] == words.session_id
        for event in (other.init(), other.append()):
            assert await client.ask(event) == error("unknown_event", "type")
        await client.send(words.append())
        await client.expect(words.listen)


async def test_refused_initialising_event_does_not_fix_the_dialect(stack: Stack) -> None:
    """Section 1 with 3.5: an invalid event changes no state, so the choice is still open."""
    async with stack.client() as client:
        await client.expect("session.queue_done")
        await client.ask({"type": "session.update", "session": {}})
        await client.send(G3.init())
        assert (await client.expect("session.created"))["session_id"] == G3.session_id


async def test_input_of_either_dialect_before_the_choice(stack: Stack) -> None:
    """Section 1: before the choice errors use the shared envelope; input is `not_ready` in both."""
    async with stack.client() as client:
        await client.expect("session.queue_done")
        for words in (G3, G2):
            assert await client.ask(words.append()) == error("not_ready")


async def test_later_events_are_unknown_for_now(stack: Stack) -> None:
    """4.1: `response.cancel` is `unknown_event` and never closes."""
    async with stack.client() as client:
        await G2.begin(client)
        assert await client.ask({"type": "response.cancel"}) == error("unknown_event", "type")
        assert await client.ask({"type": "input_audio_buffer.commit", "audio": f32(1)}) == error(
            "unknown_event", "type"
        )
        await client.send(G2.append())
        await client.expect("response.listen")
