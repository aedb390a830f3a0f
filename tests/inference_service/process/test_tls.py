"""A worker with TLS: whom it takes, and certificates that are replaced while it serves."""

import asyncio
import os
import signal
import ssl
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from cryptography.x509 import load_pem_x509_certificate

from antiphon.errors import ConnectError
from antiphon.grpc import Session, get_info
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.app import EXIT_CONFIGURATION, EXIT_DRAINED, serve
from inference_service.errors import ConfigurationError
from inference_service.options import WorkerOptions
from tests.inference_service.support.caller import Caller, soon
from tests.support.scripted_engine import ScriptedEngine, running_worker
from tests.ws_adapter.support.calls import Authority


class Files(Authority):
    """Certificates of both sides, and the CA that signs them."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.cert, self.key = self.issue()

    @property
    def serial(self) -> int:
        return load_pem_x509_certificate(self.cert.read_bytes()).serial_number

    @property
    def options(self) -> dict[str, Any]:
        return {"tls_cert": self.cert, "tls_key": self.key}

    def credentials(self, *, shows: bool = False) -> grpc.ChannelCredentials:
        """A caller's, who `shows` a certificate or none."""
        if not shows:
            return grpc.ssl_channel_credentials(self.ca.read_bytes())
        chain, key = self.issue("caller.test", called="caller")
        return grpc.ssl_channel_credentials(self.ca.read_bytes(), key.read_bytes(), chain.read_bytes())


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path)


async def serial_at(address: str, files: Files) -> int:
    """Of the certificate that a handshake shows."""
    host, port = address.split(":")
    trust = ssl.create_default_context(cafile=str(files.ca))
    _, writer = await soon(asyncio.open_connection(host, int(port), ssl=trust))
    writer.transport.abort()
    return int(writer.get_extra_info("peercert")["serialNumber"], 16)


async def test_a_session_of_the_sdk_over_tls(files: Files) -> None:
    async with running_worker(ScriptedEngine(), **files.options) as worker:
        credentials = files.credentials()
        assert (await get_info(worker.address, credentials=credentials)).slots == 2
        config = pb.SessionConfig(mode=pb.SESSION_MODE_AUDIO)
        async with Session.open(worker.address, config, credentials=credentials) as session:
            assert session.ready.unit_samples == 16_000


async def test_plaintext_caller_cannot_connect_to_tls_worker(files: Files) -> None:
    async with running_worker(ScriptedEngine(), **files.options) as worker:
        with pytest.raises(ConnectError):
            await get_info(worker.address, timeout_s=1.0)


async def test_with_an_authority_of_callers_only_they_come_in(files: Files, tmp_path: Path) -> None:
    stranger = Files(tmp_path / "strangers")
    stranger.ca = files.ca  # trusts the worker, who does not trust it
    async with running_worker(ScriptedEngine(), **files.options, tls_client_ca=files.ca) as worker:
        for refused in (files.credentials(), stranger.credentials(shows=True)):
            with pytest.raises(ConnectError):
                await get_info(worker.address, timeout_s=1.0, credentials=refused)
        known = files.credentials(shows=True)
        assert (await get_info(worker.address, credentials=known)).slots == 2


async def test_a_certificate_read_again_is_shown_from_then_on_and_sessions_stay(files: Files) -> None:
    async with running_worker(ScriptedEngine(), **files.options) as worker:
        async with grpc.aio.secure_channel(worker.address, files.credentials()) as channel:
            caller = await Caller(channel).ready()
            before = files.serial
            files.issue()
            assert await serial_at(worker.address, files) == before != files.serial
            worker.worker.reload()
            assert await serial_at(worker.address, files) == files.serial
            await caller.unit(1)


async def test_unusable_certificate_changes_nothing(files: Files, caplog: pytest.LogCaptureFixture) -> None:
    async with running_worker(ScriptedEngine(), **files.options) as worker:
        before = files.serial
        key = files.key.read_bytes()
        files.issue()
        files.key.write_bytes(key)
        worker.worker.reload()
        assert "the certificate could not be read again, nothing changes: Cannot use" in caplog.text
        assert await serial_at(worker.address, files) == before


async def test_mutual_tls_needs_no_worker_key_beyond_loopback(files: Files) -> None:
    options = files.options | {"listen": "0.0.0.0:0", "tls_client_ca": files.ca}
    async with running_worker(ScriptedEngine(), **options) as worker:
        port = worker.address.rpartition(":")[2]
        credentials = files.credentials(shows=True)
        assert (await get_info(f"127.0.0.1:{port}", credentials=credentials)).slots == 2


async def test_tls_without_caller_authentication_is_refused_beyond_loopback(files: Files) -> None:
    with pytest.raises(ConfigurationError, match=r"--worker-key-file .*--tls-client-ca"):
        async with running_worker(ScriptedEngine(), listen="0.0.0.0:0", **files.options):
            pass


async def test_sighup_reads_the_certificate_again(files: Files) -> None:
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    options = WorkerOptions(listen="127.0.0.1:0", **files.options)
    run = asyncio.create_task(serve(options, factory=ScriptedEngine().start, on_ready=ready.set_result))
    address = await soon(ready)
    files.issue()
    os.kill(os.getpid(), signal.SIGHUP)
    async with asyncio.timeout(30):
        while await serial_at(address, files) != files.serial:
            pass
    os.kill(os.getpid(), signal.SIGTERM)
    assert await soon(run) == EXIT_DRAINED


@pytest.mark.parametrize("name", ["tls_cert", "tls_key", "tls_client_ca"])
async def test_files_that_cannot_be_used_are_said_so(
    files: Files, name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    junk = tmp_path / "junk.pem"
    junk.write_text("hello")
    options: dict[str, Any] = files.options | {"tls_client_ca": files.ca, name: junk}
    code = await serve(WorkerOptions(listen="127.0.0.1:0", **options), factory=ScriptedEngine().start)
    assert code == EXIT_CONFIGURATION
    assert f"{junk}" in capsys.readouterr().err
