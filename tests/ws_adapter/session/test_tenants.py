"""WebSocket sessions carry the tenant and the limits of their connection in the lease."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from antiphon.grpc import Session, acquire
from antiphon.v1 import inference_service_pb2 as pb
from antiphon_service.leases import Claims, read_token
from inference_service.interface.setups import Tenant
from inference_service.session import leases
from inference_service.session.leases import LeaseReader
from tests.support.scripted_engine import ScriptedEngine, listen
from tests.ws_adapter.support.keyfile import KeyFile
from tests.ws_adapter.support.stage import Stage, serving
from ws_adapter.session.slot import BACKSTOP_S

WORKER_KEY = b"a key of 16 byte"


@asynccontextmanager
async def backend(**options: Any) -> AsyncIterator[tuple[Stage, ScriptedEngine]]:
    engine = ScriptedEngine(listen(), slots=3, repeat=True)
    keyed = {"worker_key": WORKER_KEY}
    async with serving(engine, keyed, **keyed, grpc_port=0, **options) as stage:
        yield stage, engine


async def tenant_of_websocket(stage: Stage, engine: ScriptedEngine, headers: dict[str, str]) -> Tenant:
    async with stage.client(additional_headers=headers) as client:
        await client.begin()
        return engine.session.setup.tenant


async def tenant_of_call(stage: Stage, engine: ScriptedEngine, key: str) -> Tenant:
    config = pb.SessionConfig(mode=pb.SESSION_MODE_AUDIO)
    port = f"127.0.0.1:{stage.adapter.grpc_port}"
    async with acquire(port, "audio", key=key) as lease, Session.open(lease, config):
        return engine.session.setup.tenant


async def test_tenant_of_a_key_is_one_over_websockets_and_direct_calls(tmp_path: Path) -> None:
    keys = KeyFile(tmp_path / "keys", "alice", "bob")
    async with backend(auth="keys", keys=keys.path) as (stage, engine):
        alice, again, bob = [
            await tenant_of_websocket(stage, engine, keys.bearer(name)) for name in ("alice", "alice", "bob")
        ]
        assert alice == again == await tenant_of_call(stage, engine, keys.secrets["alice"])
        assert alice != bob
        assert not alice.is_session


async def test_websockets_behind_unknown_proxy_have_separate_tenants() -> None:
    async with backend() as (stage, engine):
        forwarded = {"X-Forwarded-For": "192.0.2.1"}
        one, other = [await tenant_of_websocket(stage, engine, forwarded) for _ in range(2)]
        assert one != other


async def test_websocket_lease_has_duration_limit_of_its_mode_and_hides_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens: list[str] = []
    read = LeaseReader.read

    def noted(reader: LeaseReader, metadata: Any) -> leases.Lease | None:
        tokens.extend(str(value) for name, value in metadata if name == "antiphon-lease")
        return read(reader, metadata)

    monkeypatch.setattr(LeaseReader, "read", noted)
    keys = KeyFile(tmp_path / "keys", "alice")
    async with backend(auth="keys", keys=keys.path, session_limit_audio_s=90.0) as (stage, engine):
        await tenant_of_websocket(stage, engine, keys.bearer("alice"))

    found = read_token(tokens[0])
    assert found is not None
    assert isinstance(found.claims, Claims)
    assert found.claims.max_duration_s in (90.0 + BACKSTOP_S, 300.0 + BACKSTOP_S)
    assert keys.keys["alice"].hash[:8] not in tokens[0]
