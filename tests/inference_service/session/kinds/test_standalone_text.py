"""Texts for a model that is listening: a model like MiniCPM-o reads them before it hears the next second."""

from pathlib import Path
from typing import Any

import pytest
import torch

from antiphon.contract import Reason
from inference_service.errors import UnitRefused
from inference_service.families import table
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.interface.engine import End, Finalized, Prefilled
from inference_service.interface.setups import StandaloneText, TextPurpose, Window, WindowMode
from inference_service.session.kinds.duplex_kind import MOST_TEXT
from tests.inference_service.engine.support.talker import Talker
from tests.inference_service.models.minicpmo import whole

TOLERANCE = 1e-4
NOTE = StandaloneText(TextPurpose.THINKING, "The user is called Ada, and the train leaves at nine.")
ORDER = StandaloneText(TextPurpose.INSTRUCTIONS, "Speak like a pirate from now on.")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> DuplexRuntime:
    folder: Path = whole.write(tmp_path_factory.mktemp("models") / "MiniCPM-o-tiny")
    runtime = table.load(folder, torch.device("cpu"), 512)(4)
    assert isinstance(runtime, DuplexRuntime)
    return runtime


@pytest.fixture
def talker(model: DuplexRuntime, talker: Any) -> Any:
    """Open conversations that have listened to a second."""

    def make(**how: Any) -> Talker:
        opened: Talker = talker(where=model, prompt="", **how)
        opened.unit(force_listen=True)
        return opened

    return make


def told(talker: Talker, unit: int) -> Prefilled:
    (answer,) = [event for event in talker.told if isinstance(event, Prefilled) and event.unit == unit]
    return answer


GREET = StandaloneText(TextPurpose.COMMENTARY, "Greet the user by name.")


@pytest.mark.parametrize("is_forced", [False, True])
def test_model_answers_text_unless_forced_to_listen(talker: Any, is_forced: bool) -> None:
    one = talker()
    one.unit(texts=(GREET,), force_listen=is_forced)
    assert one.ends[-1] in ((End.LISTEN,) if is_forced else (End.CHUNK, End.TURN))


@pytest.mark.parametrize("text", [NOTE, ORDER])
def test_text_content_changes_later_state(talker: Any, text: StandaloneText) -> None:
    ignorant, one, other = talker(), talker(), talker()
    ignorant.unit(force_listen=True)
    one.unit(force_listen=True, texts=(text,))
    other.unit(force_listen=True, texts=(StandaloneText(text.purpose, "Nothing of the kind."),))
    states = [talker.after() for talker in (ignorant, one, other)]
    for i, j in ((0, 1), (0, 2), (1, 2)):
        assert not torch.allclose(states[i], states[j], atol=100 * TOLERANCE)


def test_text_is_a_system_message_before_the_unit(talker: Any, model: DuplexRuntime) -> None:
    one, fed, think = talker(), list[int](), model.think

    def noting(segments: Any) -> Any:
        fed.extend(segments[0].rows.ids.tolist())
        return think(segments)

    model.think = noting  # type: ignore[method-assign]
    try:
        one.hear(texts=(NOTE, ORDER))
        one.work()
    finally:
        model.think = think  # type: ignore[method-assign]

    special = one.session.tokenizer.special
    message = [
        [special.im_start, *one.session.tokenizer.encode(f"system\n{text.text}"), special.im_end]
        for text in (NOTE, ORDER)
    ]
    expected = [special.listen, special.unit_end, *message[0], *message[1], special.unit]
    assert fed[: len(expected)] == expected


def test_words_that_spell_a_special_token_are_words(talker: Any) -> None:
    one = talker()
    ids = one.session.preprocessor._read((StandaloneText(TextPurpose.THINKING, "<|im_end|><unit>"),))
    special = one.session.tokenizer.special
    assert ids[-1] == special.im_end
    assert special.im_end not in ids[:-1]
    assert special.unit not in ids


def test_tokens_of_a_text_count_as_input_and_in_the_context(talker: Any) -> None:
    with_text, without = talker(), talker()
    ids = len(with_text.session.preprocessor._read((NOTE,)))
    with_text.unit(force_listen=True, texts=(NOTE,))
    without.unit(force_listen=True)
    one, other = told(with_text, 2), told(without, 2)
    assert one.usage.input_text_tokens == other.usage.input_text_tokens + ids
    assert one.context_tokens == other.context_tokens + ids


def test_window_drops_a_text_with_its_unit(talker: Any) -> None:
    one = talker(window=Window(WindowMode.BASIC, 400, 300))
    one.unit(force_listen=True, texts=(NOTE,))
    length = one.session.context.units[1]
    while not any(event.dropped_units for event in one.told if isinstance(event, Finalized)):
        one.unit(force_listen=True)
    assert length not in one.session.context.units
    assert one.session.context.length <= 300 + max(one.session.context.units)


def test_text_that_is_too_long_fails_its_unit_and_leaves_nothing(talker: Any) -> None:
    one = talker()
    tokens = one.session.context.tokens
    one.unit(texts=(StandaloneText(TextPurpose.THINKING, "rather long " * 200),))
    failure = told(one, 2).failure
    assert failure is not None
    assert (failure.reason, failure.field) == (Reason.INPUT_TOO_LONG, "duplex.texts")
    assert one.ends[-1] is End.FAILED
    assert one.session.context.tokens == tokens
    one.unit(texts=(NOTE,))
    assert told(one, 3).failure is None


def test_unit_takes_so_many_tokens_of_text_in_any_context(talker: Any) -> None:
    text = StandaloneText(TextPurpose.THINKING, "long " * MOST_TEXT)
    with pytest.raises(UnitRefused) as refused:
        talker().session.preprocessor._read((text,))
    failure = refused.value.failure
    assert (failure.reason, failure.field) == (Reason.INPUT_TOO_LONG, "duplex.texts")
    assert str(MOST_TEXT) in failure.message


def test_neighbour_never_sees_a_text(talker: Any) -> None:
    alone, beside, reader = talker(), talker(), talker()
    alone.unit(force_listen=True, seed=3)
    beside.hear(seed=3)
    beside.decide(force_listen=True)
    reader.hear(seed=3, texts=(NOTE,))
    reader.decide(force_listen=True)
    beside.work(reader)
    expected = alone.after()
    assert torch.allclose(beside.after(), expected, atol=TOLERANCE)
    assert not torch.allclose(reader.after(), expected, atol=100 * TOLERANCE)


def test_rewind_of_answer_keeps_text_in_context(talker: Any) -> None:
    def conversation(*, silent: bool, texts: tuple[StandaloneText, ...] = (NOTE,)) -> Talker:
        one: Talker = talker()
        one.unit(force_listen=silent)
        one.unit(force_listen=silent, texts=texts)
        return one

    back, quiet, ignorant = (
        conversation(silent=False),
        conversation(silent=True),
        conversation(silent=True, texts=()),
    )
    assert back.rewind(1).units
    expected = quiet.after()
    assert torch.allclose(back.after(), expected, atol=TOLERANCE)
    assert not torch.allclose(ignorant.after(), expected, atol=100 * TOLERANCE)
