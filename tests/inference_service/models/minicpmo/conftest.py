"""Fixtures of the tests of MiniCPM-o's ear, eye, configuration and loader."""

import pytest
import torch

from inference_service.checkpoints.minicpmo import MiniCPMOCheckpoint, load_minicpmo
from tests.inference_service.models.minicpmo import published


@pytest.fixture(scope="session")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> MiniCPMOCheckpoint:
    """The recorded model in float32, through the loader, from shards."""
    folder = published.write(tmp_path_factory.mktemp("minicpmo"))
    return load_minicpmo(folder, torch.device("cpu"), torch.float32)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> MiniCPMOCheckpoint:
    """The same in bfloat16."""
    folder = published.write(tmp_path_factory.mktemp("minicpmo"))
    return load_minicpmo(folder, torch.device("cpu"), torch.bfloat16)
