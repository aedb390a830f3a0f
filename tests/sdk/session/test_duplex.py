"""A conversation from its first event to its last, also with a server that misbehaves."""

import asyncio
import time
from pathlib import Path

import numpy as np
import pytest

import antiphon
from antiphon.audio.samples import from_base64, to_base64
from tests.sdk.replay import CLOSED, Peer, replay
from tests.support.patience import PATIENCE_S

pytestmark = pytest.mark.usefixtures("no_leaked_tasks")

SECOND = np.full(16_000, 0.25, np.float32)


def delta(kind: str, **fields: object) -> dict[str, object]:
    return {"type": "response.output.delta", "kind": kind, "metrics": {}, **fields}


async def collect(session: antiphon.DuplexSession) -> list[antiphon.Event]:
    return [event async for event in session]


async def test_whole_conversation() -> None:
    places: list[antiphon.Queued] = []
    place = {"position": 1, "queue_length": 1, "estimated_wait_s": 3.0, "ticket_id": "ticket_1"}

    async def script(peer: Peer) -> None:
        await peer.send({"type": "session.queued", **place}, {"type": "session.queue_update", **place})
        init = await peer.begin()
        assert init["payload"] == {"system_prompt": "Be brief.", "config": {"top_k": 1}, "seed": 7}
        heard = (await peer.receive("input.append"))["input"]
        assert isinstance(heard, dict)
        assert np.array_equal(from_base64(heard["audio"]), SECOND)
        answer = {"response_id": "resp_1", "input_id": heard["input_id"]}
        audio = to_base64(np.array([0.5, -0.5], np.float32))
        await peer.send(delta("listen", input_id=heard["input_id"], chunk_index=0))
        await peer.send(delta("text", text="Seven.", **answer), delta("audio", audio=audio, **answer))
        await peer.send(delta("listen", reason="turn_end", **answer))
        assert (await peer.receive("session.close"))["reason"] == "done"
        await peer.send(CLOSED | {"reason": "done"})

    async with (
        replay(script) as url,
        antiphon.connect(url) as client,
        client.duplex("Be brief.", settings={"top_k": 1}, seed=7, on_queue=places.append) as session,
    ):
        assert session.id == "sess_0123456789ab"
        input_id = await session.send_audio(SECOND)
        events = []
        async for event in session:
            events.append(event)
            if isinstance(event, antiphon.TurnEnd):
                await session.close("done")

    assert places == [antiphon.Queued(1, 1, 3.0, "ticket_1")] * 2
    created, listening, text, audio_event, end, closed = events
    assert created == antiphon.Created("sess_0123456789ab", "full_duplex", 12, ())
    assert listening == antiphon.Listening(0, input_id)
    assert text == antiphon.TextDelta("Seven.", "resp_1", None, input_id)
    assert isinstance(audio_event, antiphon.AudioDelta)
    assert audio_event.samples.dtype == np.float32
    assert audio_event.samples.tolist() == [0.5, -0.5]
    assert end == antiphon.TurnEnd("resp_1", None, input_id)
    assert closed == antiphon.Closed("done", None, None)


async def test_leaving_the_block_closes_and_waits_for_the_answer() -> None:
    """Events from before the close can still be read."""
    answered = False

    async def script(peer: Peer) -> None:
        nonlocal answered
        await peer.begin()
        await peer.send(delta("listen", chunk_index=0))
        await peer.end()
        answered = True

    async with replay(script) as url, antiphon.connect(url) as client:
        async with client.duplex() as session:
            pass
        assert answered
        assert [type(event) for event in await collect(session)] == [
            antiphon.Created,
            antiphon.Listening,
            antiphon.Closed,
        ]


async def test_leaving_the_block_waits_at_most_two_seconds() -> None:
    async def script(peer: Peer) -> None:
        await peer.begin()
        await asyncio.wait_for(peer.socket.wait_closed(), PATIENCE_S)

    async with replay(script) as url, antiphon.connect(url) as client:
        async with client.duplex():
            start = time.monotonic()
        elapsed = time.monotonic() - start
    assert 1.5 < elapsed < PATIENCE_S / 2


