"""Keys and values of all sessions: one slab per layer, one row per slot."""

import torch
from torch import Tensor
from transformers import PretrainedConfig


class KVCache:
    """`keys[layer]` and `values[layer]` are [slots, kv heads, capacity, head size]."""

    def __init__(
        self, config: PretrainedConfig, slots: int, capacity: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        shape = (slots, config.num_key_value_heads, capacity, head)
        self.capacity = capacity
        self.keys = [torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_hidden_layers)]
        self.values = [
            torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_hidden_layers)
        ]

    def clear(self, slot: int) -> None:
        """Forgets everything a slot held, so that nothing of a session outlives it."""
        for tensor in (*self.keys, *self.values):
            tensor[slot].zero_()

    def move(self, slot: int, source: int, target: int, count: int) -> None:
        """Moves `count` entries of a slot from index `source` to index `target`."""
        for tensor in (*self.keys, *self.values):
            tensor[slot, :, target : target + count] = tensor[slot, :, source : source + count].clone()

    def snapshot_keys(self, slot: int, start: int, end: int) -> list[Tensor]:
        """Float32 copies of a slot's keys `start` to `end`, one [kv heads, n, head size] per layer."""
        return [keys[slot, :, start:end].float().clone() for keys in self.keys]

    def write_keys(self, slot: int, keys: list[Tensor], start: int) -> None:
        """Replaces keys of a slot from index `start` on."""
        for slab, new in zip(self.keys, keys, strict=True):
            slab[slot, :, start : start + new.shape[1]] = new.to(slab.dtype)

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""
        return sum(tensor.nbytes for tensor in (*self.keys, *self.values))
