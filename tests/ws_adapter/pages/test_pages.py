"""The pages, and how requests are answered that open no WebSocket."""

import asyncio
import base64
import datetime
import json
import wave
from pathlib import Path
from typing import Any

import grpc.aio
import numpy as np
import pytest

from antiphon.audio.wav import write_wav
from antiphon.v1 import inference_service_pb2 as pb
from antiphon.v1.inference_service_pb2_grpc import (
    InferenceServiceServicer,
    add_InferenceServiceServicer_to_server,
)
from tests.support.scripted_engine import ScriptedEngine, listen, running_worker
from tests.ws_adapter.support.stage import PATIENCE_S, Stage, running_adapter
from ws_adapter.dispatch.base import PoolStatus
from ws_adapter.pages import responses
from ws_adapter.pages.default_voice import SHIPPED, read_default_voice
from ws_adapter.process.errors import ConfigurationError


async def test_health(lonely: Stage) -> None:
    for path in ("/health", "/healthz", "/health/", "/health?x=1"):
        status, headers, body = await lonely.request(path)
        assert (status, body["status"]) == (200, "healthy"), path
        assert headers["content-type"] == "application/json"
        assert headers["x-content-type-options"] == "nosniff"
        assert datetime.datetime.fromisoformat(body["timestamp"]).tzinfo is not None


READY = {"ready": True, "workers": 1, "slots": 2, "free_slots": 2, "draining": False, "degraded": False}


async def test_ready() -> None:
    async with running_worker(ScriptedEngine(listen(), slots=2), slots=2) as worker:
        async with running_adapter(worker.address) as stage:
            for path in ("/ready", "/readyz"):
                status, _, body = await stage.request(path)
                assert (status, body) == (200, READY)


async def test_without_a_worker_adapter_is_not_ready_and_has_a_version_and_no_models(lonely: Stage) -> None:
    status, _, body = await lonely.request("/readyz")
    assert status == 503
    assert body == {**READY, "ready": False, "workers": 0, "slots": 0, "free_slots": 0}
    assert (await lonely.request("/healthz"))[0] == 200
    status, _, body = await lonely.request("/version")
    assert (status, body["protocol"]) == (200, "antiphon.v1")
    assert (await lonely.request("/v1/models"))[2] == {"object": "list", "data": []}


@pytest.mark.parametrize("has_workers", [False, True])
def test_adapter_is_ready_only_once_queue_worker_model_is_known(has_workers: bool) -> None:
    answer = responses.readiness(PoolStatus(1, 2, 2, 0), has_workers, draining=False)
    assert answer.status_code == (200 if has_workers else 503)


async def test_status_counts_slots_and_models_are_listed() -> None:
    async with running_worker(ScriptedEngine(listen(), slots=2), slots=2) as worker:
        async with running_adapter(worker.address, "127.0.0.1:1") as stage, stage.client() as client:
            await client.begin()
            status, _, body = await stage.request("/status")
            assert status == 200
            [task] = body.pop("running_tasks")
            assert task["request_type"] == "audio_duplex"
            counts = {"total": 3, "idle": 1, "busy": 0, "duplex": 1, "loading": 0, "error": 0, "offline": 1}
            assert body == {
                **{f"{name}_workers": count for name, count in counts.items()},
                "gateway_healthy": True,
                "queue_length": 0,
                "max_queue_size": 1000,
            }
            status, _, body = await stage.request("/v1/models")
            assert (status, body["object"]) == (200, "list")
            [model] = body["data"]
            assert (model["id"], model["object"], model["owned_by"]) == ("scripted", "model", "antiphon")
            assert isinstance(model["created"], int)


async def test_reference_voice_is_the_shipped_one_or_the_installation_s_own(
    lonely: Stage, tmp_path: Path
) -> None:
    with wave.open(str(SHIPPED)) as file:
        frames = file.readframes(file.getnframes())
    shipped = np.frombuffer(frames, "<i2") / 32768
    own = np.linspace(-0.5, 0.5, 16_000, dtype=np.float32)
    write_wav(tmp_path / "default.wav", own, 16_000)
    async with running_adapter("127.0.0.1:1", wait=False, voices=tmp_path) as other:
        for stage, name, samples in ((lonely, "antiphon-mini", shipped), (other, "default", own)):
            status, headers, body = await stage.request("/api/default_ref_audio")
            assert (status, headers["content-type"]) == (200, "application/json")
            audio = np.frombuffer(base64.b64decode(body.pop("base64")), "<f4")
            size = {"duration": samples.size / 16_000, "sample_rate": 16_000, "samples": samples.size}
            assert body == {"name": name, **size}
            np.testing.assert_allclose(audio, samples, atol=1e-4)


