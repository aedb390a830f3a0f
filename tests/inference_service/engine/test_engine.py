"""The engine's thread with a tiny random model: what its callers see."""

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from numpy.typing import NDArray

from inference_service.engine.engine import LiveEngine
from inference_service.families import antiphon_mini
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.interface.engine import (
    Closed,
    Done,
    End,
    EngineSession,
    Event,
    Finalized,
    Piece,
    Prefilled,
    Progress,
    Ready,
    SessionFailed,
    Sink,
)
from inference_service.interface.setups import (
    Content,
    DuplexSetup,
    Sampling,
    SessionSetup,
    StreamInput,
    Tenant,
    TokensSetup,
    UnitInput,
    UnitOverrides,
    Window,
)
from inference_service.media import pool
from inference_service.media.pool import Priority
from inference_service.session.base import session as session_module
from inference_service.session.base.session import QueuedUnit, Run, UnitQueue
from inference_service.session.kinds.duplex_kind import DuplexPreprocessor
from tests.inference_service.engine.support import tiny
from tests.inference_service.engine.support.left import is_clean
from tests.support.patience import PATIENCE_S


def sound(seed: int, samples: int = 16_000) -> NDArray[np.float32]:
    noise = np.random.default_rng(seed).standard_normal(samples)
    return np.asarray(noise * 0.1, dtype=np.float32)


class Client:
    """One session and everything it was told, in order."""

    def __init__(self, session: EngineSession, told: "queue.Queue[Event]") -> None:
        self.session = session
        self.told = told
        self.events: list[Event] = []

    def until(
        self, kind: type[Event], unit: int | None = None, or_kind: type[Event] | None = None
    ) -> list[Event]:
        """Waits for an event (of a unit) and returns those that came until then, it included."""
        seen: list[Event] = []
        while not (seen and isinstance(seen[-1], kind) and unit in (None, getattr(seen[-1], "unit", None))):
            seen.append(self.told.get(timeout=PATIENCE_S))
            if or_kind is not None and isinstance(seen[-1], or_kind):
                break
        self.events += seen
        return seen

    def unit(self, number: int) -> None:
        """Writes a whole unit of sound ahead."""
        self.send(number, UnitInput(sound(number)))

    def send(self, number: int, content: Content) -> None:
        """Writes a unit of this content ahead, with its orders."""
        self.session.prefill(number, content)
        self.session.generate(number, False, UnitOverrides())
        self.session.finalize(number)

    def close(self) -> list[Event]:
        self.session.close()
        return self.until(Closed)


class Slots:
    """Gives the slots of an engine away, each again once its session is closed."""

    def __init__(self, engine: LiveEngine) -> None:
        self._engine = engine
        self._free = list(range(engine.slots))

    def open(self, setup: SessionSetup, name: str = "session") -> Client:
        told: queue.Queue[Event] = queue.Queue()
        slot = self._free.pop()

        def sink(events: Sequence[Event]) -> None:
            for event in events:
                if isinstance(event, Closed):
                    self._free.append(slot)
                told.put(event)

        return Client(self._engine.open(name, slot, setup, sink), told)


class Rig:
    """A running engine and the sessions opened in it."""

    def __init__(self, slots: int = 2, runtime: DuplexRuntime | None = None) -> None:
        self.fatal: queue.Queue[str] = queue.Queue()
        runtime = runtime or DuplexRuntime(antiphon_mini.components(*tiny.model()), slots)
        self.engine = LiveEngine(runtime, slots, self._deliver, self.fatal.put)
        self.slots = Slots(self.engine)

    @staticmethod
    def _deliver(batch: list[tuple[Sink, Sequence[Event]]]) -> None:
        for sink, event in batch:
            sink(event)

    def open(
        self, *, prompt: str = "Be brief.", seed: int = 1, window: Window | None = None, **duplex: object
    ) -> Client:
        settings = replace(self.engine.info.duplex_defaults, **duplex)  # type: ignore[arg-type]
        return self.slots.open(DuplexSetup(prompt, settings, window or self.engine.info.window, seed))

    def break_device(self) -> None:
        """The next forward fails as a lost device does."""

        def lost(*_: object) -> None:
            raise RuntimeError("device lost")

        self.engine._runtime.think = lost  # type: ignore[method-assign,assignment]
        self.engine._runtime.clear = lost  # type: ignore[method-assign,assignment]


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    yield made
    made.engine.stop()


def speech_of(events: list[Event]) -> list[object]:
    """Return a session's texts, ids and samples, and the ends of its units."""
    said: list[object] = []
    for event in events:
        if isinstance(event, Piece):
            said.append((event.text, event.token_ids, None if event.audio is None else event.audio.tolist()))
        elif isinstance(event, Done):
            said.append((event.unit, event.end))
    return said


