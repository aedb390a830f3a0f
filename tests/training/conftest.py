"""Fixtures that several lessons share."""

import random
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from antiphon_training.corpus import pictures, vocabulary
from antiphon_training.corpus.pictures import PictureSet
from antiphon_training.corpus.spoken import Utterance
from antiphon_training.corpus.writing import Writer
from antiphon_training.domains.domain import Split
from antiphon_training.domains.mini import MINI, Intent, draw
from inference_service.media.mel import BANDS
from inference_service.models.tokenizer import Tokenizer


def utterances(intents: Iterable[Intent] = Intent, least: int = 40, most: int = 220) -> list[Utterance]:
    """Return four utterances for each intent, whose audio is `least` to `most` frames of noise."""
    rng, noise = random.Random(1), np.random.default_rng(1)
    exchanges = [draw(rng, Split.TRAIN, intent) for intent in intents for _ in range(4)]
    return [
        Utterance(e, noise.gamma(2, 1, (rng.randint(least, most), BANDS)).astype(np.float32))
        for e in exchanges
    ]


@pytest.fixture(scope="session")
def corpus() -> list[Utterance]:
    return utterances()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the tokenizer of the shipped model."""
    folder = tmp_path_factory.mktemp("vocabulary")
    vocabulary.build(MINI, folder)
    return folder


@pytest.fixture
def fast(folder: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))


@pytest.fixture
def writer(folder: Path) -> Writer:
    return Writer(Tokenizer.load(folder), random.Random(0))


@pytest.fixture(scope="session")
def album(tmp_path_factory: pytest.TempPathFactory) -> PictureSet:
    path = tmp_path_factory.mktemp("album") / "pictures.npz"
    pictures.build(path, 400, 1)
    return PictureSet(path)
