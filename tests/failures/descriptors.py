"""Open file descriptors of a process, read from /proc."""

import os
from contextlib import suppress
from pathlib import Path


def files(pid: int, pools: frozenset[int], kept: set[str]) -> list[str]:
    """Open sockets, pipes and files of a process; what threads of a pool wake each other with is none.

    Connections to the ports of `pools` are left out: they are kept for whoever comes next. They are noted in
    `kept`, since one that was reset has no port any more and stays until somebody wants it.
    """
    folder = Path(f"/proc/{pid}/fd")
    found = []
    for entry in folder.iterdir():
        with suppress(FileNotFoundError):
            found.append(os.readlink(entry))
    peers = _peers(pid)
    kept |= {socket for socket, (_, port) in peers.items() if port in pools}
    return [
        f"{it} {peers.get(it, '')}" for it in found if not it.startswith("anon_inode:") and it not in kept
    ]


def _peers(pid: int) -> dict[str, tuple[int, int]]:
    lines = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    rows = [line.split() for line in lines]
    return {f"socket:[{row[9]}]": (_port(row[1]), _port(row[2])) for row in rows}


def _port(end: str) -> int:
    return int(end.rpartition(":")[2], 16)
