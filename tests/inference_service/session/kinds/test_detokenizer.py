"""Text of growing sequences of ids: nothing lost, nothing twice, no character cut."""

import pytest

from inference_service.session.kinds.text import Detokenizer


def spell(ids: list[int]) -> str:
    """Ids are bytes."""
    return bytes(ids).decode(errors="replace")


def pieces(text: bytes) -> list[str]:
    stream = Detokenizer(spell)
    return [*map(stream.add, text), stream.flush()]


@pytest.mark.parametrize("text", ["plain", "naïve – 你好 🙂!", "", "ends with é"])
def test_pieces_are_the_text(text: str) -> None:
    assert "".join(pieces(text.encode())) == text


def test_character_comes_when_it_is_whole_and_cut_at_the_end() -> None:
    assert pieces("aé🙂".encode()) == ["a", "", "é", "", "", "", "🙂", ""]
    assert pieces("a🙂".encode()[:3]) == ["a", "", "", "�"]


def test_bytes_that_are_no_text_do_not_wait_for_ever() -> None:
    stream = Detokenizer(spell)
    given = [stream.add(0xFF) for _ in range(100)]
    assert "".join(given).count("�") > 80


def test_each_token_costs_the_same() -> None:
    longest = 0

    def counting(ids: list[int]) -> str:
        nonlocal longest
        longest = max(longest, len(ids))
        return spell(ids)

    stream = Detokenizer(counting)
    for byte in ("é" * 1000).encode():
        stream.add(byte)
    assert longest <= 4


def test_leading_space_that_a_decoder_drops_is_kept_between_pieces() -> None:
    words = ["▁good", "▁morning", "s"]

    def dropping(ids: list[int]) -> str:
        return "".join(words[i] for i in ids).replace("▁", " ").removeprefix(" ")

    stream = Detokenizer(dropping)
    assert [stream.add(i) for i in range(3)] == ["good", " morning", "s"]


def test_text_after_a_flush_begins_anew() -> None:
    stream = Detokenizer(lambda ids: "".join(" x" for _ in ids).removeprefix(" "))
    first, second, _, again = stream.add(0), stream.add(0), stream.flush(), stream.add(0)
    assert (first, second, again) == ("x", " x", "x")
