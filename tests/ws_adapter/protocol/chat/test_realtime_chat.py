"""`/v1/realtime?mode=chat`: turn after turn on one socket, each with a slot of its own."""

import base64
import json
from typing import Any

import msgspec
import pytest

from antiphon.contract import Reason
from tests.ws_adapter.support.chat_conversation import SPOKEN, USER, append, f32, request
from tests.ws_adapter.support.chat_conversation import RealtimeChatJar as Jar
from tests.ws_adapter.support.conversation import CLOSE, Event, bring, codes, kinds
from tests.ws_adapter.support.tokens import tokens
from ws_adapter.protocol.chat.realtime_chat import MOST_WAITING
from ws_adapter.protocol.chat.ws_chat import LARGE_FRAME
from ws_adapter.protocol.core.config import ChatSetup
from ws_adapter.protocol.core.signals import NO_TIMINGS, Failed, Finish, GoingAway, Prefilled, UnitEnd
from ws_adapter.protocol.core.state import State
from ws_adapter.protocol.core.turn import Generation
from ws_adapter.protocol.media.reference_voice import Voice
from ws_adapter.protocol.wire import errors
from ws_adapter.protocol.wire.errors import VERDICTS

SESSION = "sess_0123456789ab"


def active(**limits: Any) -> Jar:
    jar = Jar(**limits)
    jar.activate()
    return jar


def code_of(events: list[Event]) -> str:
    (code,) = codes(events)
    return code


def concluded(jar: Jar, close: int, *told: str, reason: str | None = None) -> None:
    """Fails unless the last events were `told`, the last one with this reason, and the connection closes."""
    assert kinds(jar.sent)[-len(told) :] == list(told)
    assert jar.closed is not None
    assert jar.closed.code == close


@pytest.fixture
def silent() -> Jar:
    """Nothing was sent."""
    return Jar()


@pytest.fixture
def jar() -> Jar:
    return active()


@pytest.fixture
def busy(jar: Jar) -> Jar:
    """The first turn runs."""
    jar.client(append())
    return jar


def test_created(silent: Jar) -> None:
    created = silent.activate(prompt_tokens=12)
    assert created == {
        "type": "session.created",
        "metrics": {"n_past_max": 8192, "prompt_length": 12},
        "session_id": SESSION,
        "mode": "turn_based",
        "usage": msgspec.to_builtins(tokens(input_text=12)),
    }
    assert silent.configured[0].setup == ChatSetup()


def test_settings(silent: Jar) -> None:
    prompts = {"system_prompt": "Be brief.", "instructions": "Be long."}
    others = {"model": "antiphon-mini", "seed": 7, "use_tts": False, "max_slice_nums": 3}
    silent.activate({**prompts, **others, "voice": {"tts_ref_audio_base64": f32()}})
    setup = silent.configured[0].setup
    assert isinstance(setup, ChatSetup)
    assert (setup.system_prompt, setup.model, setup.seed) == ("Be brief.", "antiphon-mini", 7)
    assert setup.voice.speech_reference is not None
    silent.client(append(tts={"enabled": True}))
    assert silent.turn.max_slice_nums == 3
    assert not silent.turn.speaks


def test_unsupported_session_fields_are_reported() -> None:
    config = {"top_k": 5, "generate_audio": True, "max_slice_nums": 2, "oddity": 1, "top_p": None}
    created = Jar().activate(
        {"config": config, "tools": [{}], "voice": {"ref_audio_base64": f32()}},
        ignored_fields=("voice.llm_reference",),
    )
    reported = ["config.top_k", "config.oddity", "tools", "voice.ref_audio_base64"]
    assert created["unsupported_fields"] == reported


