"""A conversation with the shipped checkpoint between processes set up as `deploy/` says, and strangers."""

import asyncio
import signal
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import antiphon
from tests.cli.support.process import run_cli
from tests.deploy import confined
from tests.deploy.cluster import Cluster, make_certificates
from tests.e2e.conftest import FOLDER
from tests.failures.link import link_to
from tests.support.long import long
from tests.support.patience import PATIENCE_S
from tests.support.redis_server import INSTALLED, MISSING

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00"
"""Preface of HTTP/2 with empty settings: a server that accepts the caller answers with its own."""

PING = b"*1\r\n$4\r\nPING\r\n"

pytestmark = pytest.mark.skipif(INSTALLED is None, reason=MISSING)


@pytest.fixture(scope="module", params=[pytest.param("systemd", marks=long), "kubernetes"])
def cluster(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if request.param == "systemd" and (confined.LIBRARY is None or confined.SYSTEMD is None):
        pytest.skip(confined.MISSING)
    running = Cluster(tmp_path_factory.mktemp("cluster"), request.param)
    running.prepare()
    try:
        running.start()
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificates like ours, of other authorities."""
    folder = tmp_path_factory.mktemp("foreign")
    make_certificates(folder, "IP:127.0.0.1")
    return folder


def exchange(port: int, sent: bytes, context: ssl.SSLContext | None, name: str) -> bytes:
    """Return the first answer to `sent`, empty where the server ends the connection."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as plain:
            if context is None:
                plain.sendall(sent)
                return plain.recv(4096)
            with context.wrap_socket(plain, server_hostname=name) as secured:
                secured.sendall(sent)
                return secured.recv(4096)
    except (ssl.SSLError, ConnectionError):
        return b""


def context_for(ca: Path, shown: tuple[Path, Path] | None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(ca)
    context.set_alpn_protocols(["h2"])
    if shown is not None:
        context.load_cert_chain(*shown)
    return context


def test_spoken_and_typed_conversations_are_held(cluster: Cluster) -> None:
    url, key = f"ws://127.0.0.1:{cluster.ports['adapter']}", cluster.folder / "alice.key"
    talked = run_cli("talk", FOLDER / "joke.wav", "--url", url, "--key-file", key, timeout_s=PATIENCE_S)
    chatted = run_cli("chat", "what is your name", "--url", url, "--key-file", key)
    assert talked.code == 0, (talked.err, cluster.said("adapter"), cluster.said("worker"))
    assert chatted.code == 0, (chatted.err, cluster.said("adapter"), cluster.said("worker"))
    assert chatted.out.strip()


def test_worker_takes_the_adapter_alone(cluster: Cluster, foreign: Path) -> None:
    """Attacks: plain text, no certificate, one of another authority, of Redis alone, of another worker."""
    port, ca = cluster.ports["worker"], cluster.folder / "tls/adapter/workers/ca.crt"
    strangers = {
        "no certificate": None,
        "another authority": (foreign / "adapter/workers/tls.crt", foreign / "adapter/workers/tls.key"),
        "another worker, as it shows itself to Redis": cluster.certificate("worker/redis"),
        "another worker, as it shows itself to adapters": cluster.certificate("worker/workers"),
    }
    adapter = context_for(ca, cluster.certificate("adapter/workers"))
    assert exchange(port, PREFACE, adapter, "antiphon-worker")
    for who, shown in strangers.items():
        assert exchange(port, PREFACE, context_for(ca, shown), "antiphon-worker") == b"", who
    assert b"\x00\x00\x00\x00\x00" not in exchange(port, PREFACE, None, "")


def test_redis_takes_the_adapter_and_the_worker_alone(cluster: Cluster, foreign: Path) -> None:
    """Attacks: as above; and whoever has a certificate has no password yet."""
    port, ca = cluster.ports["redis"], cluster.folder / "tls/adapter/redis/ca.crt"
    strangers = {
        "no certificate": None,
        "another authority": (foreign / "adapter/redis/tls.crt", foreign / "adapter/redis/tls.key"),
        "an adapter, as it shows itself to workers": cluster.certificate("adapter/workers"),
        "the server": cluster.certificate("redis"),
    }

    for place in ("adapter/redis", "worker/redis"):
        known = context_for(ca, cluster.certificate(place))
        assert exchange(port, PING, known, "antiphon-redis").startswith(b"-NOAUTH")
    for who, shown in strangers.items():
        assert exchange(port, PING, context_for(ca, shown), "antiphon-redis") == b"", who
    assert exchange(port, PING, None, "") == b""


def test_server_with_a_client_certificate_is_no_worker(cluster: Cluster) -> None:
    """Attack: an adapter, or whoever stole its certificate, poses as a worker."""
    impostor = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    impostor.load_cert_chain(*cluster.certificate("adapter/workers"))
    client = context_for(cluster.folder / "tls/adapter/workers/ca.crt", None)
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = impostor.wrap_bio(to_server, to_client, server_side=True)
    dialling = client.wrap_bio(to_client, to_server, server_hostname="antiphon-adapter")

    with pytest.raises(ssl.SSLWantReadError):
        dialling.do_handshake()
    with pytest.raises(ssl.SSLWantReadError):
        server.do_handshake()
    with pytest.raises(
        ssl.SSLCertVerificationError, match=r"unsuitable certificate purpose|unsupported certificate"
    ):
        dialling.do_handshake()


def test_renewed_certificates_are_read_after_a_signal_and_conversations_go_on(cluster: Cluster) -> None:
    before = cluster.certificate("worker/workers")[0].read_bytes()
    make_certificates(cluster.folder / "tls", "IP:127.0.0.1")
    assert cluster.certificate("worker/workers")[0].read_bytes() != before
    for name in ("worker", "adapter"):
        cluster.processes[name].send_signal(signal.SIGHUP)
    cluster.until_said("worker", "the certificate was read again")
    cluster.until_said("worker", "the certificate for Redis was read again")
    cluster.until_said("adapter", "the TLS to the workers was read again")
    cluster.until_said("adapter", "the TLS to Redis was read again")

    url, key = f"ws://127.0.0.1:{cluster.ports['adapter']}", cluster.folder / "alice.key"
    assert run_cli("chat", "what is your name", "--url", url, "--key-file", key).code == 0
    served = context_for(
        cluster.folder / "tls/adapter/workers/ca.crt", cluster.certificate("adapter/workers")
    )
    assert exchange(cluster.ports["worker"], PREFACE, served, "antiphon-worker")


async def test_conversation_of_a_killed_adapter_goes_on_at_the_next(cluster: Cluster) -> None:
    second, key = np.zeros(antiphon.INPUT_RATE_HZ, np.float32), (cluster.folder / "alice.key").read_text()
    cluster.start_next_adapter()
    async with asyncio.timeout(PATIENCE_S), link_to(f"127.0.0.1:{cluster.ports['adapter']}") as link:
        async with antiphon.connect(f"ws://{link.address}", key) as client:
            async with client.duplex(reconnect=True) as session:
                await session.send_audio(second)
                await anext(event async for event in session if isinstance(event, antiphon.Listening))
                link.target = f"127.0.0.1:{cluster.ports['next adapter']}"
                cluster.processes["adapter"].kill()
                await anext(event async for event in session if isinstance(event, antiphon.Resumed))
                await session.send_audio(second)
                await anext(event async for event in session if isinstance(event, antiphon.Listening))


def test_redis_denied_its_users_nothing(cluster: Cluster) -> None:
    """After conversations: neither side has asked for a command, key or channel beyond its own."""
    for name in cluster.processes.keys() - {"redis"}:
        assert "NOPERM" not in cluster.said(name)
        assert "no permissions" not in cluster.said(name)
