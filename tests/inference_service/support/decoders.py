"""Processes that decode videos, while a test runs."""

import subprocess
from typing import Any

import pytest

from inference_service.video import process


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """Return the decoding processes that are started during the test."""
    found: list[subprocess.Popen[bytes]] = []
    start = process._started

    def noted(*arguments: Any) -> subprocess.Popen[bytes]:
        found.append(start(*arguments))
        return found[-1]

    monkeypatch.setattr(process, "_started", noted)
    return found
