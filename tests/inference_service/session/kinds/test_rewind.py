"""Take back speech that nobody heard: the model goes on as if it had been silent."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from antiphon.contract import Reason
from inference_service.engine.batch.pages import PAGE
from inference_service.families import antiphon_mini
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.interface.engine import Done, End, Finalized, Piece, Prefilled, Rewound, SessionFailed
from inference_service.interface.setups import UnitInput, UnitOverrides, Window, WindowMode
from inference_service.session.base.session import Stage
from inference_service.session.kinds.past import MOST_FED_AGAIN
from tests.inference_service.engine.support import tiny
from tests.inference_service.engine.support.left import is_clean
from tests.inference_service.engine.support.shipped import RECORDINGS, recorded, shipped
from tests.inference_service.engine.support.talker import ALL, Talker
from tests.inference_service.engine.test_shares import sound

TOLERANCE = 1e-4
"""Of hidden states, whose rows were not fed in the same forwards."""
SILENCE = np.zeros(16_000, np.float32)


def spoken(talker: Talker, units: int, *, listens: int = 1) -> Talker:
    """Let the talker listen first, then speak in each of `units`."""
    for _ in range(listens):
        talker.unit(force_listen=True)
    for _ in range(units):
        talker.unit()
    assert all(end in (End.CHUNK, End.TURN) for end in talker.ends[listens:]), talker.ends
    return talker


def listened(talker: Talker, said: int, silent: int, **how: Any) -> Talker:
    """Run `spoken`, then `silent` units without speech."""
    spoken(talker, said, **how)
    for _ in range(silent):
        talker.unit(force_listen=True)
    return talker


@pytest.mark.parametrize("kept", [1, 2, 3])
@pytest.mark.sample("2")
def test_later_states_are_those_of_a_session_that_was_silent(talker: Any, kept: int) -> None:
    back, silent = spoken(talker(), 4), listened(talker(), kept - 1, 5 - kept)
    going_on = spoken(talker(), 4)
    answer = back.rewind(kept)
    assert (answer.failure, answer.units) == (None, 5 - kept)
    assert answer.context_tokens == silent.session.context.tokens
    assert np.array_equal(back.session.sampler.history, silent.session.sampler.history)
    expected = silent.after()
    assert torch.allclose(back.after(), expected, atol=TOLERANCE)
    assert not torch.allclose(going_on.after(), expected, atol=100 * TOLERANCE)
    one, other = back.session.context, silent.session.context
    assert (one.length, one.units, one._said) == (other.length, other.units, other._said)
    cache = back.where.language.cache
    for mine, theirs in zip(cache.held(0, 0, one.length), cache.held(1, 0, one.length), strict=True):
        assert torch.allclose(mine, theirs, atol=TOLERANCE)


@pytest.mark.parametrize(("beyond", "kept"), [(-1, 1), (0, 2), (1, 2), (10**12, 2)])
@pytest.mark.sample("-1-1", "0-2")
def test_unit_stays_if_heard_to_its_last_sample_and_else_is_as_if_it_had_listened(
    talker: Any, beyond: int, kept: int
) -> None:
    back, silent = spoken(talker(), 3), listened(talker(), kept, 3 - kept)
    assert back.rewind(3, back.samples(3) + beyond).units == 3 - kept
    assert torch.allclose(back.after(), silent.after(), atol=TOLERANCE)


def test_rewind_of_fully_heard_answer_changes_nothing(talker: Any) -> None:
    back, going_on = spoken(talker(), 3), spoken(talker(), 3)
    before, is_open = back.session.context.tokens, back.session.turn_open
    assert back.rewind(4) == Rewound(4, before, 0)
    assert (back.session.context.tokens, back.session.turn_open) == (before, is_open)
    assert torch.equal(back.after(), going_on.after())


def test_second_rewind_to_the_same_point_has_nothing_to_do(talker: Any) -> None:
    back = spoken(talker(), 3)
    tokens = back.rewind(2).context_tokens
    assert back.rewind(2) == Rewound(2, tokens, 0)
    assert back.rewind(2, 0).units == 1


def test_only_what_follows_a_change_is_fed_again(talker: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    back, fed = spoken(talker(), 4), []
    think = back.where.think

    def counting(segments: Any) -> Any:
        fed.extend(len(segment.rows) for segment in segments)
        return think(segments)

    monkeypatch.setattr(back.where, "think", counting)
    back.rewind(3)
    unit = 1 + back.session.unit_tokens
    closing = len(back.session.context.pending)
    # Unit 4 keeps its own rows; its end, unit 5, and no end of that, which waits for the next second.
    assert sum(fed) in (closing + unit, closing + 1 + unit)
    assert back.session.context.units[-1] == unit + closing


def test_pictures_that_were_seen_meanwhile_stay_seen(talker: Any) -> None:
    def conversation(silent: bool) -> Talker:
        one = listened(talker(), 1, 0)
        one.unit(force_listen=silent)
        one.unit(force_listen=silent, pictures=2)
        return one

    back, silent, blind = conversation(False), conversation(True), listened(talker(), 1, 2)
    back.rewind(2)
    expected = silent.after()
    assert torch.allclose(back.after(), expected, atol=TOLERANCE)
    assert not torch.allclose(blind.after(), expected, atol=100 * TOLERANCE)


def test_turn_that_was_cut_is_closed_and_the_next_words_begin_on_a_clean_voice(talker: Any) -> None:
    back = spoken(talker(), 3)
    assert back.session.turn_open
    assert back.session.speech.length
    back.rewind(2)
    session = back.session
    assert (session.turn_open, session.turn_units, session.rest, session.speech.length) == (False, 0, 0, 0)
    assert session.tokenizer.special.turn_eos not in session.context.pending, "the unit before closes it"
    back.unit()
    assert back.ends[-1] in (End.CHUNK, End.TURN)


def test_shipped_model_repeats_unheard_speech_only_after_rewind(talker: Any) -> None:
    """The interrupted model counts again from the beginning if the user heard nothing of it."""
    question = recorded(next(path for path in RECORDINGS if path.stem == "counting"))
    seconds = -(-len(question) // 16_000)
    question = np.pad(question, (0, seconds * 16_000 - len(question)))

    def conversation(*, goes_back: bool) -> tuple[str, str]:
        one: Talker = talker(where=shipped(), prompt="")
        for pcm in question.reshape(-1, 16_000):
            one.unit(pcm=pcm)
        first = next(unit for unit in range(1, seconds + 2) if one.said(unit))
        for _ in range(first + 1 - one.sent):
            one.unit(pcm=SILENCE)
        before = one.said(first) + one.said(first + 1)
        if goes_back:
            one.session.queue.cancel(one.sent)
            assert one.rewind(first, 0).units == 2
        for _ in range(3):
            one.unit(pcm=SILENCE)
        return before, "".join(one.said(unit) for unit in range(first + 2, one.sent + 1))

    assert conversation(goes_back=False) == (" one two three four five six", " seven eight")
    assert conversation(goes_back=True) == (
        " one two three four five six",
        " one two three four five six seven eight",
    )


def test_unit_that_is_heard_already_is_heard_again_and_answered_once(talker: Any) -> None:
    back, silent = spoken(talker(), 3), listened(talker(), 1, 2)
    back.hear(seed=77)
    back.work()
    assert back.session.stage is Stage.HEARD

    back.session.queue.rewind(2, ALL)
    back.decide()
    back.work()
    silent.hear(seed=77)
    silent.decide()
    silent.work()

    for kind in (Prefilled, Done, Finalized):
        assert [event.unit for event in back.told if isinstance(event, kind)] == [1, 2, 3, 4, 5]
    assert [(e.text, e.token_ids) for e in back.told if isinstance(e, Piece) and e.unit == 5] == [
        (e.text, e.token_ids) for e in silent.told if isinstance(e, Piece) and e.unit == 5
    ]
    assert back.session.heard_units == 5
    assert torch.allclose(back.after(), silent.after(), atol=TOLERANCE)


def test_rewind_waits_until_units_that_may_be_decided_are_closed(talker: Any) -> None:
    back, silent = spoken(talker(), 2), listened(talker(), 1, 2)
    back.hear()
    back.session.queue.generate(back.sent, False, UnitOverrides())
    back.session.queue.rewind(2, ALL)
    back.work()
    assert not back.answers, "unit 4 is not closed"
    back.session.queue.finalize(back.sent)
    back.work()
    assert back.answers[-1].units == 2
    assert torch.allclose(back.after(), silent.after(), atol=TOLERANCE)


def test_unit_that_fails_after_it_was_heard_again_leaves_no_trace(talker: Any, monkeypatch: Any) -> None:
    back, silent = spoken(talker(), 3), listened(talker(), 1, 2)
    back.hear()
    back.work()
    think = back.where.think

    def bad(segments: Any) -> Any:
        given = think(segments)
        # The replay after the rewind takes two forwards; the second is the incoming unit.
        return [None] if back.session.stage is Stage.PREFILL else given

    monkeypatch.setattr(back.where, "think", bad)
    back.session.queue.rewind(2, ALL)
    back.work()
    monkeypatch.undo()
    back.decide()
    back.work()
    silent.session.preprocessor.prepare(UnitInput(sound(5)))  # its ear advances by the same second

    (prefilled,) = [event for event in back.told if isinstance(event, Prefilled) and event.unit == 5]
    assert prefilled.failure is None
    assert back.ends[-1] is End.FAILED
    assert torch.allclose(back.after(), silent.after(), atol=TOLERANCE)


def test_unit_that_the_window_has_dropped_is_refused_and_nothing_changes(talker: Any) -> None:
    back = talker(window=Window(WindowMode.BASIC, 480, 400))
    for _ in range(16):
        back.unit()
    assert sum(event.dropped_units for event in back.told if isinstance(event, Finalized))
    tokens = back.session.context.tokens
    answer = back.rewind(1)
    assert answer.failure is not None
    assert (answer.failure.reason, answer.failure.field) == (Reason.PARAMS_INVALID, "unit")
    assert "window" in answer.failure.message
    assert (answer.context_tokens, back.session.context.tokens) == (tokens, tokens)


def test_unit_too_far_back_is_refused_and_the_furthest_one_is_not(talker: Any) -> None:
    far, near = (spoken(talker(), MOST_FED_AGAIN + 2) for _ in range(2))
    silent = listened(talker(), 1, MOST_FED_AGAIN + 1)
    failure = far.rewind(1).failure
    assert failure is not None
    assert str(MOST_FED_AGAIN) in failure.message
    assert near.rewind(2).failure is None
    assert torch.allclose(near.after(), silent.after(), atol=TOLERANCE)


@pytest.mark.long
def test_rewind_behind_a_window_that_has_slid_is_that_of_a_silent_session(talker: Any) -> None:
    window = Window(WindowMode.BASIC, 480, 400)

    def conversation(last: Sequence[bool]) -> Talker:
        one: Talker = talker(window=window)
        while not one.session.context.dropped:
            one.unit()
        for silent in last:
            one.unit(force_listen=silent)
        return one

    back, silent = conversation([False, False]), conversation([True, True])
    assert back.session.context.dropped == silent.session.context.dropped > 0
    assert back.rewind(back.sent - 2).units == 2
    assert torch.allclose(back.after(), silent.after(), atol=TOLERANCE)


def test_batched_rewind_equals_rewind_alone(talker: Any) -> None:
    alone, one, other = (spoken(talker(), 3) for _ in range(3))
    alone.rewind(2)
    for crowded in (one, other):
        crowded.session.queue.rewind(2, ALL)
    one.work(other)
    assert one.answers == other.answers == alone.answers
    expected = alone.after()
    assert torch.allclose(one.after(), expected, atol=TOLERANCE)
    assert torch.allclose(other.after(), expected, atol=TOLERANCE)


def test_neighbour_of_rewinding_session_answers_unchanged(talker: Any) -> None:
    quiet, beside = spoken(talker(), 4), spoken(talker(), 1)
    rewinding = spoken(talker(), 3)
    for _ in range(3):
        rewinding.session.queue.rewind(2, 0)
        beside.hear()
        beside.decide()
        beside.work(rewinding)
        rewinding.unit()

    def said(one: Talker) -> list[tuple[int, ...]]:
        return [event.token_ids for event in one.told if isinstance(event, Piece) and event.token_ids]

    assert said(beside) == said(quiet)


@pytest.mark.parametrize("fault", ["exception", "bad numbers"])
def test_fault_in_a_rewind_ends_its_session_alone(
    talker: Any, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    victim, beside, quiet = spoken(talker(), 3), spoken(talker(), 1), spoken(talker(), 2)
    think = victim.where.think

    def failing(*_: object) -> None:
        raise ValueError("canary-4711")

    def bad(segments: Any) -> Any:
        given = zip(segments, think(segments), strict=True)
        return [None if segment.slot == 0 else hidden for segment, hidden in given]

    if fault == "exception":
        monkeypatch.setattr(victim.session.context, "take_back", failing)
    else:
        monkeypatch.setattr(victim.where, "think", bad)
    victim.session.queue.rewind(2, ALL)
    beside.hear()
    beside.decide()
    beside.work(victim)
    monkeypatch.undo()

    assert isinstance(victim.told[-1], SessionFailed)
    assert "canary" not in victim.told[-1].message
    assert torch.allclose(beside.after(), quiet.after(), atol=TOLERANCE)


def test_rewound_speech_is_cleared_from_kv_pages(talker: Any) -> None:
    back, silent = spoken(talker(), 4), listened(talker(), 0, 4)
    cache = back.where.language.cache
    canary = cache.held(0, back.session.context.prompt, back.session.context.length)[0].clone()
    back.rewind(1)
    length = back.session.context.length
    pages, offset = cache._tables[0].pages, cache._tables[0].offset
    rows = [page * PAGE + i for page in pages for i in range(PAGE)][offset + length :]
    assert not cache.keys[:, :, rows].any()
    assert not cache.values[:, :, rows].any()
    kept = cache.held(0, back.session.context.prompt, length)[0]
    spoken_rows = canary[:, :, -3:]
    assert not any(torch.allclose(kept[:, :, i : i + 3], spoken_rows) for i in range(kept.shape[2] - 2))
    assert torch.allclose(back.after(), silent.after(), atol=TOLERANCE)


def test_pages_are_given_back_once_and_shared_beginnings_stay_shared() -> None:
    where = DuplexRuntime(antiphon_mini.components(*tiny.model(sees=True)), 2)
    free = where.language.cache.pool.free + where.language.cache.pool.idle
    one, other = Talker(0, where=where), Talker(1, where=where)
    assert where.language.cache.adopted_rows, "they begin alike"
    shared = set(where.language.cache._tables[0].pages) & set(where.language.cache._tables[1].pages)
    spoken(one, 3)
    spoken(other, 3)

    one.rewind(1, 0)

    assert shared
    assert shared <= set(where.language.cache._tables[0].pages)
    one.leave()
    assert other.after().isfinite().all()
    other.leave()
    assert where.language.cache.pool.used == 0
    assert where.language.cache.pool.free + where.language.cache.pool.idle == free
    assert is_clean(where.language.cache)