async def test_client_exit_closes_open_sessions() -> None:
    async def script(peer: Peer) -> None:
        await peer.begin()
        await peer.end()

    async def hold(client: antiphon.Client, opened: asyncio.Event) -> None:
        async with client.duplex() as session:
            opened.set()
            async for _ in session:
                pass

    async with replay(script) as url:
        opened = asyncio.Event()
        async with antiphon.connect(url) as client:
            holder = asyncio.create_task(hold(client, opened))
            await asyncio.wait_for(opened.wait(), PATIENCE_S)
        await asyncio.wait_for(holder, PATIENCE_S)


async def test_long_audio_is_sent_in_several_messages_of_one_input() -> None:
    lengths, names = [], set()

    async def script(peer: Peer) -> None:
        await peer.begin()
        for _ in range(3):
            heard = (await peer.receive("input.append"))["input"]
            assert isinstance(heard, dict)
            lengths.append(len(from_base64(heard["audio"])))
            names.add(heard["input_id"])
        await peer.end()

    async with replay(script) as url, antiphon.connect(url) as client, client.duplex() as session:
        input_id = await session.send_audio(np.zeros(70 * 16_000, np.float32))
    assert lengths == [480_000, 480_000, 160_000]
    assert names == {input_id}


async def test_forced_listening_with_and_without_audio() -> None:
    appends = []

    async def script(peer: Peer) -> None:
        await peer.begin()
        for _ in range(2):
            appends.append((await peer.receive("input.append"))["input"])
        await peer.end()

    async with replay(script) as url, antiphon.connect(url) as client, client.duplex() as session:
        with pytest.raises(antiphon.AudioError):
            await session.send_audio(SECOND.astype(np.float64))
        ids = [await session.force_listen(), await session.send_audio(SECOND[:1], force_listen=True)]
    assert appends == [
        {"input_id": ids[0], "force_listen": True},
        {"input_id": ids[1], "force_listen": True, "audio": to_base64(SECOND[:1])},
    ]


async def test_file_is_streamed_and_silence_follows(tmp_path: Path) -> None:
    antiphon.write_wav(tmp_path / "question.wav", SECOND[:1600], 16_000)
    heard = []

    async def script(peer: Peer) -> None:
        await peer.begin()
        append = (await peer.receive("input.append"))["input"]
        assert isinstance(append, dict)
        heard.append(from_base64(append["audio"]))
        await peer.end()

    async with replay(script) as url, antiphon.connect(url) as client, client.duplex() as session:
        async with session.stream_file(tmp_path / "question.wav") as stream:
            await asyncio.wait_for(stream.wait_sent(), PATIENCE_S)
    assert np.allclose(heard[0][:1600], 0.25, atol=1e-4)
    assert len(heard[0]) == 16_000
    assert not heard[0][1600:].any()


async def test_recoverable_error_is_an_event() -> None:
    async def script(peer: Peer) -> None:
        await peer.begin()
        await peer.send({"type": "error", "error": {"code": "inference_error", "message": "Once."}})
        await peer.send(delta("listen", chunk_index=0))
        await peer.end()

    async with replay(script) as url, antiphon.connect(url) as client, client.duplex() as session:
        events = [await anext(session) for _ in range(3)]
    assert events[1:] == [
        antiphon.ErrorEvent("inference_error", "Once.", None, None, False),
        antiphon.Listening(0, None),
    ]


async def test_unexpected_end_raises_after_the_last_event() -> None:
    async def script(peer: Peer) -> None:
        await peer.begin()
        await peer.send({"type": "error", "error": {"code": "inference_error", "message": "Worker lost."}})
        diagnostic = {"message": "Worker lost.", "trace_id": "4bf92f"}
        await peer.send(CLOSED | {"reason": "backend_error", "diagnostic": diagnostic})
        await peer.socket.close(1011)

    async with replay(script, headers={"antiphon-trace-id": "0af765"}) as url:
        async with antiphon.connect(url) as client, client.duplex() as session:
            assert session.trace_id == "0af765"
            events = [await anext(session) for _ in range(3)]
            with pytest.raises(antiphon.SessionClosed, match="Worker lost") as caught:
                await anext(session)
            with pytest.raises(antiphon.SessionClosed, match="backend_error"):
                await session.send_audio(SECOND)
    assert isinstance(events[-1], antiphon.Closed)
    error = caught.value
    assert (error.reason, error.code, error.trace_id) == ("backend_error", 1011, "4bf92f")


