"""Tests of the start and end of speech, from scores alone."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ws_adapter.protocol.core.speech import WINDOW, Edge, SpeechEdges, Started, Stopped

SCORES = st.lists(st.sampled_from([0.0, 0.3, 0.36, 0.49, 0.5, 0.9, float("nan")]), max_size=120)
SILENCE = 5
"""Windows, 160 ms."""


def edges(threshold: float = 0.5) -> SpeechEdges:
    return SpeechEdges(threshold, silence_ms=160, speech_ms=96)


def heard(scores: list[float], threshold: float = 0.5) -> list[Edge]:
    return edges(threshold).hear(scores)


def test_speech_starts_with_its_first_window_and_stops_with_the_first_of_silence() -> None:
    scores = [0.1] * 10 + [0.9] * 20 + [0.1] * 10
    assert heard(scores) == [Started(10 * WINDOW, 13 * WINDOW), Stopped(30 * WINDOW, (30 + SILENCE) * WINDOW)]


def test_clicks_gaps_pauses_and_a_little_below_the_threshold_change_nothing() -> None:
    assert heard(([0.1] * 10 + [1.0, 1.0]) * 10) == [], "a click starts nothing"
    assert heard([0.9, 0.9, 0.0, 0.0, 0.0, 0.0, 0.9]) == [Started(0, 7 * WINDOW)], "speech starts with a gap"
    pauses = [0.9] * 5 + ([0.0] * (SILENCE - 1) + [0.9]) * 10
    assert heard(pauses) == [Started(0, 3 * WINDOW)], "a pause is no end"
    assert heard([0.9] * 3 + [0.36] * 50) == [Started(0, 3 * WINDOW)]
    assert heard([0.36] * 50) == []


@given(SCORES, st.data())
def test_it_does_not_matter_how_the_scores_come(scores: list[float], data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(scores)))
    listener = edges()
    assert listener.hear(scores[:cut]) + listener.hear(scores[cut:]) == heard(scores)


@given(SCORES)
def test_starts_of_speech_and_stops_after_silence_take_turns_and_go_forward(scores: list[float]) -> None:
    found = heard(scores)
    assert all(isinstance(edge, Started) == (number % 2 == 0) for number, edge in enumerate(found))
    assert all(before.at < after.at and before.known_at < after.known_at for before, after in pairwise(found))
    assert all(edge.at < edge.known_at <= len(scores) * WINDOW for edge in found)
    for edge in found:
        span = scores[edge.at // WINDOW : edge.known_at // WINDOW]
        if isinstance(edge, Started):
            assert span[0] >= 0.5
            assert span[-1] >= 0.5
            assert sum(score >= 0.5 for score in span) == 3
        else:
            assert len(span) == SILENCE
            assert not any(score >= 0.35 for score in span)
            assert scores[edge.at // WINDOW - 1] >= 0.35


@given(SCORES)
def test_speech_at_end_implies_recent_score_over_threshold(scores: list[float]) -> None:
    listener = edges()
    found = listener.hear(scores)
    assert listener.speaks == (bool(found) and isinstance(found[-1], Started))
    if listener.speaks:
        assert any(score >= 0.35 for score in scores[-SILENCE:])


@given(st.lists(st.floats(0, 1), min_size=10, max_size=50))
def test_with_a_threshold_of_zero_all_is_speech(scores: list[float]) -> None:
    assert heard(scores, threshold=0.0) == [Started(0, 3 * WINDOW)]
