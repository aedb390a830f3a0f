"""Too much at once: input is dropped before it is decoded, and each of its units is still answered."""

import base64
import itertools
import json
from typing import Any

import pytest

from tests.support.scripted_engine import ScriptedEngine, hang, listen
from tests.ws_adapter.support.conversation import Conversation, append, pcm, ready_signal
from tests.ws_adapter.support.duplex_conversation import DuplexConversation, picture, pictured
from tests.ws_adapter.support.stage import client_of, serving
from ws_adapter.protocol.core.config import Mode
from ws_adapter.protocol.wire.errors import CloseCode
from ws_adapter.web import websocket

Event = dict[str, Any]


def dropping(talk: Conversation, event: Event) -> list[Event]:
    """Sends an event while input is dropped."""
    return talk.do(talk.dialect.text_frame(json.dumps(event).encode(), talk.now, drops_input=True))


def active(**options: Any) -> Conversation:
    talk = Conversation(**options)
    talk.activate()
    return talk


@pytest.fixture
def talk() -> Conversation:
    return active()


def is_dropped(event: Event) -> bool:
    return event["kind"] == "listen" and event["metrics"].get("dropped") is True


def test_dropped_units_are_each_answered_and_never_decoded_or_run(talk: Conversation) -> None:
    [told] = dropping(talk, append(1, input_id="in-1"))
    assert is_dropped(told)
    assert (told["input_id"], told["metrics"]["dropped_total"]) == ("in-1", 1)
    [told] = dropping(talk, {"type": "input.append", "input": {"audio": "!" * 85_336}})
    assert is_dropped(told)
    assert [is_dropped(told) for told in dropping(talk, append(3))] == [True, True, True]
    assert talk.runs == []
    assert talk.dialect.held_bytes == 0


def test_answer_keeps_its_place_in_the_order_of_input(talk: Conversation) -> None:
    talk.client(append(1, input_id="in-1"))
    assert dropping(talk, append(1, input_id="in-2")) == []
    answers = talk.finish(1)
    assert [(told["input_id"], is_dropped(told)) for told in answers] == [("in-1", False), ("in-2", True)]
    assert [told["chunk_index"] for told in answers] == [0, 1]


def test_unit_with_a_part_that_was_dropped_does_not_run(talk: Conversation) -> None:
    talk.client(append(0.5))
    assert dropping(talk, append(0.25)) == []
    assert [is_dropped(told) for told in talk.client(append(1))] == [True]
    talk.client(append(0.25))
    assert [run.audio for run in talk.runs] == [base64.b64decode(pcm(1))]


def test_dropped_rest_is_padded_and_answered(talk: Conversation) -> None:
    dropping(talk, append(0.25))
    assert [is_dropped(told) for told in talk.wait(1.25)] == [True]
    talk.client(append(1))
    assert len(talk.runs) == 1


def test_pictures_of_dropped_input_are_neither_looked_at_nor_held() -> None:
    talk = active(mode=Mode.VIDEO)
    [told] = dropping(talk, append(1, video_frames=["no picture"]))
    assert is_dropped(told)
    talk.client(append(1))
    assert talk.runs[0].frames == ()
    duplex = DuplexConversation(mode=Mode.VIDEO)
    duplex.activate()
    assert dropping(duplex, {"type": "video_frame", "frame_base64": "no picture"}) == []
    duplex.client({"type": "audio_chunk", "audio_base64": pcm(1)})
    assert duplex.runs[0].frames == ()


def test_input_dropped_before_the_session_begins_is_only_counted() -> None:
    talk = Conversation()
    talk.connect()
    talk.client({"type": "session.init", "payload": {}})
    assert dropping(talk, append(1)) == []
    assert [told["type"] for told in talk.worker(ready_signal())] == ["session.created"]
    talk.client(append(1))
    assert talk.finish(1)[0]["metrics"]["dropped_total"] == 1


def test_fields_are_checked_all_the_same_and_other_events_are_not_dropped(talk: Conversation) -> None:
    [told] = dropping(talk, append(1, max_slice_nums=10))
    assert told["error"]["param"] == "input.max_slice_nums"
    [told] = dropping(talk, append(61))
    assert told["error"]["code"] == "invalid_payload"
    [told] = dropping(talk, {"type": "input.append", "input": {"audio": ""}})
    assert told["error"]["code"] == "missing_field"
    dropping(talk, {"type": "session.close"})
    assert talk.closed is not None


def test_carried_audio_and_pictures_are_counted_until_the_session_ends() -> None:
    for ends in ("close", "disconnected"):
        talk = active(mode=Mode.VIDEO)
        talk.client(append(0.5, video_frames=[pictured()]))
        assert talk.dialect.held_bytes == 32_000 + len(picture())
        if ends == "close":
            talk.client({"type": "session.close"})
        else:
            talk.dialect.disconnected()
        assert talk.dialect.held_bytes == 0


def test_overload_rejects_reference_audio_in_queue_but_not_with_slot() -> None:
    waits, begins = Conversation(), Conversation()
    init = {"type": "session.init", "payload": {"ref_audio": pcm(1)}}
    [told] = dropping(waits, init)
    begins.connect()
    dropping(begins, init)
    assert told["error"]["code"] == "service_unavailable"
    assert waits.closed is not None
    assert waits.closed.code is CloseCode.TRY_AGAIN_LATER
    assert len(begins.configured) == 1


async def test_input_beyond_what_may_be_in_flight_is_dropped() -> None:
    engine = ScriptedEngine(hang("generate"), listen())
    async with client_of(engine, max_inflight_mib=0.05) as client:
        await client.begin()
        await client.send(append(1, input_id="in-1"), append(1, input_id="in-2"))
        await client.send({"type": "no.such.event"})
        await client.expect("error")  # so the second append was read while the first one was at the worker
        engine.session.release("generate", 1)
        first, second = await client.expect("listen"), await client.expect("listen")
        assert (first["input_id"], is_dropped(first)) == ("in-1", False)
        assert (second["input_id"], is_dropped(second)) == ("in-2", True)
        await client.send(append(1, input_id="in-3"))
        while is_dropped(await client.expect("listen")):  # until the worker has closed the first unit
            await client.send(append(1))


async def test_input_that_waited_too_long_to_be_read_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    async with client_of(ScriptedEngine()) as client:
        await client.begin()
        clock = itertools.count(0, 10)
        monkeypatch.setattr(websocket, "monotonic", lambda: next(clock))
        for name in ("in-1", "in-2"):
            event = append(0.02, input_id=name, force_listen=True)
            client.socket.protocol.send_text(json.dumps(event).encode())
        client.socket.transport.write(b"".join(client.socket.protocol.data_to_send()))
        first, second = await client.expect("listen"), await client.expect("listen")
        monkeypatch.undo()
        assert (first["input_id"], is_dropped(first)) == ("in-1", True)
        assert (second["input_id"], is_dropped(second)) == ("in-2", False)


@pytest.mark.parametrize("path", ["/v1/realtime?mode=audio", "/ws/duplex/adx_1"])
async def test_busy_adapter_takes_no_new_session_and_keeps_those_it_has(path: str) -> None:
    async with serving(ScriptedEngine(slots=4), max_cpu=1e-9) as stage, stage.client() as client:
        await client.begin()
        async with stage.client(stage.url.partition("/v1")[0] + path) as late:
            told, code = await late.end()
            [event] = told
            error = event["error"] if "mode" in path else event
            assert (error["code"], code) == ("service_unavailable", 1013)
            assert "try again later" in error["message"]
        await client.send(append(1))
        await client.expect("listen")
