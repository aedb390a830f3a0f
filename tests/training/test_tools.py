"""Chats in which a caller offers tools: what the model reads, and what it learns to write."""

import random

from transformers import PreTrainedTokenizerFast

from antiphon_training.corpus.augment import Augmenter
from antiphon_training.corpus.writing import IGNORED, Writer
from antiphon_training.domains.mini import MINI, SET_LIGHT, Intent
from antiphon_training.domains.tool import schema
from antiphon_training.stages.chat import Call, ChatComposer, Message, Talk, chat_row, rendered, template
from inference_service.models.chat_template import ChatTemplate
from inference_service.tools.syntax import HERMES

OFFER = schema("set_light", "Turn the light.", {"state": ["on", "off"]})
CALL = Call("set_light", "state", "on")
TALK = Talk(
    [
        Message("user", ["turn on the light"]),
        Message("assistant", [CALL]),
        Message("tool", ["ok"]),
        Message("assistant", ["the light is on"]),
    ],
    [OFFER],
)


def test_tools_stand_behind_the_instructions() -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    other = {"type": "function", "function": {"name": "end_call", "description": "", "parameters": {}}}
    text = rendered(messages, tools=[OFFER, other])
    assert text == (
        "<|im_start|>system\nBe brief.\n<tools>\nset_light(state: on|off): Turn the light.\nend_call()\n"
        "</tools><|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
    )
    assert rendered(messages[1:], tools=[other]).startswith("<|im_start|>system\n<tools>\nend_call()\n")


def test_calls_are_those_of_hermes_for_the_worker(fast: PreTrainedTokenizerFast) -> None:
    fast.chat_template = template(with_tools=True)
    assert ChatTemplate(fast).calls == HERMES
    fast.chat_template = template(with_tools=False)
    assert ChatTemplate(fast).calls is None


def test_a_call_is_taught_as_the_template_writes_it(writer: Writer, fast: PreTrainedTokenizerFast) -> None:
    row = chat_row(writer, TALK)
    function = {"name": "set_light", "arguments": {"state": "on"}}
    history = [
        {"role": "user", "content": "turn on the light"},
        {"role": "assistant", "content": "", "tool_calls": [{"type": "function", "function": function}]},
    ]
    with_call = fast(rendered(history, tools=TALK.tools))["input_ids"]
    assert row.ids[: len(with_call)] == with_call
    said = "".join(fast.decode([label]) for label in row.labels if label != IGNORED)
    assert said == f"{CALL}<|im_end|> the light is on<|im_end|>"


def test_only_requests_for_the_offered_tool_are_calls() -> None:
    composer = ChatComposer(MINI, [], None, Augmenter(3))
    calls = words = 0
    for _ in range(300):
        talk = composer.talk()
        offered = {tool["function"]["name"] for tool in talk.tools}
        for before, message in zip(talk.messages, talk.messages[1:], strict=False):
            if message.role != "assistant":
                continue
            (part,) = message.parts
            if isinstance(part, Call):
                calls += 1
                assert part.name in offered & {SET_LIGHT.name}
                assert part.value in str(before.parts[-1]).lower()
            elif before.role == "user" and str(part).strip() in SET_LIGHT.values:
                words += 1
                assert SET_LIGHT.name not in offered
    assert calls > 100
    assert words > 10


def test_a_call_that_fails_is_answered_with_what_still_holds() -> None:
    rng = random.Random(1)
    answers = {SET_LIGHT.result(rng, "the light is on")[1] for _ in range(100)}
    assert answers == {"the light is on", "sorry the light is off"}
    assert SET_LIGHT.intent == Intent.LIGHT
