"""One process computes with compiled kernels, or without: the choice is made once."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from inference_service.errors import ConfigurationError
from inference_service.families import loading
from inference_service.kernels import panels, selection
from inference_service.media.mel import HOP, MelStream
from inference_service.options import WorkerOptions

ROOT = Path(__file__).parents[3]


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that has computed nothing yet."""
    monkeypatch.setattr(selection, "_selected", None)


@pytest.mark.usefixtures("fresh")
def test_selection_without_a_choice_is_auto() -> None:
    assert selection.selected() == "auto"
    with pytest.raises(ConfigurationError, match="already computes with kernels 'auto'"):
        selection.select("off")


@pytest.mark.usefixtures("fresh")
def test_selection_off_uses_no_module(one_thread: None) -> None:
    selection.select("off")
    selection.select("off")
    assert not any(map(selection.usable, ("draw", "linear", "mel", "native")))
    assert selection.state() == "off"
    assert not panels.fit(torch.float32)
    assert MelStream().feed(np.zeros(2 * HOP, np.float32)).shape == (2, 80)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(("first", "second"), [("auto", "off"), ("off", "auto")])
def test_selection_other_choice_in_the_same_process_is_refused(first: str, second: str) -> None:
    """Engines of one process share the modules: two choices would mix silently."""
    selection.select(first)
    with pytest.raises(ConfigurationError, match="start another process"):
        selection.select(second)
    with pytest.raises(ConfigurationError, match="start another process"):
        loading.load_engine(WorkerOptions(kernels=second), lambda told: None, lambda message: None)
    assert selection.selected() == first


@pytest.mark.usefixtures("fresh")
def test_unknown_choice_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="one of auto, off, not 'fast'"):
        selection.select("fast")
    with pytest.raises(ConfigurationError, match="one of auto, off, not 'fast'"):
        WorkerOptions(kernels="fast")


@pytest.mark.usefixtures("fresh")
def test_module_that_was_not_built_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(selection, "import_module", missing)
    selection._is_built.cache_clear()
    try:
        assert selection.state() == "missing"
    finally:
        selection._is_built.cache_clear()


@pytest.mark.long
def test_importing_everything_that_calls_kernels_loads_none() -> None:
    """So that a process can still be told not to use them."""
    code = (
        "import inference_service.families.loading, inference_service.engine.engine\n"
        "import inference_service.kernels.layers, inference_service.media.mel\n"
        "import inference_service.families.table, inference_service.engine.batch.sampler\n"
        "print([line for line in open('/proc/self/maps') if 'inference_service/kernels/' in line])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
