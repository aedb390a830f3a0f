"""Fixtures of the tests of MiniCPM-o's ear, eye, configuration and loader."""

from collections.abc import Iterator

import pytest
import torch

from inference_service.checkpoints.minicpmo import MiniCPMOCheckpoint, load
from tests.minicpmo import published


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Small models run fastest, and always alike, on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.inference_mode():
        yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> MiniCPMOCheckpoint:
    """The recorded model in float32, through the loader, from shards."""
    folder = published.write(tmp_path_factory.mktemp("minicpmo"))
    return load(folder, torch.device("cpu"), torch.float32)
