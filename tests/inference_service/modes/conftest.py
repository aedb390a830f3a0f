"""Decoding processes are noted."""

from tests.inference_service.support.decoders import started

__all__ = ["started"]
