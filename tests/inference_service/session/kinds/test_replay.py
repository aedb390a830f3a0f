"""A duplex session that replays the records of another one is in its state, and samples nothing for it."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from antiphon.contract import Reason
from inference_service.families import table
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.interface.engine import Done, End, Finalized, Piece
from inference_service.interface.setups import UnitInput, UnitRecord, Window, WindowMode
from inference_service.session.base.session import QueuedUnit
from tests.inference_service.engine.support.guests import Sound
from tests.inference_service.engine.support.shipped import shipped
from tests.inference_service.engine.support.talker import Talker
from tests.inference_service.engine.test_crowd import runtime
from tests.inference_service.engine.test_shares import sound
from tests.inference_service.models.minicpmo import whole
from tests.support.drawing import jpeg
from tests.support.long import long

TOLERANCE = 1e-4
"""Of hidden states and samples, whose rows were not fed in the same forwards."""


class Talk(Talker):
    """A conversation with records."""

    def __init__(self, slot: int, where: DuplexRuntime, **how: Any) -> None:
        super().__init__(slot, where=where, records=True, **{"force_listen_count": 1, **how})

    def some(self, ticks: int) -> None:
        """Tick so often, or until there is nothing to do."""
        while ticks and self.tick.has_work([self.session]):
            self.tick.run([self.session])
            ticks -= 1

    def begin(self, content: UnitInput, *, force_listen: bool = False) -> None:
        self.sent += 1
        prepared = self.session.preprocessor.prepare(content)
        self.session.queue.prefill(QueuedUnit(self.sent, prepared, time.monotonic()))
        self.decide(force_listen=force_listen)

    def say(self, content: UnitInput, *, force_listen: bool = False) -> Done:
        """A whole unit."""
        self.begin(content, force_listen=force_listen)
        self.work()
        return self.done

    @property
    def done(self) -> Done:
        return [event for event in self.told if isinstance(event, Done)][-1]

    def sounds(self, unit: int) -> Sound:
        said = [event for event in self.told if isinstance(event, Piece) and event.unit == unit]
        audio = [piece.audio for piece in said if piece.audio is not None]
        return np.concatenate([np.zeros(0, np.float32), *audio])


@pytest.fixture
def talk(talker: Any) -> Any:
    return lambda where, **how: talker(Talk, where=where, **how)


def replayed(talk: Talk, contents: list[UnitInput], records: list[UnitRecord | None]) -> Talk:
    for content, record in zip(contents, records, strict=True):
        assert record is not None
        done = talk.say(replace(content, recorded=record))
        assert (done.end, done.failure, done.replayed) == (record.end, None, True)
        assert done.usage.output_text_tokens == done.usage.output_audio_tokens == 0
        assert done.record == record
    assert not [event for event in talk.told if isinstance(event, Piece)]
    return talk


def agree(one: Talk, other: Talk, units: int = 4) -> None:
    """Check that both say the same from now on, and are in the same state behind it."""
    for seed in range(50, 50 + units):
        content = UnitInput(sound(seed))
        done, also = one.say(content), other.say(content)
        assert (done.end, done.record) == (also.end, also.record)
        assert one.said(one.sent) == other.said(other.sent)
        assert np.allclose(one.sounds(one.sent), other.sounds(other.sent), atol=TOLERANCE)
    assert one.session.context.tokens == other.session.context.tokens
    assert torch.allclose(one.after(), other.after(), atol=TOLERANCE)


SPEAKING = {"listen_prob_scale": 0.0, "temperature": 0.9}
"""Settings of a model that speaks whenever it may, and draws."""


def moved(
    talk: Any,
    where: DuplexRuntime,
    contents: list[UnitInput],
    *,
    listens: int | None = None,
    cancelled_after: int | None = None,
    window: Window | None = None,
    units: int = 4,
) -> tuple[Talk, Talk]:
    """Return a conversation and one that replays its records, which go on alike for so many `units`.

    The unit at `listens` is not answered, and the last one is cancelled after so many ticks.
    """
    original, records = talk(where, window=window, **SPEAKING), list[UnitRecord | None]()
    for number, content in enumerate(contents):
        original.begin(content, force_listen=number == listens)
        if cancelled_after is not None and number == len(contents) - 1:
            original.some(cancelled_after)
            original.session.queue.cancel(original.sent)
        original.work()
        records.append(original.done.record)
    assert {record.end for record in records if record} & {End.CHUNK, End.TURN}, "nothing was said"
    other = replayed(talk(where, window=window, **SPEAKING), contents, records)
    agree(original, other, units)
    return original, other


def seconds(count: int, *, seen: Sequence[int] = ()) -> list[UnitInput]:
    """Return so many units of sound, those of the numbers `seen` with a picture."""
    frames = (jpeg("red", "circle", (64, 48)),)
    return [UnitInput(sound(n), frames if n in seen else ()) for n in range(1, count + 1)]


@pytest.mark.parametrize("make", [runtime, shipped], ids=["tiny", "shipped"])
@pytest.mark.sample("shipped")
def test_replay_of_all_units_is_the_session_that_was_not_moved(talk: Any, make: Any) -> None:
    moved(talk, make(), seconds(8), listens=4)


@pytest.fixture(scope="module")
def minicpmo(tmp_path_factory: pytest.TempPathFactory) -> DuplexRuntime:
    """MiniCPM-o with random weights and its vocoder."""
    folder = whole.write(tmp_path_factory.mktemp("models") / "MiniCPM-o-tiny")
    runtime = table.load(folder, torch.device("cpu"), 2048)(4)
    assert isinstance(runtime, DuplexRuntime)
    return runtime


@long
def test_replay_of_minicpmo_with_pictures_agrees(talk: Any, minicpmo: DuplexRuntime) -> None:
    moved(talk, minicpmo, seconds(5, seen=[2]), listens=3, units=2)


@pytest.mark.parametrize("ticks", [2, 5, 12])
@pytest.mark.sample("5")
def test_replay_of_minicpmo_with_a_cancel_agrees(talk: Any, minicpmo: DuplexRuntime, ticks: int) -> None:
    original, _ = moved(talk, minicpmo, seconds(3), cancelled_after=ticks, units=2)
    ends = [event.end for event in original.told if isinstance(event, Done)]
    assert ends[2] is End.CANCELLED


@long
def test_replay_of_minicpmo_with_a_slid_context_window_agrees(talk: Any, minicpmo: DuplexRuntime) -> None:
    window = Window(WindowMode.CONTEXT, 600, 560, max_units=3, remembered_tokens=20)
    original, other = moved(talk, minicpmo, seconds(7), window=window, units=2)
    assert sum(event.dropped_units for event in original.told if isinstance(event, Finalized))
    remembered, again = original.session.context.memory, other.session.context.memory
    assert remembered is not None
    assert again is not None
    assert list(remembered.ids) == list(again.ids) != []


@pytest.mark.long
def test_replay_with_pictures_and_a_slid_window_agrees(talk: Any) -> None:
    window = Window(WindowMode.BASIC, 400, 300)
    original, _ = moved(talk, runtime(), seconds(29, seen=range(4, 30, 4)), window=window)
    assert sum(event.dropped_units for event in original.told if isinstance(event, Finalized))


@pytest.mark.parametrize("ticks", [1, 3, 6, 12, 20])
@pytest.mark.sample("12")
def test_replay_of_a_cancelled_unit_agrees(talk: Any, ticks: int) -> None:
    moved(talk, runtime(), seconds(4), cancelled_after=ticks)


def test_replay_begins_after_a_turn_and_goes_on_with_later_random_numbers(talk: Any) -> None:
    where = runtime()
    original = talk(where, **SPEAKING)
    for content in seconds(3):
        original.say(content)
    original.say(UnitInput(sound(4)), force_listen=True)
    contents = seconds(3)
    records = [original.say(content).record for content in contents]
    one, other = (replayed(talk(where, **SPEAKING), contents, records) for _ in "ab")
    assert one.session.sampler.noise.drawn == original.session.sampler.noise.drawn
    assert one.session.speech.noise.drawn == original.session.speech.noise.drawn
    agree(one, other)


BAD = [
    UnitRecord(End.CHUNK),
    UnitRecord(End.TURN),
    UnitRecord(End.LISTEN, codes=(1, 2)),
    UnitRecord(End.LISTEN, (70, 71)),
    UnitRecord(End.CHUNK, (70,) * 3),
]


@pytest.mark.parametrize("record", BAD)
@pytest.mark.sample("record2")
def test_contradictory_record_fails_its_unit_and_leaves_no_trace(talk: Any, record: UnitRecord) -> None:
    original, other = talk(runtime(), **SPEAKING), talk(runtime(), **SPEAKING)
    for content in seconds(3):
        original.say(content), other.say(content)
    done = other.say(replace(UnitInput(sound(9)), recorded=record))
    assert done.end is End.FAILED
    assert done.failure is not None
    assert (done.failure.reason, done.failure.field) == (Reason.PARAMS_INVALID, "recorded")
    # The mel frames of the next second begin with the end of this one, which came although it failed.
    original.session.preprocessor.prepare(UnitInput(sound(9)))
    original.sent += 1
    agree(original, other, units=1)


def test_replay_has_no_deadline_that_could_delay_others(talk: Any) -> None:
    one = talk(runtime())
    one.begin(replace(UnitInput(sound(1)), recorded=UnitRecord(End.LISTEN)))
    assert one.session.due is None
