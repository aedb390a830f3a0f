"""Faults in the steps of a tick: who is to blame is found, and everybody else goes on as if nothing were."""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from inference_service.engine.guard import DeviceLost, Guard, blame
from inference_service.families import antiphon_mini
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.families.warmup import warm_up
from inference_service.interface.engine import Closed, Done, Event, Finalized, SessionFailed
from inference_service.interface.setups import (
    DuplexSetup,
    Sampling,
    StreamInput,
    TokensSetup,
    TranscribeSetup,
    UnitInput,
    UnitOverrides,
    Window,
    WindowMode,
)
from inference_service.observability.watchdog import Watchdog
from tests.inference_service.engine.support import tiny
from tests.inference_service.engine.test_engine import Client, sound, speech_of
from tests.inference_service.engine.test_engine import Rig as EngineRig
from tests.support import faults
from tests.support.patience import PATIENCE_S


class Member:
    """A session as far as a guard knows it."""

    def __init__(self, slot: int) -> None:
        self.id, self.slot, self.failure, self.steps = f"s{slot}", slot, None, 0

    def fail(self, failure: Any) -> None:
        assert self.failure is None
        self.failure = failure


def members(count: int) -> list[Any]:
    return [Member(slot) for slot in range(count)]


def failed(sessions: Sequence[Any]) -> list[int]:
    return [session.slot for session in sessions if session.failure is not None]


def sound_device(slot: int) -> None:
    """The device can compute."""


@pytest.mark.parametrize("count", [1, 2, 3, 8, 17])
@pytest.mark.parametrize("bad", [(0,), (-1,), (0, -1), ()])
def test_sessions_at_fault_for_failed_joint_step_are_found(count: int, bad: tuple[int, ...]) -> None:
    sessions = members(count)
    culprits = {sessions[i].slot for i in bad}

    def step(group: list[Any]) -> list[int]:
        if culprits & {session.slot for session in group}:
            raise ValueError("one of you")
        return [session.slot * 10 for session in group]

    given = Guard(sound_device).together(sessions, step)

    assert failed(sessions) == sorted(culprits)
    assert [(session.slot, result) for session, result in given] == [
        (slot, slot * 10) for slot in range(count) if slot not in culprits
    ]


def test_blamed_session_fails_at_once_and_no_session_repeats_step() -> None:
    sessions, runs = members(6), []

    def step(group: list[Any]) -> None:
        runs.append(len(group))
        for session in group:
            with blame(session):
                if session.slot == 3:
                    raise ValueError("it is me")
                session.steps += 1

    Guard(sound_device).run(sessions, step, lambda session: session.steps == 0)

    assert failed(sessions) == [3]
    assert [session.steps for session in sessions] == [1, 1, 1, 0, 1, 1]
    assert runs == [6, 2]


def test_step_failure_of_all_sessions_is_device_loss_if_probe_fails() -> None:
    sessions = members(3)

    def step(group: list[Any]) -> None:
        raise ValueError("nothing works")

    def broken(slot: int) -> None:
        raise RuntimeError("nothing at all")

    with pytest.raises(DeviceLost, match="ValueError: nothing works"):
        Guard(broken).run(sessions, step)
    assert failed(sessions) == []
    Guard(sound_device).run(sessions, step)
    assert failed(sessions) == [0, 1, 2]


@pytest.mark.parametrize(
    "error",
    [
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
        RuntimeError("CUDA error: device-side assert triggered"),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
    ],
)
def test_device_error_fails_no_session(error: Exception) -> None:
    def step(*_: Any) -> None:
        raise error

    def blaming(group: list[Any]) -> None:
        with blame(group[0]):
            raise error

    sessions, guard = members(2), Guard(sound_device)
    for attempt in (
        lambda: guard.run(sessions, step),
        lambda: guard.run(sessions, blaming),
        lambda: guard.attempt(sessions[0], step),
    ):
        with pytest.raises(DeviceLost, match=str(error)):
            attempt()
    assert failed(sessions) == []


def exhausted_device() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 9.00 GiB.")


