"""The number format of the stages' computations."""

from functools import cache

import torch


@cache
def _multiplies_bfloat16() -> bool:
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def mixed() -> torch.autocast:
    """Return autocast to bfloat16, enabled only if the processor has instructions for bfloat16.

    Without them float32 is far quicker.
    """
    return torch.autocast("cpu", torch.bfloat16, enabled=_multiplies_bfloat16())
