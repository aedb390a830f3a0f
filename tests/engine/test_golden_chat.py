"""The recorded chats: prompts and greedy answers of the published architecture, alone and in a crowd."""

import time
from functools import cache
from typing import Any, cast

import pytest
from transformers import PreTrainedTokenizerFast

from inference_service.causal_checkpoint import CausalCheckpoint
from inference_service.engine.api import ChatMessage, ChatSetup, Prefilled, Sampling, TurnInput, UnitOverrides
from inference_service.engine.causal_runtime import CausalRuntime
from inference_service.engine.orders import PendingUnit
from inference_service.engine.tick import Tick
from inference_service.engine.turn import Turn
from inference_service.models.chat_template import ChatTemplate
from inference_service.models.plain_tokenizer import PlainTokenizer
from tests.engine import golden, tiny

WRITTEN = [case for case in golden.recording("chat")["cases"] if case["name"].startswith("text")]
LENGTH = 16


@cache
def runtime() -> CausalRuntime:
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(golden.FOLDER / "tokenizer.json"), chat_template=tiny.CHAT_TEMPLATE
    )
    loaded = CausalCheckpoint(
        name="golden",
        kind="qwen3",
        model=golden.language_model(),
        tokenizer=PlainTokenizer(tokenizer.backend_tokenizer),
        template=ChatTemplate(tokenizer),
        ends=frozenset(),
        context_limit=256,
        sampling=Sampling(),
    )
    return CausalRuntime(loaded, 256, 4)


def chat(case: dict[str, Any], slot: int, penalty: float) -> Turn:
    """A session that has been asked what the recording asks."""
    sampling = Sampling(max_new_tokens=LENGTH, temperature=0.0, repetition_penalty=penalty)
    turn = cast(Turn, runtime().open("chat", slot, ChatSetup(sampling, seed=0), lambda event: None))
    assert runtime().start(turn) is None
    messages = tuple(ChatMessage(it["role"], tuple(it["content"])) for it in case["messages"])
    prompt = turn.intake.prepare(TurnInput(messages, **case["kwargs"]))
    turn.orders.prefill(PendingUnit(1, prompt, time.monotonic(), overrides=UnitOverrides()))
    return turn


def run(turns: list[Turn], budget: int = 1024) -> None:
    tick = Tick(runtime(), budget)
    while tick.has_work(turns):
        tick.run(turns)


@pytest.mark.parametrize("case", WRITTEN, ids=lambda case: case["name"])
@pytest.mark.parametrize(("penalty", "recorded"), [(1.0, "greedy_tokens"), (1.02, "rp102_tokens")])
def test_answer_is_the_recorded_one(case: dict[str, Any], penalty: float, recorded: str) -> None:
    turn = chat(case, 0, penalty)
    run([turn])

    (heard,) = [event for event in turn.events if isinstance(event, Prefilled)]
    assert heard.usage.input_text_tokens == len(case["input_ids"])
    assert turn.run.said == case[recorded]


def test_scores_behind_the_prompt_are_the_recorded_ones() -> None:
    for case in WRITTEN:
        turn = chat(case, 0, 1.0)
        tick = Tick(runtime())
        assert turn.orders.first is not None
        turn.orders.first.overrides = None
        while tick.has_work([turn]):
            tick.run([turn])

        assert turn.last_hidden is not None
        scores = runtime().scores([turn.last_hidden])[0]
        assert golden.close_to(scores, golden.tensors("chat")[f"{case['name']}.last_logits"], 1e-4)


@pytest.mark.parametrize("budget", [3, 40, 1024])
def test_recorded_chats_beside_each_other_say_the_same(budget: int) -> None:
    cases = [*WRITTEN, *WRITTEN]
    turns = [chat(case, slot, 1.0 if slot < 2 else 1.02) for slot, case in enumerate(cases)]
    run(turns, budget)

    recorded = ["greedy_tokens"] * 2 + ["rp102_tokens"] * 2
    assert [turn.run.said for turn in turns] == [case[n] for case, n in zip(cases, recorded, strict=True)]
