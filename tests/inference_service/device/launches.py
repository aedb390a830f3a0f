"""Counts the kernels that a GPU would be asked to launch, on a machine that has none."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from inference_service.device.graph import Graph

_WHOLE = ("scaled_dot_product_attention",)
"""Operators that consist of others but are one kernel on a GPU."""
_FREE = (
    "empty",
    "empty_like",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "_unsafe_view",
    "_reshape_alias",
    "detach",
    "alias",
    "lift_fresh",
    "resize_",
)
"""Operators that launch nothing and whose result is not told to be a view."""


class Launches(TorchDispatchMode):
    """Counts operators, views aside, in the block of its `with`; one of several tensors counts as one.

    A captured region is one launch, whatever is in it.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.operators: Counter[str] = Counter()
        """By name, those outside of captured regions."""
        self.inside: Counter[str] = Counter()
        """By name, those in captured regions."""
        self.regions = 0
        """Replays of captured regions."""
        self._depth = 0
        launches = self

        def replay(graph: Graph) -> Any:
            launches.regions += launches._depth == 0
            with launches._region():
                return graph._compute()

        monkeypatch.setattr(Graph, "__call__", replay)

    @property
    def total(self) -> int:
        """Launches: operators outside of regions, and one for each region."""
        return self.operators.total() + self.regions

    def clear(self) -> None:
        """Count from 0 on."""
        self.operators.clear()
        self.inside.clear()
        self.regions = 0

    @contextmanager
    def _region(self) -> Iterator[None]:
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        if "::" in name:  # asks for what the host knows
            return func(*args, **named)
        if name not in _WHOLE and func._can_decompose():
            with self:
                made = func.decompose(*args, **named)
            if made is not NotImplemented:
                return made
        made = func(*args, **named)
        if name not in _WHOLE and (func.is_view or name in _FREE):
            return made
        if isinstance(made, Tensor) or name.endswith("_") or isinstance(made, tuple | list):
            (self.inside if self._depth else self.operators)[name] += 1
        return made
