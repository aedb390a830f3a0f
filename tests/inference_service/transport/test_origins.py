"""Whom a connection is counted to, and what is remembered of them."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from inference_service.transport import origins
from inference_service.transport.origins import Origins, name_of

DIAL = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); sys.stdin.read()"


@contextmanager
def accepted(family: socket.AddressFamily, listen: str, source: str) -> Iterator[socket.socket]:
    """The server's end of a connection from `source`."""
    with socket.socket(family) as listener, socket.socket(socket.AF_INET) as caller:
        listener.bind((listen, 0))
        listener.listen()
        caller.bind((source, 0))
        caller.connect(("127.0.0.1", listener.getsockname()[1]))
        sock, _ = listener.accept()
        with sock:
            yield sock


def test_an_origin_over_tcp_is_an_address() -> None:
    with (
        accepted(socket.AF_INET, "127.0.0.1", "127.0.0.2") as one,
        accepted(socket.AF_INET, "127.0.0.1", "127.0.0.2") as same,
        accepted(socket.AF_INET, "127.0.0.1", "127.0.0.3") as other,
    ):
        assert name_of(one) == name_of(same) == "127.0.0.2"
        assert name_of(other) == "127.0.0.3"


def test_an_ipv4_address_over_ipv6_is_itself() -> None:
    try:
        with accepted(socket.AF_INET6, "::", "127.0.0.2") as sock:
            assert name_of(sock) == "127.0.0.2"
    except OSError:
        pytest.skip("this machine has no IPv6")


def test_an_origin_over_a_unix_socket_is_a_process(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        path = str(tmp_path / "socket")
        listener.bind(path)
        listener.listen()
        names = []
        for _ in range(2):
            with subprocess.Popen([sys.executable, "-c", DIAL, path], stdin=subprocess.PIPE) as dialler:
                sock, _ = listener.accept()
                with sock:
                    names.append(name_of(sock))
                assert names[-1] == f"process {dialler.pid}"
                assert dialler.stdin is not None
                dialler.stdin.close()
        assert len(set(names)) == 2


def test_those_who_have_not_come_for_the_longest_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(origins, "REMEMBERED", 2)
    known = Origins(most_calls=1)
    with (
        accepted(socket.AF_INET, "127.0.0.1", "127.0.0.2") as one,
        accepted(socket.AF_INET, "127.0.0.1", "127.0.0.3") as other,
        accepted(socket.AF_INET, "127.0.0.1", "127.0.0.4") as third,
    ):
        first, second = known.of(one, 0.0), known.of(other, 0.0)
        assert known.of(one, 0.0) is first
        known.of(third, 0.0)
        assert known.of(one, 0.0) is first
        assert known.of(other, 0.0) is not second