@pytest.mark.parametrize(
    "allocate",
    [lambda: torch.empty(2**50), lambda: bytearray(2**60), exhausted_device],
    ids=["host", "interpreter", "device"],
)
def test_session_with_excessive_allocation_fails_alone(allocate: Callable[[], object]) -> None:
    sessions = members(5)

    def step(group: list[Any]) -> None:
        if any(session.slot == 2 for session in group):
            allocate()

    Guard(sound_device).run(sessions, step)

    assert failed(sessions) == [2]
    assert sessions[2].failure.reason == "KV_EXHAUSTED"


def test_joint_step_out_of_memory_is_split_into_parts() -> None:
    sessions = members(8)

    def step(group: list[Any]) -> list[int]:
        if len(group) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory.")
        return [session.slot for session in group]

    assert len(Guard(sound_device).together(sessions, step)) == 8
    assert failed(sessions) == []


class Rig(EngineRig):
    """A running engine with a tiny model, in which sessions that are called so meet faults."""

    def __init__(self) -> None:
        runtime = DuplexRuntime(antiphon_mini.components(*tiny.model()), 4)
        faults.break_in(runtime)
        assert runtime.speaker is not None
        runtime.speaker.at_once = 5  # as on a GPU: more to take back
        super().__init__(4, runtime)

    def hold(self) -> None:
        """Nothing gets on until it is let go."""
        gate = self._gate = threading.Event()
        self.engine.inbox.put(lambda: _pass(gate))

    def let_go(self, orders: int) -> None:
        """As soon as so many orders have come."""
        while self.engine.inbox._orders.qsize() < orders:
            time.sleep(0.001)
        self._gate.set()

    def talker(self, seed: int, name: str = "session") -> Client:
        """A full-duplex session that speaks in every unit, with a window that slides and remembers."""
        settings = replace(self.engine.info.duplex_defaults, force_listen_count=0)
        window = Window(WindowMode.CONTEXT, 120, 100, remembered_tokens=10)
        return self.slots.open(DuplexSetup("Be brief.", settings, window, seed), name)


def _pass(gate: threading.Event) -> None:
    assert gate.wait(PATIENCE_S)


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with torch.inference_mode():
        made = Rig()
    yield made
    assert made.fatal.empty()
    made.engine.stop()


UNITS = 5
IDS = [tuple(range(5, 5 + n)) for n in (30, 3, 1, 20, 6)]
SOUNDS = [sound(7, n) for n in (16_000, 5_000, 40_000, 100, 0)]
TOKENS = TokensSetup(Sampling(max_new_tokens=9), seed=4)
TRANSCRIBE = TranscribeSetup(Sampling(temperature=1.0, max_new_tokens=24), seed=4)


def talk(rig: Rig, name: str = "session", seed: int = 1) -> tuple[Client, list[Any]]:
    return rig.talker(seed, name), [UnitInput(sound(unit)) for unit in range(UNITS)]


def write(rig: Rig, name: str = "session") -> tuple[Client, list[Any]]:
    return rig.slots.open(TOKENS, name), [StreamInput(ids) for ids in IDS]


def take_down(rig: Rig, name: str = "session") -> tuple[Client, list[Any]]:
    return rig.slots.open(TRANSCRIBE, name), [StreamInput(pcm, ends=not len(pcm)) for pcm in SOUNDS]


KINDS: dict[str, Callable[[Rig, str], tuple[Client, list[Any]]]] = {
    "talk": talk,
    "tokens": write,
    "transcribe": take_down,
}
STREAMED = ("hear", "hostmemory", "think", "memory", "unit", "draw", "choose", "decide")
"""Faults that streams meet in the tests; a talker meets all that it can."""
PATIENCE_OF = {
    "hostmemory": 2, "think": 20, "memory": 22, "choose": 4,
    "speech": 1, "mouth": 2, "settle": 1,
}  # fmt: skip
"""Steps in company before the fault: so that it comes in the middle of what others do."""


def together(rig: Rig, plays: list[tuple[Client, list[Any]]]) -> list[list[Event]]:
    """Has all units of all sessions run, from the same tick on; what each is told."""
    for client, contents in plays:
        for unit, content in enumerate(contents, 1):
            client.send(unit, content)
    rig.let_go(sum(1 + 3 * len(contents) for _, contents in plays))
    told = []
    for client, _ in plays:
        events = client.until(Finalized, UNITS, or_kind=SessionFailed)
        client.close()
        told.append(events)
    return told


