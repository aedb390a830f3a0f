"""Compilation of regions of a model: the choice holds for the whole process."""

from collections.abc import Callable
from functools import cache
from typing import TypeVar, cast

import torch

from antiphon_service.semconv import Preparation
from inference_service.device.preparations import PREPARATIONS
from inference_service.options import COMPILE

F = TypeVar("F", bound=Callable[..., object])

_MOST_SHAPES = 64
"""Limit of shapes that one function is compiled for: numbers of rows of two decoders."""
_chosen: str | None = None


def choose(choice: str | None) -> None:
    """Compile regions (`on`) or not (`off`) from now on; None compiles on CUDA only."""
    global _chosen
    if choice is not None and choice not in COMPILE:
        raise ValueError(f"compile must be one of {', '.join(COMPILE)}, not {choice!r}.")
    _chosen = choice


def compiles(device: torch.device) -> bool:
    """Return whether regions on `device` are compiled."""
    return device.type == "cuda" if _chosen is None else _chosen == "on"


def compiled(function: F) -> F:
    """Return `function` as one graph without breaks, compiled anew for each shape of its tensors."""
    import torch._dynamo

    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, _MOST_SHAPES)
    _watch()
    return cast(F, torch.compile(function, fullgraph=True, dynamic=False))


@cache
def _watch() -> None:
    """Count every compilation of this process."""
    from torch._dynamo.callback import CallbackArgs, CallbackTrigger, on_compile_start

    def note(begun: CallbackArgs) -> None:
        if begun.callback_trigger is CallbackTrigger.DYNAMO:
            PREPARATIONS.note(Preparation.COMPILATION, begun.compile_id)

    on_compile_start(note)