def test_streamed_answer(jar: Jar) -> None:
    jar.sent.clear()
    jar.client(append(input_id="in-1"))
    jar.prefilled()
    jar.say("Sev", SPOKEN)
    jar.say("")
    jar.say("en.")
    jar.now += 0.25
    jar.done()

    ids = {"session_id": SESSION, "input_id": "in-1", "response_id": "resp_000000000001"}
    delta = {"type": "response.output.delta", "metrics": {}, **ids}
    done = jar.sent.pop()
    assert jar.sent == [
        {**delta, "kind": "text", "text": "Sev"},
        {**delta, "kind": "audio", "audio": base64.b64encode(SPOKEN).decode()},
        {**delta, "kind": "text", "text": "en."},
    ]
    usage, metrics = done.pop("usage"), done.pop("metrics")
    assert done == {"type": "response.done", **ids, "text": "Seven.", "reason": "turn_end"}
    counts = {"kv_cache_length": 31, "n_past_max": 8192, "n_tokens": 4, "n_tts_tokens": 0}
    assert metrics == {**counts, "wall_clock_ms": 250.0}
    assert usage == msgspec.to_builtins(tokens(input_text=27, output_text=4))


def test_turn_has_an_id_of_its_own_and_speech_is_off_unless_it_is_asked_for(busy: Jar) -> None:
    assert not busy.turn.speaks
    assert busy.turn.generation == Generation(512, 0.7, 0.8, 1.0)
    busy.client(append(tts={"enabled": True}))
    first = busy.answer()[-1]
    busy.next_slot()
    assert busy.turn.speaks
    second = busy.answer()[-1]
    assert first["input_id"].startswith("input_")
    assert len({first["input_id"], second["input_id"], first["response_id"], second["response_id"]}) == 4


@pytest.mark.parametrize(
    ("end", "finish", "reason"),
    [
        (UnitEnd.TURN, Finish.EOS, "turn_end"),
        (UnitEnd.TURN, Finish.STOP, "turn_end"),
        (UnitEnd.TURN, Finish.LENGTH, "length"),
        (UnitEnd.CONTEXT_FULL, Finish.LENGTH, "length"),
        (UnitEnd.CANCELLED, None, "cancelled"),
    ],
)
def test_reason_of_the_end(busy: Jar, end: UnitEnd, finish: Finish | None, reason: str) -> None:
    assert busy.done(end, finish)[-1]["reason"] == reason
    assert busy.closed is None


def test_unsupported_turn_fields_are_reported(silent: Jar) -> None:
    silent.activate(speaks=False)
    silent.client(append(tts={"enabled": True, "mode": "omni", "ref_audio_data": f32()}))
    assert not silent.turn.speaks
    silent.worker(Prefilled(1, NO_TIMINGS, ignored_fields=("turn.tts.mode",)))
    assert silent.done()[-1]["unsupported_fields"] == ["tts.enabled", "tts.ref_audio_data", "tts.mode"]


def test_slices_of_the_session_are_reported_once_where_the_model_cuts_no_pictures(silent: Jar) -> None:
    created = silent.activate({"max_slice_nums": 4}, max_slices=1)
    assert created["unsupported_fields"] == ["max_slice_nums"]
    ignored = ("turn.image.max_slice_nums",)
    silent.client(append())
    silent.worker(Prefilled(1, NO_TIMINGS, ignored_fields=ignored))
    assert "unsupported_fields" not in silent.done()[-1]
    silent.client(append(image={"max_slice_nums": 2}))
    silent.grant()
    silent.ready(max_slices=1)
    silent.worker(Prefilled(1, NO_TIMINGS, ignored_fields=ignored))
    assert silent.done()[-1]["unsupported_fields"] == ["image.max_slice_nums"]


def test_voice_of_a_turn_and_one_that_the_worker_does_not_have(busy: Jar) -> None:
    busy.answer()
    busy.client(append(tts={"enabled": True, "ref_audio_path": "amber"}))
    busy.next_slot()
    assert busy.configured[1].setup == ChatSetup(voice=Voice(voice_id="amber"))
    assert "unsupported_fields" not in busy.answer()[-1]
    busy.client(append(tts={"enabled": True, "ref_audio_path": "amber"}))
    busy.grant()
    told = busy.fail(Reason.VOICE_NOT_FOUND)
    assert kinds(told) == ["error:invalid_payload", "response.done"]
    assert told[1]["reason"] == "error"
    assert busy.slots == ["take", "leave"] * 3
    assert busy.closed is None


