"""Sounds that are under way while the engine goes on."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from inference_service.device.side_stream import Arrival, SideStream
from inference_service.engine.tick import Tick
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.interface.engine import Done, End, Piece
from inference_service.models.token2wav.stream import StreamCodes
from inference_service.session.base.session import Session
from inference_service.session.kinds.components import VOICES_AT_ONCE, SpeechCodes
from tests.inference_service.device.meter import Meter
from tests.inference_service.device.test_copies import crowd
from tests.inference_service.engine.support.guests import Guest
from tests.inference_service.models.token2wav import recorded
from tests.inference_service.models.token2wav.test_streams import codes_of


class Slow(Arrival):
    """Not here before somebody waits for it."""

    @property
    def is_here(self) -> bool:
        return False


def speaking(*, slowly: bool) -> tuple[DuplexRuntime, list[Guest]]:
    """Three conversations at the beginning of a unit."""
    runtime, guests = crowd(3)
    assert runtime.components.speech is not None
    mouth = runtime.components.speech.mouth
    say = mouth.say

    def said(chunks: list[SpeechCodes]) -> list[Arrival]:
        return [Slow(it.take()) for it in say(chunks)]

    if slowly:
        mouth.say = said  # type: ignore[method-assign]
    for guest in guests:
        guest.send()
    return runtime, guests


def run(runtime: DuplexRuntime, guests: list[Guest]) -> int:
    """Ticks until nobody has anything to do; how many they were."""
    sessions = [guest.session for guest in guests if guest.session]
    tick, count = Tick(runtime), 0
    while tick.has_work(sessions):
        tick.run(sessions)
        count += 1
    for guest in guests:
        guest.listen()
    return count


def sounds(guest: Guest) -> list[np.ndarray]:
    return [event.audio for event in guest.told if isinstance(event, Piece) and event.audio is not None]


def test_a_sound_that_is_under_way_is_waited_for_in_the_next_tick() -> None:
    at_once, later = speaking(slowly=False), speaking(slowly=True)
    ticks = run(*at_once)
    assert ticks < run(*later) <= ticks + 3, "each sound may take a tick more"
    for one, other in zip(at_once[1], later[1], strict=True):
        assert len(sounds(one)) == len(sounds(other))
        assert all(np.array_equal(a, b) for a, b in zip(sounds(one), sounds(other), strict=True))
    assert any(sounds(guest) for guest in later[1])


def test_crowd_that_ends_its_units_together_is_vocoded_one_group_a_tick() -> None:
    runtime, guests = crowd(2 * VOICES_AT_ONCE + 3, alike=True)
    alone_runtime, (alone,) = crowd(1, alike=True)
    assert runtime.components.speech is not None
    mouth, begun = runtime.components.speech.mouth, list[int]()
    say, speak = mouth.say, runtime.speak

    def said(chunks: list[SpeechCodes]) -> list[Arrival]:
        begun[-1] += len(chunks)
        return say(chunks)

    def spoken(sessions: Sequence[Session[Any]]) -> None:
        begun.append(0)
        speak(sessions)

    mouth.say = said  # type: ignore[method-assign]
    runtime.speak = spoken  # type: ignore[method-assign]
    for guest in [*guests, alone]:
        guest.send()
    run(runtime, guests)
    run(alone_runtime, [alone])

    assert max(begun) == VOICES_AT_ONCE
    assert sounds(alone)
    for guest in guests:
        assert all(np.array_equal(a, b) for a, b in zip(sounds(guest), sounds(alone), strict=True))


def test_unit_cancelled_during_synthesis_leaves_other_audio_unchanged() -> None:
    plain, (runtime, guests) = speaking(slowly=False), speaking(slowly=True)
    run(*plain)
    sessions = [guest.session for guest in guests if guest.session]
    tick = Tick(runtime)

    def awaited(session: object) -> bool:
        job = session.speech_job() if session.stage.name == "SPEAK" else None  # type: ignore[attr-defined]
        return job is not None and job.sound is not None

    while not any(map(awaited, sessions)):
        tick.run(sessions)
    cancelled = next(session for session in sessions if awaited(session))
    cancelled.queue.cancel(cancelled.queue.first.number)
    run(runtime, guests)

    for session, one, other in zip(sessions, plain[1], guests, strict=True):
        if session is cancelled:
            assert not sounds(other)
            assert [it.end for it in other.told if isinstance(it, Done)] == [End.CANCELLED]
        else:
            assert all(np.array_equal(a, b) for a, b in zip(sounds(one), sounds(other), strict=True))


@pytest.mark.parametrize("is_causal", [False, True], ids=["hift", "causal"])
def test_nothing_in_token2wav_waits_for_the_device(is_causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = recorded.model(is_causal=is_causal, reference_quirks=False)
    voice = model.hear(recorded.prompt("b"))
    states = [model.initial_state(voice) for _ in range(3)]
    draw = random.Random(1)
    model.step([StreamCodes(states[0], codes_of(draw))])
    with Meter(monkeypatch) as meter:
        for ends in (False, True):
            model.step([StreamCodes(state, codes_of(draw), ends_turn=ends) for state in states])
    assert meter.others == {}
    assert meter.downloads == 0
    assert meter.uploads > 0


def test_on_the_cpu_a_side_stream_is_a_plain_call() -> None:
    side, made = SideStream(torch.device("cpu")), torch.arange(3)
    calls: list[Tensor] = []
    (arrival,) = side.send(lambda: calls.append(made) or [made])
    assert len(calls) == 1
    assert arrival.is_here
    assert arrival.take() is made
