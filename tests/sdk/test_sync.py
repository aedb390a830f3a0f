"""`antiphon.sync`: the same conversations with blocking calls."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import numpy as np
import pytest

import antiphon
from tests.sdk.replay import CREATED, QUEUE_DONE, Peer, replay
from tests.support.patience import PATIENCE_S

SECOND = np.full(16_000, 0.1, np.float32)
LISTEN = {"type": "response.output.delta", "session_id": "sess_0123456789ab", "kind": "listen", "metrics": {}}
PREFILLED = {"type": "prefill_done", "input_tokens": 27}
GREETING = {"type": "session.created", "id": "sess-" + 32 * "0", "created": 1795159650}
SOON_S = 0.05
"""A deadline that passes: nothing is said meanwhile."""

Script = Callable[[Peer], Awaitable[None]]


@contextmanager
def served(script: Script) -> Iterator[str]:
    """A server that plays the script in a thread of its own; yields its address."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    async def enter() -> str:
        return await server.__aenter__()

    async def leave() -> None:
        await server.__aexit__(None, None, None)

    server = replay(script)
    try:
        yield asyncio.run_coroutine_threadsafe(enter(), loop).result(PATIENCE_S)
    finally:
        asyncio.run_coroutine_threadsafe(leave(), loop).result(PATIENCE_S)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
        loop.close()


def connect(url: str) -> antiphon.sync.Client:
    return antiphon.sync.connect(url, timeout_s=PATIENCE_S)


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert not [it for it in threading.enumerate() if it.name == "antiphon-sync"]


async def answers_each_second(peer: Peer) -> None:
    await peer.begin()
    while (await peer.request())["type"] == "input.append":
        await peer.send(LISTEN)
    await peer.send({"type": "session.closed", "session_id": "s", "reason": "user_stop"})


def test_conversation_sends_and_iterates() -> None:
    with served(answers_each_second) as url, connect(url) as client:
        with client.duplex("Be brief.", seed=1) as session:
            assert session.id == CREATED["session_id"]
            assert isinstance(next(session), antiphon.Created)
            assert session.send_audio(SECOND) == "in-1"
            assert isinstance(session.receive(), antiphon.Listening)
            session.force_listen()
            assert isinstance(next(iter(session)), antiphon.Listening)
            session.pause()
            assert session.is_paused
            with pytest.raises(antiphon.ProtocolError, match="paused"):
                session.send_audio(SECOND)
            session.resume()
            session.send_audio(SECOND)
            assert isinstance(next(session), antiphon.Listening)
            session.close()
            assert [type(event) for event in session] == [antiphon.Closed]
            assert session.receive() is None
            with pytest.raises(antiphon.SessionClosed, match="user_stop"):
                session.send_audio(SECOND)


def test_recording_is_sent_while_its_block_is_open(tmp_path: pytest.TempPathFactory) -> None:
    path = f"{tmp_path}/a.wav"
    antiphon.write_wav(path, SECOND[:1600], 16_000)
    with served(answers_each_second) as url, connect(url) as client, client.duplex() as session:
        with session.stream_file(path, then_silence=False) as stream:
            stream.wait_sent()
            assert stream.sent
            assert isinstance(next(session), antiphon.Created)
            assert isinstance(next(session), antiphon.Listening)


def test_one_thread_sends_while_another_iterates() -> None:
    with served(answers_each_second) as url, connect(url) as client, client.duplex() as session:
        sending = threading.Thread(target=lambda: [session.send_audio(SECOND) for _ in range(20)])
        sending.start()
        events = [next(session) for _ in range(21)]
        sending.join(PATIENCE_S)
    assert [type(event) for event in events] == [antiphon.Created] + 20 * [antiphon.Listening]


def test_answer_of_a_chat() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        done = {"type": "done", "text": "Seven.", "input_tokens": 27, "generated_tokens": 2}
        await peer.send(PREFILLED, {"type": "chunk", "text_delta": "Seven."}, done)
        await peer.socket.wait_closed()

    with served(script) as url, connect(url) as client:
        with client.chat("Name a prime.") as turn:
            assert turn.answer().text == "Seven."
        with client.chat("Name a prime.") as turn:
            assert [type(event) for event in turn][1:] == [antiphon.TextDelta, antiphon.Answer]


