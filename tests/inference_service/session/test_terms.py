"""The worker takes tenant and limits of a session from its lease, and from nothing that callers can write."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc
import pytest
from google.protobuf.duration_pb2 import Duration

from antiphon.contract import METADATA_LEASE, Reason
from antiphon.grpc import get_info
from antiphon.v1 import inference_service_pb2 as pb
from antiphon_service.leases import Claims, read_token, write_token
from inference_service.errors import LeaseInvalid
from inference_service.interface.setups import Tenant
from inference_service.session.leases import UNCLAIMED, Lease, Terms
from tests.inference_service.session.test_leases import KEY, read
from tests.inference_service.support.caller import Caller, channel_to
from tests.support.scripted_engine import ScriptedEngine, running_worker

CLAIMS = Claims("ab" * 16, 600.0, 60.0)
OTHERS = Claims("cd" * 16, 600.0, 60.0)


def token(claims: Claims | None) -> str:
    return write_token(KEY, "w", 3, 7, claims)


def test_token_is_written_and_read_alike() -> None:
    text = token(CLAIMS)
    assert read(text) == Lease(3, 7, CLAIMS)
    assert text.startswith(f"3:7:2.{'ab' * 16}.600000.60000:")
    assert read(token(None)) == Lease(3, 7, None)
    rounded = read_token(token(Claims("ab" * 16, 0.0001, 0.0)))  # up, and not off
    assert rounded is not None
    assert rounded.claims == Claims("ab" * 16, 0.001, 0.0)


MAC = token(CLAIMS).rpartition(":")[2]


@pytest.mark.parametrize(
    "forged",
    [
        token(CLAIMS).replace("ab" * 16, "cd" * 16),
        token(CLAIMS).replace(".600000.", ".0."),
        token(CLAIMS).replace(".60000:", ".0:"),
        f"3:7:{MAC}",
        f"3:7:{CLAIMS.text}:{token(None).rpartition(':')[2]}",
        f"3:7:{CLAIMS.text}:",
        write_token(b"another key, long", "w", 3, 7, CLAIMS),
        write_token(KEY, "another", 3, 7, CLAIMS),
        token(CLAIMS) + "\n",
        token(CLAIMS).replace(":2.", ":3."),
        token(CLAIMS).replace(":2.", ":02."),
        token(CLAIMS).replace("ab" * 16, "AB" * 16),
        token(CLAIMS).replace(".600000.", f".{'9' * 20}."),
    ],
)
def test_token_with_changed_or_missing_claims_is_refused(forged: str) -> None:
    """A caller who could change them would name another's tenant, or never have to leave."""
    with pytest.raises(LeaseInvalid):
        read(forged)


def test_tenant_of_a_lease_is_the_one_it_names() -> None:
    one, again, other = (
        Terms.of(Lease(0, epoch, claims)) for epoch, claims in enumerate((CLAIMS, CLAIMS, OTHERS))
    )
    assert one.tenant == again.tenant
    assert one.tenant.salt != other.tenant.salt
    assert not one.tenant.is_session
    assert (one.max_duration_s, one.idle_timeout_s) == (600.0, 60.0)


@pytest.mark.parametrize("lease", [None, Lease(0, 1, None), Lease(0, 1, Claims(""))])
def test_tenant_of_a_session_that_names_none_is_shared_with_no_other(lease: Lease | None) -> None:
    one, other = Terms.of(lease), Terms.of(lease)
    assert one.tenant.is_session
    assert one.tenant.salt != other.tenant.salt
    assert len(one.tenant.salt) == 32


def test_limits_of_a_lease_without_claims_are_those_of_the_release_before() -> None:
    terms = Terms.of(Lease(0, 1, None))
    assert (terms.max_duration_s, terms.idle_timeout_s) == (
        UNCLAIMED.max_duration_s,
        UNCLAIMED.idle_timeout_s,
    )
    assert Terms.of(None).max_duration_s is None


@asynccontextmanager
async def leased(
    claims: Claims | None, key: bytes | None = KEY
) -> AsyncIterator[tuple[ScriptedEngine, Caller]]:
    """A session that has attached with a lease, at a worker with the key or without any."""
    engine = ScriptedEngine()
    async with running_worker(engine, worker_key=key) as worker, channel_to(worker.address) as channel:
        worker_id = (await get_info(worker.address)).worker_id
        caller = Caller(channel, None, (METADATA_LEASE, write_token(key, worker_id, 0, 1, claims)))
        yield engine, await caller.open()


def seconds(value: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(round(value * 1e9))
    return duration


@pytest.mark.parametrize("key", [KEY, None])
async def test_session_gets_the_tenant_of_its_lease(key: bytes | None) -> None:
    async with leased(CLAIMS, key) as (engine, caller):
        await caller.configure()
        tenant: Tenant = engine.session.setup.tenant
        assert tenant == Terms.of(Lease(0, 1, CLAIMS)).tenant


@pytest.mark.parametrize(
    ("claims", "config", "reason"),
    [
        (Claims("ab" * 16, 0.3, 0.0), {}, Reason.SESSION_LIMIT),
        (Claims("ab" * 16, 0.3, 0.0), {"max_duration": seconds(3600)}, Reason.SESSION_LIMIT),
        (Claims("ab" * 16, 0.0, 0.3), {}, Reason.IDLE_TIMEOUT),
        (Claims("ab" * 16, 3600.0, 0.3), {"idle_timeout": seconds(3600)}, Reason.IDLE_TIMEOUT),
        (Claims("ab" * 16, 3600.0, 0.0), {"max_duration": seconds(0.3)}, Reason.SESSION_LIMIT),
    ],
)
async def test_session_ends_at_shorter_limit_of_lease_and_config(
    claims: Claims, config: dict[str, Any], reason: Reason
) -> None:
    async with leased(claims) as (_, caller):
        await caller.configure(**config)
        ending = await caller.end()
        assert (ending.code, ending.reason) == (grpc.StatusCode.DEADLINE_EXCEEDED, reason)


async def test_ready_carries_effective_limits() -> None:
    async with leased(CLAIMS) as (_, caller):
        ready = await caller.configure(max_duration=seconds(30))
        effective: pb.SessionConfig = ready.effective
        assert (effective.max_duration.seconds, effective.idle_timeout.seconds) == (30, 60)