def test_session_waiting_in_media_pool_gets_progress_events(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """More voices take long to read than there are threads: the last of them waits for the first."""
    rig = Rig(slots=10)
    hold, begin = threading.Event(), DuplexPreprocessor.begin

    def slow(preprocessor: DuplexPreprocessor) -> None:
        assert hold.wait(timeout=PATIENCE_S)
        begin(preprocessor)

    monkeypatch.setattr(pool, "PROGRESS_S", 0.0)
    monkeypatch.setattr(session_module, "PROGRESS_S", 0.0)
    monkeypatch.setattr(DuplexPreprocessor, "begin", slow)
    monkeypatch.setattr(DuplexPreprocessor, "priority", lambda preprocessor, content: Priority.REST)
    talking = rig.slots.open(TokensSetup(Sampling(max_new_tokens=1), seed=1))
    talking.until(Ready)
    waiting, number = [rig.open() for _ in range(9)], 0
    try:
        while all(client.told.empty() for client in waiting):
            number += 1
            talking.session.prefill(number, StreamInput((1,)))
            talking.until(Prefilled)
            talking.session.generate(number, False, UnitOverrides())
            talking.session.finalize(number)
            talking.until(Finalized)
        told = [client.told.get() for client in waiting if not client.told.empty()]
    finally:
        hold.set()

    assert told[0] == Progress(0)
    assert [type(client.until(Ready)[-1]) for client in waiting] == [Ready] * 9
    rig.engine.stop()


def test_unit_is_answered_in_order_with_text_and_at_most_a_second_of_sound(rig: Rig) -> None:
    client = rig.open(force_listen_count=0)
    client.unit(1)
    events = client.until(Finalized)
    assert [type(event) for event in events] == [Ready, Prefilled, Piece, Piece, Done, Finalized]
    ready, _, text, spoken, *_ = events
    assert ready.prompt_tokens > 3
    assert text.text
    assert text.token_ids
    assert spoken.audio.dtype == np.float32
    assert 0 < len(spoken.audio) <= 24_000
    assert float(np.abs(spoken.audio).max()) <= 1


def test_units_sent_ahead_with_number_gaps_are_done_in_order(rig: Rig) -> None:
    client = rig.open()
    client.unit(1)
    client.unit(4)
    events = client.until(Finalized, 4)
    units = [getattr(event, "unit", 0) for event in events]
    assert units == sorted(units)
    assert [event.unit for event in events if isinstance(event, Done)] == [1, 4]


def test_phases_wait_for_their_orders(rig: Rig) -> None:
    client = rig.open()
    client.session.prefill(1, UnitInput(sound(1)))
    client.until(Prefilled)
    client.session.generate(1, True, UnitOverrides())
    (done,) = client.until(Done)
    client.session.finalize(1)
    assert isinstance(done, Done)
    assert done.end is End.LISTEN
    assert [type(event) for event in client.until(Finalized)] == [Finalized]


def test_short_audio_is_padded_with_silence(rig: Rig) -> None:
    pcm, said = sound(5, 4_000), []
    for audio in (pcm, np.pad(pcm, (0, 12_000))):  # one by one: in one batch sound may round otherwise
        client = rig.open(force_listen_count=0)
        client.session.prefill(1, UnitInput(audio))
        client.session.generate(1, False, UnitOverrides())
        said.append(speech_of(client.until(Done)))
    assert said[0] == said[1]


def test_timings_are_of_this_unit_and_add_up(rig: Rig) -> None:
    client = rig.open(force_listen_count=0)
    client.unit(1)
    spent = next(event for event in client.until(Done) if isinstance(event, Done)).timings
    parts = (spent.queue, spent.prefill, spent.decode, spent.speech, spent.vocoder)
    assert min(parts) > 0
    assert sum(parts) <= spent.total < PATIENCE_S


def test_wait_for_previous_unit_counts_only_towards_total_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(session_module, "time", SimpleNamespace(monotonic=lambda: now))
    units: UnitQueue[None] = UnitQueue()
    for number in (1, 2):
        units.prefill(QueuedUnit(number, None, arrival=number))

    now = 8.0
    units.close_first()
    assert units.first is not None
    now = 9.0
    run = Run(units.first)
    now = 12.0
    run.heard_at = now

    spent = run.timings()
    assert (spent.queue, spent.total, spent.worked) == (1.0, 10.0, 4.0)


@pytest.mark.parametrize(
    ("orders", "until"),
    [
        ([], None),
        ([], Ready),
        (["prefill"], Prefilled),
        (["unit", "next unit"], None),
        (["unit"], Piece),
        (["prefill", "generate"], Done),
        (["unit"], Finalized),
        (["cancel", "unit"], None),
    ],
    ids=["at once", "idle", "heard", "written ahead", "speaking", "done", "finalized", "cancelled"],
)
def test_close_gives_one_closed_and_nothing_after_it(
    rig: Rig, orders: list[str], until: type[Event] | None
) -> None:
    client, neighbour = rig.open(force_listen_count=0), rig.open(seed=2)
    give: dict[str, Callable[[], None]] = {
        "prefill": lambda: client.session.prefill(1, UnitInput(sound(1))),
        "generate": lambda: client.session.generate(1, True, UnitOverrides()),
        "unit": lambda: client.unit(1),
        "next unit": lambda: client.unit(2),
        "cancel": lambda: client.session.cancel(9),
    }
    for order in orders:
        give[order]()
    if until is not None:
        client.until(until)

    client.session.close()
    client.close()
    client.unit(5)
    client.session.cancel(5)

    # All pending orders have passed through the engine once the neighbour is served.
    neighbour.unit(1)
    neighbour.until(Finalized)
    assert client.told.empty()


def test_prompt_that_does_not_fit_fails_the_session_and_it_still_closes(rig: Rig) -> None:
    client = rig.open(prompt="a b c d e " * 100)
    (failed,) = client.until(SessionFailed)
    client.session.close()
    assert isinstance(failed, SessionFailed)
    assert failed.reason == "CONFIG_INVALID"
    assert "at most" in failed.message
    assert [type(event) for event in client.until(Closed)] == [Closed]


@pytest.mark.parametrize(
    "bad", [np.full(16_000, np.nan, np.float32), sound(1, 16_001)], ids=["poisoned", "too long"]
)
def test_bad_unit_fails_alone_and_its_session_goes_on(rig: Rig, bad: NDArray[np.float32]) -> None:
    sick, well = rig.open(force_listen_count=0), rig.open(seed=2, force_listen_count=0)
    sick.send(1, UnitInput(bad))
    well.unit(1)
    for number in (2, 3):
        sick.unit(number)
        well.unit(number)

    events = sick.until(Finalized, 3)
    refused = [(it.unit, it.failure.reason) for it in events if isinstance(it, Prefilled) and it.failure]
    assert refused == [(1, "INFERENCE_FAILED")]
    ends = [event.end for event in events if isinstance(event, Done)]
    assert ends[0] is End.FAILED
    assert set(ends[1:]) <= {End.CHUNK, End.TURN}
    ends = [event.end for event in well.until(Finalized, 3) if isinstance(event, Done)]
    assert set(ends) <= {End.CHUNK, End.TURN}


def test_lost_device_fails_all_sessions_and_later_sessions_still_close(rig: Rig) -> None:
    clients = [rig.open()]
    clients[0].until(Ready)
    rig.break_device()
    clients.append(rig.open(seed=2))  # its prompt meets the lost device

    for client in clients:
        assert client.until(SessionFailed)[-1].reason == "ENGINE_FATAL"
    assert rig.fatal.get(timeout=PATIENCE_S) == "RuntimeError: device lost"
    assert rig.fatal.empty()
    clients[0].session.close()
    assert [type(event) for event in clients[0].until(Closed)] == [Closed]
    late = rig.open()
    assert [type(event) for event in late.until(SessionFailed)] == [SessionFailed]
    late.session.close()
    assert [type(event) for event in late.until(Closed)] == [Closed]


@pytest.mark.parametrize("is_dead", [False, True])
def test_stop_ends_the_thread_and_silences_the_engine(rig: Rig, is_dead: bool) -> None:
    if is_dead:
        rig.break_device()
    client = rig.open()
    client.until(SessionFailed if is_dead else Ready)
    rig.engine.stop()
    rig.engine.stop()
    assert not [thread for thread in threading.enumerate() if thread.name == "engine"]
    client.session.close()
    assert client.told.empty()


@pytest.mark.parametrize("is_session", [False, True])
def test_cached_pages_of_a_session_that_is_its_own_tenant_go_with_it(rig: Rig, is_session: bool) -> None:
    """No other session can find these pages; those of a returning caller stay."""
    tenant = Tenant(b"1" * 32, is_session=is_session)
    client = rig.slots.open(TokensSetup(Sampling(), 1, "Be kind to everybody. " * 8, tenant=tenant))
    client.until(Ready)
    client.close()
    assert (rig.engine.occupancy().cached_pages == 0) is is_session
    assert is_clean(rig.engine._runtime.language.cache)