def test_transcription_of_two_utterances() -> None:
    async def script(peer: Peer) -> None:
        await peer.send(GREETING)
        await peer.receive("session.update")
        while True:
            event = await peer.request()
            if event.get("final"):
                await peer.send({"type": "transcription.done", "text": "one", "usage": {}})

    with served(script) as url, connect(url) as client, client.transcribe() as session:
        assert client.models() == ("antiphon-mini",)
        for _ in range(2):
            session.send_audio(SECOND)
            session.end_utterance()
            assert isinstance(next(session), antiphon.Transcript)


def test_deadline_of_a_call_loses_no_event() -> None:
    go_on = threading.Event()

    async def script(peer: Peer) -> None:
        await peer.begin()
        await asyncio.to_thread(go_on.wait, PATIENCE_S)
        await peer.send(LISTEN)
        await peer.end()

    with served(script) as url, connect(url) as client, client.duplex() as session:
        assert isinstance(next(session), antiphon.Created)
        for _ in range(3):
            with pytest.raises(antiphon.CallTimeout, match="deadline") as caught:
                session.receive(timeout_s=SOON_S)
        assert isinstance(caught.value, TimeoutError)
        assert caught.value.retryable
        go_on.set()
        assert isinstance(next(session), antiphon.Listening)


def test_deadline_of_opening_closes_the_socket() -> None:
    began, gone = threading.Event(), threading.Event()

    async def script(peer: Peer) -> None:
        began.set()
        await peer.socket.wait_closed()
        gone.set()

    with served(script) as url, connect(url) as client:
        with pytest.raises(antiphon.CallTimeout), client.duplex(timeout_s=SOON_S):
            pytest.fail("a conversation began")
        # A slow machine may not even have connected.
        assert not began.is_set() or gone.wait(PATIENCE_S)


def test_queue_position_is_reported_while_session_opens() -> None:
    places = []

    async def script(peer: Peer) -> None:
        place = {"position": 1, "queue_length": 1, "estimated_wait_s": 1.0, "ticket_id": "t"}
        await peer.send({"type": "session.queued", **place}, QUEUE_DONE)
        await peer.receive("session.init")
        await peer.send(CREATED)
        await peer.end()

    with served(script) as url, connect(url) as client, client.duplex(on_queue=places.append):
        assert [place.position for place in places] == [1]


def test_blocking_calls_raise_the_errors_of_the_async_client() -> None:
    async def script(peer: Peer) -> None:
        await peer.send({"type": "error", "error": {"code": "queue_full", "message": "Full."}})

    with served(script) as url, connect(url) as client:
        with pytest.raises(antiphon.QueueFull), client.duplex():
            pytest.fail("a conversation began")
        with pytest.raises(antiphon.ProtocolError):
            with client.duplex(mode="smell"):  # type: ignore[arg-type]
                pytest.fail("a conversation began")
    with pytest.raises(antiphon.ConnectError):
        antiphon.sync.connect("nowhere")


def test_error_of_the_caller_closes_the_conversation() -> None:
    closed = threading.Event()

    async def script(peer: Peer) -> None:
        await peer.begin()
        await peer.end()
        closed.set()

    with served(script) as url, connect(url) as client:
        with pytest.raises(antiphon.AudioError), client.duplex() as session:
            session.send_audio(b"odd")
        assert closed.wait(PATIENCE_S)


async def test_call_in_a_coroutine_is_refused() -> None:
    with pytest.raises(RuntimeError, match=r"antiphon\.connect"):
        with antiphon.sync.connect("ws://127.0.0.1:9"):
            pass


def test_call_of_an_open_client_in_a_coroutine_is_refused() -> None:
    with served(answers_each_second) as url, connect(url) as client, client.duplex() as session:

        async def calls() -> None:
            with pytest.raises(RuntimeError, match="to_thread"):
                session.receive()
            assert isinstance(await asyncio.to_thread(session.receive), antiphon.Created)

        asyncio.run(calls())


@pytest.mark.parametrize("timeout_s", [0, -1, float("inf"), float("nan")])
def test_invalid_deadline_is_refused(timeout_s: float) -> None:
    with pytest.raises(ValueError, match="timeout_s"):
        antiphon.sync.connect("ws://127.0.0.1:9", timeout_s=timeout_s)


def test_client_can_be_used_again_and_only_in_its_block() -> None:
    async def script(peer: Peer) -> None:
        pass

    with served(script) as url:
        client = connect(url)
        with pytest.raises(RuntimeError, match="with antiphon"):
            client.models()
        with pytest.raises(RuntimeError, match="with antiphon"), client.chat("Prime?"):
            pass
        for _ in range(2):
            with client:
                assert client.models() == ("antiphon-mini",)
