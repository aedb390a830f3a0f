"""Tests of refused conversations: HTTP, TLS, error events, closed sockets."""

import asyncio
import http
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trustme
from websockets.asyncio.server import Request, Response, ServerConnection, serve

import antiphon
from antiphon import AntiphonError, AuthError, ConnectError, ProtocolError, QueueFull
from tests.sdk.replay import CLOSED, CREATED, QUEUE_DONE, Peer, replay
from tests.support.patience import PATIENCE_S


async def refusal(url: str) -> AntiphonError:
    with pytest.raises(AntiphonError) as caught:
        async with antiphon.connect(url) as client, client.duplex():
            pytest.fail("a conversation began")
    return caught.value


@asynccontextmanager
async def http_server(status: int) -> AsyncIterator[str]:
    """Answers every upgrade with a status."""

    def answer(connection: ServerConnection, request: Request) -> Response:
        return connection.respond(http.HTTPStatus(status), "no\n")

    async with serve(lambda _: asyncio.sleep(0), "127.0.0.1", 0, process_request=answer) as server:
        yield f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_untrusted_certificate_names_the_variable() -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(context)
    async with serve(lambda _: asyncio.sleep(0), "localhost", 0, ssl=context) as server:
        error = await refusal(f"wss://localhost:{server.sockets[0].getsockname()[1]}")
    assert isinstance(error, ConnectError)
    assert (error.reason, error.retryable) == ("untrusted", False)
    assert "SSL_CERT_FILE" in str(error)


@pytest.mark.parametrize(
    ("status", "kind", "retryable"),
    [
        (401, AuthError, False),
        (403, AuthError, False),
        (404, ConnectError, False),
        (429, ConnectError, True),
        (503, ConnectError, True),
        (200, ConnectError, False),
    ],
)
async def test_http_refusal_raises_its_exception(
    status: int, kind: type[AntiphonError], retryable: bool
) -> None:
    async with http_server(status) as url:
        error = await refusal(url)
    assert type(error) is kind
    assert error.retryable is retryable


async def test_server_without_http_raises_connect_error() -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 mail.example.org ESMTP\r\n")
        writer.close()

    async with await asyncio.start_server(talk, "127.0.0.1", 0) as server:
        error = await refusal(f"ws://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    assert isinstance(error, ConnectError)
    assert not error.retryable


@pytest.mark.parametrize(
    ("code", "kind", "retryable"),
    [
        ("worker_busy", QueueFull, True),
        ("queue_cancelled", ConnectError, False),
        ("worker_connect_failed", ConnectError, True),
        ("rate_limited", ConnectError, True),
        ("invalid_payload", ProtocolError, False),
    ],
)
async def test_error_event_before_the_session_raises_its_exception(
    code: str, kind: type[AntiphonError], retryable: bool
) -> None:
    """The others are in the table of endings."""

    async def script(peer: Peer) -> None:
        text = {"code": code, "message": "Not today.", "type": "server_error"}
        await peer.send({"type": "error", "error": text})
        await peer.socket.close(1013)

    async with replay(script) as url:
        error = await refusal(url)
    assert type(error) is kind
    assert (error.reason, error.retryable) == (code, retryable)
    assert "Not today." in str(error)


@pytest.mark.parametrize(("code", "retryable"), [(1013, True), (1008, False)])
async def test_close_before_the_session_is_retryable_by_its_code(code: int, retryable: bool) -> None:
    async def script(peer: Peer) -> None:
        await peer.socket.close(code)

    async with replay(script) as url:
        error = await refusal(url)
    assert isinstance(error, ConnectError)
    assert error.retryable is retryable
    assert str(code) in str(error)


async def test_end_or_malformed_frame_before_the_session_raises() -> None:
    async def time_out(peer: Peer) -> None:
        await peer.send(QUEUE_DONE, CLOSED | {"reason": "timeout"})

    async def babble(peer: Peer) -> None:
        await peer.socket.send("hello")
        await peer.socket.wait_closed()

    for script, kind, reason in (
        (time_out, ConnectError, "timeout"),
        (babble, ProtocolError, "invalid_json"),
    ):
        async with replay(script) as url:
            error = await refusal(url)
        assert (type(error), error.reason) == (kind, reason)


async def test_cancelled_client_leaves_the_queue() -> None:
    waiting, left = asyncio.Event(), asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.send({"type": "session.queued", "position": 1, "queue_length": 1})
        await peer.socket.wait_closed()
        left.set()

    async def wait_in_queue(url: str) -> None:
        async with antiphon.connect(url) as client, client.duplex(on_queue=lambda _: waiting.set()):
            pytest.fail("a conversation began")

    async with replay(script) as url:
        client = asyncio.create_task(wait_in_queue(url))
        await asyncio.wait_for(waiting.wait(), PATIENCE_S)
        client.cancel()
        await asyncio.wait_for(left.wait(), PATIENCE_S)
        await asyncio.wait({client})
    assert client.cancelled()


async def test_key_is_sent_as_bearer_token() -> None:
    seen = []

    async def script(peer: Peer) -> None:
        assert peer.socket.request is not None
        seen.append(peer.socket.request.headers.get("Authorization"))
        await peer.send(QUEUE_DONE, CREATED)
        await peer.end()

    async with replay(script) as url:
        for key in ("secret", None):
            async with antiphon.connect(url, api_key=key) as client, client.duplex():
                pass
    assert seen == ["Bearer secret", None]
