"""An adapter that reaches its workers over TLS and over a Unix socket."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.scripted_engine import ScriptedEngine, listen, running_worker
from tests.ws_adapter.support.calls import Authority
from tests.ws_adapter.support.conversation import CLOSE
from tests.ws_adapter.support.stage import running_adapter, serving, until


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def of_worker(authority: Authority, *names: str) -> dict[str, Any]:
    certificate, key = authority.issue(*names)
    return {"tls_cert": certificate, "tls_key": key, "tls_client_ca": authority.ca}


def of_adapter(authority: Authority) -> dict[str, Any]:
    certificate, key = authority.issue("adapter.test", called="adapter")
    return {"worker_ca": authority.ca, "worker_cert": certificate, "worker_cert_key": key}


async def test_session_over_a_unix_socket_is_served(tmp_path: Path) -> None:
    at = {"listen": f"unix:{tmp_path}/worker"}
    async with serving(ScriptedEngine(listen()), at) as stage, stage.client() as client:
        await client.begin()
        await client.send(CLOSE)
        assert (await client.end())[1] == 1000


async def test_the_log_says_once_why_a_worker_is_not_reached(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async with running_worker(ScriptedEngine(), **of_worker(authority, "other.test")) as worker:
        async with running_adapter(worker.address, wait=False, **of_adapter(authority)):
            await until(lambda: "its certificate is not accepted" in caplog.text)
        told = [record for record in caplog.records if "does not answer" in record.message]
        assert len(told) == 1
        assert worker.address in told[0].message


async def test_an_adapter_that_is_trusted_later_reaches_its_worker(authority: Authority) -> None:
    async with running_worker(ScriptedEngine(), **of_worker(authority)) as worker:
        options = of_adapter(authority)
        stranger = Authority(authority.folder / "stranger")
        known = {path: path.read_bytes() for path in options.values()}
        authority.folder.joinpath("adapter.pem").write_bytes(
            stranger.issue("adapter.test", called="adapter")[0].read_bytes()
        )
        authority.folder.joinpath("adapter.key").write_bytes((stranger.folder / "adapter.key").read_bytes())
        async with running_adapter(worker.address, wait=False, **options) as stage:
            await stage.until(ready=False)
            for path, content in known.items():
                path.write_bytes(content)
            stage.adapter.reload()
            await stage.until(ready=True)
