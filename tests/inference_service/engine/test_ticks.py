"""Tests of the engine thread's reports on its ticks and on its load."""

import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.interface.engine import (
    NAMED_TICKS,
    Done,
    Event,
    Finalized,
    Piece,
    Prefilled,
    Ready,
    Ticked,
)
from inference_service.interface.setups import UnitInput, UnitOverrides
from inference_service.session.base import session as session_module
from inference_service.session.base.session import PROGRESS_S, Session
from tests.inference_service.engine.test_engine import Client, Rig, sound


class Watched(Rig):
    """A rig whose ticks and events are kept in the order in which they were told."""

    def __init__(self) -> None:
        self.told: list[Ticked | Event] = []
        self.batches: list[list[Event]] = []
        """Events that were told at once."""
        super().__init__()
        self.engine.watch(lambda ticks: None)

    def _deliver(self, batch: list[tuple[Any, Any]]) -> None:  # type: ignore[override]
        together = [it for _, told in batch for it in told]
        self.batches.append([it for it in together if not isinstance(it, Ticked)])
        self.told += together
        super()._deliver(batch)

    @property
    def ticks(self) -> list[Ticked]:
        return [tick for tick in self.told if isinstance(tick, Ticked)]


@pytest.fixture
def watched() -> Iterator[Watched]:
    made = Watched()
    yield made
    made.engine.stop()


def talk(clients: Sequence[Client], units: int) -> None:
    """Each client has so many units run, all at once."""
    for client in clients:
        client.until(Ready)
    for number in range(1, units + 1):
        for client in clients:
            client.unit(number)
        for client in clients:
            client.until(Finalized)


def test_ticks_are_numbered_ordered_and_reported_before_their_events(
    watched: Watched,
) -> None:
    talk([watched.open()], units=4)
    assert [type(told) for told in watched.told[:4]] == [Ticked, Ready, Ticked, Prefilled]
    ticks = watched.ticks
    assert [tick.number for tick in ticks] == list(range(1, len(ticks) + 1))
    times = [moment for tick in ticks for moment in (tick.started, tick.ended)]
    assert times == sorted(times)


def test_a_tick_counts_sessions_and_rows(watched: Watched) -> None:
    talk([watched.open(), watched.open(seed=2)], units=6)
    assert {tick.sessions for tick in watched.ticks} == {1, 2}
    occupancy = watched.engine.occupancy()
    pending = 2 * 2  # what closes the last unit of each waits for the next forward
    assert sum(tick.tokens for tick in watched.ticks) == occupancy.kv_tokens - pending


def ordered_while_heard(client: Client, force_listen: bool = False) -> None:
    """Run a unit whose orders come while it is heard."""
    think = DuplexRuntime.think
    client.until(Ready)

    def overtaken(runtime: DuplexRuntime, *given: Any) -> Any:
        patch.undo()
        client.session.generate(1, force_listen, UnitOverrides())
        client.session.finalize(1)
        return think(runtime, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DuplexRuntime, "think", overtaken)
        client.session.prefill(1, UnitInput(sound(1)))
        client.until(Finalized)


def test_orders_that_come_while_a_unit_is_heard_are_followed_in_its_tick(watched: Watched) -> None:
    ordered_while_heard(watched.open(), force_listen=True)
    assert [type(event) for event in watched.batches[-1]] == [Prefilled, Done, Finalized]


def test_text_event_precedes_speech_synthesis(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    speak, is_told = DuplexRuntime.speak, []

    def spoken(runtime: DuplexRuntime, sessions: Sequence[Session[Any]]) -> None:
        is_told.append(any(isinstance(event, Piece) for event in watched.told))
        speak(runtime, sessions)

    monkeypatch.setattr(DuplexRuntime, "speak", spoken)
    talk([watched.open(force_listen_count=0)], units=1)
    assert is_told
    assert all(is_told)


@pytest.mark.parametrize(("at_most", "together"), [(float("inf"), [Prefilled, Piece]), (0.0, [Prefilled])])
def test_prefilled_event_is_sent_with_text_or_after_short_delay(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, at_most: float, together: list[type[Event]]
) -> None:
    """A caller that awaits text is woken once for both events; slow text delays no prefilled event."""
    monkeypatch.setattr(session_module, "HELD_BACK_S", at_most)
    ordered_while_heard(watched.open(force_listen_count=0))
    [batch] = [batch for batch in watched.batches if any(isinstance(event, Prefilled) for event in batch)]
    assert [type(event) for event in batch] == together


def test_prefilled_event_without_generate_order_is_sent_at_once(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_module, "HELD_BACK_S", float("inf"))
    client = watched.open(force_listen_count=0)
    client.until(Ready)
    client.session.prefill(1, UnitInput(sound(1)))
    client.until(Prefilled)


def test_no_progress_event_right_after_another_event(watched: Watched) -> None:
    talk([watched.open()], units=1)
    [session] = watched.engine._sessions.values()
    session.take_events(now := time.monotonic())
    assert not session.may_tell(now + PROGRESS_S / 2)
    assert session.may_tell(now + PROGRESS_S)


def test_every_nth_tick_names_its_sessions(watched: Watched) -> None:
    client, unit = watched.open(), 0
    client.until(Ready)
    while not watched.ticks or watched.ticks[-1].number < NAMED_TICKS:
        unit += 1
        client.unit(unit)
        client.until(Finalized)
    named = [tick for tick in watched.ticks if tick.members]
    assert [tick.number for tick in named] == [NAMED_TICKS]
    [(session, in_unit)] = named[0].members
    assert session == "session"
    assert 1 <= in_unit <= unit


def test_a_session_that_is_over_leaves_nothing_behind(watched: Watched) -> None:
    client = watched.open()
    talk([client], units=1)
    full = watched.engine.occupancy()
    client.close()
    empty = watched.engine.occupancy()
    assert 0 == empty.kv_tokens < full.kv_tokens < full.kv_capacity_tokens == empty.kv_capacity_tokens
    assert (full.device_memory_bytes or 0) > 2**20
