"""Fixtures that tests of several commands share."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from antiphon import write_wav
from tests.cli.support.processes import serving

TONE = (0.1 * np.sin(np.arange(40_000) * 0.2)).astype(np.float32)
"""Two and a half seconds at 16 kHz."""


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Yield a folder with a short path, since the path of a Unix socket has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="cli-") as folder:
        yield Path(folder)


@pytest.fixture
def question(tmp_path: Path) -> Path:
    """A recording of half a second."""
    path = tmp_path / "question.wav"
    write_wav(path, TONE[:8000], 16_000)
    return path


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server whose model answers every unit with "Yes."."""
    with serving(tmp_path_factory.mktemp("serve"), "reply") as serve:
        yield serve.address("WebSocket")
