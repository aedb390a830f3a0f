"""Tests of the adapter's errors and logs when a worker refuses a lease."""

import logging

import pytest

from antiphon.contract import Reason
from antiphon.v1 import inference_service_pb2 as pb
from tests.support.scripted_engine import ScriptedEngine, running_worker
from ws_adapter.dispatch.base import ANY_TERMS, Lease
from ws_adapter.dispatch.leases import Signer, attach_failed
from ws_adapter.process.errors import AttachFailed
from ws_adapter.worker.registry import Registry
from ws_adapter.worker.session_streams import SessionStreams
from ws_adapter.worker.transport.channel import Channel
from ws_adapter.worker.transport.dialler import dialler

KEY, OTHER_KEY = b"a key of 16 byte", b"one that differs"


class Deaf:
    """Nothing is heard of a session that never begins."""

    def said(self, signal: object) -> None:
        raise AssertionError(signal)

    def failed(self, reason: Reason) -> None:
        raise AssertionError(reason)


async def refused(channel: Channel, lease: Lease) -> AttachFailed:
    with pytest.raises(AttachFailed) as failed:
        await SessionStreams.attach(channel, lease.worker_id, "s-1", lease.token, Deaf(), deadline_s=60.0)
    return failed.value


async def test_lease_of_the_worker_before_is_outdated_and_one_forged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "ws_adapter.dispatch.leases")
    async with running_worker(ScriptedEngine(), worker_key=KEY) as worker:
        channel = dialler()(worker.address, lambda: None)
        try:
            asked = await channel.ask("GetInfo", pb.GetInfoRequest(), pb.GetInfoResponse, timeout_s=30.0)
            for worker_id, key in (("the-one-before", KEY), (asked.worker_id, OTHER_KEY)):
                registry = Registry([worker.address])
                token = Signer(key, registry)(worker.address, worker_id, 0, 1, ANY_TERMS)
                lease = Lease(worker.address, token, worker_id, 0, 1, "pool")
                failed = await refused(channel, lease)
                assert (failed.reason, failed.worker_id) == (Reason.LEASE_INVALID, asked.worker_id)
                assert not attach_failed(registry, lease, failed)
        finally:
            channel.close()

    outdated, forged = (it for it in caplog.records if it.name == "ws_adapter.dispatch.leases")
    assert outdated.levelname == "INFO"
    assert "the lease was for the-one-before" in outdated.getMessage()
    assert forged.levelname == "ERROR"
    assert "the same key" in forged.getMessage()
