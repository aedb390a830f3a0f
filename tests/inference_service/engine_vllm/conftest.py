"""One engine of each kind for all tests of a process, since vLLM takes a minute to start."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.inference_service.engine.support import tiny_causal
from tests.inference_service.engine_vllm.support import engines
from tests.inference_service.engine_vllm.support.engines import Rig


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return engines.save(tmp_path_factory.mktemp("causal") / "tiny")


@pytest.fixture(scope="session")
def greedy(folder: Path) -> Any:
    """Continue a sequence with transformers' own `generate`."""
    return tiny_causal.continued(folder, ends=False)


@pytest.fixture(scope="session", params=engines.ALL)
def rig(request: pytest.FixtureRequest, folder: Path) -> Iterator[Rig]:
    with engines.serving(request.param, folder) as served:
        yield served
