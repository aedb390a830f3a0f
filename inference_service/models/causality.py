"""A check that a model supports incremental decoding: its attention is causal."""

from collections.abc import Mapping
from typing import Any

from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from inference_service.models.errors import CheckpointError

_LOOKS_AHEAD = {
    "voxtral": "its audio encoder attends in both directions over windows of 30 s; the streaming model of "
    "this family is Voxtral Realtime (model_type voxtral_realtime)",
    "whisper": "its encoder attends in both directions over a window of 30 s",
}
_STREAMS = frozenset({"voxtral_realtime"})


def require_causal(config: Mapping[str, Any]) -> None:
    """Raise `CheckpointError`, with the reason, for the `config.json` of a model without causal attention."""
    reason = _reason(config)
    if reason is not None:
        raise CheckpointError(
            f"A model of type {config.get('model_type')!r} cannot be served: {reason}. Input comes piece by "
            "piece here, so a model's attention must be causal."
        )


def _reason(config: Mapping[str, Any]) -> str | None:
    kind = config.get("model_type")
    if kind in _LOOKS_AHEAD:
        return _LOOKS_AHEAD[kind]
    if config.get("is_encoder_decoder"):
        return "it has an encoder, which reads the whole input before the first word"
    if kind in _STREAMS:
        return None
    if kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES and not config.get("is_decoder"):
        return "it is an encoder, which attends in both directions"
    if kind not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        return "it is not a causal language model that transformers knows"
    return None
