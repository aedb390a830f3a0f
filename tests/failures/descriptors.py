"""What a process has open, read from /proc."""

import os
from contextlib import suppress
from pathlib import Path


def files(pid: int, pools: frozenset[int] = frozenset()) -> int:
    """Open sockets, pipes and files of a process; what threads of a pool wake each other with is none.

    Connections to the ports of `pools` are left out: they are kept for whoever comes next.
    """
    folder = Path(f"/proc/{pid}/fd")
    found = []
    for entry in folder.iterdir():
        with suppress(FileNotFoundError):
            found.append(os.readlink(entry))
    kept = {f"socket:[{inode}]" for inode, port in _peers(pid) if port in pools}
    return sum(not it.startswith("anon_inode:") and it not in kept for it in found)


def _peers(pid: int) -> list[tuple[str, int]]:
    """Inodes of the TCP sockets in the network of a process, and the port at their other ends."""
    lines = Path(f"/proc/{pid}/net/tcp").read_text().splitlines()[1:]
    rows = [line.split() for line in lines]
    return [(row[9], int(row[2].rpartition(":")[2], 16)) for row in rows]
