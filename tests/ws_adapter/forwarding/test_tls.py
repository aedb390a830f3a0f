"""Certificates between adapters: both sides show one, and they are read again."""

import asyncio
import ssl
from pathlib import Path

import pytest

from tests.support.patience import PATIENCE_S
from tests.ws_adapter.support.calls import Authority
from ws_adapter.forwarding.tls import PeerTls
from ws_adapter.process.errors import ConfigurationError


def tls_of(authority: Authority) -> PeerTls:
    return PeerTls(authority.ca, *authority.issue())


async def shakes_hands(server: ssl.SSLContext, client: ssl.SSLContext) -> bool:
    """Whether both sides accept each other: then a byte comes through."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read(1))
        writer.close()

    async with asyncio.timeout(PATIENCE_S):
        listener = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=server)
        port = listener.sockets[0].getsockname()[1]
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=client)
            writer.write(b"x")
            came = await reader.read(1)
            writer.transport.abort()
            return came == b"x"
        except (ssl.SSLError, ConnectionError):
            return False
        finally:
            listener.close()


async def test_certificate_of_this_authority_alone_is_accepted(tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ours")
    ours, other, theirs = tls_of(authority), tls_of(authority), tls_of(Authority(tmp_path / "theirs"))
    nobody = ssl.create_default_context()
    nobody.check_hostname, nobody.verify_mode = False, ssl.CERT_NONE

    assert await shakes_hands(ours.server, other.client)
    assert not await shakes_hands(ours.server, theirs.client)
    assert not await shakes_hands(theirs.server, ours.client)
    assert not await shakes_hands(ours.server, nobody)


async def test_certificates_read_again_count_for_the_next_connection(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    ours, theirs = PeerTls(authority.ca, *authority.expired()), tls_of(authority)
    assert not await shakes_hands(ours.server, theirs.client)
    authority.issue()
    ours.reload()

    assert await shakes_hands(ours.server, theirs.client)


async def test_invalid_tls_file_on_reload_keeps_loaded_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    ours = tls_of(authority)
    (tmp_path / "worker.pem").write_text("no certificate")
    with pytest.raises(ConfigurationError):
        ours.reload()

    authority.issue()
    assert await shakes_hands(ours.server, tls_of(authority).client)
