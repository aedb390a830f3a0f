"""Fixture: the decoding processes that a test starts."""

from tests.inference_service.support.decoders import started

__all__ = ["started"]