def test_first_slot_goes_back_without_input() -> None:
    jar = active(init_timeout_s=20.0)
    jar.sent.clear()
    jar.wait(19.9)
    assert jar.slots == ["take"]
    jar.wait(0.1)
    assert jar.slots == ["take", "leave"]
    assert jar.sent == []
    assert jar.closed is None


def test_turn_has_its_slot_until_it_is_answered_and_the_next_one_takes_another(jar: Jar) -> None:
    jar.client(append(USER))
    assert jar.slots == ["take"]
    assert jar.machine.held_bytes == len("Name a prime.")
    jar.answer()
    assert jar.slots == ["take", "leave"]
    assert jar.machine.held_bytes == 0
    jar.sent.clear()
    jar.client(append())
    assert jar.slots == ["take", "leave", "take"]
    assert len(jar.runs) == 1
    assert jar.next_slot() == []
    assert len(jar.runs) == 2
    assert jar.configured[0] == jar.configured[1]


def test_later_turn_waiting_in_queue_gets_queue_events(jar: Jar) -> None:
    for _ in range(2):
        jar.client(append())
        jar.answer()
        jar.sent.clear()
        jar.client(append())
        jar.queue(2, 3)
        jar.queue(1, 2)
        jar.next_slot()
        assert kinds(jar.sent) == ["session.queued", "session.queue_update", "session.queue_done"]
        jar.answer()
        jar.client(append())
        jar.next_slot()


def test_turns_wait_in_order_at_most_four_and_the_time_is_judged_before_the_content(jar: Jar) -> None:
    for number in range(MOST_WAITING + 1):
        assert jar.client(append(input_id=f"in-{number}")) == []
    fifth = jar.client(append(input_id="in-5"))
    assert code_of(fifth) == "invalid_event"
    assert fifth[0]["error"]["input_id"] == "in-5"
    assert code_of(jar.client({"type": "input.append", "input": {"messages": []}})) == "invalid_event"
    assert code_of(jar.client(append(streaming="no"))) == "invalid_payload", "its form comes before all"
    answered = []
    for number in range(MOST_WAITING + 1):
        answered.append(jar.answer()[-1]["input_id"])
        if number < MOST_WAITING:
            jar.next_slot()

    assert answered == [f"in-{number}" for number in range(MOST_WAITING + 1)]
    assert jar.slots == ["take", "leave"] * (MOST_WAITING + 1)


@pytest.mark.parametrize("signal", [Failed(Reason.WORKER_LOST), GoingAway(5.0)], ids=["lost", "leaves"])
def test_worker_that_goes_between_two_turns_costs_nothing(jar: Jar, signal: Failed | GoingAway) -> None:
    assert jar.worker(signal) == []
    assert jar.slots == ["take", "leave"]
    jar.client(append())
    jar.next_slot()
    assert kinds(jar.answer()) == ["text", "response.done"]


@pytest.mark.parametrize("is_in_time", [True, False])
def test_worker_that_goes_away_ends_its_turn_or_the_session(busy: Jar, is_in_time: bool) -> None:
    busy.worker(GoingAway(5.0))
    if is_in_time:
        assert kinds(busy.answer()) == ["text", "response.done"]
        assert busy.closed is None
    else:
        busy.fail(Reason.SESSION_LIMIT)
        concluded(busy, 1012, "session.closed", reason="server_shutdown")


@pytest.mark.parametrize("reason", [Reason.IMAGE_INVALID, Reason.CONTENT_UNSUPPORTED, Reason.INPUT_TOO_LONG])
def test_turn_that_fails_by_its_input(jar: Jar, reason: Reason) -> None:
    jar.client(append(input_id="in-1"))
    told = jar.done(UnitEnd.FAILED, None, failure=reason, field="turn.messages[0].content[1].image")
    assert kinds(told) == ["error:invalid_payload", "response.done"]
    assert told[0]["error"]["param"] == "input.messages[0].content[1].image"
    assert told[0]["error"]["message"].startswith("input.messages[0].content[1].image: ")
    assert told[0]["error"]["input_id"] == told[1]["input_id"] == "in-1"
    assert told[1]["reason"] == "error"
    assert jar.slots == ["take", "leave"]


