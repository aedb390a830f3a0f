"""The TLS listener: the same paths, another certificate on SIGHUP, clear errors."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.x509 import load_pem_x509_certificate
from websockets.asyncio.client import ClientConnection, connect

from tests.support.scripted_engine import ScriptedEngine, running_worker, speak
from tests.ws_adapter.session.test_slow_clients import connected
from tests.ws_adapter.support import calls
from tests.ws_adapter.support.conversation import append
from tests.ws_adapter.support.stage import PATIENCE_S, Client, ManualClock, Stage, running_adapter, until
from ws_adapter.app import serve
from ws_adapter.options import AdapterOptions
from ws_adapter.process.errors import ConfigurationError
from ws_adapter.web.tls import Certificate


class Authority(calls.Authority):
    """Has a certificate for this machine; `trust` is what a client needs to believe it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.trust = ssl.create_default_context(cafile=str(self.ca))
        self.certificate, self.key = self.issue()

    @property
    def serial(self) -> int:
        """Of the certificate on disk."""
        return load_pem_x509_certificate(self.certificate.read_bytes()).serial_number


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@asynccontextmanager
async def secured(
    authority: Authority, worker: str = "127.0.0.1:1", wait: bool = False, **options: Any
) -> AsyncIterator[Stage]:
    options |= {"tls_cert": authority.certificate, "tls_key": authority.key, "tls_port": 0}
    async with running_adapter(worker, wait=wait, **options) as stage:
        assert stage.tls_address.startswith("https://127.0.0.1:")
        yield stage


def serial_seen(socket: ClientConnection) -> int:
    """Of the certificate that the server showed."""
    certificate = socket.transport.get_extra_info("peercert")
    return int(certificate["serialNumber"], 16)


async def test_client_that_stops_reading_loses_its_session_over_tls_too(authority: Authority) -> None:
    """The output that TLS buffers is bounded as well."""
    clock = ManualClock()
    engine = ScriptedEngine(speak("word"), repeat=True)
    async with running_worker(engine) as worker:
        async with secured(authority, worker.address, wait=True, clock=clock) as stage:
            narrow = await connected(stage.tls_address.replace("https", "http"))
            url = stage.tls_address.replace("https", "wss") + "/v1/realtime?mode=audio"
            options: dict[str, Any] = {"sock": narrow, "max_queue": 1, "ssl": authority.trust}
            async with stage.client(url, **options) as client:
                await client.begin()
                client.socket.transport.pause_reading()
                await client.send(append(50.0))
                await until(lambda: len(engine.session.heard) > 3)
                for _ in range(14):
                    await clock.advance(0.5)
                    await asyncio.sleep(0.01)

                await until(lambda: engine.session.is_closed)
                assert len(engine.session.heard) < 50, "no more is run than the client can be sent"
                client.vanish()


async def test_tls_serves_rejections_and_page_shows_port(authority: Authority) -> None:
    async with secured(authority) as stage:
        port = int(stage.tls_address.rpartition(":")[2])
        assert (await stage.request("/page/about.json"))[2]["tls_port"] == port
        url = stage.tls_address.replace("https", "wss") + "/v1/realtime?mode=half_duplex"
        async with connect(url, ssl=authority.trust) as websocket:
            events, close = await Client(websocket).end()
            assert (events[0]["error"]["code"], close) == ("unsupported_mode", 1008)
    async with running_adapter("127.0.0.1:1", wait=False, tls_port=0) as stage:
        assert (await stage.request("/page/about.json"))[2]["tls_port"] is None


async def test_new_certificate_for_new_connections_and_an_unusable_one_changes_nothing(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    async with secured(authority) as stage:
        url = stage.tls_address.replace("https", "wss") + "/v1/realtime?mode=audio"
        before = authority.serial
        async with connect(url, ssl=authority.trust) as old:
            assert serial_seen(old) == before
            old_key = authority.key.read_bytes()
            authority.issue()
            new_key = authority.key.read_bytes()
            authority.key.write_bytes(old_key)
            stage.adapter.reload()
            assert "the certificate could not be read again" in caplog.text
            async with connect(url, ssl=authority.trust) as unaware:
                assert serial_seen(unaware) == before

            authority.key.write_bytes(new_key)
            stage.adapter.reload()
            async with connect(url, ssl=authority.trust) as new:
                assert serial_seen(new) == authority.serial != before
            await (await old.ping())


async def test_client_that_speaks_plain_text_or_never_says_hello_on_the_tls_port_is_cut(
    authority: Authority, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ws_adapter.server.listener.OPEN_TIMEOUT_S", 0.2)
    async with secured(authority) as stage:
        host, port = stage.tls_address.removeprefix("https://").split(":")
        for said in (b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", b""):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(said)
            async with asyncio.timeout(PATIENCE_S):
                told = await reader.read()
            assert told == b"" if not said else b"200" not in told
            writer.close()


def test_unusable_files_and_old_versions_are_refused(authority: Authority, tmp_path: Path) -> None:
    assert Certificate(authority.certificate, authority.key).context.minimum_version >= ssl.TLSVersion.TLSv1_2
    other = Authority(tmp_path / "other")
    junk = tmp_path / "junk.pem"
    junk.write_text("hello")
    locked = tmp_path / "locked.pem"
    locked.write_bytes(encrypted(authority.key.read_bytes()))
    for certificate, key, text in (
        (tmp_path / "none", authority.key, "Cannot read .*none for TLS: No such file or directory."),
        (authority.certificate, tmp_path / "none", "Cannot read .*none for TLS: No such file or directory."),
        (tmp_path, authority.key, "Cannot read .* for TLS: Is a directory."),
        (authority.certificate, other.key, "Cannot use .*worker.pem with the key .*: key values mismatch."),
        (junk, authority.key, "no certificate or no key in PEM format"),
        (authority.certificate, junk, "no certificate or no key in PEM format"),
        (authority.certificate, locked, "its key without a password"),
    ):
        with pytest.raises(ConfigurationError, match=text):
            Certificate(certificate, key)


def encrypted(key: bytes) -> bytes:
    return serialization.load_pem_private_key(key, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.BestAvailableEncryption(b"secret"),
    )


async def test_tls_port_in_use_is_reported(authority: Authority, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        tls: dict[str, Any] = {"tls_cert": authority.certificate, "tls_key": authority.key, "tls_port": port}
        assert await serve(AdapterOptions(workers=("127.0.0.1:1",), port=0, **tls)) == 2

    assert capsys.readouterr().err == (
        f"Port {port} is in use by another process. Choose another with --tls-port, or stop it.\n"
    )
