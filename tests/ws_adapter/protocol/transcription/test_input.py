"""The frames that a client of transcription may send, and how the rest is refused."""

import base64
import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.ws_adapter.support.transcription_conversation import COMMIT, FINAL, UPDATE, append, codes, pcm16
from tests.ws_adapter.support.transcription_conversation import TranscriptionConversation as Talk
from ws_adapter.protocol.core.signals import UnitEnd
from ws_adapter.protocol.transcription.utterance import BYTES_PER_S, LARGEST_BYTES


def refused(*events: Any) -> tuple[str, str]:
    """Code and text of the error that the last of these is answered by; the others are not answered."""
    talk = Talk()
    told = talk.client(*events)
    assert [event["type"] for event in told] == ["error"]
    assert list(told[0]) == ["type", "error", "code"]
    assert talk.closed is None
    return told[0]["code"], told[0]["error"]


NO_JSON = [
    b"",
    b"{",
    b"hello",
    b'{"type":"input_audio_buffer.commit","final":NaN}',
    b'{"type":"session.update","model":Infinity}',
    b'{"type":"session.update"}{}',
    b"[" * 100_000,
]
NO_MODEL = [
    *({}, {"model": None}, {"model": ""}, {"model": 5}, {"model": ["antiphon-mini"]}),
    {"session": {"model": "antiphon-mini"}},
]
NO_AUDIO = [{}, {"audio": None}, {"audio": 5}, {"audio": [1]}, {"data": "AAAA"}]
BAD_AUDIO = [
    *("", " ", "?", "AAA", "AA==", "AAAAA==="),
    *(pcm16(2000)[:-1], pcm16(2000) + "AA==", base64.b64encode(bytes(4097)).decode()),
]
NO_BOOLEAN = [None, 2, -1, 1.5, "maybe", "", "truee", [], {"final": True}, "t"]
NAMES = [
    *("response.create", "input_audio_buffer.clear", "session.create", "session.init", "session.close"),
    *("transcription.done", ""),
]
UNKNOWN = {
    **{name: [{"type": name, "payload": {}}] for name in NAMES},
    "None": [{}, {"type": None}],
    "5": [{"type": 5}],
    "a list": [{"type": ["x"]}],
    "a string": [{"type": "x" * 10_000}],
    "a number out of range": [b'{"type": 1e400}'],
}
BAD = {
    "invalid_json: Invalid JSON": NO_JSON,
    "processing_error: .*JSON object.*": [b"[]", b"null", b"7", b'"session.update"', b"true"],
    "invalid_event: .*Missing required field: model.*": [{"type": "session.update", **it} for it in NO_MODEL],
    "processing_error: .*audio.*": [{"type": "input_audio_buffer.append", **it} for it in NO_AUDIO],
    "invalid_audio: .*Invalid audio data.*": [{**append(), "audio": it} for it in BAD_AUDIO],
    "processing_error: final: expected true or false, got .*": [{**COMMIT, "final": it} for it in NO_BOOLEAN],
    **{f"unknown_event: Unknown event type: {name}": events for name, events in UNKNOWN.items()},
}


@pytest.mark.parametrize("told", BAD)
def test_frame_that_cannot_be_used_is_refused_with_a_code_and_a_text(told: str) -> None:
    for frame in BAD[told]:
        assert re.fullmatch(told, ": ".join(refused(UPDATE, frame))), frame


def test_binary_frame_leaves_the_socket_open_and_invalid_utf8_closes_it_without_an_event(talk: Talk) -> None:
    (error,) = talk.do(talk.dialect.binary_frame(talk.now))
    assert error["code"] == "invalid_frame"
    assert "text frames only" in error["error"]
    assert talk.closed is None
    assert talk.client(b'{"type":"\xff"}') == []
    assert talk.close_code == 1007
    assert talk.client(UPDATE) == []


def test_everything_else_in_an_update_is_ignored(talk: Talk) -> None:
    told = talk.client({**UPDATE, "language": 7, "prompt": ["x"], "session": None, "temperature": "hot"})
    assert told == []
    assert talk.client(COMMIT) == []


def test_refused_append_is_not_applied_and_of_duplicate_keys_the_last_counts(talk: Talk) -> None:
    talk.begin(0.0)
    talk.client({**append(), "audio": base64.b64encode(bytes(3999)).decode()})
    assert talk.dialect.held_bytes == 0
    talk.client(append())
    assert talk.client(b'{"type":"input_audio_buffer.commit","final":true,"final":false}') == []
    assert not talk.runs[-1].ends


TRUE, FALSE = ("true", "yes", "on", "1"), ("false", "no", "off", "0")


@pytest.mark.parametrize("form", [str.lower, str.upper, str.title])
def test_final_in_every_spelling(form: Callable[[str], str]) -> None:
    for is_final, words in ((True, (True, 1, *map(form, TRUE))), (False, (False, 0, *map(form, FALSE)))):
        for final in words:
            talk = Talk()
            talk.begin()
            assert talk.client({**COMMIT, "final": final}) == []
            assert talk.runs[-1].ends is is_final, final


