"""Counts what a device would be waited for, or copied to, on a machine that has none."""

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any

import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from inference_service.device import transfer

_READS = ("item", "tolist", "cpu", "__bool__", "__int__", "__float__", "nonzero", "__array__")
_WRITES = ("tensor", "as_tensor", "cuda", "pin_memory")
_WAITS = ("_local_scalar_dense", "nonzero", "equal", "is_nonzero", "masked_select", "unique")


class Meter:
    """Counts copies up and down, and by name whatever else stops the host or copies beside these.

    While it `counts`, in the block of its `with`.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.uploads = self.downloads = 0
        self.others: Counter[str] = Counter()
        self._counts = True
        self._modes = (_Functions(self), _Operators(self))
        for name in ("upload", "download"):
            real = getattr(transfer, name)
            for module in list(sys.modules.values()):
                if getattr(module, name, None) is real:
                    monkeypatch.setattr(module, name, self._counted(name, real))

    def _counted(self, name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def copy(*given: Any) -> Any:
            if self._counts:
                setattr(self, f"{name}s", getattr(self, f"{name}s") + 1)
            with self.aside():
                return real(*given)

        return copy

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Suspend counting in the body."""
        counted, self._counts = self._counts, False
        try:
            yield
        finally:
            self._counts = counted

    def note(self, name: str) -> None:
        """Something that stops the host."""
        if self._counts:
            self.others[name] += 1

    def __enter__(self) -> "Meter":
        for mode in self._modes:
            mode.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for mode in reversed(self._modes):
            mode.__exit__(kind, error, trace)


class _Functions(TorchFunctionMode):
    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._meter = meter

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        named = kwargs or {}
        name = getattr(func, "__name__", "")
        moves = name == "to" and any(isinstance(it, torch.device | str) for it in [*args, *named.values()])
        moves &= _caller().startswith("inference_service")  # what others move is there already
        if name in _READS or name in _WRITES or moves:
            self._meter.note(name)
        return func(*args, **named)


class _Operators(TorchDispatchMode):
    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self._meter = meter

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name in _WAITS or (name in ("index", "index_put", "index_put_") and _has_mask(args[1])):
            self._meter.note(name)
        return func(*args, **(kwargs or {}))


def _has_mask(indices: Any) -> bool:
    return any(isinstance(it, torch.Tensor) and it.dtype in (torch.bool, torch.uint8) for it in indices)


def _caller() -> str:
    """The module that has called what the modes look at."""
    return str(sys._getframe(2).f_globals["__name__"])
