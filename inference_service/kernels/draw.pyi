"""Type stubs of `draw.c`."""

from typing import Any

from numpy.typing import NDArray

def choose(scores: NDArray[Any], draw: object, forbidden: NDArray[Any] | None) -> int | None:
    """Return the id of the next token; None if a score is not finite.

    `scores`, float32 [vocabulary], are changed in place. `draw` is an `engine.batch.draw.Draw`, and
    `forbidden` holds ids, int64 [n]. Raises `IndexError` for an id outside of the vocabulary.
    """
