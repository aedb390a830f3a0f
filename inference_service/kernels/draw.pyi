"""What `draw.c` offers."""

from typing import Any

from numpy.typing import NDArray

def choose(scores: NDArray[Any], draw: object, forbidden: NDArray[Any] | None) -> int | None: ...
