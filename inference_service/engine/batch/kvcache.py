"""Keys and values of all sessions: one slab for all layers, of which each slot has its own rows."""

import torch
from torch import Tensor
from transformers import PretrainedConfig


class KVCache:
    """`keys` and `values` are [layers, kv heads, slots * capacity, head size], slot by slot."""

    def __init__(
        self, config: PretrainedConfig, slots: int, capacity: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (config.num_hidden_layers, config.num_key_value_heads, slots * capacity, head)
        self.slots = slots
        self.capacity = capacity
        self.keys = torch.zeros(shape, dtype=dtype, device=device)
        self.values = torch.zeros(shape, dtype=dtype, device=device)

    @property
    def device(self) -> torch.device:
        """Where it is."""
        return self.keys.device

    def row(self, slot: int, index: int) -> int:
        """Where the entry of a slot at `index` is."""
        return slot * self.capacity + index

    def held(self, slot: int, start: int, end: int) -> tuple[Tensor, Tensor]:
        """Views of a slot's keys and values `start` to `end`, each [layers, kv heads, n, head size]."""
        first = self.row(slot, start)
        return self.keys.narrow(2, first, end - start), self.values.narrow(2, first, end - start)

    def clear(self, slot: int) -> None:
        """Forgets everything a slot held, so that nothing of a session outlives it."""
        for tensor in self.held(slot, 0, self.capacity):
            tensor.zero_()

    def move(self, slot: int, source: int, target: int, count: int) -> None:
        """Moves `count` entries of a slot from index `source` to index `target`."""
        old, new = self.held(slot, source, source + count), self.held(slot, target, target + count)
        for tensor, moved in zip(old, new, strict=True):
            moved.copy_(tensor.clone())

    def snapshot_keys(self, slot: int, start: int, end: int) -> Tensor:
        """Float32 copies of a slot's keys `start` to `end`, [layers, kv heads, n, head size]."""
        return self.held(slot, start, end)[0].float().clone()

    def write_keys(self, slot: int, keys: Tensor, start: int) -> None:
        """Replaces keys of a slot from index `start` on."""
        self.held(slot, start, start + keys.shape[2])[0].copy_(keys)

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return self.keys.nbytes + self.values.nbytes
