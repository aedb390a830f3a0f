"""Free memory of a device, memory of a process, and the size of keys and values."""

import os
from collections.abc import Iterator
from pathlib import Path

import torch
from transformers import PretrainedConfig


def bytes_per_row(config: PretrainedConfig, dtype: torch.dtype) -> int:
    """Return the bytes of keys and values of one row in all layers."""
    head: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * int(config.num_hidden_layers) * int(config.num_key_value_heads) * head * dtype.itemsize


def free_bytes(device: torch.device, root: Path = Path("/")) -> int | None:
    """Return the bytes that could be allocated on the device; None if unknown.

    Host memory is limited by the control groups of this process, found below `root`. On CUDA, memory that
    torch caches is first returned to the device, which synchronises: do not call it during a tick.
    """
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(device)[0]
    known = [free for free in (_host_bytes(root), *_group_bytes(root)) if free is not None]
    return min(known, default=None)


def _host_bytes(root: Path) -> int | None:
    try:
        lines = (root / "proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), None)


def _group_bytes(root: Path) -> Iterator[int | None]:
    """Yield the free bytes of each control group (version 1 or 2) of this process, and of its parents."""
    try:
        entries = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for entry in entries:
        _, controllers, path = entry.split(":", 2)
        kind = "memory" if "memory" in controllers.split(",") else controllers
        if kind in _GROUP_FILES:
            mount, files = root / "sys/fs/cgroup" / kind, _GROUP_FILES[kind]
            # Inside a container the path is often that of the host, and the mount the container's own group.
            own = mount / path.strip("/")
            for group in {mount, *(parent for parent in (own, *own.parents) if mount in parent.parents)}:
                yield _left(group, *files)


_GROUP_FILES = {
    "": ("memory.max", "memory.current", "inactive_file"),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}
"""By kind of control group: the files with its limit, its usage, and the usage that is reclaimable cache."""


def _left(group: Path, limit: str, used: str, files: str) -> int | None:
    try:
        most, taken = (group / limit).read_text().strip(), int((group / used).read_text())
        stat = dict(line.split() for line in (group / "memory.stat").read_text().splitlines())
    except (OSError, ValueError):
        return None
    return None if most == "max" else max(0, int(most) - taken + int(stat.get(files, 0)))


def held_bytes(device: torch.device) -> int | None:
    """Return the bytes of the device's memory that this process holds; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.memory_reserved(device)
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
