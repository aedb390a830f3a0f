"""A caller whose words take long to recognise holds up no other session."""

import numpy as np
import pytest
import torch

from inference_service.engine import engine as engine_module
from inference_service.engine.engine import LiveEngine
from inference_service.families import antiphon_mini
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.interface.engine import Finalized, Prefilled, Ready
from inference_service.interface.setups import Sampling, StreamInput, TokensSetup, UnitOverrides
from inference_service.recogniser.process import RecogniserProcess
from tests.inference_service.engine.support import tiny
from tests.inference_service.engine.test_engine import Client, Rig, Slots
from tests.inference_service.recogniser.conftest import UNIT, begin, hanging, question, say


def test_sessions_go_on_while_the_recogniser_hangs(slots: Slots, recogniser: RecogniserProcess) -> None:
    talker, neighbour = begin(slots, "talker"), begin(slots, "neighbour")
    units = question()
    with hanging(recogniser):
        for number, pcm in enumerate(units, 1):
            say(talker, number, pcm)
        for number in range(1, 6):
            say(neighbour, number, np.zeros(UNIT))
        neighbour.until(Finalized, 5)
        held = [event for event in talker.told.queue if isinstance(event, Prefilled)]
        assert len(held) < len(units), "the recogniser was not asked"
    talker.until(Finalized, len(units))
    prefilled = [event for event in talker.events if isinstance(event, Prefilled)]
    texts = [event.usage.input_text_tokens for event in prefilled]
    assert max(texts) > min(texts) + 3, "the words of the sentence are in none of its units"


MOST_WRITTEN = 100
"""Units of text within which the engine pauses."""


def write(client: Client, number: int) -> None:
    """Have a token stream go on by a few tokens."""
    client.session.prefill(number, StreamInput((1,)))
    client.session.generate(number, False, UnitOverrides())
    client.session.finalize(number)
    client.until(Finalized)


def test_text_session_yields_cpu_while_unit_awaits_recogniser(
    slots: Slots, recogniser: RecogniserProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, pauses = slots._engine, list[float]()
    monkeypatch.setattr(engine, "_fills_processors", True)
    take_within = engine.inbox.take_within

    def paused(seconds: float) -> object:
        assert 0 < seconds <= engine._tick.pause_s
        pauses.append(seconds)
        return take_within(seconds)

    monkeypatch.setattr(engine.inbox, "take_within", paused)
    talker = begin(slots, "talker")
    writer = slots.open(TokensSetup(Sampling(max_new_tokens=8), seed=1), "writer")
    writer.until(Ready)
    write(writer, 1)
    assert not pauses, "nobody waits for words"
    units = question()
    with hanging(recogniser):
        for number, pcm in enumerate(units, 1):
            say(talker, number, pcm)
        for number in range(2, MOST_WRITTEN):
            write(writer, number)
            if pauses:
                break
    talker.until(Finalized, len(units))
    assert engine._media.units_without_words == 0
    assert pauses
    pauses.clear()
    write(writer, number + 1)
    assert not pauses


@pytest.mark.parametrize(("processors", "fills"), [(1, True), (2, False)])
def test_engine_pauses_only_where_its_threads_fill_the_processors(
    processors: int, fills: bool, recogniser: RecogniserProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine_module, "_processors", lambda: processors)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    runtime = DuplexRuntime(antiphon_mini.components(*tiny.model(), recogniser), 2)
    engine = LiveEngine(runtime, 2, Rig._deliver, pytest.fail)
    try:
        assert engine._fills_processors is fills
    finally:
        engine.stop()
