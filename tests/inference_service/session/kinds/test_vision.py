"""Pictures in units: what of them is in the context, what they change, and what a bad one costs."""

import random
from dataclasses import replace

import pytest
import torch

from inference_service.interface.engine import Done, End, Failure, Piece, Prefilled, UnitUsage
from inference_service.interface.setups import DuplexSetup, UnitInput, UnitOverrides, Window, WindowMode
from inference_service.media.image import MAX_FRAMES
from tests.inference_service.engine.support import tiny
from tests.inference_service.engine.support.guests import Guest, play
from tests.inference_service.engine.support.talk import PICTURE_TOKENS, PROMPT, UNIT_TOKENS, Talk
from tests.inference_service.engine.test_crowd import runtime
from tests.inference_service.engine.test_shares import sound
from tests.support.drawing import jpeg

MARKS = 2
BAD = Failure("IMAGE_INVALID", "duplex.frames[0] is damaged.", "duplex.frames[0]")


@pytest.fixture
def talk() -> Talk:
    return Talk(sees=True)


def test_pictures_come_after_unit_and_before_its_audio(talk: Talk) -> None:
    talk.hear(pictures=2)
    special = talk.special
    picture = [special.image, *[-2] * PICTURE_TOKENS, special.image_end]
    assert talk.fed[PROMPT:] == [special.unit, *picture, *picture, *[-1] * UNIT_TOKENS]


def test_pictures_are_counted_as_vision_and_their_marks_as_text(talk: Talk) -> None:
    prefilled = talk.hear(pictures=2).one(Prefilled)
    assert prefilled.vision_slices == 2
    assert prefilled.context_tokens == PROMPT + 1 + 2 * (PICTURE_TOKENS + MARKS) + UNIT_TOKENS
    assert prefilled.usage == UnitUsage(
        input_text_tokens=1 + 2 * MARKS,
        input_audio_tokens=UNIT_TOKENS,
        input_vision_tokens=2 * PICTURE_TOKENS,
        cached_tokens=PROMPT,
    )


def test_units_with_and_without_pictures_mix(talk: Talk) -> None:
    talk.unit(talk.special.listen, pictures=1)
    second = talk.unit(talk.special.listen)
    third = talk.unit(talk.special.listen, pictures=3)
    assert second.one(Prefilled).vision_slices == 0
    assert second.done.usage.input_vision_tokens == 0
    assert third.done.usage.input_vision_tokens == 3 * PICTURE_TOKENS
    assert third.done.usage.cached_tokens == second.done.context_tokens
    assert third.closed.session_usage.input_vision_tokens == 4 * PICTURE_TOKENS


def test_window_drops_units_with_their_pictures() -> None:
    talk = Talk(sees=True, window=Window(WindowMode.BASIC, 110, 80))
    picture = PICTURE_TOKENS + MARKS
    lengths = [1 + n * picture + UNIT_TOKENS + 2 for n in (2, 0, 4)]
    closed = [talk.unit(talk.special.listen, pictures=n).closed for n in (2, 0, 4)]
    assert [said.dropped_units for said in closed] == [0, 0, 2]
    assert closed[1].context_tokens == PROMPT + lengths[0] + lengths[1]
    assert closed[2].context_tokens == PROMPT + lengths[2]


def test_context_without_a_window_keeps_room_for_a_unit_full_of_pictures() -> None:
    deaf, seeing = Talk(limit=2048), Talk(limit=2048, sees=True)
    room = seeing.conversation.longest_unit - deaf.conversation.longest_unit
    assert room == MAX_FRAMES * (PICTURE_TOKENS + MARKS)


def test_unit_with_a_bad_picture_fails_and_leaves_no_trace(talk: Talk) -> None:
    before = talk.unit(talk.special.listen, pictures=1)
    fed = len(talk.fed)
    failed = talk.hear(failure=BAD)
    talk.generate()
    talk.finalize()
    assert failed.one(Prefilled).failure == BAD
    assert (failed.done.end, failed.done.failure) == (End.FAILED, BAD)
    assert failed.done.usage == UnitUsage()
    assert failed.closed.context_tokens == before.closed.context_tokens
    assert len(talk.fed) == fed
    after = talk.unit(talk.special.listen, pictures=1)
    assert (after.done.end, after.done.usage.input_vision_tokens) == (End.LISTEN, PICTURE_TOKENS)


def test_a_picture_is_encoded_alone_as_in_a_batch() -> None:
    model, _, _ = tiny.model(sees=True)
    pictures = list(torch.randint(256, (5, tiny.SIDE, tiny.SIDE, 3), dtype=torch.uint8))
    assert model.see([]) == []
    together = model.see(pictures)
    assert [tuple(embeds.shape) for embeds in together] == [(tiny.PICTURE_TOKENS, 32)] * 5
    for picture, embeds in zip(pictures, together, strict=True):
        assert torch.allclose(model.see([picture])[0], embeds, atol=1e-5)


def test_encoder_has_the_published_prefixes() -> None:
    seeing, deaf = (tiny.model(sees=sees)[0].state_dict() for sees in (True, False))
    assert {name.split(".")[0] for name in seeing.keys() - deaf.keys()} == {"vpm", "resampler"}


@pytest.mark.parametrize("bad", [b"", b"no picture", jpeg()[:400]])
def test_bad_picture_fails_its_unit_only(bad: bytes) -> None:
    def held(*units: UnitInput) -> Guest:
        info = runtime().info
        settings = replace(info.duplex_defaults, force_listen_count=0, listen_prob_scale=0.0)
        setup = DuplexSetup("Be brief.", settings, info.window, seed=7, sees=True)
        guest = Guest(setup, [(unit, UnitOverrides()) for unit in units])
        play(runtime(), [guest], random.Random(0), [0])
        return guest

    def spoken(guest: Guest, unit: int) -> list[tuple[str, tuple[int, ...]]]:
        return [(e.text, e.token_ids) for e in guest.told if isinstance(e, Piece) and e.unit == unit]

    first, last = UnitInput(sound(1), (jpeg("red"),)), UnitInput(sound(3), (jpeg("blue"),))
    troubled = held(first, UnitInput(sound(2), (jpeg("red"), bad)), last)

    (prefilled,) = [e for e in troubled.told if isinstance(e, Prefilled) and e.unit == 2]
    (done,) = [e for e in troubled.told if isinstance(e, Done) and e.unit == 2]
    assert prefilled.failure is not None
    assert (prefilled.failure.reason, prefilled.failure.field) == ("IMAGE_INVALID", "duplex.frames[1]")
    assert done.end is End.FAILED
    # It left no trace: what follows is as in a session that never had it.
    assert spoken(troubled, 3) == spoken(held(first, last), 2) != []
