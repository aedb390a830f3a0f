"""How much memory a device has left and a process holds, and how much keys and values take of it."""

import os
from pathlib import Path

import torch
from transformers import PretrainedConfig


def bytes_per_row(config: PretrainedConfig, dtype: torch.dtype) -> int:
    """Keys and values of one row in all layers."""
    head: int = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return 2 * int(config.num_hidden_layers) * int(config.num_key_value_heads) * head * dtype.itemsize


def free_bytes(device: torch.device) -> int | None:
    """Memory that could be taken; None where it is not known."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")), None)


def held_bytes(device: torch.device) -> int | None:
    """Memory of the device that this process holds; None where it is not known."""
    if device.type == "cuda":
        return torch.cuda.memory_reserved(device)
    try:
        pages = Path("/proc/self/statm").read_text().split()[1]
    except OSError:
        return None
    return int(pages) * os.sysconf("SC_PAGE_SIZE")