def test_third_failure_in_a_row_ends_the_session(jar: Jar) -> None:
    for number, fails in enumerate([True, True, False, True, True, False, True, True, True]):
        assert jar.closed is None
        jar.client(append())
        if number:
            jar.next_slot()
        if fails:
            told = jar.done(UnitEnd.FAILED, None, failure=Reason.INFERENCE_FAILED)
            assert kinds(told)[:2] == ["error:inference_error", "response.done"]
        else:
            jar.answer()
    concluded(jar, 1011, "session.closed", reason="backend_error")


def test_answer_too_long_to_be_sent_at_once(jar: Jar) -> None:
    jar.client(append(streaming=False))
    for _ in range(2):
        assert jar.say("", bytes(12 * 2**20)) == []
    told = jar.say("", bytes(12 * 2**20))
    assert kinds(told) == ["error:inference_error", "response.done"]
    assert "with streaming" in told[0]["error"]["message"]
    assert jar.slots == ["take", "leave"]


FAILED = "error:inference_error"


@pytest.mark.parametrize(
    ("reason", "close", "told"),
    [
        *((reason, 1011, [FAILED, "session.closed"]) for reason in (Reason.WORKER_LOST, Reason.ENGINE_FATAL)),
        (Reason.UNIT_TIMEOUT, 1011, [FAILED, "session.closed"]),
        (Reason.KV_EXHAUSTED, 1013, [FAILED, "session.closed"]),
        (Reason.CONFIG_INVALID, 1008, ["error:invalid_payload", "session.closed"]),
        (Reason.MODE_UNSUPPORTED, 1008, ["error:unsupported_mode"]),
        (Reason.SESSION_LIMIT, 1000, ["session.closed"]),
    ],
)
def test_worker_that_fails_during_a_turn(busy: Jar, reason: Reason, close: int, told: list[str]) -> None:
    busy.fail(reason)
    concluded(busy, close, *told)


@pytest.mark.parametrize(
    ("verdict", "code", "close"),
    [
        (VERDICTS[Reason.QUEUE_FULL], "queue_full", 1013),
        (errors.QUEUE_TIMEOUT, "queue_timeout", 1013),
        (errors.QUEUE_CANCELLED, "queue_cancelled", 1000),
        (errors.NO_WORKER, "service_unavailable", 1013),
    ],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_no_slot(silent: Jar, verdict: errors.Verdict, code: str, close: int, is_first: bool) -> None:
    if not is_first:
        silent.activate()
        silent.client(append())
        silent.answer()
        silent.client(append())
    silent.do(silent.machine.refused(verdict))
    concluded(silent, close, f"error:{code}")


def in_state(state: State) -> Jar:
    jar = Jar()
    bring(jar, state)
    jar.sent.clear()
    return jar


OPEN = [State.QUEUED, State.CONNECTED, State.CONFIGURING, State.ACTIVE]


@pytest.mark.parametrize("state", OPEN)
def test_client_that_ends(state: State) -> None:
    jar = in_state(state)
    assert jar.machine.is_waiting == (state is State.QUEUED)
    jar.client(CLOSE)
    concluded(jar, 1000, "session.closed", reason="user_stop")
    assert ("session_id" in jar.sent[-1]) == (state is State.ACTIVE)


def test_close_during_turn_finishes_answer_and_reports_session_usage(busy: Jar) -> None:
    busy.answer()
    busy.client(append())
    busy.next_slot()
    busy.say("Sev")
    busy.client({"type": "session.close"})
    concluded(busy, 1000, "text", "session.closed")
    assert busy.sent[-1]["usage"]["total_tokens"] == 31


@pytest.mark.parametrize("state", OPEN)
def test_event_of_another_dialect_is_refused(state: State) -> None:
    jar = in_state(state)
    assert code_of(jar.client({"type": "input_audio_buffer.append", "audio": ""})) == "unknown_event"
    told = jar.client({"type": "session.update", "session": {"instructions": "Be brief."}})
    assert code_of(told) == "invalid_event"
    assert "session.init" in told[0]["error"]["message"]
    assert jar.closed is None


@pytest.mark.parametrize("state", OPEN)
def test_input_waits_for_the_opener_and_a_second_opener_is_refused(state: State) -> None:
    jar = in_state(state)
    told = jar.client(append(input_id="in-1"))
    if state in (State.QUEUED, State.CONNECTED):
        assert code_of(told) == "not_ready"
        assert told[0]["error"]["input_id"] == "in-1"
    else:
        assert told == []
        assert code_of(jar.init()) == "invalid_event"
        if state is State.CONFIGURING:
            jar.ready()
        assert len(jar.runs) == 1


@pytest.mark.parametrize("payload", [None, 7, {"seed": -1}, {"model": "other"}, {"config": {"top_k": 0}}])
def test_invalid_opener_changes_nothing(payload: Any) -> None:
    jar = in_state(State.CONNECTED)
    told = jar.client({"type": "session.init", "payload": payload})
    assert code_of(told) == ("missing_field" if payload is None else "invalid_payload")
    assert jar.configured == []
    assert jar.init() == []
    assert len(jar.configured) == 1


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        (None, "missing_field", "input"),
        ({}, "missing_field", "input.messages"),
        (request({"role": "user"}), "missing_field", "input.messages[0].content"),
        (request(streaming=7), "invalid_payload", "input.streaming"),
        (request(generation={"top_p": 2}), "invalid_payload", "input.generation.top_p"),
        (request(tts={"ref_audio_data": "?"}), "invalid_payload", "input.tts.ref_audio_data"),
        (request(input_id="x" * 129), "invalid_payload", "input.input_id"),
    ],
)
def test_invalid_input_changes_nothing(jar: Jar, fields: Any, code: str, param: str) -> None:
    told = jar.client({"type": "input.append", "input": fields})
    assert code_of(told) == code
    assert told[0]["error"]["param"] == param
    assert jar.runs == []
    jar.client(append())
    assert len(jar.runs) == 1


