"""Composed conversations: when the model should speak, listen, and be left alone."""

import numpy as np
import pytest

from antiphon_training.corpus.augment import Augmenter
from antiphon_training.corpus.composition import (
    CHUNK_END,
    FRAMES,
    LISTEN,
    SPEAK,
    TAIL,
    TURN_END,
    Composer,
    onset_unit,
    reply_plans,
)
from antiphon_training.corpus.spoken import Utterance
from antiphon_training.domains.mini import MINI
from inference_service.media.mel import BANDS


@pytest.mark.parametrize("end", [0, 69, 70, 71, 169, 170, 171, 999])
def test_a_reply_begins_in_the_first_unit_with_enough_silence_after_the_question(end: int) -> None:
    unit = onset_unit(end)
    assert (unit + 1) * FRAMES - end >= TAIL
    assert unit == 0 or unit * FRAMES - end < TAIL


def test_a_reply_speaks_in_every_unit_and_ends_its_turn_once() -> None:
    plans = reply_plans("i can calculate count repeat and tell a joke")
    assert all(plan.tokens[0] == SPEAK and plan.tokens[-1] == CHUNK_END for plan in plans)
    assert [TURN_END in plan.tokens for plan in plans] == [False] * (len(plans) - 1) + [True]


@pytest.mark.parametrize("seed", range(20))
def test_conversation_has_a_second_of_sound_for_each_unit_and_every_turn_ends_before_the_next(
    corpus: list[Utterance], seed: int
) -> None:
    conversation = Composer(MINI, corpus, Augmenter(seed)).conversation(25)
    assert conversation.mel.shape == (FRAMES * len(conversation.units), BANDS)
    assert np.isfinite(conversation.mel).all()
    speaking = False
    for unit in conversation.units:
        if speaking:
            assert unit.tokens != [LISTEN]
        speaking = unit.tokens[0] == SPEAK and TURN_END not in unit.tokens
    assert not speaking


def test_forced_listens_teach_nothing(corpus: list[Utterance]) -> None:
    composer = Composer(MINI, corpus, Augmenter(0))
    conversations = [composer.conversation(15) for _ in range(40)]
    untaught = [unit for c in conversations for unit in c.units if not unit.taught]
    assert untaught
    assert all(unit.tokens in ([LISTEN], [TURN_END, LISTEN]) for unit in untaught)


def test_the_same_seed_gives_the_same_conversation(corpus: list[Utterance]) -> None:
    first, second = (Composer(MINI, corpus, Augmenter(9)).conversation(12) for _ in range(2))
    assert np.array_equal(first.mel, second.mel)
    assert first.units == second.units
