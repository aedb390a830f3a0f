"""Tools in chats that are spoken: a call is never said, and what is said beside it is."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from jsonschema import validate
from tokenizers import Tokenizer as FastTokenizer
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from inference_service.engine.runtime import Runtime
from inference_service.families import antiphon_mini, table
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.interface.engine import End, Finish
from inference_service.interface.setups import ToolMode, Tools
from inference_service.models.chat_template import ChatTemplate
from inference_service.models.tokenizer import Tokenizer
from inference_service.session.kinds.spoken_chat import SpokenChatSession
from tests.inference_service.engine.support import golden, tiny, tiny_caller
from tests.inference_service.engine.support.calling import TIME, WARM, WEATHER, Chat, Chats, required
from tests.inference_service.engine.support.tiny_caller import CITY
from tests.inference_service.models.minicpmo import whole

LIMIT = 1024
SLOTS = 2
TEMPLATE = tiny_caller.TEMPLATES["hermes"]
BERN = '{"city": "Bern", "days": 3, "unit": "C"}'
CALL = f'\n<tool_call>\n{{"name": "weather", "arguments": {BERN}}}\n</tool_call>'
AUTO = Tools((WEATHER,))


def minicpmo(root: Path) -> Runtime:
    """Tiny weights with a voice, and a template that knows tools as the published one does."""
    folder = whole.write(root / "MiniCPM-o-tiny", template=TEMPLATE)
    runtime: Runtime = table.load(folder, torch.device("cpu"), LIMIT)(SLOTS)
    return runtime


def antiphon(_: Path) -> Runtime:
    """Its answers may hold no token that is no text, but for those round calls."""
    model, _, config = tiny.model()
    path = str(golden.FOLDER / "tokenizer.json")
    template = ChatTemplate(PreTrainedTokenizerFast(tokenizer_file=path, chat_template=TEMPLATE))
    tokenizer = Tokenizer(FastTokenizer.from_file(path), template)
    return DuplexRuntime(
        antiphon_mini.components(model, tokenizer, replace(config, context_limit=LIMIT)), SLOTS
    )


@pytest.fixture(scope="module", params=[minicpmo, antiphon])
def chats(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Chats:
    build: Callable[[Path], Runtime] = request.param
    words = PreTrainedTokenizerFast(
        tokenizer_file=str(golden.FOLDER / "tokenizer.json"), eos_token="<|im_end|>"
    )
    return Chats(build(tmp_path_factory.mktemp("speaking")), words)


@pytest.fixture
def chat(chats: Chats) -> Iterator[Chat]:
    yield chats.open(sampling=replace(WARM, max_new_tokens=300))
    chats.close()


def test_a_template_with_tools_makes_a_model_that_calls_them(chats: Chats) -> None:
    assert chats.runtime.info.calls_tools


def test_a_required_call_is_valid_and_nothing_is_said(chat: Chat) -> None:
    told = chat.ask("Weather?", tools=required(), speaks=True)
    ((name, arguments, complete),) = told.calls
    assert (name, complete) == ("weather", True)
    validate(json.loads(arguments), CITY)
    assert (told.text, told.samples) == ("", 0)
    assert (told.done.end, told.done.finish) == (End.TURN, Finish.EOS)
    assert told.done.usage.output_audio_tokens == 0


@pytest.mark.parametrize("behind", ["", "So take a coat."])
def test_only_words_round_a_call_are_said(chat: Chat, behind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    aloud = []
    groups = cast(SpokenChatSession, chat.session).groups
    add = groups.add

    def listened(token: int, text: str, hidden: Tensor) -> None:
        aloud.append(text)
        add(token, text, hidden)

    monkeypatch.setattr(groups, "add", listened)
    told = chat.say("Let me look." + CALL + behind).ask("Weather?", tools=AUTO, speaks=True)

    assert told.calls == [("weather", BERN, True)]
    assert told.text == "Let me look." + behind
    # White space may be one token with the words before it.
    assert "".join(aloud).replace("\n", "") == told.text
    assert told.samples > 0


def test_the_answer_behind_a_call_is_spoken(chat: Chat) -> None:
    chat.ask("Weather?", tools=required(TIME), speaks=True)
    told = chat.say("Rain.").ask("Weather?", tools=replace(AUTO, mode=ToolMode.NONE), speaks=True)
    assert (told.text, told.calls) == ("Rain.", [])
    assert told.samples > 0
