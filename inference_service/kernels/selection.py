"""Selects the compiled kernels of this process: those that were built (`auto`), or none (`off`).

The kernels determine the packing of weights, and so the estimate of their memory. Therefore a process has one
choice for all its engines. `select` makes the choice; without it, the first call of `usable` chooses `auto`.
"""

from functools import cache
from importlib import import_module
from typing import Final, Literal

from inference_service.errors import ConfigurationError

CHOICES: Final = ("auto", "off")
Module = Literal["draw", "linear", "mel", "native"]
"""The compiled modules: token draws, linear layers, log-mel features, and layers of decoders."""

_selected: str | None = None


def select(choice: str) -> None:
    """Select `auto` or `off` for the whole process.

    Raises `ConfigurationError` for another choice, and if this process already computes with the other one.
    """
    global _selected
    if choice not in CHOICES:
        raise ConfigurationError(f"kernels must be one of {', '.join(CHOICES)}, not {choice!r}.")
    if _selected not in (None, choice):
        raise ConfigurationError(
            f"This process already computes with kernels {_selected!r}, so it cannot use {choice!r}: start "
            "another process."
        )
    _selected = choice


def selected() -> str:
    """Return the choice of this process; without one, the first call chooses `auto`."""
    if _selected is None:
        select("auto")
    return _selected or "auto"


def usable(module: Module) -> bool:
    """Return whether this process uses a compiled module: it was built, and kernels are not off."""
    return selected() == "auto" and _is_built(module)


def state() -> str:
    """Return `compiled`, `off`, or `missing` if there was no compiler at installation."""
    if usable("native"):
        return "compiled"
    return "missing" if selected() == "auto" else "off"


@cache
def _is_built(module: Module) -> bool:
    try:
        import_module(f"{__package__}.{module}")
    except ImportError:
        return False
    return True