@pytest.fixture(scope="module")
def alone(rig: Rig) -> list[list[object]]:
    """Return the speech of each neighbour running alone; the talker's window slides."""
    said = []
    for play in KINDS.values():
        rig.hold()
        (events,) = together(rig, [play(rig, "session")])
        said.append(speech_of(events))
        dropped = [event.dropped_units for event in events if isinstance(event, Finalized)]
        assert any(dropped) or play is not talk
    return said


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        (kind, fault)
        for kind in KINDS
        for fault in sorted(faults.FAULTS)
        if fault not in ("open", "read", *faults.ENDINGS) and (kind == "talk" or fault in STREAMED)
    ],
)
@pytest.mark.sample("talk-begin", "talk-hear", "tokens-draw", "transcribe-decide")
def test_neighbours_of_failing_session_answer_as_when_alone(
    rig: Rig, alone: list[list[object]], kind: str, fault: str
) -> None:
    rig.hold()
    name = f"attack-{fault}-{PATIENCE_OF.get(fault, 0)}"
    plays = [KINDS[kind](rig, name), *(play(rig, "session") for play in KINDS.values())]
    failed, *others = together(rig, plays)
    failure = failed[-1]
    assert isinstance(failure, SessionFailed)
    assert failure.reason == ("KV_EXHAUSTED" if "memory" in fault else "INFERENCE_FAILED")
    assert [speech_of(events) for events in others] == alone


def test_a_model_that_fails_in_its_warm_up_is_not_served() -> None:
    runtime = DuplexRuntime(antiphon_mini.components(*tiny.model()), 1)

    def fail(sessions: Any) -> None:
        raise ValueError("it cannot hear")

    runtime.hear = fail  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="warm-up"):
        warm_up(runtime)


def test_a_session_that_cannot_be_opened_loses_no_slot(rig: Rig) -> None:
    for _ in range(10):
        with pytest.raises(ValueError, match="canary"):
            rig.engine.open("attack-open-0", 2, TOKENS, lambda event: None)
    client = rig.slots.open(TOKENS)
    client.session.prefill(1, StreamInput((1, 2)))
    client.session.generate(1, False, UnitOverrides())
    assert any(isinstance(event, Done) for event in client.until(Done))
    client.close()


def test_slot_with_failed_clear_stops_engine() -> None:
    rig = Rig()
    first, second = rig.talker(1), rig.talker(2)
    for client in (first, second):
        client.unit(1)
        client.until(Finalized)

    def stuck(slot: int) -> None:
        raise ValueError("it does not go")

    rig.engine._runtime.clear = stuck  # type: ignore[method-assign]
    first.session.close()

    first.until(Closed)
    failure = second.until(SessionFailed)[-1]
    assert isinstance(failure, SessionFailed)
    assert failure.reason == "ENGINE_FATAL"
    assert "slot" in rig.fatal.get(timeout=PATIENCE_S)
    rig.engine.stop()


def watched(
    until: float, step: Callable[[float], float | None], *later: tuple[float, float | None]
) -> list[bool]:
    """Return a watchdog's checks at each half second and at `later`; `step` gives the step's start."""
    now = SimpleNamespace(time=0.0, busy_since=None)
    watchdog = Watchdog(now, lambda: now.time, 10.0)
    said = []
    for now.time, now.busy_since in [*((i / 2, step(i / 2)) for i in range(1, round(until * 2) + 1)), *later]:
        said.append(watchdog.check())
    return said


def test_a_step_of_more_than_the_limit_hangs_unless_the_process_was_stopped() -> None:
    assert not any(watched(100, lambda time: None)), "it waits"
    assert not any(watched(100, lambda time: time // 8 * 8)), "it gets on"
    assert not any(watched(3, lambda time: 2.0, (60.0, 2.0), (60.5, 2.0), (61.0, 61.0))), "it was frozen"
    said = watched(30, lambda time: 3.0 if time >= 3 else None)
    assert not any(said[: 2 * 13 - 2])
    assert all(said[2 * 13 :])
