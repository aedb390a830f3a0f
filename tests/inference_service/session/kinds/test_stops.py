"""Stop strings: none is ever seen, and no text is held back that cannot be the beginning of one."""

import random

import pytest

from inference_service.session.kinds.text import StopStrings


def passed(stops: list[str], pieces: list[str]) -> tuple[list[str], bool]:
    """What each piece lets through, what the end does, and whether a stop string was found."""
    strings = StopStrings(stops)
    return [*map(strings.push, pieces), strings.flush()], strings.found


def test_without_stop_strings_everything_passes_at_once() -> None:
    assert passed([], ["a", "", "b c"]) == (["a", "", "b c", ""], False)


def test_stop_string_inside_one_piece_cuts_it() -> None:
    assert passed(["END"], ["so END it"]) == (["so ", ""], True)


@pytest.mark.parametrize("cut", [1, 2])
def test_stop_string_over_a_border_is_never_seen(cut: int) -> None:
    assert passed(["END"], ["so " + "END"[:cut], "END"[cut:] + " it"]) == (["so ", "", ""], True)


def test_beginning_that_comes_to_nothing_is_let_go() -> None:
    assert passed(["END"], ["so EN", "TER"]) == (["so ", "ENTER", ""], False)


def test_beginning_at_the_end_of_the_answer_is_let_go() -> None:
    assert passed(["END"], ["so E", "N"]) == (["so ", "", "EN"], False)


def test_repeated_beginning_is_not_let_go_too_far() -> None:
    assert passed(["aab"], ["aa", "ab"]) == (["", "a", ""], True)


def test_earliest_of_several_counts() -> None:
    assert passed(["later", "now"], ["not now, later"]) == (["not ", ""], True)


def test_nothing_passes_after_a_stop_string() -> None:
    assert passed(["."], ["a.", "b", "c"]) == (["a", "", "", ""], True)


def test_any_split_gives_the_text_up_to_the_first_stop_string() -> None:
    rng = random.Random(7)
    for _ in range(500):
        stops = ["".join(rng.choices("ab", k=rng.randint(1, 4))) for _ in range(rng.randint(1, 3))]
        text = "".join(rng.choices("abc", k=20))
        borders = sorted(rng.sample(range(21), 4))
        pieces = [text[i:j] for i, j in zip([0, *borders], [*borders, 20], strict=True)]
        begins = [text.find(stop) for stop in stops if stop in text]
        told, found = passed(stops, pieces)
        assert "".join(told) == (text[: min(begins)] if begins else text)
        assert found is bool(begins)
