"""Patience for sessions that move to another worker."""

import pytest

from ws_adapter.session import slot


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """No session is given up, and no unit left behind, because the machine is slow."""
    monkeypatch.setattr(slot, "LONGEST_S", 600.0)
    monkeypatch.setattr(slot, "HAND_OVER_S", 600.0)
