"""Chat sessions of a tiny random model: everything they do is the model's own computation."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer as FastTokenizer
from transformers import PreTrainedTokenizerFast

from inference_service.families import antiphon_mini
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.interface.engine import Finalized, Prefilled, Ready
from inference_service.interface.setups import (
    ChatMessage,
    ChatSetup,
    Clip,
    Content,
    Mode,
    Picture,
    Sampling,
    TurnInput,
    UnitOverrides,
)
from inference_service.media.mel import MelStream
from inference_service.models.tokenizer import Tokenizer
from inference_service.session.kinds.prompt import ChatPreprocessor, Prompt
from inference_service.session.kinds.spoken_chat import SpokenChatSession
from tests.inference_service.engine.support import golden, tiny
from tests.inference_service.engine.support.calling import Answered, Chat, Chats
from tests.inference_service.engine.support.exchange import clip
from tests.inference_service.engine.test_crowd import runtime
from tests.inference_service.engine.test_engine import PATIENCE_S, Rig
from tests.support.drawing import jpeg

QUESTION = "Now"
"""To most others the likeliest answer of this model is none."""
LIVELY = Sampling(max_new_tokens=24, temperature=1.0, top_p=1.0)


@pytest.fixture
def chat() -> Iterator[Chat]:
    chats = Chats(runtime(), PreTrainedTokenizerFast(tokenizer_file=str(golden.FOLDER / "tokenizer.json")))
    yield chats.open(sampling=LIVELY)
    chats.close()


def ask(chat: Chat, *parts: str | Picture | Clip, speaks: bool = False, **overrides: Any) -> Answered:
    """A whole turn of one message."""
    return chat.ask(ChatMessage("user", parts), speaks=speaks, overrides=UnitOverrides(**overrides))


PICTURE = Picture(jpeg("red", "circle", (64, 48)))
OTHER = Picture(jpeg("blue", "square", (64, 48)))


def test_model_with_a_template_holds_chats_and_one_without_does_not() -> None:
    model, _, config = tiny.model()
    silent = Tokenizer(FastTokenizer.from_file(str(golden.FOLDER / "tokenizer.json")))
    assert Mode.CHAT in runtime().info.modes
    assert Mode.CHAT not in DuplexRuntime(antiphon_mini.components(model, silent, config), 1).info.modes


def test_greedy_answer_is_the_models_own(chat: Chat) -> None:
    """Computed again without packing, cache or portions."""
    told = ask(chat, QUESTION, max_new_tokens=12, temperature=0.0)
    assert len(told.token_ids) > 5
    model = tiny.model(sees=True)[0].llm
    (prompt,) = chat.session.preprocessor.prepare(TurnInput((ChatMessage("user", (QUESTION,)),))).portions
    rows = [token for passage in prompt for token in passage.ids]
    special = runtime().tokenizer.special
    allowed = [i for i in range(768) if runtime().tokenizer.is_text(i) or i == special.im_end]
    for token in told.token_ids:
        scores = model(torch.tensor([rows])).logits[0, -1]
        assert token == allowed[int(scores[allowed].argmax())]
        rows.append(token)


@pytest.mark.parametrize("speaks", [False, True])
@pytest.mark.sample("True")
def test_turn_is_the_same_after_any_other(chat: Chat, speaks: bool) -> None:
    first = ask(chat, "Who are you?", PICTURE, seed=3, temperature=1.0, speaks=speaks)
    ask(chat, "Something else", clip(3), temperature=1.0, speaks=True)
    again = ask(chat, "Who are you?", PICTURE, seed=3, temperature=1.0, speaks=speaks)
    assert again.token_ids == first.token_ids
    assert again.text == first.text
    # The vocoder's noise goes on where it was.
    assert again.samples == first.samples
    assert replace(again.done.usage, cached_tokens=0) == replace(first.done.usage, cached_tokens=0)


def test_clip_in_portions_is_heard_as_the_whole(chat: Chat) -> None:
    long = clip(17)
    chat.send(ChatMessage("user", ("Listen.", long)))
    session = cast(SpokenChatSession, chat.session)
    assert not session.refuse_unit()
    fed = []
    assert session.run.unit.input is not None
    for _ in session.run.unit.input.portions:
        runtime().hear([session])
        assert session.to_feed is not None
        fed.append(runtime().language.embed(session.to_feed))
    assert len(fed) == 10

    mel = torch.from_numpy(MelStream().feed(long.pcm))
    ear = runtime().components.ear
    ((expected,), _) = ear.encode([mel], [ear.initial_state()])
    rows = torch.cat(fed)
    heard = rows[[i for i in range(len(rows)) if (rows[i] - expected).abs().amax(1).min() < 1e-4]]
    assert torch.allclose(heard, expected, atol=1e-5)


def state(chat: Chat, *parts: str | Picture | Clip) -> torch.Tensor:
    """The hidden state behind a prompt, from which the answer is decided."""
    ask(chat, *parts, max_new_tokens=1)
    assert chat.session.last_hidden is not None
    return chat.session.last_hidden


@pytest.mark.parametrize("parts", [(PICTURE, OTHER), (clip(1.5, 1), clip(1.5, 2))], ids=["seen", "heard"])
def test_picture_is_seen_and_clip_heard(chat: Chat, parts: tuple[Picture | Clip, ...]) -> None:
    first, second, again = (state(chat, "What is it?", part) for part in (*parts, parts[0]))
    torch.testing.assert_close(first, again, atol=1e-5, rtol=1e-5)
    assert float((first - second).abs().max()) > 1e-3


def test_length_of_the_sound_fits_the_words(chat: Chat) -> None:
    told = ask(chat, "Speak", speaks=True, max_new_tokens=40)
    groups = [piece.audio for piece in told.pieces if piece.audio is not None]
    assert len(groups) >= 2
    assert all(len(audio) == 24_000 for audio in groups[1:-1])
    assert all(0 < len(audio) <= 24_000 for audio in groups)
    assert told.done.usage.output_audio_tokens == sum(map(len, groups)) // 960
    assert float(np.abs(np.concatenate(groups)).max()) <= 1


def test_prompt_being_prepared_delays_no_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    rig, hold, prepare = Rig(), threading.Event(), ChatPreprocessor.prepare

    def slow(preprocessor: ChatPreprocessor, content: Content) -> Prompt:
        assert hold.wait(PATIENCE_S)
        return prepare(preprocessor, content)

    monkeypatch.setattr(ChatPreprocessor, "prepare", slow)
    try:
        chatting = rig.slots.open(ChatSetup(LIVELY, seed=1))
        chatting.until(Ready)
        chatting.session.prefill(1, TurnInput((ChatMessage("user", ("Hello",)),)))
        talking = rig.open()
        for number in (1, 2):
            talking.unit(number)
        talking.until(Finalized, 2)

        assert chatting.told.empty()
        hold.set()
        chatting.until(Prefilled)
    finally:
        hold.set()
        rig.engine.stop()
