"""Captured regions on a machine without CUDA: traced operators that are replayed as a graph would be.

A trace keeps what a graph keeps: operators, numbers of Python, and the memory of the tensors that it reads.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.fx.experimental import proxy_tensor
from torch.nn.attention.flex_attention import BlockMask

from inference_service.device import flex
from inference_service.device.graph import Graph
from inference_service.device.paged import Contexts, gathered


class Replays:
    """Stands in for CUDA: traces a region in its first call, and replays the trace in every call.

    Each call is compared with a plain one on the same memory: what is returned, and what is written.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._traces: dict[Graph[Any], GraphModule] = {}
        self._first: dict[Graph[Any], list[Tensor]] = {}
        """Tensors that the first call of a region returned."""
        self._varied: set[Graph[Any]] = set()
        """Regions that have returned something else since."""
        self.atol = 1e-5
        """How far numbers of a replay may be from those of a plain call."""
        monkeypatch.setattr(Graph, "__call__", lambda graph: self._replay(graph))
        # Half of a trace's time makes a fake of each tensor, and nothing here asks for it.
        monkeypatch.setattr(proxy_tensor, "extract_val", lambda *_, **__: None)

    def check(self, *owners: object) -> None:
        """Fail if a region always returned the same, or reads memory of neither its step nor the owners.

        An owner is a tensor, a module, or a sequence of these.
        """
        assert self._traces, "no region ran"
        shared = _begins(_held(owners))
        for graph, trace in self._traces.items():
            name = getattr(graph._compute, "__qualname__", "region")
            assert graph in self._varied, f"{name} returned the same in all calls, which proves nothing"
            step = getattr(graph._compute, "__self__", None)
            known = shared | _begins(_held(list(vars(step).values()) if step is not None else []))
            strange = [tuple(it.shape) for it in _read(trace) if it.numel() and _begin(it) not in known]
            assert not strange, f"{name} reads foreign memory, tensors of shapes {strange}"

    def _replay(self, graph: Graph[Any]) -> Any:
        trace = self._traces.get(graph)
        if trace is None:
            graph._compute()  # as before a capture: what is made in a first call is there
            trace = self._traces[graph] = proxy_tensor.make_fx(lambda: graph._compute())()
        memory = [it for it in _read(trace) if not isinstance(it, nn.Parameter)]
        before = [it.clone() for it in memory]
        wanted = graph._compute()
        written = [it.clone() for it in memory]
        for it, old in zip(memory, before, strict=True):
            it.copy_(old)
        found = trace()
        both = [*_parts(found), *memory], [*_parts(wanted), *written]
        torch.testing.assert_close(*both, atol=self.atol, rtol=0, equal_nan=True)
        first = self._first.setdefault(graph, [it.clone() for it in _parts(found)])
        if not all(torch.equal(one, other) for one, other in zip(first, _parts(found), strict=True)):
            self._varied.add(graph)
        return found


def trace_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace attention that cannot be traced or has no kernel for the CPU by plain operators."""
    monkeypatch.setattr(flex, "flex_attention", _flex_attention)
    monkeypatch.setattr("torch.nn.attention.varlen.varlen_attn", _varlen_attn)


def _flex_attention(
    queries: Tensor, keys: Tensor, values: Tensor, *, block_mask: BlockMask, scale: float | None, **_: object
) -> Tensor:
    """Attend to what the mask shows in the blocks that a kernel would read."""
    counts, blocks = block_mask.kv_num_blocks[0, 0], block_mask.kv_indices[0, 0]
    height, width = block_mask.BLOCK_SIZE
    query = torch.arange(queries.shape[2])[:, None]
    key = torch.arange(keys.shape[2])[None]
    is_there = torch.arange(blocks.shape[1]) < counts[:, None]
    is_read = ((blocks[:, :, None] == key[0, ::width] // width) & is_there[:, :, None]).any(1)
    seen = is_read[query // height, key // width] & block_mask.mask_mod(query * 0, query * 0, query, key)
    return F.scaled_dot_product_attention(queries, keys, values, attn_mask=seen, scale=scale)


def _varlen_attn(queries: Tensor, keys: Tensor, values: Tensor, *_: object, **named: Any) -> Tensor:
    """Attend over pages [pages, rows, kv heads, head size] of keys and values."""
    keys, values = (it.permute(2, 0, 1, 3).flatten(1, 2) for it in (keys, values))
    contexts = Contexts(named["block_table"], named["seqused_k"])
    back = named["window_size"][0]
    return gathered(queries, keys, values, contexts, named["scale"], None if back < 0 else back + 1)


def _read(trace: GraphModule) -> list[Tensor]:
    """Return the tensors that a trace did not make itself."""
    names = {str(node.target) for node in trace.graph.nodes if node.op == "get_attr"}
    return [getattr(trace, name) for name in sorted(names)]


def _held(owner: object) -> Iterator[Tensor]:
    if isinstance(owner, Tensor):
        yield owner
    elif isinstance(owner, nn.Module):
        yield from owner.parameters()
        yield from owner.buffers()
    elif isinstance(owner, list | tuple):
        for it in owner:
            yield from _held(it)


def _begins(tensors: Iterable[Tensor]) -> set[int]:
    return {_begin(it) for it in tensors}


def _begin(tensor: Tensor) -> int:
    """Return where the memory begins that a tensor is a view of."""
    return tensor.untyped_storage().data_ptr()


def _parts(made: Tensor | tuple[Tensor, ...]) -> list[Tensor]:
    return [made] if isinstance(made, Tensor) else list(made)
