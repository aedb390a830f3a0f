"""The administration port answers whatever is asked of it, in JSON if it is no page."""

import json

from tests.ws_adapter.support.stage import Stage, running_adapter

HOST = b"Host: localhost\r\n"
SIZED = b"Content-Length: 3\r\n\r\nabc"
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
PACKED = b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n"

REQUESTS = {
    b"GET /status.json HTTP/1.1\r\n" + HOST + SIZED: 413,
    b"GET /metrics HTTP/1.1\r\n" + HOST + CHUNKED: 413,
    b"GET / HTTP/1.1\r\n" + HOST + PACKED: 501,
    b"POST / HTTP/1.1\r\n" + HOST + SIZED: 405,
    b"DELETE /metrics HTTP/1.1\r\n" + HOST + b"\r\n": 405,
    b"POST /elsewhere HTTP/1.1\r\n" + HOST + SIZED: 404,
    b"GET / HTTP/2.0\r\n\r\n": 505,
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03": 400,
}


async def ask(stage: Stage, request: bytes) -> tuple[int, bytes]:
    """Status and body of the answer."""
    head, _, body = (await stage.exchange(request, stage.adapter.admin_port)).partition(b"\r\n\r\n")
    assert head, "the socket was closed without an answer"
    return int(head.split()[1]), body


async def test_every_request_has_its_answer() -> None:
    async with running_adapter("127.0.0.1:1", wait=False, admin_port=0) as stage:
        for request, status in REQUESTS.items():
            told, body = await ask(stage, request)
            assert told == status, request
            assert json.loads(body)["error"]["message"]
        assert (await ask(stage, b"GET / HTTP/1.1\r\n" + HOST + b"\r\n"))[0] == 200
        for size in (2**20, 2**24):  # a long body does not take the answer along
            head = b"POST /metrics HTTP/1.1\r\n" + HOST + f"Content-Length: {size}\r\n\r\n".encode()
            assert (await ask(stage, head + bytes(size)))[0] == 405
