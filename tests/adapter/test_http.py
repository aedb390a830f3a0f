"""The HTTP side, and what is decided by URL and headers."""

import json

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

from tests.adapter.conversation import codes
from tests.adapter.stage import Client, running_adapter
from tests.scripted_engine import ScriptedEngine, listen, running_worker
from ws_adapter.routes import Page, find_page, refuse_mode


async def test_pages() -> None:
    async with running_worker(ScriptedEngine(listen(), slots=2)) as worker:
        async with running_adapter(worker.address) as stage:
            for path in ("/health", "/healthz", "/health/", "/health?x=1"):
                status, headers, body = await stage.request(path)
                assert (status, body["status"]) == (200, "healthy")
                assert headers["content-type"] == "application/json"
                assert body["timestamp"].endswith("+00:00")
            for path in ("/ready", "/readyz"):
                assert await stage.request(path) == (
                    200,
                    (await stage.request(path))[1],
                    {"ready": True, "workers": 1, "slots": 2, "free_slots": 2, "draining": False},
                )
            status, _, body = await stage.request("/version")
            assert (status, body["protocol"]) == (200, "antiphon.v1")


async def test_not_ready_without_a_worker() -> None:
    async with running_adapter("127.0.0.1:1", wait=False) as stage:
        assert (await stage.request("/readyz"))[0] == 503
        assert (await stage.request("/healthz"))[0] == 200


async def test_errors_are_json() -> None:
    async with running_adapter("127.0.0.1:1", wait=False) as stage:
        for path in ("/", "/nothing", "/ws/duplex", "/v1/transcription", "/v1/realtime/x", "/status"):
            status, _, body = await stage.request(path)
            assert (status, body["error"]["code"]) == (404, "not_found")
            assert body["detail"] == body["error"]["message"]
        status, headers, body = await stage.request("/v1/realtime?mode=audio")
        assert (status, body["error"]["code"], headers["upgrade"]) == (426, "upgrade_required", "websocket")
        status, headers, body = await stage.request("/health", method="DELETE")
        assert (status, body["error"]["code"], headers["allow"]) == (405, "method_not_allowed", "get")


async def test_unknown_websocket_path() -> None:
    async with running_adapter("127.0.0.1:1", wait=False) as stage:
        with pytest.raises(InvalidStatus) as refused:
            await connect(stage.url.replace("/v1/realtime", "/v2/realtime"))
        assert refused.value.response.status_code == 404
        assert json.loads(refused.value.response.body)["error"]["code"] == "not_found"


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ("mode=video", "unsupported_mode"),
        ("mode=chat", "unsupported_mode"),
        ("mode=transcription", "unsupported_mode"),
        ("mode=Audio", "unsupported_mode"),
        ("mode=", "unsupported_mode"),
        ("", "unsupported_mode"),
        ("intent=transcription", "unsupported_mode"),
        ("model=gpt-realtime", "unsupported_protocol"),
    ],
)
async def test_refusals_by_url_come_after_the_upgrade(query: str, code: str) -> None:
    async with running_adapter("127.0.0.1:1", wait=False) as stage:
        url = stage.url.replace("mode=audio", query)
        async with stage.client(url) as client:
            events, close = await client.end()
            assert codes(events) == [code]
            assert len(events) == 1
            assert close == 1008


async def test_trailing_slash_and_unknown_parameters_are_accepted() -> None:
    async with running_worker(ScriptedEngine(listen())) as worker, running_adapter(worker.address) as stage:
        url = stage.url.replace("realtime?", "realtime/?") + "&session_id=x&autostart=1"
        async with stage.client(url, additional_headers={"Authorization": "Bearer anything"}) as client:
            await client.begin()


@pytest.mark.parametrize(
    ("offered", "selected"),
    [
        (["realtime"], "realtime"),
        (["x", "realtime", "openai-insecure-api-key.k"], "realtime"),
        (["x"], None),
        (None, None),
    ],
)
async def test_subprotocol(offered: list[str] | None, selected: str | None) -> None:
    async with running_worker(ScriptedEngine(listen())) as worker, running_adapter(worker.address) as stage:
        async with connect(stage.url, subprotocols=offered, compression=None) as socket:  # type: ignore[arg-type]
            assert socket.subprotocol == selected
            await Client(socket).begin()


async def test_subprotocol_without_a_mode() -> None:
    async with running_adapter("127.0.0.1:1", wait=False) as stage:
        url = stage.url.replace("?mode=audio", "")
        async with connect(url, subprotocols=["realtime"]) as socket:  # type: ignore[list-item]
            events, close = await Client(socket).end()
            assert (codes(events), close) == (["unsupported_protocol"], 1008)
            assert "?mode=" in events[0]["error"]["message"]


async def test_compression_is_never_negotiated() -> None:
    async with running_worker(ScriptedEngine(listen())) as worker, running_adapter(worker.address) as stage:
        async with connect(stage.url, compression="deflate") as socket:
            assert socket.response is not None
            assert "Sec-WebSocket-Extensions" not in socket.response.headers
            await Client(socket).begin()


def test_routes() -> None:
    assert find_page("/v1/realtime/?mode=audio") is Page.REALTIME
    assert find_page("") is None
    assert refuse_mode("/v1/realtime?mode=audio&mode=video", []) is None
    assert refuse_mode("/v1/realtime?mode=audio&model=x", ["realtime"]) is None
