"""Lease tokens between a dispatcher and a worker that are one release apart."""

import re

import pytest

from antiphon.contract import METADATA_LEASE
from antiphon.grpc import get_info
from antiphon_service.leases import DEFAULT_POOL, lease_mac
from inference_service.errors import LeaseInvalid
from inference_service.session.leases import Lease, LeaseReader
from inference_service.session.metadata import Metadata
from inference_service.session.units import Stream
from tests.cli.test_serve import one_turn
from tests.inference_service.support.caller import Caller, channel_to
from tests.skew.test_old_worker import narrow_workers
from tests.support.scripted_engine import EVERYTHING, TALK, ScriptedEngine, listen, running_worker
from tests.ws_adapter.support.stage import running_adapter

KEY = b"a key of 16 byte"
TOKEN = re.compile(r"(0|[1-9][0-9]{0,18}):(0|[1-9][0-9]{0,18}):([0-9a-f]{32})?")
"""All that a worker of the release before reads."""


def read_before(reader: LeaseReader, metadata: Metadata) -> Lease | None:
    (text,) = (value for name, value in metadata if name == METADATA_LEASE)
    match = TOKEN.fullmatch(str(text))
    if match is None:
        raise LeaseInvalid("antiphon-lease must be given once, as <slot>:<epoch>:<mac>.")
    slot, epoch = int(match[1]), int(match[2])
    assert match[3] == lease_mac(KEY, DEFAULT_POOL, reader._worker_id, slot, epoch)
    return Lease(slot, epoch)


async def test_lease_of_todays_adapter_is_taken_by_a_worker_of_the_release_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    narrow_workers(monkeypatch)
    monkeypatch.setattr(LeaseReader, "read", read_before)
    engine = ScriptedEngine(*TALK, repeat=True, info=EVERYTHING)
    async with (
        running_worker(engine, worker_key=KEY) as worker,
        running_adapter(worker.address, worker_key=KEY) as stage,
    ):
        assert await one_turn(stage.address) == "Hello there how are you?"


async def test_lease_of_an_adapter_of_the_release_before_is_taken_and_shares_nothing() -> None:
    engine = ScriptedEngine(listen(), repeat=True)
    tenants = []
    async with running_worker(engine, worker_key=KEY) as worker, channel_to(worker.address) as channel:
        worker_id = (await get_info(worker.address)).worker_id
        for epoch in (1, 2):
            token = f"0:{epoch}:{lease_mac(KEY, DEFAULT_POOL, worker_id, 0, epoch)}"
            caller = await Caller(channel, None, (METADATA_LEASE, token)).open()
            ready = await caller.configure()
            tenants.append(engine.session.setup.tenant)
            assert ready.effective.max_duration.seconds == 86_400
            await caller.half_close(Stream.PREFILL)
            await caller.end()
    assert tenants[0] != tenants[1]
    assert all(tenant.is_session for tenant in tenants)
