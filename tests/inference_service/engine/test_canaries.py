"""A session's tokens are its own: no draw of a neighbour, and nothing that is left of one, moves them."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from inference_service.engine.tick import Tick
from inference_service.interface.engine import SessionFailed
from inference_service.interface.setups import (
    DuplexSetup,
    Sampling,
    StreamInput,
    TokensSetup,
    UnitInput,
    UnitOverrides,
)
from inference_service.session.base.session import Stage
from tests.inference_service.engine.support.guests import Guest
from tests.inference_service.engine.test_crowd import runtime
from tests.inference_service.engine.test_shares import sound

HOT = Sampling(max_new_tokens=12, temperature=1.3, top_p=0.95, repetition_penalty=1.2)
UNITS = 3


def writing(seed: int = 1, sampling: Sampling = HOT, *overrides: UnitOverrides) -> Guest:
    """A token stream."""
    asked = [*overrides, *[UnitOverrides()] * (UNITS - len(overrides))]
    return Guest(
        TokensSetup(sampling, seed),
        [(StreamInput((7 + n, 20 + n, 9)), its_own) for n, its_own in enumerate(asked)],
    )


def talking(seed: int = 1, overrides: UnitOverrides | None = None) -> Guest:
    """A conversation that is spoken aloud."""
    duplex = replace(runtime().info.duplex_defaults, force_listen_count=0, temperature=1.3)
    setup = DuplexSetup("Be brief.", duplex, runtime().info.window, seed, sees=True)
    return Guest(setup, [(UnitInput(sound(n)), overrides or UnitOverrides()) for n in range(UNITS)])


def play(guests: Sequence[Guest], slots: Sequence[int]) -> None:
    """All their units, beside each other; whoever has failed is left, and every slot is clean afterwards."""
    for guest, slot in zip(guests, slots, strict=True):
        guest.enter(runtime(), slot)
    going_on(guests)
    for slot in slots:
        runtime().clear(slot)


def going_on(guests: Sequence[Guest]) -> None:
    tick, present = Tick(runtime()), list(guests)
    while present:
        for guest in present:
            while guest.has_more:
                guest.send()
        tick.run([guest.session for guest in present if guest.session])
        for guest in list(present):
            guest.listen()
            if guest.is_over or (guest.session and guest.session.stage is Stage.FAILED):
                present.remove(guest)


NEIGHBOURS = {
    "another seed": lambda: [writing(99), talking(98)],
    "the same seed": lambda: [writing(1), talking(1)],
    "every id penalised": lambda: [
        writing(3, replace(HOT, repetition_penalty=9.0, length_penalty=0.1)),
        talking(4, UnitOverrides(repetition_penalty=5.0, length_penalty=3.0)),
    ],
    "greedy": lambda: [writing(3, Sampling(temperature=0.0)), talking(4, UnitOverrides(temperature=0.0))],
    "seeds of their units": lambda: [
        writing(3, HOT, UnitOverrides(seed=1), UnitOverrides(seed=1, top_k=1)),
        talking(4, UnitOverrides(seed=1, top_k=500, top_p=1.0, temperature=2.0)),
    ],
}


@cache
def alone() -> list[list[object]]:
    """Return the summaries of canaries that run alone."""
    canaries = [writing(), talking()]
    for canary in canaries:
        play([canary], [1])
    assert any(canary.sound.any() for canary in canaries)
    return [canary.summary() for canary in canaries]


@pytest.mark.parametrize("neighbours", NEIGHBOURS)
def test_nothing_that_a_neighbour_asks_moves_a_token(neighbours: str) -> None:
    canaries = [writing(), talking()]
    one, other = NEIGHBOURS[neighbours]()
    play([one, *canaries, other], [0, 1, 2, 3])
    assert [canary.summary() for canary in canaries] == alone()


def crash(guest: Guest, step: str, after: int) -> None:
    """A step of this session fails, the `after`th time."""
    session: Any = guest.session
    real, left = getattr(session, step), [after]

    def failing(*given: Any) -> Any:
        left[0] -= 1
        if not left[0]:
            raise ValueError("canary-4711")
        return real(*given)

    setattr(session, step, failing)


@pytest.mark.parametrize("step", ["draw", "decide", "spoken"])
@pytest.mark.sample("decide")
def test_crash_leaves_no_state_for_neighbours_or_later_sessions(step: str) -> None:
    canaries, victims = [writing(), talking()], [talking(98), *([] if step == "spoken" else [writing(99)])]
    guests = [victims[0], *canaries, *victims[1:]]
    for slot, guest in enumerate(guests):
        guest.enter(runtime(), slot)
    for victim in victims:
        crash(victim, step, 2)
    going_on(guests)
    for slot in range(len(guests)):
        runtime().clear(slot)
    assert all(any(isinstance(event, SessionFailed) for event in victim.told) for victim in victims)
    assert [canary.summary() for canary in canaries] == alone()

    heirs = [writing(), talking()]
    play(heirs, [3, 0])
    assert [heir.summary() for heir in heirs] == alone()


def test_a_pass_that_fails_and_is_made_again_in_parts_moves_no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    where, choose, failures = runtime(), runtime().choose, []

    def failing(hidden: Any, draws: Any) -> Any:
        tokens = choose(hidden, draws)
        if len(draws) > 1:
            failures.append(len(draws))
            raise MemoryError
        return tokens

    monkeypatch.setattr(where, "choose", failing)
    canaries = [writing(), talking()]
    play([writing(99), *canaries, talking(98)], [0, 1, 2, 3])

    assert max(failures) >= 3, "else nobody had company"
    assert [canary.summary() for canary in canaries] == alone()
