"""Rules that both dialects of a full-duplex session share: its opener, its clocks and its ends."""

import pytest

from antiphon.contract import Reason
from tests.ws_adapter.support.conversation import Conversation, Event, append, ready_signal
from tests.ws_adapter.support.duplex_conversation import DuplexConversation, chunk, pictured
from ws_adapter.protocol.core.signals import GoingAway
from ws_adapter.protocol.core.state import State
from ws_adapter.protocol.wire.errors import QUEUE_TIMEOUT

Build = type[Conversation]
QUEUED, CONNECTED, CONFIGURING, ACTIVE = State.QUEUED, State.CONNECTED, State.CONFIGURING, State.ACTIVE
FRAME: Event = {"type": "video_frame", "frame_base64": pictured()}
BAD: dict[Build, Event] = {
    Conversation: {"type": "session.init", "payload": {"config": {"top_k": 0}}},
    DuplexConversation: {"type": "prepare", "config": {"top_k": 0}},
}
OTHER: dict[Build, Event] = {
    Conversation: {"type": "session.init", "payload": {"system_prompt": "Another."}},
    DuplexConversation: {"type": "prepare", "system_prompt": "Another."},
}
CLOSED: dict[Build, str] = {Conversation: "session.closed", DuplexConversation: "stopped"}
at_worker = pytest.mark.parametrize(
    ("build", "state"),
    [
        *((Conversation, state) for state in (CONFIGURING, ACTIVE)),
        *((DuplexConversation, state) for state in (CONFIGURING, ACTIVE, State.PAUSED)),
    ],
)
both = pytest.mark.parametrize("build", [Conversation, DuplexConversation], ids=["realtime", "ws_duplex"])


def in_state(build: Build, state: State, **options: float) -> Conversation:
    talk = build(**options)  # type: ignore[arg-type]
    talk.bring(state)
    return talk


def outcomes(events: list[Event]) -> list[str]:
    """The codes of errors, the type and the reason of other events."""
    return [
        event.get("code") or event["error"]["code"]
        if event["type"] == "error"
        else f"{event['type']}: {event.get('reason', '')}".removesuffix(": ")
        for event in events
    ]


def timed_out(build: Build, clock: str) -> list[str]:
    return ["session.closed: timeout"] if build is Conversation else [f"timeout: {clock}"]


@both
@pytest.mark.parametrize("state", [QUEUED, CONNECTED])
def test_invalid_opener_can_be_corrected(build: Build, state: State) -> None:
    talk = in_state(build, state)
    assert outcomes(talk.client(BAD[build])) == ["invalid_payload"]
    assert talk.dialect.state is state
    assert talk.client(talk.opener) == []
    if state is QUEUED:
        assert talk.configured == []
        talk.connect()
    assert talk.dialect.state is CONFIGURING
    assert len(talk.configured) == 1


@pytest.mark.parametrize(
    ("build", "state", "told"),
    [
        *((Conversation, state, ["invalid_event"]) for state in (QUEUED, CONFIGURING, ACTIVE)),
        *((DuplexConversation, state, []) for state in (QUEUED, CONFIGURING)),
        *((DuplexConversation, state, ["invalid_event"]) for state in (ACTIVE, State.PAUSED)),
    ],
)
def test_second_opener_changes_nothing(build: Build, state: State, told: list[str]) -> None:
    talk = in_state(build, state)
    if state is QUEUED:
        talk.client(talk.opener)
    assert outcomes(talk.client(OTHER[build])) == told
    assert talk.dialect.state is state
    if state is QUEUED:
        talk.connect()
    (opened,) = talk.configured
    assert opened.setup.system_prompt != "Another."
    if state in (QUEUED, CONFIGURING):
        assert outcomes(talk.worker(ready_signal())) in (["session.created"], ["prepared"])


@both
@pytest.mark.parametrize("state", [QUEUED, CONFIGURING, ACTIVE])
def test_input_behind_the_opener_runs_once_the_session_is_active(build: Build, state: State) -> None:
    talk = in_state(build, state)
    if state is QUEUED:
        talk.client(talk.opener)
    for event in [append()] if build is Conversation else [FRAME, chunk()]:
        assert talk.client(event) == []
    if state is not ACTIVE:
        talk.wait(30)
        assert talk.runs == []
    if state is QUEUED:
        talk.connect()
    if state is not ACTIVE:
        talk.worker(ready_signal())
    assert [(run.unit, len(run.frames)) for run in talk.runs] == [(1, int(build is DuplexConversation))]


@both
def test_opener_timeout_counts_from_the_grant_and_ignores_an_invalid_opener(build: Build) -> None:
    talk = in_state(build, QUEUED)
    talk.wait(500)
    talk.connect()
    assert talk.wait(19) == []
    talk.client(BAD[build])
    assert talk.wait(0.9) == []
    assert outcomes(talk.wait(0.1)) == timed_out(build, "Prepare timeout (20.0s)")
    assert talk.close_code == 1000


