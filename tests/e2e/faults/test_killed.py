"""kill -9 of adapter and worker, in every state of a public session, over a Unix socket with a key."""

import base64
import json
import os
import signal
from pathlib import Path

import pytest

from antiphon_command.arguments.shared_key import WORKER_KEY as KEY_VARIABLE
from tests.e2e.conftest import Server, running_adapter, until_free
from tests.e2e.faults.test_frozen import Client, public_client
from tests.inference_service.process.test_process import process
from tests.inference_service.support.caller import until
from tests.inference_service.support.caller import until_free as until_worker_free
from tests.inference_service.support.holder import engine_for, is_there
from tests.support.patience import PATIENCE_S
from tests.support.scripted_engine import running_worker

KEY = "the key of this test"
SECOND = base64.b64encode(bytes(4 * 16_000)).decode()
STATES = ("active", "prefill", "generate", "finalize", "closing")


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)


async def bring_to(state: str, client: Client) -> None:
    """What a client with a session that has begun sends to come to `state`."""
    if state == "closing":
        await client.socket.send(json.dumps({"type": "session.close"}))
    elif state != "active":
        await client.socket.send(json.dumps({"type": "input.append", "input": {"audio": SECOND}}))


@pytest.mark.parametrize("state", STATES)
async def test_the_slot_of_a_killed_adapter_is_clean_again(state: str, tmp_path: Path) -> None:
    engine = engine_for(state)
    address = f"unix:{tmp_path}/worker.sock"
    async with running_worker(engine, listen=address, worker_key=KEY.encode()):
        with running_adapter(address) as adapter:
            async with public_client(adapter) as client:
                await bring_to(state, client)
                await until(lambda: is_there(state, engine))
                await until_worker_free(address, 0)
                os.kill(adapter.process.pid, signal.SIGKILL)
                events, _ = await client.end(5.0)
                assert "session.created" not in [event["type"] for event in events]
        if state == "closing":
            engine.session.finish_cleanup()
        await until_worker_free(address, 1)
    assert all(session.is_closed for session in engine.sessions)


async def ending_of(state: str, adapter: Server, address: str) -> tuple[list[str], int | None]:
    """What a client hears whose worker is killed in `state`; events before that are left out."""
    script = "listen" if state in ("active", "closing") else f"hang_{state}"
    arguments = ["--slow-cleanup"] if state == "closing" else []
    async with process("--listen", address, "--slots", "1", "--script", script, *arguments) as worker:
        await until_free(adapter.address, 1, within_s=PATIENCE_S)
        async with public_client(adapter) as client:
            await bring_to(state, client)
            if state == "finalize":
                await client.expect("response.output.delta")  # what was decided before
            await client.socket.ping()
            os.kill(worker.process.pid, signal.SIGKILL)
            events, code = await client.end(10.0)
            return [str(event["type"]) for event in events], code


async def test_a_client_of_a_killed_worker_is_told_once_and_the_next_worker_is_found(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/worker.sock"
    with running_adapter(address) as adapter:
        ends = {state: await ending_of(state, adapter, address) for state in STATES}
    closed = ends.pop("closing")
    assert closed[0].count("session.closed") == 1
    assert ends == {state: (["error", "session.closed"], 1011) for state in ends}
