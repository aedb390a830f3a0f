"""The world of the default checkpoint: questions, answers and the split between training and measuring."""

import hashlib
import json
import random
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import pytest

from antiphon_training.corpus import vocabulary
from antiphon_training.corpus.recipe import language, turn_bound
from antiphon_training.domains.domain import Exchange, Split, spell
from antiphon_training.domains.mini import MINI, Intent, all_replies, arithmetic, draw, split_of
from inference_service.checkpoints.location import locate
from inference_service.models.pacing import chunks
from inference_service.models.tokenizer import Tokenizer

DRAWS = 400


def drawn(split: Split, intent: Intent, seed: int = 0) -> list[Exchange]:
    rng = random.Random(f"{seed} {intent}")
    return [draw(rng, split, intent) for _ in range(DRAWS)]


@pytest.mark.parametrize("intent", Intent)
def test_sentences_of_an_intent_are_on_one_side_of_the_split_each_with_known_replies(intent: Intent) -> None:
    trained, held_out = (drawn(split, intent) for split in Split)
    questions, measured = ({e.question for e in side} for side in (trained, held_out))
    assert not questions & measured
    assert {split_of(question) for question in questions} == {Split.TRAIN}
    assert {split_of(question) for question in measured} == {Split.HELD_OUT}
    assert len(measured) >= 10
    if intent is not Intent.DIGITS:
        assert {e.reply for e in trained} <= set(all_replies())


def test_repeated_digits_are_the_digits_that_were_said() -> None:
    for exchange in drawn(Split.TRAIN, Intent.DIGITS):
        assert exchange.question.endswith(exchange.reply)


@pytest.mark.parametrize(
    ("number", "words"),
    [(0, "zero"), (19, "nineteen"), (42, "forty two"), (-3, "minus three"), (400, "four hundred")],
)
def test_numbers_are_spelled(number: int, words: str) -> None:
    assert spell(number) == words


@pytest.mark.parametrize(
    ("operator", "value"), [("plus", "twenty two"), ("minus", "minus eight"), ("times", "one hundred five")]
)
def test_arithmetic_is_right(operator: str, value: str) -> None:
    assert arithmetic("what is", 7, operator, 15).reply == f"seven {operator} fifteen is {value}"


def test_a_unit_of_speech_stays_under_the_character_limit_of_the_protocol() -> None:
    for reply in all_replies():
        words = chunks(reply)
        assert [w for chunk in words for w in chunk] == reply.split()
        assert all(len(" ".join(chunk)) < 28 for chunk in words)


def digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("split", "known"), [(Split.TRAIN, "b302b545bce4ab0b"), (Split.HELD_OUT, "c5044ee24bed1c6b")]
)
def test_domain_draws_the_sentences_that_the_shipped_model_was_trained_on(split: Split, known: str) -> None:
    """Recorded before domains were objects: the shipped weights and their evaluation depend on it."""
    rng = random.Random(20_260_101)
    drawn = (MINI.draw(rng, split, intent) for intent in (None, *Intent) for _ in range(200))
    assert digest(f"{e.intent}|{e.question}|{e.reply}" for e in drawn) == known


def test_domain_has_the_words_and_replies_that_the_shipped_model_was_trained_on() -> None:
    rng = random.Random(3)
    written = (MINI.written(rng) for _ in range(200))
    assert digest(f"{e.question}|{e.reply}" for e in written) == "cb12443b46a334ae"
    assert digest(MINI.words()) == "2980967cd629e72e"
    assert digest(MINI.replies()) == "046b73a17c36d5d8"
    assert digest(MINI.standing_replies()) == "fcbe7bd3c3c21206"


def test_tokenizer_and_turn_bound_of_the_shipped_model_come_from_its_domain(tmp_path: Path) -> None:
    shipped = locate("antiphon-mini")
    vocabulary.build(MINI, tmp_path)
    assert (tmp_path / "tokenizer.json").read_bytes() == (shipped / "tokenizer.json").read_bytes()
    config = json.loads((shipped / "config.json").read_text())
    assert language(Tokenizer.load(tmp_path).size).vocab_size == config["vocab_size"]
    assert asdict(turn_bound(MINI)) == config["duplex"]["turn_bound"]