@at_worker
def test_session_limit_counts_from_the_grant(build: Build, state: State) -> None:
    talk = in_state(build, state, session_limit_s=40.0)
    assert talk.wait(39.9) == []
    assert outcomes(talk.wait(0.1)) == timed_out(build, "Session limit (40.0s)")
    assert talk.close_code == 1000


@at_worker
@pytest.mark.parametrize(
    ("reason", "code", "closed", "close"),
    [
        (Reason.WORKER_LOST, "inference_error", "backend_error", 1011),
        (Reason.UNIT_TIMEOUT, "inference_error", "backend_error", 1011),
        (Reason.ENGINE_FATAL, "inference_error", "backend_error", 1011),
        (Reason.LEASE_REVOKED, "inference_error", "backend_error", 1011),
        (Reason.UNIT_WINDOW, "inference_error", "backend_error", 1011),
        (Reason.KV_EXHAUSTED, "inference_error", "backend_error", 1013),
        (Reason.CONFIG_INVALID, "invalid_payload", "backend_error", 1008),
        (Reason.SESSION_LIMIT, None, "timeout", 1000),
        (Reason.IDLE_TIMEOUT, None, "timeout", 1000),
        (Reason.NO_FREE_SLOT, "worker_busy", None, 1013),
        (Reason.QUEUE_FULL, "queue_full", None, 1013),
        (Reason.LOADING, "service_unavailable", None, 1013),
        (Reason.ATTACH_TIMEOUT, "worker_connect_failed", None, 1013),
        (Reason.MODE_UNSUPPORTED, "unsupported_mode", None, 1008),
    ],
)
def test_end_of_the_worker_session_in_public(
    build: Build, state: State, reason: Reason, code: str | None, closed: str | None, close: int
) -> None:
    talk = in_state(build, state)
    if build is DuplexConversation and closed is not None:
        clock = {Reason.SESSION_LIMIT: "Session limit", Reason.IDLE_TIMEOUT: "Idle timeout"}.get(reason)
        end = f"timeout: {clock}" if clock else "stopped: error"
    else:
        end = f"session.closed: {closed}"
    assert outcomes(talk.fail(reason)) == [*([code] if code else []), *([end] if closed else [])]
    assert talk.close_code == close
    assert talk.after_close == []


@both
@pytest.mark.parametrize("reason", [Reason.MODEL_NOT_FOUND, Reason.VOICE_NOT_FOUND])
def test_refused_settings_can_be_corrected_until_the_opener_clock_ends(build: Build, reason: Reason) -> None:
    talk, unconcerned = in_state(build, CONFIGURING), in_state(build, CONFIGURING)
    for one in (talk, unconcerned):
        one.wait(30)
        assert outcomes(one.fail(reason)) == ["invalid_payload"]
        assert one.dialect.state is CONNECTED
    talk.do(talk.dialect.granted(talk.now))
    talk.client(talk.opener)
    assert outcomes(talk.worker(ready_signal())) in (["session.created"], ["prepared"])
    assert unconcerned.wait(19.9) == []
    assert outcomes(unconcerned.wait(0.2)) == timed_out(build, "Prepare timeout (20.0s)")


@both
@pytest.mark.parametrize("fails", [False, True])
def test_worker_going_away_ends_the_session_when_its_time_is_up_or_it_is_gone(
    build: Build, fails: bool
) -> None:
    talk = in_state(build, ACTIVE)
    talk.worker(GoingAway(5.0))
    assert talk.wait(4.9) == []
    assert outcomes(talk.fail(Reason.DRAINING) if fails else talk.wait(0.1)) == [
        f"{CLOSED[build]}: server_shutdown"
    ]
    assert talk.close_code == 1012


@both
@pytest.mark.parametrize("state", [CONNECTED, CONFIGURING, ACTIVE])
def test_shutdown_with_a_slot(build: Build, state: State) -> None:
    talk = in_state(build, state)
    assert outcomes(talk.do(talk.dialect.shut_down())) == [f"{CLOSED[build]}: server_shutdown"]
    assert talk.close_code == 1012


@both
def test_end_without_a_slot_is_an_error_alone(build: Build) -> None:
    drained, waiting = in_state(build, QUEUED), in_state(build, QUEUED)
    assert outcomes(drained.do(drained.dialect.shut_down())) == ["service_unavailable"]
    assert outcomes(waiting.do(waiting.dialect.refused(QUEUE_TIMEOUT))) == ["queue_timeout"]
    assert drained.close_code == waiting.close_code == 1013


@both
def test_slow_consumer_is_disconnected(build: Build) -> None:
    talk = in_state(build, ACTIVE)
    told = talk.do(talk.dialect.slow_consumer())
    assert outcomes(told) == [f"{CLOSED[build]}: {'slow_consumer' if build is Conversation else 'error'}"]
    assert talk.close_code == 1008
