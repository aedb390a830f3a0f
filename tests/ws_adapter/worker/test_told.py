"""An answer that another worker repeats: words and sound that the client has are left out."""

import random

import numpy as np
import pytest

from ws_adapter.protocol.core.signals import Piece
from ws_adapter.worker.sent_output import TAIL_BYTES, DivergedError, SentOutput

TEXT = "One, two, three, four, five."
SOUND = np.random.default_rng(1).uniform(-1, 1, 40_000).astype("<f4").tobytes()


def pieces(rng: random.Random) -> list[Piece]:
    """One answer, cut at random."""
    texts, sounds = (sorted(rng.sample(range(1, size), 5)) for size in (len(TEXT), len(SOUND) // 4))
    cut = []
    for begin, end, first, last in zip(
        [0, *texts], [*texts, len(TEXT)], [0, *sounds], [*sounds, 40_000], strict=True
    ):
        cut.append(Piece(1, TEXT[begin:end], SOUND[first * 4 : last * 4]))
    return cut


@pytest.mark.parametrize("seed", range(20))
def test_answer_restarted_repeatedly_is_sent_once(seed: int) -> None:
    rng, told = random.Random(seed), SentOutput(True)
    heard: list[Piece] = []
    for _ in range(4):
        told.restart()
        for piece in pieces(rng)[: rng.randint(1, 6)]:
            heard += [rest] if (rest := told.unsent_part(piece)) is not None else []
    told.restart()
    for piece in pieces(rng):
        heard += [rest] if (rest := told.unsent_part(piece)) is not None else []
    assert "".join(piece.text for piece in heard) == TEXT
    assert b"".join(piece.audio for piece in heard) == SOUND
    assert not told.is_repeating
    assert len(told.tail) <= TAIL_BYTES


def test_other_words_and_other_sound_are_no_repetition() -> None:
    for other in (Piece(1, "Two", b""), Piece(1, "", SOUND[4:])):
        told = SentOutput(True)
        told.unsent_part(Piece(1, "One", SOUND[:40_000]))
        told.restart()
        with pytest.raises(DivergedError):
            told.unsent_part(other)


def test_words_that_may_differ_are_left_out_by_their_number() -> None:
    told = SentOutput(False)
    told.unsent_part(Piece(1, "How are", b""))
    told.restart()
    assert told.unsent_part(Piece(1, "how ARE", b"")) is None
    rest = told.unsent_part(Piece(1, " you", b""))
    assert rest is not None
    assert rest.text == " you"
