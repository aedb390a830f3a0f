"""Patience for sessions that move to another worker."""

import pytest

from ws_adapter.session import slot


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Raise the time limits, so that a slow machine ends no session and drops no unit."""
    monkeypatch.setattr(slot, "LONGEST_S", 600.0)
    monkeypatch.setattr(slot, "HAND_OVER_S", 600.0)
