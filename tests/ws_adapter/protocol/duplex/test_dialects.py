"""Rules that the dialects of sessions with an opener share: the opener, the clocks and the ends."""

from typing import Any

import pytest

from antiphon.contract import Reason
from tests.ws_adapter.support.chat_conversation import RealtimeChatJar
from tests.ws_adapter.support.chat_conversation import append as chat_append
from tests.ws_adapter.support.conversation import Conversation, Event, append, bring, ready_signal
from tests.ws_adapter.support.duplex_conversation import DuplexConversation, chunk, pictured
from ws_adapter.protocol.core.signals import GoingAway
from ws_adapter.protocol.core.state import State
from ws_adapter.protocol.wire.errors import QUEUE_TIMEOUT

Build = type[Conversation | RealtimeChatJar]
QUEUED, CONNECTED, CONFIGURING, ACTIVE = State.QUEUED, State.CONNECTED, State.CONFIGURING, State.ACTIVE
FRAME: Event = {"type": "video_frame", "frame_base64": pictured()}
BAD: dict[Build, Event] = {
    Conversation: {"type": "session.init", "payload": {"config": {"top_k": 0}}},
    DuplexConversation: {"type": "prepare", "config": {"top_k": 0}},
    RealtimeChatJar: {"type": "session.init", "payload": {"seed": -1}},
}
OTHER: dict[Build, Event] = {
    Conversation: {"type": "session.init", "payload": {"system_prompt": "Another."}},
    DuplexConversation: {"type": "prepare", "system_prompt": "Another."},
    RealtimeChatJar: {"type": "session.init", "payload": {"system_prompt": "Another."}},
}
INPUTS: dict[Build, list[Event]] = {
    Conversation: [append()],
    DuplexConversation: [FRAME, chunk()],
    RealtimeChatJar: [chat_append()],
}
at_worker = pytest.mark.parametrize(
    ("build", "state"),
    [
        *((Conversation, state) for state in (CONFIGURING, ACTIVE)),
        *((DuplexConversation, state) for state in (CONFIGURING, ACTIVE, State.PAUSED)),
    ],
)
NAMES = {Conversation: "realtime", DuplexConversation: "ws_duplex", RealtimeChatJar: "realtime_chat"}
every = pytest.mark.parametrize("build", NAMES, ids=NAMES.values())


def in_state(build: Build, state: State, **options: Any) -> Any:
    talk = build(**options)
    bring(talk, state)
    return talk


def outcomes(events: list[Event]) -> list[str]:
    """The codes of errors, the type and the reason of other events."""
    return [
        event.get("code") or event["error"]["code"]
        if event["type"] == "error"
        else f"{event['type']}: {event.get('reason', '')}".removesuffix(": ")
        for event in events
    ]


def closed(build: Build, reason: str) -> list[str]:
    return [f"{'stopped' if build is DuplexConversation else 'session.closed'}: {reason}"]


def timed_out(build: Build, clock: str) -> list[str]:
    return [f"timeout: {clock}"] if build is DuplexConversation else ["session.closed: timeout"]


@every
@pytest.mark.parametrize("state", [QUEUED, CONNECTED])
def test_invalid_opener_can_be_corrected(build: Build, state: State) -> None:
    talk = in_state(build, state)
    assert outcomes(talk.client(BAD[build])) == ["invalid_payload"]
    assert talk.dialect.state is state
    assert talk.client(talk.opener) == []
    if state is QUEUED:
        assert talk.configured == []
        talk.grant()
    assert talk.dialect.state is CONFIGURING
    assert len(talk.configured) == 1


@pytest.mark.parametrize(
    ("build", "state", "told"),
    [
        *((Conversation, state, ["invalid_event"]) for state in (QUEUED, CONFIGURING, ACTIVE)),
        *((RealtimeChatJar, state, ["invalid_event"]) for state in (QUEUED, CONFIGURING, ACTIVE)),
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
        talk.grant()
    (opened,) = talk.configured
    assert opened.setup.system_prompt != "Another."
    if state in (QUEUED, CONFIGURING):
        assert outcomes(talk.worker(ready_signal())) in (["session.created"], ["prepared"])


@every
@pytest.mark.parametrize("state", [QUEUED, CONFIGURING, ACTIVE])
def test_input_behind_the_opener_runs_once_the_session_is_active(build: Build, state: State) -> None:
    talk = in_state(build, state)
    if state is QUEUED:
        talk.client(talk.opener)
    for event in INPUTS[build]:
        assert talk.client(event) == []
    if state is not ACTIVE:
        talk.wait(30)
        assert talk.runs == []
    if state is QUEUED:
        talk.grant()
    if state is not ACTIVE:
        talk.worker(ready_signal())
    (run,) = talk.runs
    assert run.unit == 1
    assert build is not DuplexConversation or len(run.frames) == 1


@every
def test_opener_timeout_counts_from_the_grant_and_ignores_an_invalid_opener(build: Build) -> None:
    talk = in_state(build, QUEUED)
    talk.wait(500)
    talk.grant()
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


@every
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


@pytest.mark.parametrize("build", [Conversation, DuplexConversation], ids=["realtime", "ws_duplex"])
@pytest.mark.parametrize("fails", [False, True])
def test_worker_going_away_ends_the_session_when_its_time_is_up_or_it_is_gone(
    build: Build, fails: bool
) -> None:
    talk = in_state(build, ACTIVE)
    talk.worker(GoingAway(5.0))
    assert talk.wait(4.9) == []
    assert outcomes(talk.fail(Reason.DRAINING) if fails else talk.wait(0.1)) == closed(
        build, "server_shutdown"
    )
    assert talk.close_code == 1012


@every
@pytest.mark.parametrize("state", [CONNECTED, CONFIGURING, ACTIVE])
def test_shutdown_with_a_slot(build: Build, state: State) -> None:
    talk = in_state(build, state)
    assert outcomes(talk.do(talk.dialect.shut_down())) == closed(build, "server_shutdown")
    assert talk.close_code == 1012


@every
def test_end_without_a_slot_is_an_error_alone(build: Build) -> None:
    drained, waiting = in_state(build, QUEUED), in_state(build, QUEUED)
    assert outcomes(drained.do(drained.dialect.shut_down())) == ["service_unavailable"]
    assert outcomes(waiting.do(waiting.dialect.refused(QUEUE_TIMEOUT))) == ["queue_timeout"]
    assert drained.close_code == waiting.close_code == 1013


@every
def test_slow_consumer_is_disconnected(build: Build) -> None:
    talk = in_state(build, ACTIVE)
    told = outcomes(talk.do(talk.dialect.slow_consumer()))
    assert told == closed(build, "error" if build is DuplexConversation else "slow_consumer")
    assert talk.close_code == 1008
