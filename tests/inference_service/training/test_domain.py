"""The world of the default checkpoint: questions, answers and the split between training and measuring."""

import random

import pytest

from inference_service.models.pacing import chunks
from inference_service.training.corpus.domain import (
    Exchange,
    Intent,
    Split,
    all_replies,
    arithmetic,
    draw,
    spell,
    split_of,
)

DRAWS = 400


def drawn(split: Split, intent: Intent, seed: int = 0) -> list[Exchange]:
    rng = random.Random(f"{seed} {intent}")
    return [draw(rng, split, intent) for _ in range(DRAWS)]


@pytest.mark.parametrize("intent", Intent)
def test_no_sentence_is_on_both_sides_of_the_split(intent: Intent) -> None:
    trained = {e.question for e in drawn(Split.TRAIN, intent)}
    held_out = {e.question for e in drawn(Split.HELD_OUT, intent)}
    assert not trained & held_out
    assert {split_of(q) for q in trained} == {Split.TRAIN}
    assert {split_of(q) for q in held_out} == {Split.HELD_OUT}


@pytest.mark.parametrize("intent", Intent)
def test_every_intent_has_several_held_out_sentences(intent: Intent) -> None:
    assert len({e.question for e in drawn(Split.HELD_OUT, intent)}) >= 10


@pytest.mark.parametrize("intent", [i for i in Intent if i is not Intent.DIGITS])
def test_every_reply_is_known_to_the_list_of_replies(intent: Intent) -> None:
    assert {e.reply for e in drawn(Split.TRAIN, intent)} <= set(all_replies())


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
