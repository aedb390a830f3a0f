"""Tests of work off the engine's thread: however long it takes, it delays no other session."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from inference_service.engine.engine import LiveEngine
from inference_service.families.causal_runtime import CausalRuntime
from inference_service.interface.engine import (
    CallDelta,
    Done,
    End,
    Piece,
    Prefilled,
    SessionFailed,
)
from inference_service.interface.setups import (
    NO_TOOLS,
    ChatMessage,
    ChatSetup,
    Tools,
    TurnInput,
    UnitOverrides,
)
from inference_service.tools.grammar import CallGrammar, Constraint
from tests.inference_service.engine.support import streaming, tiny_caller
from tests.inference_service.engine.support.calling import TIME, WARM, required
from tests.inference_service.engine.support.left import is_clean
from tests.inference_service.engine.test_engine import PATIENCE_S, Client, Rig, Slots


@dataclass
class Gate:
    """A gate that blocks a step until the test opens it."""

    reached: threading.Event = field(default_factory=threading.Event)
    opened: threading.Event = field(default_factory=threading.Event)

    def hold(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """The same step, which waits first."""

        def held(*given: Any) -> Any:
            self.reached.set()
            assert self.opened.wait(PATIENCE_S)
            return step(*given)

        return held


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> CausalRuntime:
    folder: Path = tiny_caller.save(tmp_path_factory.mktemp("beside") / "tiny")
    return CausalRuntime(streaming.load(folder), 1024, 2)


@pytest.fixture
def slots(runtime: CausalRuntime) -> Iterator[Slots]:
    engine = LiveEngine(runtime, 2, Rig._deliver, pytest.fail)
    yield Slots(engine)
    engine.stop()
    for slot in range(2):
        runtime.clear(slot)


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.opened.set()


@pytest.fixture
def held(slots: Slots, gate: Gate, monkeypatch: pytest.MonkeyPatch) -> Client:
    """A session whose grammar is at work until the gate opens."""
    client = chat(slots)
    monkeypatch.setattr(Constraint, "after", gate.hold(Constraint.after))
    ask(client, 1, required(TIME))
    assert gate.reached.wait(PATIENCE_S)
    return client


def chat(slots: Slots, seed: int = 1) -> Client:
    return slots.open(ChatSetup(WARM, seed))


def ask(client: Client, unit: int, tools: Tools = NO_TOOLS) -> None:
    client.send(unit, TurnInput((ChatMessage("user", ("Hi",)),), tools=tools))


def answer(client: Client, unit: int) -> tuple[str, str, End]:
    """Text, arguments and end of a turn."""
    told = client.until(Done, unit)
    pieces = [it for it in told if isinstance(it, Piece)]
    calls = [it.call for it in pieces if isinstance(it.call, CallDelta)]
    assert isinstance(told[-1], Done)
    return "".join(it.text for it in pieces), "".join(it.arguments for it in calls), told[-1].end


def test_a_grammar_that_takes_for_ever_to_compile_holds_up_no_answer(
    slots: Slots, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attack: a schema that blows up when it is compiled, while others are answered."""
    attacker, neighbour = chat(slots), chat(slots, seed=2)
    neighbour.session.prefill(1, TurnInput((ChatMessage("user", ("Hi",)),), tools=required(TIME)))
    neighbour.until(Prefilled, 1)
    monkeypatch.setattr(CallGrammar, "constraint", gate.hold(CallGrammar.constraint))
    ask(attacker, 1, required(TIME))
    assert gate.reached.wait(PATIENCE_S)
    neighbour.session.generate(1, False, UnitOverrides())
    assert answer(neighbour, 1) == ("", "{}", End.TURN)
    gate.opened.set()
    assert answer(attacker, 1) == ("", "{}", End.TURN)


def test_grammar_with_endless_steps_delays_no_other_turn(slots: Slots, gate: Gate, held: Client) -> None:
    """The attack: a schema that blows up token by token."""
    neighbour = chat(slots, seed=2)
    for unit in (1, 2):
        ask(neighbour, unit)
        assert answer(neighbour, unit)[2] is End.TURN
    gate.opened.set()
    assert answer(held, 1) == ("", "{}", End.TURN)


def test_a_session_may_end_while_its_grammar_is_at_work(
    slots: Slots, gate: Gate, held: Client, runtime: CausalRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    held.close()
    assert is_clean(runtime.language.cache)
    gate.opened.set()
    monkeypatch.undo()
    coming = chat(slots)
    ask(coming, 1, required(TIME))
    assert answer(coming, 1) == ("", "{}", End.TURN)


def test_a_cancelled_turn_ends_as_soon_as_its_grammar_has_answered(gate: Gate, held: Client) -> None:
    held.session.cancel(1)
    gate.opened.set()
    assert answer(held, 1)[2] is End.CANCELLED
    ask(held, 2, required(TIME))
    assert answer(held, 2) == ("", "{}", End.TURN)


def test_a_grammar_that_fails_ends_its_session_alone(slots: Slots, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no grammar")

    client, neighbour = chat(slots), chat(slots, seed=2)
    monkeypatch.setattr(Constraint, "after", fail)
    ask(client, 1, required(TIME))

    failed = client.until(SessionFailed)[-1]

    assert isinstance(failed, SessionFailed)
    assert failed.reason == "INFERENCE_FAILED"
    ask(neighbour, 1)
    assert answer(neighbour, 1)[2] is End.TURN
