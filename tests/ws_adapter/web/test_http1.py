"""Requests of every method, with or without a body, and what is no request: each gets its answer, in JSON."""

import asyncio
import json
import logging
import ssl
from pathlib import Path
from typing import Any

import pytest

from tests.support.scripted_engine import ScriptedEngine, listen, running_worker
from tests.ws_adapter.support.stage import PATIENCE_S, Stage, running_adapter
from tests.ws_adapter.web.test_tls import Authority, secured
from ws_adapter.protocol.wire.redaction import outline
from ws_adapter.web.http1 import LARGEST_BODY_BYTES

Answer = tuple[int, dict[str, str], Any]

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "PROPFIND", "x!")
BODY = b'{"a":1}'
BODIES = {
    "none": b"\r\n",
    "empty": b"Content-Length: 0\r\n\r\n",
    "sized": b"Content-Length: %d\r\n\r\n%s" % (len(BODY), BODY),
    "chunked": b"Transfer-Encoding: chunked\r\n\r\n7\r\n" + BODY + b"\r\n0\r\n\r\n",
    "encoded": b"Transfer-Encoding: gzip, chunked\r\n\r\n7\r\n" + BODY + b"\r\n0\r\n\r\n",
}
REFUSED = {"sized": 413, "chunked": 413, "encoded": 501}
HANDSHAKE = (
    b"GET /v1/realtime?mode=audio HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)
"""A request for a WebSocket without the end of its headers."""


async def connect(stage: Stage, tls: ssl.SSLContext | None = None) -> tuple[Any, Any]:
    address = stage.tls_address if tls else stage.address
    host, port = address.split("://")[1].split(":")
    return await asyncio.open_connection(host, int(port), ssl=tls)


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    """Read an answer until the server closes the connection."""
    async with asyncio.timeout(PATIENCE_S):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    assert head, "the socket was closed without an answer"
    status, *lines = head.decode().split("\r\n")
    headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
    assert len(headers) == len(lines), "no header comes twice"
    if body:
        assert int(headers["content-length"]) == len(body)
    return int(status.split()[1]), headers, body


async def answer(reader: asyncio.StreamReader) -> Answer:
    """Read an answer in JSON."""
    status, headers, body = await read_answer(reader)
    assert headers["content-type"] == "application/json"
    return status, headers, json.loads(body) if body else None


async def fetch(
    stage: Stage, target: str, method: str = "GET", headers: dict[str, str] | None = None
) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of one request, whose target is sent as it stands here."""
    reader, writer = await connect(stage)
    lines = [f"{name}: {value}" for name, value in (headers or {}).items()]
    host = stage.address.removeprefix("http://")
    writer.write("\r\n".join([f"{method} {target} HTTP/1.1", f"Host: {host}", *lines, "", ""]).encode())
    try:
        return await read_answer(reader)
    finally:
        writer.close()


async def exchange(stage: Stage, data: bytes, tls: ssl.SSLContext | None = None) -> Answer:
    """Sends all of it before anything is read, as many clients do."""
    reader, writer = await connect(stage, tls)
    try:
        writer.write(data)
        async with asyncio.timeout(PATIENCE_S):
            await writer.drain()
        return await answer(reader)
    finally:
        writer.close()


async def test_every_method_with_every_kind_of_body_is_answered_in_json(lonely: Stage) -> None:
    for method in METHODS:
        for kind, rest in BODIES.items():
            request = f"{method} /health HTTP/1.1\r\nHost: x\r\n".encode() + rest
            status, headers, body = await exchange(lonely, request)

            expected = REFUSED.get(kind, 200) if method in ("GET", "HEAD") else 405
            assert status == expected, (method, kind)
            if status != 200:
                assert headers["allow"] == "GET, HEAD"
            if method != "HEAD":
                assert status == 200 or body["detail"] == body["error"]["message"]


TARGETS = [
    ("/nothing", "POST", 404, None),
    ("/api/chat", "POST", 404, None),
    ("/api/queue/ticket_1", "DELETE", 413, "GET, HEAD, DELETE"),
    ("/api/queue/ticket_1", "POST", 405, "GET, HEAD, DELETE"),
    ("/api/default_ref_audio", "POST", 405, "GET, HEAD"),
    ("/v1/realtime?mode=audio", "POST", 405, "GET"),
    ("/v1/realtime?mode=audio", "GET", 413, "GET"),
    ("/ws/chat", "PUT", 405, "GET"),
    ("*", "OPTIONS", 405, "GET, HEAD"),
    ("example.org:443", "CONNECT", 405, "GET, HEAD"),
]
NO_REQUESTS = [
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "invalid_request"),  # TLS, without any LF
    (b"\r\n\r\n", 400, "invalid_request"),
    (b'{"type":"session.init"}\n', 400, "invalid_request"),
    (b"GET /health\r\n\r\n", 400, "invalid_request"),
    (b"GET /health HTTP/1.1\n\n", 400, "invalid_request"),
    (b"GET  /health HTTP/1.1\r\n\r\n", 400, "invalid_request"),
    (b"G{T /health HTTP/1.1\r\n\r\n", 400, "invalid_request"),
    (b"GET /\xff HTTP/1.1\r\n\r\n", 400, "invalid_request"),
    (b"GET /health HTTP/1.1\r\nno colon\r\n\r\n", 400, "invalid_request"),
    (b"GET /health HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400, "invalid_request"),
    (b"GET /health HTTP/1.1\r\nContent-Length: 1e3\r\n\r\n", 400, "invalid_request"),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505, "unsupported_version"),
    (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\n\r\n", 414, "uri_too_long"),
    (b"GET / HTTP/1.1\r\nA: " + b"x" * 9000 + b"\r\n\r\n", 431, "headers_too_large"),
    (b"GET / HTTP/1.1\r\n" + b"A: x\r\n" * 200 + b"\r\n", 431, "headers_too_large"),
    (b"GET / HTTP/1.1\r\n" + (b"A: " + b"x" * 8000 + b"\r\n") * 10, 431, "headers_too_large"),
    (HANDSHAKE + BODIES["sized"], 413, "body_not_allowed"),
    (HANDSHAKE.replace(b"Key: AAAA", b"Key: x") + b"\r\n", 400, "invalid_handshake"),
    (HANDSHAKE.replace(b": websocket", b": h2c") + b"\r\n", 426, "upgrade_required"),
    (HANDSHAKE.replace(b": Upgrade", b": close") + b"\r\n", 426, "upgrade_required"),
]


async def test_body_to_any_path_and_malformed_request_get_their_status(lonely: Stage) -> None:
    for target, method, status, allowed in TARGETS:
        request = f"{method} {target} HTTP/1.1\r\nHost: x\r\n".encode() + BODIES["sized"]
        told, headers, body = await exchange(lonely, request)
        assert (told, headers.get("allow")) == (status, allowed), (target, method)
        assert body["error"]["message"]
    for data, status, code in NO_REQUESTS:
        told, headers, body = await exchange(lonely, data)
        assert (told, body["error"]["code"]) == (status, code), data
        assert status != 426 or headers["upgrade"] == "websocket"


async def test_client_that_sends_a_large_body_before_it_reads_gets_its_answer(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    head = f"POST /health HTTP/1.1\r\nHost: x\r\nContent-Length: {8 * 2**20}\r\n\r\n".encode()
    async with secured(authority) as stage:
        for tls in (None, authority.trust):
            status, _, body = await exchange(stage, head + bytes(8 * 2**20), tls)
            assert (status, body["error"]["code"]) == (405, "method_not_allowed")
            assert (await exchange(stage, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", tls))[0] == 200


async def poured(writer: asyncio.StreamWriter) -> int:
    """Writes until it is cut off; returns how many bytes that took."""
    sent = 0
    try:
        async with asyncio.timeout(PATIENCE_S):
            while True:
                writer.write(bytes(2**20))
                await writer.drain()
                sent += 2**20
    except ConnectionError:
        return sent


async def test_endless_body_is_cut_off_and_blocks_no_session() -> None:
    """Attack: its sender neither reads nor stops. What is read is bounded, and thrown away as it comes."""
    async with running_worker(ScriptedEngine(listen())) as worker:
        async with running_adapter(worker.address, max_inflight_mib=4) as stage, stage.client() as neighbour:
            _, writer = await connect(stage)
            writer.write(b"POST /health HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
            assert await poured(writer) < 2 * LARGEST_BODY_BYTES

            await neighbour.begin()  # which is refused while too much is in flight


async def test_bodies_of_one_address_are_counted_together() -> None:
    """Attack: one after another, each within its bound. What is thrown away costs as much as frames do."""
    options: dict[str, Any] = {"trusted_proxies": ("127.0.0.1",), "frames_per_s_per_address": 10}
    async with running_adapter("127.0.0.1:1", wait=False, **options) as stage:
        for _ in range(2):
            _, writer = await connect(stage)
            head = b"POST /health HTTP/1.1\r\nHost: x\r\nX-Forwarded-For: 203.0.113.7\r\n"
            writer.write(head + b"Transfer-Encoding: chunked\r\n\r\n")
            sent = await poured(writer)

        assert sent < LARGEST_BODY_BYTES


async def test_client_that_sends_no_body_yet_or_more_requests_or_an_end_gets_its_answer(
    lonely: Stage,
) -> None:
    head = b"PUT /health HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\nExpect: 100-continue\r\n\r\n"
    assert (await exchange(lonely, head))[0] == 405
    status, headers, _ = await exchange(lonely, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 3)
    assert (status, headers["connection"]) == (200, "close")
    reader, writer = await connect(lonely)
    writer.write(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
    writer.write_eof()
    assert (await answer(reader))[0] == 200
    writer.close()


async def test_each_refusal_has_a_line_in_the_log(caplog: pytest.LogCaptureFixture, lonely: Stage) -> None:
    with caplog.at_level(logging.WARNING, "ws_adapter.server.listener"):
        await exchange(lonely, b"POST /health?token=canary HTTP/1.1\r\nHost: x\r\n" + BODIES["sized"])
        await exchange(lonely, b"canary! /health HTTP/1.1\r\nHost: x\r\n\r\n")
        await exchange(lonely, b"\x16\x03\x01")
        await exchange(lonely, b"POST /canary HTTP/1.1\r\nHost: x\r\n\r\n")

    said = [record for record in caplog.records if record.name == "ws_adapter.server.listener"]
    lines = [(record.getMessage(), vars(record)["path"]) for record in said]
    assert lines == [
        ("POST was answered 405", "/health"),
        ("a request was answered 405", "/health"),
        ("a request was answered 400", "/"),
        ("POST was answered 404", outline("/canary")),
    ]
    assert "canary" not in str([vars(record) for record in caplog.records])
