"""The numbers that the stages compute in."""

from functools import cache

import torch


@cache
def _multiplies_bfloat16() -> bool:
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def mixed() -> torch.autocast:
    """bfloat16 inside, where the processor multiplies such numbers; elsewhere float32 is far quicker."""
    return torch.autocast("cpu", torch.bfloat16, enabled=_multiplies_bfloat16())
