"""Paged attention of one row from each of many contexts in one call."""

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch
import torch.nn.attention
import torch.nn.functional as F
from torch import Tensor

from inference_service.device.compiling import compiles

logger = logging.getLogger(__name__)

PAGE = 16
"""Rows of a page."""
_TOLERANCE = 0.02
"""Tolerance between two backends in half precision, as a fraction of the largest value."""


@dataclass(frozen=True)
class Contexts:
    """The contexts of n rows; each row attends to all entries of its own context."""

    table: Tensor
    """Their pages in order, int32 [n, pages]; the padding after a context's last page may be any page."""
    ends: Tensor
    """Entries of each context, int32 [n], from the start of its first page."""
    begins: Tensor | None = None
    """Rows of the first page before the first entry, int32 [n]; None if there are none."""


Attend = Callable[[Tensor, Tensor, Tensor, Contexts, float | None, int | None], Tensor]
"""Attends with queries [n, heads, head size] to keys and values [kv heads, rows, head size] of a layer:
`Attend(queries, keys, values, contexts, scale, window)`. A row attends to at most `window` entries, its own
included. Returns [n, heads, head size].
"""


def gathered(
    queries: Tensor, keys: Tensor, values: Tensor, contexts: Contexts, scale: float | None, window: int | None
) -> Tensor:
    """Attend by copying all contexts into one padded tensor."""
    (n, heads, head), kv = queries.shape, keys.shape[0]
    within = torch.arange(PAGE, device=keys.device)
    cells = (contexts.table[:, :, None] * PAGE + within).flatten()
    at = torch.arange(contexts.table.shape[1] * PAGE, device=keys.device)
    ends = contexts.ends[:, None]
    seen = at < ends
    if window is not None:
        seen = seen & (at >= ends - window)
    padded_keys, padded_values = (
        slab.index_select(1, cells).view(kv, n, -1, head).transpose(0, 1) for slab in (keys, values)
    )
    padded_values.masked_fill_(~seen[:, None, :, None], 0)  # because 0 times NaN is NaN
    grouped = queries.reshape(n, kv, heads // kv, head)
    mask = seen[:, None, None]
    out = F.scaled_dot_product_attention(grouped, padded_keys, padded_values, attn_mask=mask, scale=scale)
    return out.reshape(n, heads, head)


def varlen(
    queries: Tensor, keys: Tensor, values: Tensor, contexts: Contexts, scale: float | None, window: int | None
) -> Tensor:
    """Attend to keys and values in place, with torch's flash attention.

    It never splits a context between blocks: the split would depend on the longest context of the call, and a
    row's sums on its neighbours. *Not tested on CUDA.*
    """
    from torch.nn.attention.varlen import varlen_attn

    # The types of an older torch do not have all arguments.
    attend: Callable[..., Tensor] = varlen_attn  # type: ignore[assignment]
    return attend(
        queries,
        *(slab.unflatten(1, (-1, PAGE)).permute(1, 2, 0, 3) for slab in (keys, values)),
        torch.arange(len(queries) + 1, dtype=torch.int32, device=queries.device),
        None,
        1,
        contexts.table.shape[1] * PAGE,
        scale=scale,
        window_size=(-1 if window is None else window - 1, 0),
        enable_gqa=True,
        seqused_k=contexts.ends,
        block_table=contexts.table,
        num_splits=1,
    )


def has_block_tables() -> bool:
    """Return whether torch's variable-length attention supports pages: since 2.12, with suitable kernels."""
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return False
    return {"block_table", "seqused_k", "enable_gqa", "num_splits"} <= set(
        inspect.signature(varlen_attn).parameters
    )


@dataclass(frozen=True)
class AttentionBackend:
    """The attention backend for pages on a device."""

    name: str
    why: str
    """The reason why no faster backend than `gathered` is used; otherwise empty."""
    _attend: Attend
    all_rows: bool = False
    """Whether rows of prompts attend in the same call; contexts may then begin within a page."""

    def __call__(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        contexts: Contexts,
        scale: float | None,
        window: int | None,
    ) -> Tensor:
        """Attend as `Attend` does."""
        return self._attend(queries, keys, values, contexts, scale, window)


def choose_backend(
    device: torch.device, dtype: torch.dtype, heads: int, kv: int, head: int
) -> AttentionBackend:
    """Return the fastest backend that gives the results of `gathered` on this device.

    It is `flex` where regions are compiled, as that also takes rows of prompts.
    """
    why = "this torch has no block tables for variable-length attention"
    if device.type == "cpu":
        return AttentionBackend("gathered", "it is a CPU", gathered)
    if compiles(device):
        from inference_service.device import flex

        refused = _why_not(flex.over_contexts, device, dtype, heads, kv, head)
        if not refused:
            return AttentionBackend("flex", "", flex.over_contexts, all_rows=True)
        logger.warning("FlexAttention cannot be used", extra={"reason": refused})
    if has_block_tables():
        why = _why_not(varlen, device, dtype, heads, kv, head)
        if why and _activate_flash_attention_3():
            why = _why_not(varlen, device, dtype, heads, kv, head)
            if why:
                torch.nn.attention.restore_flash_attention_impl()
        if not why:
            return AttentionBackend("varlen", "", varlen)
    return AttentionBackend("gathered", why, gathered)


def _activate_flash_attention_3() -> bool:
    """Make torch use FlashAttention 3 if it is installed: its pages may have 16 rows, those of version 2 need
    256.

    *Not tested on CUDA.*
    """
    if find_spec("flash_attn_interface") is None:
        return False
    try:
        torch.nn.attention.activate_flash_attention_impl("FA3")
    except Exception as error:  # its import and registration raise errors of any type
        logger.warning("FlashAttention 3 is installed but cannot be used", extra={"reason": str(error)[:200]})
        return False
    return True


def _why_not(attend: Attend, device: torch.device, dtype: torch.dtype, heads: int, kv: int, head: int) -> str:
    """Try the backend on two small contexts; return why its result is not that of `gathered`, or an empty
    text.
    """
    queries = torch.randn(2, heads, head, device=device, dtype=dtype)
    keys, values = torch.randn(2, kv, 4 * PAGE, head, device=device, dtype=dtype)
    table = torch.tensor([[2, 0], [1, 3]], dtype=torch.int32, device=device)
    ends = torch.tensor([PAGE + 3, 5], dtype=torch.int32, device=device)
    contexts = Contexts(table, ends)
    try:
        found = attend(queries, keys, values, contexts, None, None)
    except Exception as error:  # its kernels raise errors of any type
        return str(error).splitlines()[0][:200]
    wanted = gathered(queries, keys, values, contexts, None, None)
    worst = float((found - wanted).abs().max() / wanted.abs().max())
    return "" if worst <= _TOLERANCE else f"it differs by {worst:.2g}"
