"""Rows of chat: what is asked, what is a lesson, and that the template renders to the same ids."""

import random

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from antiphon_training.corpus.augment import Augmenter
from antiphon_training.corpus.pictures import PictureSet
from antiphon_training.corpus.recipe import VISION
from antiphon_training.corpus.spoken import Utterance
from antiphon_training.corpus.writing import AUDIO_SLOT, IGNORED, PICTURE_SLOT, Row, Writer
from antiphon_training.domains.domain import Split
from antiphon_training.domains.mini import MINI, NOTHING_SEEN_REPLY, Intent, draw, seen_replies
from antiphon_training.stages.chat import (
    Call,
    ChatComposer,
    Clip,
    Message,
    Talk,
    chat_row,
    rendered,
    strange,
    styled,
    template,
)
from tests.support.long import long

END = "<|im_end|>"
PICTURE = np.zeros((64, 64, 3), np.uint8)
CLIP = Clip(np.zeros((200, 80), np.float32))


def lessons(fast: PreTrainedTokenizerFast, row: Row) -> list[str]:
    stretches: list[list[int]] = []
    for at, label in enumerate(row.labels):
        if label != IGNORED:
            assert row.ids[at + 1] == label
            if row.labels[at - 1] == IGNORED:
                stretches.append([])
            stretches[-1].append(label)
    return [fast.decode(ids) for ids in stretches]


TALK = Talk(
    [
        Message("system", ["Answer briefly."]),
        Message("user", ["What is 2 + 3?"]),
        Message("assistant", ["two plus three is five"], taught=False),
        Message("user", [PICTURE, "what do you see"]),
        Message("assistant", ["i see nothing"]),
        Message("user", [CLIP, PICTURE]),
        Message("assistant", ["okay"]),
    ]
)


@long
def test_only_the_taught_answers_are_lessons_and_they_end(
    fast: PreTrainedTokenizerFast, writer: Writer
) -> None:
    row = chat_row(writer, TALK)
    assert lessons(fast, row) == [f" i see nothing{END}", f" okay{END}"]
    assert len(row.labels) == len(row.ids)


def test_pictures_and_clips_stand_between_their_marks(writer: Writer) -> None:
    row = chat_row(writer, TALK)
    image, image_end, clip, clip_end = (
        writer.encode(name)[0] for name in ("<image>", "</image>", "<|audio_start|>", "<|audio_end|>")
    )
    assert len(row.pictures) == row.ids.count(image) == 2
    assert len(row.sounds) == row.ids.count(clip) == 1
    for at in (i for i, token in enumerate(row.ids) if token == image):
        assert row.ids[at + 1 : at + 2 + VISION.queries] == [PICTURE_SLOT] * VISION.queries + [image_end]
    at = row.ids.index(clip)
    assert row.ids[at + 1 : at + 22] == [AUDIO_SLOT] * 20 + [clip_end]


def test_a_row_has_the_ids_that_transformers_gives_the_template(
    fast: PreTrainedTokenizerFast, writer: Writer
) -> None:
    fast.chat_template = template(with_tools=True)
    messages = [
        {"role": "system", "content": "Answer briefly."},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What do you see?"}]},
        {"role": "assistant", "content": "i see nothing"},
        {"role": "user", "content": [{"type": "audio"}, {"type": "text", "text": "listen"}]},
    ]
    text = fast.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    text = text.replace("<image>./</image>", "<image></image>")
    ids = fast(text.replace("<audio>./</audio>", "<|audio_start|><|audio_end|>"))["input_ids"]

    talk = Talk(
        [
            Message("system", ["Answer briefly."]),
            Message("user", [PICTURE, "What do you see?"]),
            Message("assistant", ["i see nothing"], taught=False),
            Message("user", [CLIP, "listen"]),
            Message("assistant", ["okay"]),
        ]
    )
    row = chat_row(writer, talk)
    before_answer = len(row.ids) - 2
    assert [token for token in row.ids[:before_answer] if token >= 0] == ids


def test_the_template_takes_content_as_text_and_as_parts() -> None:
    as_text = [{"role": "user", "content": "<image>./</image>\nhello"}]
    as_parts = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "hello"}]}]
    expected = "<|im_start|>user\n<image>./</image>\nhello<|im_end|>\n<|im_start|>assistant\n"
    assert rendered(as_text, True) == rendered(as_parts, True) == expected  # type: ignore[arg-type]


def test_text_that_spells_a_special_token_stays_text(writer: Writer) -> None:
    row = chat_row(writer, Talk([Message("user", [f"hi {END}<image>"]), Message("assistant", ["okay"])]))
    assert row.ids.count(writer.encode(END)[0]) == 2
    assert writer.encode("<image>")[0] not in row.ids


@pytest.mark.parametrize("seed", range(10))
def test_answers_are_about_the_newest_picture(album: PictureSet, corpus: list[Utterance], seed: int) -> None:
    about_pictures = set(seen_replies()) - {NOTHING_SEEN_REPLY}
    composer = ChatComposer(MINI, corpus, album, Augmenter(seed))
    for talk in (composer.talk() for _ in range(20)):
        pictured = False
        for message in talk.messages:
            shown = [part for part in message.parts if not isinstance(part, str | Clip | Call)]
            pictured = pictured or bool(shown)
            if message.role == "assistant" and not pictured:
                assert str(message.parts[0]).strip() not in about_pictures


def test_the_same_seed_gives_the_same_rows(corpus: list[Utterance], writer: Writer) -> None:
    first, second = (
        [chat_row(writer, composer.talk()).ids for _ in range(5)]
        for composer in (ChatComposer(MINI, corpus, None, Augmenter(4)) for _ in range(2))
    )
    assert first == second


def test_people_type_the_same_question_in_many_ways() -> None:
    rng = random.Random(0)
    typed = {styled("what is twelve plus three", rng) for _ in range(300)}
    assert {"what is twelve plus three", "What is 12 + 3?", "What is twelve plus three?"} <= typed
    assert len({strange(rng) for _ in range(50)}) > 45


def test_typed_questions_never_come_from_the_held_out_side(corpus: list[Utterance]) -> None:
    rng = random.Random(0)
    held_out = {draw(rng, Split.HELD_OUT, Intent.GREETING).question for _ in range(200)}
    composer = ChatComposer(MINI, corpus, None, Augmenter(2))
    asked = {
        str(part).lower()
        for _ in range(200)
        for m in composer.talk().messages
        if m.role == "user"
        for part in m.parts
    }
    assert not asked & held_out
