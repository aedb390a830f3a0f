"""From messages to the portions of a prompt: what is counted, what is decoded, and what does not fit."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from inference_service.errors import UnitRefused
from inference_service.interface.setups import ChatMessage, Clip, Picture, TurnInput
from inference_service.media.mel import MelStream
from inference_service.models.chat_template import ChatTemplate, TemplateRefused
from inference_service.session.kinds.prompt import (
    ChatPreprocessor,
    Passage,
    Prompt,
    PromptPicture,
    Sound,
    Words,
)
from tests.inference_service.engine.support import tiny
from tests.inference_service.engine.support.exchange import DIALOGUE, MARKS, SECOND, clip
from tests.support.drawing import jpeg

PICTURE = Picture(jpeg("red", "circle", (64, 48)))


def prompt(*messages: ChatMessage, system: str = "", limit: int = 4096, **content: bool) -> Prompt:
    preprocessor = ChatPreprocessor(replace(DIALOGUE, limit=limit), system)
    return preprocessor.prepare(TurnInput(messages, **content))


def user(*parts: str | Picture | Clip) -> ChatMessage:
    return ChatMessage("user", parts)


def passages(of: Prompt) -> list[Passage]:
    return [passage for portion in of.portions for passage in portion]


def text_of(of: Prompt) -> str:
    return DIALOGUE.template.decode(
        [token for passage in passages(of) if isinstance(passage, Words) for token in passage.ids]
    )


def refusal(*messages: ChatMessage, limit: int = 4096) -> UnitRefused:
    with pytest.raises(UnitRefused) as refused:
        prompt(*messages, limit=limit)
    return refused.value


def test_text_alone_is_one_portion_of_words() -> None:
    made = prompt(user("Hello"))
    ((words,),) = made.portions
    assert isinstance(words, Words)
    assert (made.text_tokens, made.audio_tokens, made.vision_tokens) == (len(words.ids), 0, 0)


def test_system_prompt_of_the_session_stands_before_the_messages_unless_the_turn_has_its_own() -> None:
    assert text_of(prompt(user("Hi"), system="Be brief.")).startswith("system\nBe brief.\nuser\nHi")
    own = ChatMessage("system", ("Be long.",))
    assert text_of(prompt(own, user("Hi"), system="Be brief.")).startswith("system\nBe long.\nuser\nHi")


def test_pictures_and_clips_stand_between_their_marks() -> None:
    made = prompt(user("What?", PICTURE, clip(1)))
    kinds = [type(passage) for passage in passages(made)]
    begin, end = [it for it in passages(made) if isinstance(it, Words) and it.ids in ([694], [696])]
    assert kinds == [Words, PromptPicture, Words, Words, Sound, Words, Words]
    assert (begin, end) == (Words([694]), Words([696]))
    assert made.slices == 1


def test_usage_counts_each_kind_and_marks_as_text() -> None:
    plain, full = prompt(user("What?", "x", "y")), prompt(user("What?", PICTURE, clip(2.5)))
    assert (full.vision_tokens, full.audio_tokens) == (tiny.PICTURE_TOKENS, 30)
    # Two letters less, and four marks.
    assert full.text_tokens == plain.text_tokens - 2 + 2 * MARKS


def test_clip_is_filled_up_to_whole_seconds_with_silence() -> None:
    short = clip(1.3)
    full = Clip(np.pad(short.pcm, (0, 2 * SECOND - len(short.pcm))))
    first, second = ([it for it in passages(prompt(user(c))) if isinstance(it, Sound)] for c in (short, full))
    assert [len(sound.features) for sound in first] == [200]
    assert torch.equal(first[0].features, second[0].features)


def test_clips_do_not_hear_each_other() -> None:
    alone, after = prompt(user(clip(1, seed=2))), prompt(user(clip(1, seed=1), clip(1, seed=2)))
    (own,) = [it for it in passages(alone) if isinstance(it, Sound)]
    last = [it for it in passages(after) if isinstance(it, Sound)][-1]
    assert last.begins
    assert torch.equal(own.features, last.features)


def test_long_clip_comes_in_portions_that_make_the_whole() -> None:
    whole = clip(20)
    made = prompt(user("Listen.", whole))
    sounds = [[it for it in portion if isinstance(it, Sound)] for portion in made.portions]
    assert [sum(len(sound.features) for sound in portion) for portion in sounds] == [0, *[200] * 10, 0]
    flat = [sound for portion in sounds for sound in portion]
    assert [sound.begins for sound in flat] == [True, *[False] * 9]
    # Some processors multiply matrices of other lengths in another order, so the last bits may differ.
    expected = torch.from_numpy(MelStream().feed(whole.pcm))
    torch.testing.assert_close(torch.cat([sound.features for sound in flat]), expected, atol=1e-5, rtol=0)


def test_many_pictures_come_in_portions() -> None:
    made = prompt(*[user(PICTURE) for _ in range(10)])
    counts = [sum(isinstance(it, PromptPicture) for it in portion) for portion in made.portions]
    assert sum(counts) == 10
    assert max(counts) <= 4


def test_long_text_comes_in_portions() -> None:
    made = prompt(user("a b c d " * 400))
    assert len(made.portions) > 1
    assert max(sum(len(it.ids) for it in p if isinstance(it, Words)) for p in made.portions) <= 1024
    assert text_of(made).count("a b c d") == 400


def test_speech_is_asked_of_the_template_too() -> None:
    spoken = ChatPreprocessor(DIALOGUE, "").prepare(TurnInput((user("Hi"),), speaks=True))
    mute = ChatPreprocessor(replace(DIALOGUE, speaks=False), "").prepare(
        TurnInput((user("Hi"),), speaks=True)
    )
    assert spoken.speaks
    assert not mute.speaks
    assert spoken.text_tokens == mute.text_tokens + 1  # <|tts_bos|>


def test_prompt_that_leaves_no_room_is_refused_with_its_length_and_the_limit() -> None:
    tokens = prompt(user("Hello")).text_tokens
    assert prompt(user("Hello"), limit=tokens + 1).text_tokens == tokens
    refused = refusal(user("Hello"), limit=tokens)
    assert (refused.failure.reason, refused.failure.field) == ("INPUT_TOO_LONG", "turn.messages")
    assert f"has {tokens} tokens; at most {tokens - 1} leave room" in refused.failure.message


@pytest.mark.parametrize("part", ["x" * 10_000_000, clip(410)])
def test_oversized_prompt_is_refused_before_any_work(
    part: str | Clip, monkeypatch: pytest.MonkeyPatch
) -> None:
    def worked(*_: object, **__: object) -> None:
        raise AssertionError("it was worked on")

    monkeypatch.setattr(ChatTemplate, "prompt", worked)
    monkeypatch.setattr(MelStream, "feed", worked)
    assert "has at least" in refusal(user(part)).failure.message


def test_bad_picture_is_refused_with_its_place() -> None:
    refused = refusal(
        user("Look."), ChatMessage("assistant", ("Where?",)), user("There:", Picture(b"GIF89a"))
    )
    assert (refused.failure.reason, refused.failure.field) == (
        "IMAGE_INVALID",
        "turn.messages[2].content[1].image",
    )


def test_refusal_of_the_template_names_the_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise TemplateRefused("roles must alternate")

    monkeypatch.setattr(ChatTemplate, "prompt", refuse)
    failure = refusal(user("a"), user("b")).failure
    assert (failure.reason, failure.field) == ("CONTENT_UNSUPPORTED", "turn.messages")
    assert "roles must alternate" in failure.message
