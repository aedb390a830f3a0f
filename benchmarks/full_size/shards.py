"""Writing of safetensors files one tensor at a time, and verification of existing ones."""

import hashlib
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import torch

from benchmarks.full_size.tensors import Stored

SUMS: Final = "SHA256SUMS"
"""The file with the digests of complete files, in the format of `sha256sum -c`."""
_DTYPES: Final = {
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float32: "F32",
    torch.float64: "F64",
    torch.int64: "I64",
}
_BLOCK: Final = 1 << 24
_ALIGNED: Final = 8

Progress = Callable[[int], object]
"""A function that is called with the number of processed bytes; negative to take some back."""


def shards(tensors: Sequence[Stored], most_bytes: int) -> list[list[Stored]]:
    """Return `tensors` in groups of at most `most_bytes`; a larger tensor has its own group."""
    groups: list[list[Stored]] = [[]]
    for tensor in tensors:
        if groups[-1] and sum(it.nbytes for it in groups[-1]) + tensor.nbytes > most_bytes:
            groups.append([])
        groups[-1].append(tensor)
    return groups


def file_bytes(tensors: Sequence[Stored]) -> int:
    """Return the size in bytes of a file with `tensors`."""
    return len(_header(tensors)) + sum(it.nbytes for it in tensors)


def write(path: Path, tensors: Sequence[Stored], progress: Progress) -> None:
    """Write a file under a temporary name; rename it when it is on the disk, and add its digest to `SUMS`."""
    part, digest = path.with_name(path.name + ".part"), hashlib.sha256()
    with part.open("wb") as file:

        def put(data: bytes | memoryview) -> None:
            file.write(data)
            digest.update(data)
            progress(len(data))

        put(_header(tensors))
        for tensor in tensors:
            for piece in tensor.pieces():
                put(memoryview(piece.view(torch.uint8).numpy()))
        file.flush()
        os.fsync(file.fileno())
    part.rename(path)
    _note(path, digest.hexdigest())


def is_whole(path: Path, tensors: Sequence[Stored], progress: Progress) -> bool:
    """Return whether the file exists with these tensors in its header, and matches its digest.

    Calls `progress` with all its bytes in sum if so, otherwise with zero in sum.
    """
    noted, size = _noted(path.parent).get(path.name), file_bytes(tensors)
    if noted is None or not path.is_file() or path.stat().st_size != size:
        return False
    digest, header = hashlib.sha256(), _header(tensors)
    with path.open("rb") as file:
        if file.read(len(header)) != header:
            return False
        digest.update(header)
        progress(len(header))
        while block := file.read(_BLOCK):
            digest.update(block)
            progress(len(block))
    if digest.hexdigest() == noted:
        return True
    progress(-size)
    return False


def _header(tensors: Sequence[Stored]) -> bytes:
    entries: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for it in tensors:
        begin, end = end, end + it.nbytes
        entries[it.name] = {"dtype": _DTYPES[it.dtype], "shape": it.shape, "data_offsets": [begin, end]}
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNED)
    return len(text).to_bytes(8, "little") + text


def _noted(folder: Path) -> dict[str, str]:
    """Return the digests in `SUMS` by file name; malformed lines are ignored."""
    try:
        lines = (folder / SUMS).read_text().splitlines()
    except OSError:
        return {}
    return {name: digest for digest, found, name in (it.partition("  ") for it in lines) if found}


def _note(path: Path, digest: str) -> None:
    noted = _noted(path.parent) | {path.name: digest}
    part = path.with_name(SUMS + ".part")
    part.write_text("".join(f"{digest}  {name}\n" for name, digest in sorted(noted.items())))
    part.rename(path.with_name(SUMS))
