"""SIGSTOP: a process that is there and says nothing is noticed within 15 s, by both sides of a session."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc
import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from inference_service.session.units import Stream
from tests.conformance.support.client import Client
from tests.e2e.conftest import Server, running_adapter, until_free
from tests.e2e.support.visit import visit
from tests.inference_service.process.test_process import process
from tests.inference_service.support.caller import Caller, channel_to, duplex
from tests.inference_service.support.caller import until_free as until_worker_free
from tests.inference_service.support.holder import holding
from tests.support.long import long
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import ScriptedEngine, listen, running_worker

NOTICED_S = 15.0


@asynccontextmanager
async def public_client(adapter: Server) -> AsyncIterator[Client]:
    url = f"{adapter.address.replace('http', 'ws')}/v1/realtime?mode=audio"
    async with connect(url) as socket:
        client = Client(socket)
        await client.send({"type": "session.init", "payload": {}})
        await client.until("session.created")
        yield client


async def noticed(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(NOTICED_S + PATIENCE_S):
        while not condition():  # noqa: ASYNC110 (what is waited for has no event)
            await asyncio.sleep(0.05)


async def served_again(adapter: Server) -> None:
    """Waits until a new session begins: to a thawed adapter its own lag looks like overload at first."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                async with public_client(adapter):
                    return
            except ConnectionClosed:
                await asyncio.sleep(0.1)


@long
async def test_a_frozen_worker_is_noticed_by_clients_and_callers_and_serves_again_when_it_thaws() -> None:
    async with process("--slots", "2") as worker, channel_to(worker.address) as channel:
        with running_adapter(worker.address) as adapter:
            caller = await Caller(channel, "mine").open()
            await caller.configure()
            await caller.unit(1)
            async with public_client(adapter) as client:
                os.kill(worker.process.pid, signal.SIGSTOP)
                await caller.send_unit(2)  # which it will find when it thaws
                events, code = await client.end()
                await noticed(lambda: all(call.done() for call in caller.calls.values()))
                os.kill(worker.process.pid, signal.SIGCONT)
            assert [event["type"] for event in events] == ["error", "session.closed"]
            assert events[0]["error"]["code"] == "inference_error"
            assert (events[1]["reason"], code) == ("backend_error", 1011)
            for stream in Stream:
                ending = await caller.ending(stream)
                assert (ending.code, ending.reason) == (grpc.StatusCode.UNAVAILABLE, "")

            await until_worker_free(worker.address, 2)
            await visit(worker.address, [duplex()])
            await until_free(adapter.address, 2, within_s=PATIENCE_S)
            async with public_client(adapter):
                pass


@pytest.mark.long
async def test_frozen_callers_are_noticed_and_their_slots_are_clean_again() -> None:
    engine = ScriptedEngine(listen(), slots=2)
    async with running_worker(engine, slots=2) as worker, holding(worker.address, "active") as holder:
        with running_adapter(worker.address) as adapter:
            async with public_client(adapter) as client:
                assert len(engine.sessions) == 2
                pids = adapter.process.pid, holder.pid
                for pid in pids:
                    os.kill(pid, signal.SIGSTOP)
                await noticed(lambda: all(session.is_closed for session in engine.sessions))
                await until_worker_free(worker.address, 2)
                for pid in pids:
                    os.kill(pid, signal.SIGCONT)
                events, code = await client.end()
                assert [event["type"] for event in events] == ["error", "session.closed"]
                assert code == 1011
            await served_again(adapter)
            # The end of the adapter keeps this event loop busy, and with it the worker.
            await until_worker_free(worker.address, 2)
