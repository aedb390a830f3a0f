"""Type stubs of `mel.c`: arguments are contiguous arrays, with the shapes of its struct `Sound`."""

from typing import Any

from numpy.typing import NDArray

def feed(
    past: NDArray[Any],
    pcm: NDArray[Any],
    window: NDArray[Any],
    turns: NDArray[Any],
    filters: NDArray[Any],
    spans: NDArray[Any],
    out: NDArray[Any],
) -> None: ...
