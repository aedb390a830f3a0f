"""The contract that the machines of all protocols share."""

from collections.abc import Callable

import pytest

from tests.support.schemas import Event
from tests.ws_adapter.support.chat_conversation import ChatJar, RealtimeChatJar, request
from tests.ws_adapter.support.conversation import INIT, Conversation, ready_signal
from tests.ws_adapter.support.driven import Driven
from tests.ws_adapter.support.duplex_conversation import PREPARE, DuplexConversation
from tests.ws_adapter.support.live_conversation import LiveConversation, start
from tests.ws_adapter.support.realtime_ga_conversation import RealtimeGaConversation, append
from tests.ws_adapter.support.transcription_conversation import TranscriptionConversation
from tests.ws_adapter.support.transcription_ga_conversation import TranscriptionGaConversation, update
from ws_adapter.protocol.core.blobs import Blobs
from ws_adapter.protocol.core.machine import Place
from ws_adapter.protocol.wire import errors

Build = Callable[[], Driven]

DROPS_STALE: dict[Build, bool] = {
    Conversation: True,
    DuplexConversation: True,
    LiveConversation: True,
    ChatJar: False,
    RealtimeChatJar: False,
    RealtimeGaConversation: False,
    TranscriptionConversation: False,
    TranscriptionGaConversation: False,
}
OPENERS: dict[Build, Event] = {
    Conversation: INIT,
    DuplexConversation: PREPARE,
    LiveConversation: start(),
    ChatJar: request(),
    RealtimeChatJar: INIT,
}
TICKET = "ticket_5f0c9a17be42"
PLACES = (Place(2, 34.96, TICKET, 3, False), Place(1, 12.5, TICKET, 2, False))
machines = pytest.mark.parametrize("build", DROPS_STALE)


def new(build: Build) -> Driven:
    return build()


def begun(build: Build) -> Driven:
    """A session with input or settings at a worker."""
    talk = build()
    match talk:
        case RealtimeGaConversation():
            talk.begin()
            talk.client(append())
        case TranscriptionConversation():
            talk.begin()
        case TranscriptionGaConversation():
            talk.client(update())
            talk.client(append())
        case _:
            talk.client(OPENERS[build])
            talk.grant()
            talk.worker(ready_signal())
    return talk


def assert_over(talk: Driven) -> None:
    """Assert that a machine is over, holds nothing, and answers nothing, whatever happens."""
    machine, now = talk.dialect, talk.now
    assert machine.is_over is True
    assert machine.held_bytes == 0
    for frame in (b'{"type": "session.update"}', b'{"type": "session.close"}', b"no json", b'"\xff"'):
        assert machine.text_frame(frame, now) == []
    assert machine.binary_frame(now) == machine.queued(PLACES[0]) == machine.granted(now) == []
    assert machine.refused(errors.NO_WORKER) == machine.signal(ready_signal(), now) == []
    assert machine.congested(True, now) == machine.withdrawn([]) == machine.tick(now + 9999, True) == []
    assert machine.shut_down() == machine.slow_consumer() == machine.ended(errors.SLOW) == []
    assert machine.deadline is None
    assert machine.save(now, Blobs(), has_journal=True) is None


@machines
def test_machine_of_units_drops_stale_input_and_every_machine_outlasts_its_adapter(build: Build) -> None:
    machine = build().dialect

    assert machine.drops_stale is DROPS_STALE[build]
    assert machine.can_be_saved is True


@pytest.mark.parametrize("make", [new, begun])
@machines
def test_disconnected_machine_is_over_and_says_nothing(build: Build, make: Callable[[Build], Driven]) -> None:
    talk = make(build)
    talk.dialect.disconnected()

    assert_over(talk)


@pytest.mark.parametrize("make", [new, begun])
@machines
def test_ended_machine_closes_once_and_says_nothing_after_it(
    build: Build, make: Callable[[Build], Driven]
) -> None:
    talk = make(build)
    assert talk.dialect.is_over is False

    talk.do(talk.dialect.ended(errors.SLOW))

    assert talk.close_code == 1008
    assert_over(talk)


@pytest.mark.parametrize("build", [it for it in OPENERS if it is not LiveConversation])
def test_queue_events_tell_the_place_and_the_wait(build: Build) -> None:
    talk = build()
    talk.client(OPENERS[build])
    told = [event for place in PLACES for event in talk.do(talk.dialect.queued(place))] + talk.grant()
    prefix = "session." if OPENERS[build] is INIT else ""
    waits = [{"estimated_wait_s": 35.0, "position": 2}, {"estimated_wait_s": 12.5, "position": 1}]
    if not prefix:
        waits = [{**wait, "eta_seconds": wait["estimated_wait_s"]} for wait in waits]
    ticket = {"estimate_is_guess": False, "ticket_id": TICKET}
    assert told == [
        {"type": f"{prefix}queued", "queue_length": 3, **ticket, **waits[0]},
        {"type": f"{prefix}queue_update", "queue_length": 2, **ticket, **waits[1]},
        {"type": f"{prefix}queue_done"},
    ]


@pytest.mark.parametrize("build", OPENERS)
def test_worker_lost_before_it_is_ready_is_replaced_without_an_event(build: Build) -> None:
    talk = build()
    talk.client(OPENERS[build])
    talk.grant()
    talk.dialect.displaced()
    assert talk.do(talk.dialect.queued(PLACES[0])) == talk.grant() == []
    first, second = talk.configured
    assert first == second
    assert talk.close_code is None
    told = talk.worker(ready_signal())
    if isinstance(talk, ChatJar):
        assert len(talk.runs) == 1
    else:
        assert told[0]["type"] in ("session.created", "prepared", "session.started")


@pytest.mark.parametrize(
    ("build", "make"),
    [
        *((build, new) for build in (Conversation, DuplexConversation, ChatJar, RealtimeChatJar)),
        *((build, begun) for build in (Conversation, DuplexConversation, RealtimeChatJar)),
    ],
)
def test_frame_that_is_no_json_text_ends_the_session(build: Build, make: Callable[[Build], Driven]) -> None:
    for frame in (b"", b"{", b"no json", b'{"type":"pause","timeout":NaN}', b"[" * 100_000, None):
        talk = make(build)
        machine, now = talk.dialect, talk.now
        told = talk.do(machine.binary_frame(now)) if frame is None else talk.client(frame)
        (error,) = told
        code = error.get("code") or error["error"]["code"]
        assert code == ("invalid_frame" if frame is None else "invalid_json")
        assert talk.close_code == 1003
    talk = make(build)
    assert talk.client(b'{"type":"x","y":"\xff"}') == [], "invalid UTF-8 is closed without an event"
    assert talk.close_code == 1007


@pytest.mark.parametrize(
    "build", [Conversation, DuplexConversation, LiveConversation, RealtimeChatJar, RealtimeGaConversation]
)
def test_flood_of_errors_ends_the_session(build: Build) -> None:
    talk = begun(build)
    for _ in range(20):
        (error,) = talk.client({"type": "nonsense"})
        assert error["type"] == "error"
    assert talk.close_code is None
    (error,) = talk.client({"type": "nonsense"})
    assert "rate_limit" in (error.get("code") or error["error"]["code"])
    assert talk.close_code == 1008
