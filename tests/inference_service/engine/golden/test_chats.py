"""The recorded chats: prompts with pictures and clips, and greedy answers, alone and in a crowd."""

import random
import time
from typing import Any, cast

import pytest
import torch

from inference_service.engine.tick import Tick
from inference_service.interface.engine import Piece, Prefilled
from inference_service.interface.setups import (
    ChatMessage,
    ChatSetup,
    Clip,
    Picture,
    Sampling,
    TurnInput,
    UnitOverrides,
)
from inference_service.session.base.session import QueuedUnit
from inference_service.session.kinds.spoken_chat import SpokenChatSession
from tests.inference_service.engine.support import golden
from tests.inference_service.engine.support.reference import Watched, picture, runtime, wave
from tests.support.long import seeds

CASES = golden.recording("chat")["cases"]
LENGTH = 16
HIDDEN_LIMIT, LOGITS_LIMIT = 5e-5, 1e-4


def part(recorded: str | dict[str, str]) -> str | Picture | Clip:
    if isinstance(recorded, str):
        return recorded
    return Picture(picture(recorded["image"])) if "image" in recorded else Clip(wave(recorded["audio"]))


def chat(where: Watched, case: dict[str, Any], slot: int, penalty: float = 1.0) -> SpokenChatSession:
    """A session that has been asked what the recording asks."""
    sampling = Sampling(max_new_tokens=LENGTH, temperature=0.0, repetition_penalty=penalty)
    turn = cast(SpokenChatSession, where.open("chat", slot, ChatSetup(sampling, seed=0), lambda event: None))
    assert where.start(turn) is None
    messages = tuple(ChatMessage(it["role"], tuple(map(part, it["content"]))) for it in case["messages"])
    prompt = turn.preprocessor.prepare(TurnInput(messages, **case["kwargs"]))
    turn.queue.prefill(QueuedUnit(1, prompt, time.monotonic(), overrides=UnitOverrides()))
    return turn


def run(where: Watched, turns: list[SpokenChatSession], budget: int | None = None) -> None:
    tick = Tick(where, budget)
    while tick.has_work(turns):
        tick.run(turns)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
@pytest.mark.parametrize(("penalty", "recorded"), [(1.0, "greedy_tokens"), (1.02, "rp102_tokens")])
def test_answer_and_the_tokens_of_its_prompt_by_kind_are_the_recorded_ones(
    case: dict[str, Any], penalty: float, recorded: str
) -> None:
    where = runtime(1)
    turn = chat(where, case, 0, penalty)
    run(where, [turn])
    assert turn.run.answer.tokens == case[recorded]
    (heard,) = [event for event in turn.events if isinstance(event, Prefilled)]
    pictures, clips = case["image_bound"][0], case["audio_bounds"][0]
    usage = heard.usage
    assert heard.vision_slices == len(pictures)
    assert usage.input_vision_tokens == sum(end - begin for begin, end in pictures)
    assert usage.input_audio_tokens == sum(end - begin for begin, end in clips)
    assert usage.input_text_tokens + usage.input_vision_tokens + usage.input_audio_tokens == case["n_input"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_prompt_and_the_scores_behind_it_are_the_recorded_ones(case: dict[str, Any]) -> None:
    where, stored, name = runtime(1), golden.tensors("chat"), case["name"]
    turn = chat(where, case, 0)
    assert turn.queue.first is not None
    turn.queue.first.overrides = None
    run(where, [turn])
    fed, hidden = (torch.cat(rows) for rows in zip(*where.fed[0], strict=True))
    torch.testing.assert_close(fed, stored[f"{name}.inputs_embeds"], atol=HIDDEN_LIMIT, rtol=0)
    scores = where.scores(hidden[-1:])[0]
    torch.testing.assert_close(scores, stored[f"{name}.last_logits"], atol=LOGITS_LIMIT, rtol=0)


def test_scores_of_each_token_of_an_answer_are_the_recorded_ones() -> None:
    where, stored = runtime(1), golden.tensors("chat")
    run(where, [chat(where, CASES[0], 0)])
    hidden = torch.cat([rows for _, rows in where.fed[0]])[CASES[0]["n_input"] - 1 :]
    scores = where.scores(hidden)
    expected = stored["text.step_scores_greedy"]
    torch.testing.assert_close(scores[: len(expected)], expected[: len(scores)], atol=LOGITS_LIMIT, rtol=0)


@pytest.mark.parametrize("seed", seeds(0, 1, 2))
def test_recorded_chats_beside_each_other_say_the_same(seed: int) -> None:
    rng, slots = random.Random(seed), 3
    where, waiting = runtime(slots), rng.sample(CASES * 3, 9)
    present: dict[int, tuple[SpokenChatSession, dict[str, Any]]] = {}
    tick = Tick(where, rng.choice([3, 40, 1024]))
    while waiting or present:
        for slot in range(slots):
            if slot not in present and waiting and rng.random() < 0.3:
                case = waiting.pop()
                present[slot] = (chat(where, case, slot), case)
        tick.run([turn for turn, _ in present.values()])
        for slot, (turn, case) in list(present.items()):
            if not turn.has_work:
                assert turn.run.answer.tokens == case["greedy_tokens"]
                where.clear(slot)
                del present[slot]


def test_an_answer_keeps_what_the_reference_takes_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """There id 0 is dropped, and at the end every letter of `<|tts_eos|>`."""
    where = runtime(1)
    words = where.tokenizer
    ids = words.encode("!so it goes on!!test")
    assert 0 in ids
    ends = words.special.im_end
    decided = iter([*ids, ends])

    def scores(hidden: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.one_hot(torch.tensor([next(decided)]), 768).float() * 20

    monkeypatch.setattr(where, "scores", scores)
    turn = chat(where, CASES[0], 0)
    run(where, [turn])

    assert "".join(event.text for event in turn.events if isinstance(event, Piece)) == "!so it goes on!!test"