def test_audio_is_little_endian_int16_in_base64_without_its_white_space(talk: Talk) -> None:
    samples = np.array([0, 1, -1, 32767, -32768, 12345], "<i2")
    text = base64.b64encode(samples.tobytes()).decode()
    talk.begin(0.0)
    assert talk.client({**append(), "audio": "\n".join([text[:6], text[6:]])}, FINAL) == []
    heard = np.frombuffer(talk.runs[0].audio, "<f4")
    assert np.array_equal(heard, samples.astype(np.float32) / np.float32(32768))


def test_audio_goes_by_the_second(talk: Talk) -> None:
    talk.begin(0.0)
    for _ in range(24):
        talk.client(append(0.128))
        talk.wait(0.128)
    sizes = [len(run.audio) // 4 for run in talk.runs]
    assert all(16_000 <= size <= 18_048 for size in sizes)
    assert talk.dialect.held_bytes == 24 * 4096, "none of them is closed yet"


def test_less_than_a_second_goes_when_it_has_waited(talk: Talk) -> None:
    talk.begin(0.0)
    talk.client(append(0.25))
    talk.wait(0.5)
    talk.client(append(0.25))
    talk.wait(0.49)
    assert talk.runs == []
    talk.wait(0.01)
    assert [len(run.audio) // 4 for run in talk.runs] == [8_000]
    assert not talk.runs[0].ends


def test_client_that_does_not_pace_itself_makes_few_large_units(talk: Talk) -> None:
    talk.client(UPDATE, COMMIT, *[append(0.128)] * 500, FINAL)
    talk.serve()
    assert len(talk.runs) == 7, "no more than fit the way to a worker"
    assert {len(run.audio) for run in talk.runs} == {2 * LARGEST_BYTES}
    talk.complete()
    assert talk.samples == 500 * 2048
    assert len(talk.runs) == 16
    assert [run.ends for run in talk.runs] == [False] * 15 + [True]


def test_client_that_does_not_read_holds_the_worker_up(begun: Talk) -> None:
    begun.do(begun.dialect.congested(True, begun.now))
    begun.client(append(3.0))
    begun.wait(5.0)
    assert begun.samples == 16_000
    begun.do(begun.dialect.congested(False, begun.now))
    assert begun.samples == 64_000


def test_audio_that_waits_is_bounded() -> None:
    talk = Talk(transcription_buffer_s=3.0)
    talk.client(append(2.5))
    (error,) = talk.client(append(0.6))
    assert error["code"] == "buffer_full"
    assert "3 s" in error["error"]
    assert codes(talk.client(append(0.6))) == ["buffer_full"], "each append beyond it"
    assert talk.client(append(0.5)) == [], "what fits still fits"
    assert talk.dialect.held_bytes == 3 * BYTES_PER_S


def test_bound_is_for_all_that_waits_by_default_half_an_hour(talk: Talk) -> None:
    talk.client(*[append(60.0)] * 30)
    assert codes(talk.client(append(0.001))) == ["buffer_full"]
    talk = Talk(transcription_buffer_s=3.0)
    talk.client(UPDATE, COMMIT, append(1.0), FINAL, COMMIT, append(1.0), FINAL, append(1.0))
    assert codes(talk.client(append(0.1))) == ["buffer_full"]
    talk.serve()
    assert talk.client(append(1.0)) == [], "the first second is at the worker"
    assert talk.dialect.held_bytes == 4 * BYTES_PER_S
    talk.complete()
    assert talk.dialect.held_bytes == 3 * BYTES_PER_S


def test_lost_audio_frees_buffer() -> None:
    talk = Talk(transcription_buffer_s=60.0)
    talk.client(UPDATE, COMMIT, append(50.0))
    talk.serve(max_units_in_flight=1)
    talk.finish(1, end=UnitEnd.FAILED)
    assert talk.dialect.held_bytes == 0


def test_without_room_in_the_server_an_append_is_refused(begun: Talk) -> None:
    held = begun.dialect.held_bytes
    (error,) = begun.do(
        begun.dialect.text_frame(json.dumps(append(2.0)).encode(), begun.now, drops_input=True)
    )
    assert error["code"] == "buffer_full"
    assert begun.dialect.held_bytes == held
    assert begun.do(begun.dialect.text_frame(json.dumps(FINAL).encode(), begun.now, drops_input=True)) == []
    assert begun.runs[-1].ends


def test_errors_beyond_twenty_in_a_second_are_counted_and_not_sent(talk: Talk) -> None:
    assert codes(talk.client(*[b"x"] * 50)) == ["invalid_json"] * 20
    assert talk.notes == []
    talk.wait(1.0)
    assert talk.notes == ["30 errors were not sent, beyond 20 in a second"]
    for _ in range(40):
        talk.client(*[b"x"] * 5)
        talk.wait(0.1)
    talk.wait(1.0)
    assert codes(talk.sent[1:]) == ["invalid_json"] * 100
    assert sum(int(note.split()[0]) for note in talk.notes) == 150
    assert talk.closed is None
    assert talk.client(UPDATE, COMMIT) == []
    assert talk.slot == "wanted"


def test_failed_utterance_is_reported_during_flood(begun: Talk) -> None:
    begun.client(*[b"x"] * 50)
    assert codes(begun.finish(1, end=UnitEnd.FAILED)) == ["processing_error"]