async def test_program_that_does_not_read_never_stalls_the_socket() -> None:
    audio = delta("audio", audio=to_base64(np.zeros(6000, np.float32)), response_id="resp_1")
    everything_sent = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.begin()
        for _ in range(600):
            await peer.send(audio)
        await peer.send(delta("listen", reason="turn_end", response_id="resp_1"))
        everything_sent.set()
        await peer.end()

    async with replay(script) as url, antiphon.connect(url) as client, client.duplex() as session:
        await asyncio.wait_for(everything_sent.wait(), PATIENCE_S)
        await session.close()
        await session.close()
        events = await collect(session)

    assert len(events) == 512
    assert session.dropped_events == 600 + 3 - 512
    assert isinstance(events[0], antiphon.Created)
    assert isinstance(events[-2], antiphon.TurnEnd)
    assert isinstance(events[-1], antiphon.Closed)


async def test_error_inside_the_block_still_closes() -> None:
    closed = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.begin()
        await peer.end()
        closed.set()

    async with replay(script) as url, antiphon.connect(url) as client:
        with pytest.raises(ZeroDivisionError):
            async with client.duplex():
                raise ZeroDivisionError
        assert closed.is_set()


async def test_paused_conversation_sends_nothing_until_it_is_resumed() -> None:
    async def script(peer: Peer) -> None:
        await peer.begin()
        first = await peer.receive("input.append")
        second = await peer.receive("input.append")
        assert [told["input"]["input_id"] for told in (first, second)] == ["in-1", "in-2"]  # type: ignore[index]
        await peer.receive("session.close")
        await peer.send(CLOSED)

    async with replay(script) as url, antiphon.connect(url) as client:
        async with client.duplex() as session:
            await session.send_audio(SECOND)
            await session.pause()
            await session.pause()
            assert session.is_paused
            for sending in (session.send_audio(SECOND), session.force_listen()):
                with pytest.raises(antiphon.ProtocolError, match=r"call resume\(\) first") as refused:
                    await sending
                assert refused.value.reason == "paused"

            await session.resume()
            await session.resume()
            assert not session.is_paused
            await session.send_audio(SECOND)

        for ended in (session.pause, session.resume):
            with pytest.raises(antiphon.SessionClosed):
                await ended()


async def test_recording_keeps_its_position_while_the_conversation_is_paused(tmp_path: Path) -> None:
    antiphon.write_wav(tmp_path / "question.wav", SECOND[:1600], 16_000)
    heard: list[object] = []

    async def script(peer: Peer) -> None:
        await peer.begin()
        heard.append(await peer.receive("input.append"))
        await peer.receive("session.close")
        await peer.send(CLOSED)

    async with replay(script) as url, antiphon.connect(url) as client, client.duplex() as session:
        await session.pause()
        async with session.stream_file(tmp_path / "question.wav", then_silence=False) as stream:
            await asyncio.sleep(0.3)  # the tenth of a second is due
            assert not heard
            await session.resume()
            async with asyncio.timeout(PATIENCE_S):
                await stream.wait_sent()


async def test_recording_of_a_paused_conversation_ends_with_it(tmp_path: Path) -> None:
    antiphon.write_wav(tmp_path / "question.wav", SECOND, 16_000)

    async def script(peer: Peer) -> None:
        await peer.begin()
        await peer.send(CLOSED | {"reason": "timeout"})

    async with replay(script) as url, antiphon.connect(url) as client, client.duplex() as session:
        await session.pause()
        async with session.stream_file(tmp_path / "question.wav") as stream:
            async with asyncio.timeout(PATIENCE_S):
                await stream.wait_sent()
