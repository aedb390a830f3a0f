"""Dictations: which word is written in which second, and where alignment says that words end."""

from pathlib import Path

import numpy as np
import pytest

from antiphon_training.corpus.augment import Augmenter
from antiphon_training.corpus.composition import FRAMES
from antiphon_training.corpus.spoken import Utterance
from antiphon_training.corpus.transcription import SPARE, DictationComposer, dictation_row, writing_unit
from antiphon_training.corpus.writing import AUDIO_SLOT, IGNORED, Writer
from antiphon_training.domains.mini import MINI
from antiphon_training.stages.alignment import best_path, word_ends
from inference_service.models.tokenizer import Tokenizer
from tests.training.conftest import utterances

CLASSES = 5


@pytest.fixture(scope="module")
def corpus() -> list[Utterance]:
    return utterances(least=90)


@pytest.fixture(scope="module")
def ends(corpus: list[Utterance]) -> list[list[int]]:
    result = []
    for utterance in corpus:
        words = utterance.exchange.question.split()
        result.append([len(utterance.power) * (i + 1) // len(words) for i in range(len(words))])
    return result


def scores(path: list[int]) -> np.ndarray:
    likely = np.full((len(path), CLASSES), np.log(0.05), np.float32)
    likely[np.arange(len(path)), path] = np.log(0.8)
    return likely


@pytest.mark.parametrize(
    ("steps", "targets", "ends"),
    [
        ([0, 1, 1, 0, 2, 0, 0, 3], [1, 2, 3], [2, 4, 7]),
        ([1, 1, 0, 1], [1, 1], [1, 3]),  # equal targets need a blank between them
    ],
)
def test_best_path_finds_the_ends_of_targets(steps: list[int], targets: list[int], ends: list[int]) -> None:
    assert best_path(scores(steps), targets).tolist() == ends


def test_best_path_contains_all_targets_for_any_scores() -> None:
    first, second = best_path(scores([1, 1, 1, 1]), [1, 1])
    assert second - first >= 2
    first, second = best_path(scores([4, 4, 4, 4, 4]), [1, 2])
    assert 0 <= first < second < 5


def test_too_many_targets_are_refused() -> None:
    with pytest.raises(ValueError, match="3 characters do not fit into 2 steps"):
        best_path(scores([1, 2]), [1, 2, 3])


def test_a_word_ends_with_its_last_character() -> None:
    assert word_ends("hi there you", np.arange(12)) == [1, 7, 11]


@pytest.mark.parametrize("end", [1, 79, 80, 81, 179, 180, 181, 999])
def test_a_word_is_written_in_the_first_unit_with_time_to_spare(end: int) -> None:
    unit = writing_unit(end)
    assert (unit + 1) * FRAMES - end >= SPARE
    assert unit == 0 or unit * FRAMES - end < SPARE


@pytest.mark.parametrize("seed", range(20))
def test_every_word_of_an_utterance_is_written_once_and_in_order(
    corpus: list[Utterance], ends: list[list[int]], seed: int
) -> None:
    dictation = DictationComposer(MINI, corpus, ends, Augmenter(seed)).dictation(12)
    assert dictation.mel.shape == (FRAMES * len(dictation.units), 80)
    assert np.isfinite(dictation.mel).all()
    text = " ".join(word for words in dictation.units for word in words)
    questions = sorted({u.exchange.question for u in corpus}, key=len, reverse=True)
    while text:
        question = next(q for q in questions if f"{text} ".startswith(f"{q} "))
        text = text[len(question) :].strip()


def test_some_dictations_are_silent(corpus: list[Utterance], ends: list[list[int]]) -> None:
    composer = DictationComposer(MINI, corpus, ends, Augmenter(0))
    written = [any(composer.dictation(6).units) for _ in range(150)]
    assert 0.85 < np.mean(written) < 1


def test_a_row_decides_the_words_and_the_end_of_every_unit(
    corpus: list[Utterance], ends: list[list[int]], folder: Path, writer: Writer
) -> None:
    dictation = DictationComposer(MINI, corpus, ends, Augmenter(5)).dictation(10)
    row = dictation_row(writer, dictation)
    end, begin = writer.encode("<|chunk_eos|>")[0], writer.encode("<unit>")[0]

    taught = [label for label in row.labels if label != IGNORED]
    assert taught.count(end) == len(dictation.units) == row.ids.count(begin)
    assert Tokenizer.load(folder).decode(taught).split() == [
        word for words in dictation.units for word in words
    ]
    assert row.ids.count(AUDIO_SLOT) == 10 * len(dictation.units)
    for at in (i for i, token in enumerate(row.ids) if token == begin):
        assert row.ids[at + 1 : at + 11] == [AUDIO_SLOT] * 10
        assert row.labels[at + 10] != IGNORED
