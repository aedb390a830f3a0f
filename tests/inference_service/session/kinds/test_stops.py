"""Stop strings: none is ever seen, and no text is held back that cannot be the beginning of one."""

import random

import pytest

from inference_service.session.kinds.text import StopStrings


def passed(stops: list[str], pieces: list[str]) -> tuple[list[str], bool]:
    """Return the text released by each piece and the end, and whether a stop string was found."""
    strings = StopStrings(stops)
    return [*map(strings.push, pieces), strings.flush()], strings.found


CASES: dict[str, tuple[list[str], list[str], list[str], bool]] = {
    "no stop strings": ([], ["a", "", "b c"], ["a", "", "b c", ""], False),
    "inside one piece": (["END"], ["so END it"], ["so ", ""], True),
    "over a border": (["END"], ["so E", "ND it"], ["so ", "", ""], True),
    "over a later border": (["END"], ["so EN", "D it"], ["so ", "", ""], True),
    "a beginning of nothing": (["END"], ["so EN", "TER"], ["so ", "ENTER", ""], False),
    "a beginning at the end": (["END"], ["so E", "N"], ["so ", "", "EN"], False),
    "a repeated beginning": (["aab"], ["aa", "ab"], ["", "a", ""], True),
    "the earliest of several": (["later", "now"], ["not now, later"], ["not ", ""], True),
    "pieces behind it": (["."], ["a.", "b", "c"], ["a", "", "", ""], True),
}


@pytest.mark.parametrize("case", CASES)
def test_text_passes_up_to_the_first_stop_string(case: str) -> None:
    stops, pieces, told, found = CASES[case]
    assert passed(stops, pieces) == (told, found)


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