def test_flood_of_events(jar: Jar) -> None:
    for number in range(1001):
        jar.now += 0.001
        if number % 20 == 0:
            jar.now += 0.001
        jar.client({"type": "session.init", "payload": {}}) if number % 60 == 0 else jar.client(append())
        if jar.closed is not None:
            break
    concluded(jar, 1008, "error:rate_limited")


def test_idle_between_turns() -> None:
    jar = active(chat_idle_s=600.0)
    jar.client(append())
    assert jar.wait(10_000.0) == [], "a turn may take as long as the worker lets it"
    jar.answer()
    jar.wait(599.9)
    assert jar.closed is None
    jar.client({"type": "x"})
    jar.wait(599.9)
    assert jar.closed is None
    jar.wait(0.1)
    concluded(jar, 1000, "session.closed", reason="timeout")


def test_no_room_for_input_or_for_a_voice_in_the_queue(jar: Jar, silent: Jar) -> None:
    told = jar.client(append(input_id="in-1"), drops_input=True)
    assert code_of(told) == "service_unavailable"
    assert told[0]["error"]["input_id"] == "in-1"
    assert jar.closed is None
    jar.client(append())
    assert len(jar.runs) == 1
    silent.client({"type": "session.init", "payload": {"voice": {"ref_audio": f32()}}}, drops_input=True)
    concluded(silent, 1013, "error:service_unavailable")


@pytest.mark.parametrize("content", [7, "y" * LARGE_FRAME])
def test_large_input_is_read_beside_the_event_loop(content: Any) -> None:
    jar, gone = Jar(read_now=False), Jar(read_now=False)
    large = {"role": "user", "content": "x" * LARGE_FRAME}
    jar.activate()
    jar.client(append(large))
    assert jar.runs == []
    assert jar.machine.held_bytes == len(json.dumps(append(large)))
    jar.read()
    assert len(jar.runs) == 1
    assert jar.machine.held_bytes == LARGE_FRAME

    gone.activate()
    gone.client(append(large, {"role": "user", "content": content}))
    gone.machine.disconnected()
    assert gone.read() == []
    assert gone.runs == []
