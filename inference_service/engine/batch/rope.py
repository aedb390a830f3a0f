"""Rotary positions that are independent of the other sessions in a packed batch.

Some kinds of rotary embedding (`dynamic`, `longrope`) take other frequencies once the longest sequence of a
batch is long enough: one caller's long context would then change the model's output for all other sessions.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from inference_service.device.rows import Rows
from inference_service.engine.batch.decoder import PackedDecoder, Segment
from inference_service.models.errors import CheckpointError

UNBOUNDED = 2**20
"""The furthest position to test for a context whose window slides."""
_ROWS = 4
_TOLERANCE = 1e-4
"""Tolerance for a cosine or sine in float32."""

Calls = list[tuple[nn.Module, tuple[Any, ...], dict[str, Any]]]


@torch.inference_mode()
def require_independent(
    backbone: PreTrainedModel, furthest: int, conditions: Mapping[str, Tensor] | None = None
) -> None:
    """Raise `CheckpointError` if positions up to `furthest` change another session's embeddings.

    It runs a short sequence and one of the greatest length in one batch, and records the rotary embeddings.
    It then compares them with those of the short sequence alone.
    """
    rows = torch.randn(2 * _ROWS, backbone.config.hidden_size, generator=torch.Generator().manual_seed(0))
    parameter = next(backbone.parameters())
    short, long = rows.to(parameter).split(_ROWS)
    calls: Calls = []
    hooks = [
        module.register_forward_hook(
            lambda module, given, named, made: calls.append((module, given, named)), with_kwargs=True
        )
        for module in backbone.modules()
        if "rotary" in type(module).__name__.lower()
    ]
    try:
        decoder = PackedDecoder(backbone, 2, _ROWS, conditions)
        far = max(0, furthest - _ROWS + 1)
        decoder.forward([Segment(0, 0, 0, Rows.of(short)), Segment(1, 0, far, Rows.of(long))])
    finally:
        for hook in hooks:
            hook.remove()
    near = [0, *(4**power for power in range(1, 32) if 4**power + _ROWS <= furthest)]
    if any(_differs(*call, begin, furthest) for call in calls for begin in near):
        raise CheckpointError(_refusal(backbone.config, furthest))


def _differs(module: nn.Module, given: tuple[Any, ...], named: dict[str, Any], begin: int, far: int) -> bool:
    """Return whether embeddings of positions from `begin` on change in a batch with a `far` position."""

    def at(*positions: int) -> Tensor:
        like, *others = given
        ids = torch.tensor([positions], device=like.device)
        if "position_ids" in named:
            made = module(like.float(), *others, **{**named, "position_ids": ids})
        else:
            made = module(like.float(), ids, *others[1:], **named)
        return torch.stack(tuple(made))[..., :_ROWS, :]

    own = range(begin, begin + _ROWS)
    return not torch.allclose(at(*own), at(*own, far), rtol=0, atol=_TOLERANCE)


def _refusal(config: PretrainedConfig, furthest: int) -> str:
    parameters = getattr(config, "rope_parameters", None) or {}
    kind, original = parameters.get("rope_type"), parameters.get("original_max_position_embeddings")
    remedy = f" Pass --context-limit {original}." if original and original <= furthest else ""
    named = f"the rope type {kind!r}" if kind else "its rope"
    return (
        f"A model of type {config.model_type!r} cannot be served with contexts of more than "
        f"{original or 'a few'} tokens: {named} depends on the longest session of a batch, so one session "
        f"would change the output of the others.{remedy}"
    )