async def test_reference_voice_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    voice = read_default_voice(None)
    first = voice.description
    monkeypatch.setattr("ws_adapter.pages.default_voice.base64.b64encode", None)
    assert voice.description is first


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (None, "default.wav: No such file or directory."),
        (b"", "default.wav is no WAV file."),
        (b"RIFF\x04\0\0\0WAVE", "the WAV file is damaged"),
        (np.zeros(1600, np.float32), r"expected 0.5 s to 30 s of audio, got 0.1 s"),
    ],
    ids=["missing", "empty", "damaged", "short"],
)
def test_unusable_reference_voice(tmp_path: Path, data: Any, text: str) -> None:
    if isinstance(data, bytes):
        (tmp_path / "default.wav").write_bytes(data)
    elif data is not None:
        write_wav(tmp_path / "default.wav", data, 16_000)
    with pytest.raises(ConfigurationError, match=text):
        read_default_voice(tmp_path)


async def test_plain_request_where_a_websocket_is_spoken(lonely: Stage) -> None:
    paths = ("/v1/realtime?mode=audio", "/v1/realtime?mode=chat", "/ws/chat", "/v1/transcription")
    for path in (*paths, "/ws/duplex", "/ws/duplex/x"):
        status, headers, body = await lonely.request(path)
        assert (status, headers["upgrade"]) == (426, "websocket"), path
        assert body["error"]["code"] == "upgrade_required"
        status, headers, _ = await lonely.request(path, "HEAD")
        assert (status, headers["upgrade"]) == (426, "websocket"), path


async def test_head_is_get_without_its_body(lonely: Stage) -> None:
    for path in ("/health", "/status", "/v1/models", "/api/queue", "/nothing"):
        status, headers, _ = await lonely.request(path)
        told, head, body = await lonely.request(path, "HEAD")
        assert told == status, path
        assert head.keys() == headers.keys()
        assert int(head["content-length"]) > 0
        assert body is None


async def test_internal_error_response_hides_exception_text(
    lonely: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("canary")

    monkeypatch.setattr("ws_adapter.pages.responses.health", fail)
    status, _, body = await lonely.request("/health")

    assert (status, body["error"]["code"]) == (500, "internal_error")
    assert "canary" not in json.dumps(body)
    assert (await lonely.request("/readyz"))[0] == 503


class Answering(InferenceServiceServicer):
    """A worker that says how it is, and takes no session."""

    def __init__(self, answer: pb.GetInfoResponse) -> None:
        self._answer = answer

    async def GetInfo(self, request: pb.GetInfoRequest, context: Any) -> pb.GetInfoResponse:
        return self._answer


@pytest.mark.parametrize(
    ("answer", "counted"),
    [
        (pb.GetInfoResponse(state=pb.WORKER_STATE_LOADING), "loading_workers"),
        (pb.GetInfoResponse(state=pb.WORKER_STATE_READY), "error_workers"),
        (pb.GetInfoResponse(state=pb.WORKER_STATE_DRAINING), "offline_workers"),
    ],
)
async def test_status_counts_workers_that_are_not_ready(answer: pb.GetInfoResponse, counted: str) -> None:
    server = grpc.aio.server()
    add_InferenceServiceServicer_to_server(Answering(answer), server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with running_adapter(f"127.0.0.1:{port}", wait=False) as stage:
            body: dict[str, int] = {}
            async with asyncio.timeout(PATIENCE_S):
                while body.get(counted) != 1:
                    body = (await stage.request("/status"))[2]

            names = ("idle_workers", "duplex_workers", "loading_workers", "error_workers", "offline_workers")
            assert {name: body[name] for name in names} == dict.fromkeys(names, 0) | {counted: 1}
            assert body["total_workers"] == 1
            assert (await stage.request("/readyz"))[0] == 503
    finally:
        await server.stop(None)
