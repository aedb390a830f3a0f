"""Arguments are arrays in one piece; `mel.c` tells their shapes."""

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
