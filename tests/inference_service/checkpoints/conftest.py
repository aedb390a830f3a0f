"""Fixtures: one torch thread, and packed linear layers of any size."""

from tests.inference_service.support.one_thread import one_thread
from tests.inference_service.support.packed import packed

__all__ = ["one_thread", "packed"]
