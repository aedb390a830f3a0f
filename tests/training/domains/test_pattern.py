"""Patterns of sentences and answers with slots."""

import pytest

from antiphon_training.domains.answer import Answer
from antiphon_training.domains.domain import jsgf
from antiphon_training.domains.pattern import Pattern, PatternError, Slot
from inference_service.recogniser.decoder import Recogniser

FLOORS = Slot(("ground", "one", "two"), ("zero", "one", "two"), (0, 1, 2))
SIDES = Slot(("left", "right"), ("left", "right"))
SLOTS = {"floor": FLOORS, "other": FLOORS, "side": SIDES}


def said(text: str) -> list[str]:
    pattern = Pattern(text, SLOTS)
    found = [sentence for sentence, _ in pattern.sentences()]
    assert len(found) == pattern.count
    return found


@pytest.mark.parametrize(
    "text", ["please? (go|take me) to floor? <floor>", "(|so) what's (this|(on|at) the <side>)?", "hello"]
)
def test_grammar_of_a_pattern_has_its_sentences_and_no_others(text: str) -> None:
    slots = {"floor": Slot(("one", "two"), ("one", "two")), "side": SIDES}
    recogniser = Recogniser(jsgf({"rule": Pattern(text, slots).jsgf}))
    sentences = {sentence for sentence, _ in Pattern(text, slots).sentences()}
    assert all(recogniser._sentences.accept(sentence) for sentence in sentences)
    for sentence in sentences:
        others = {f"{sentence} {sentence}", " ".join(sentence.split()[:-1])} - sentences
        assert not any(recogniser._sentences.accept(other) for other in others if other)


def test_pattern_expands_alternatives_options_and_slots_in_order() -> None:
    assert said("please? (go|take me) to <floor>") == [
        *("go to ground", "go to one", "go to two", "take me to ground", "take me to one", "take me to two"),
        *("please go to ground", "please go to one", "please go to two"),
        *("please take me to ground", "please take me to one", "please take me to two"),
    ]
    assert said("What's (this|(on|at) the <side>)?") == [
        "what's", "what's this", "what's on the left", "what's on the right", "what's at the left",
        "what's at the right",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("go (up", "a ( has no ) behind it"),
        ("go up)", "a ) has no ( before it"),
        ("go|up", "put alternatives in parentheses"),
        ("? go", "a ? has no word or group before it"),
        ("go to floor 5", "'5' cannot be spoken: spell numbers"),
        ("go, please", "',' cannot be spoken: write words in letters"),
        ("go <where>", "there is no slot <where>: define it"),
        ("from <floor> to <floor>", "slot <floor> is there twice"),
        ("(" * 9 + "go" + ")" * 9, "more than 8 groups within each other"),
    ],
)
def test_pattern_that_cannot_be_read_is_refused(text: str, error: str) -> None:
    with pytest.raises(PatternError) as refused:
        Pattern(text, SLOTS)
    assert str(refused.value).startswith(error)


def test_answer_says_slots_and_sums() -> None:
    text = "from <floor> to <Other> on the <side> is <floor - other> or <other * 10>"
    answer = Answer(text, SLOTS, frozenset(SLOTS))
    sentences = Pattern("<floor> <other> <side>", SLOTS).sentences()
    [values] = [values for words, values in sentences if words == "ground two left"]
    assert answer.reply(values) == "from zero to two on the left is minus two or twenty"
    assert not answer.is_standing


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("floor 5", "an answer is words of letters"),
        ("(yes|no)", "an answer is words of letters"),
        ("floor <side>", "not every phrase says <side>"),
        ("floor <floor + side>", "not every phrase says <side>"),
    ],
)
def test_answer_that_cannot_be_said_is_refused(text: str, error: str) -> None:
    with pytest.raises(PatternError) as refused:
        Answer(text, SLOTS, frozenset({"floor"}))
    assert str(refused.value).startswith(error)


def test_answer_refuses_sums_of_words_and_numbers_too_large_to_say() -> None:
    with pytest.raises(PatternError, match="<side> is no range of numbers"):
        Answer("<side + floor>", SLOTS, frozenset(SLOTS))
    with pytest.raises(PatternError, match="<floor \\* 600> can be 1200: numbers up to 999"):
        Answer("<floor * 600>", SLOTS, frozenset(SLOTS)).reply({"floor": 2})
