"""Peak memory of the steps of a tick besides weights and states, estimated from dimensions.

The memory of a layer is freed before the next layer runs, so a step takes that of one layer: projections and
their rotations, both halves of the gate, norms in float32, and scores where attention does not run in blocks.
"""

import torch
from transformers import PretrainedConfig

from inference_service.kernels import panels
from inference_service.kernels.packed_linear import SIZES
from inference_service.models.config import VisionConfig as MiniVisionConfig
from inference_service.models.minicpmo.audio import LONGEST
from inference_service.models.minicpmo.config import AudioConfig, VisionConfig
from inference_service.models.minicpmo.slices import PATCH

_FLOAT = 4
"""Bytes of a number in float32."""
_MINI_PICTURES = 16
_KERNEL = 5 * 2**17
"""Bytes of a kernel that oneDNN caches."""
_SHARED = 2
"""Number of shapes of weights tied to embeddings: oneDNN multiplies only these where panels are used."""
DECODER_SHAPES = 6
"""Shapes of a decoder's linear layers: queries, keys, attention output, gate, down projection, and head."""


def forward_bytes(
    config: PretrainedConfig, dtype: torch.dtype, rows: int, context: int, device: torch.device
) -> int:
    """Return the bytes of a decoder's forward with `rows` rows, all at the end of a context."""
    heads = config.num_attention_heads
    head = getattr(config, "head_dim", None) or config.hidden_size // heads
    layer = layer_bytes(config, dtype, rows)
    # The mask, and a copy of it for each of the heads that share a key head.
    masks: int = (1 + heads // config.num_key_value_heads) * rows * context * dtype.itemsize
    gathered: int = 2 * config.num_key_value_heads * context * head * dtype.itemsize
    return layer + masks + gathered + _scores(heads, rows, context, device)


def layer_bytes(config: PretrainedConfig, dtype: torch.dtype, rows: int) -> int:
    """Return the bytes of a decoder's layer with `rows` rows, without attention."""
    width, heads = config.hidden_size, config.num_attention_heads
    head = getattr(config, "head_dim", None) or width // heads
    return _layer(rows, width, config.intermediate_size, heads * head, dtype)


def token_bytes(
    config: PretrainedConfig, dtype: torch.dtype, context: int, device: torch.device
) -> dict[str, int]:
    """Return the bytes of each session in a step of one token: a copy of its context.

    There is none on the CPU, which reads contexts in place.
    """
    head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    copied: int = 2 * config.num_key_value_heads * head * context * dtype.itemsize
    return {} if device.type == "cpu" else {"tokens": copied}


def kernel_bytes(shapes: int, dtype: torch.dtype, device: torch.device) -> int:
    """Return the maximal bytes of oneDNN's cached kernels for linear layers of `shapes` shapes."""
    if device.type != "cpu":
        return 0
    return (_SHARED if panels.fit(dtype) else shapes) * len(SIZES) * _KERNEL


def eye_bytes(config: VisionConfig, dtype: torch.dtype, device: torch.device) -> int:
    """Return the bytes of MiniCPM-o's eye with its maximal batch of slices."""
    patches = (config.resolution // PATCH) ** 2
    layer = _layer(patches, config.width, config.inner, config.width, dtype)
    return config.slices_at_once * (layer + _scores(config.heads, patches, patches, device))


def ear_bytes(config: AudioConfig, dtype: torch.dtype, device: torch.device) -> int:
    """Return the bytes of MiniCPM-o's ear with the longest piece of a clip."""
    layer = _layer(LONGEST, config.width, config.inner, config.width, dtype)
    return layer + _scores(config.heads, LONGEST, LONGEST, device)


def mini_eye_bytes(config: MiniVisionConfig) -> int:
    """Return the bytes of the shipped model's eye: three arrays of its first convolution."""
    return 3 * _MINI_PICTURES * (config.image_size // 2) ** 2 * config.hidden * _FLOAT


def _layer(rows: int, width: int, inner: int, projected: int, dtype: torch.dtype) -> int:
    return rows * (dtype.itemsize * (6 * width + 4 * inner + 8 * projected) + 2 * _FLOAT * width)


def _scores(heads: int, rows: int, keys: int, device: torch.device) -> int:
    return 0 if device.type == "cpu" else 2 * heads * rows * keys * _FLOAT
