"""Fixture: one torch thread."""

from tests.inference_service.support.one_thread import one_thread

__all__ = ["one_thread"]
