"""Frames in and out: strict, bounded, in our own words, and the same as the plain way of doing it."""

import base64
import json
import math
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.adapter.conversation import pcm
from ws_adapter.codec import MAX_ITEMS, EventDecoder, decode_audio, encode
from ws_adapter.dialects.errors import InvalidUtf8, Refusal
from ws_adapter.dialects.events import (
    AudioDelta,
    ClientEvent,
    InputAppend,
    ListenDelta,
    Metrics,
    SessionClose,
    SessionInit,
    TextDelta,
)

DECODER: EventDecoder[ClientEvent] = EventDecoder(SessionInit | InputAppend | SessionClose)


def refusal(frame: bytes) -> Refusal:
    with pytest.raises(Refusal) as caught:
        DECODER.decode(frame)
    return caught.value


# ------------------------------------------------------------------------------------------- malformed


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"hello",
        b'{"type":"session.close"',
        b'{"type":"session.close"} {}',
        b'{"type":"session.close","reason":NaN}',
        b'{"type":"session.close","extra":Infinity}',
        b'{"type":"session.close","extra":[-Infinity]}',
        b"{'type':'session.close'}",
        b'{"type":"session.close","reason":"\\ud800"}',
        b'{"type":"session.close","reason":"a\nb"}',
        b"\xef\xbb\xbf{}",
        b"[" * 200_000,
        b'{"type":"session.close","x":' + b"[" * 200_000,
        b'{"type":"session.init","payload":{"config":{"a":' + b'{"a":' * 200_000,
        b'{"x":' * 200_000 + b"1" + b"}" * 200_000,
        b'{"type":5,"x":NaN}',
    ],
    ids=range(16),
)
def test_not_json(frame: bytes) -> None:
    assert refusal(frame).code == "invalid_json"


@pytest.mark.parametrize("frame", [b"[]", b"null", b"5", b'"session.close"', b"true"])
def test_not_an_object(frame: bytes) -> None:
    assert refusal(frame).code == "invalid_payload"


@pytest.mark.parametrize(
    ("frame", "code"),
    [
        (b"{}", "missing_field"),
        (b'{"type":null}', "missing_field"),
        (b'{"type":""}', "missing_field"),
        (b'{"type":7}', "invalid_payload"),
        (b'{"type":["session.close"]}', "invalid_payload"),
        (b'{"type":"session.update"}', "unknown_event"),
        (b'{"type":"Session.Close"}', "unknown_event"),
    ],
)
def test_type(frame: bytes, code: str) -> None:
    found = refusal(frame)

    assert (found.code, found.param) == (code, "type")


@pytest.mark.parametrize(
    "frame",
    [b'{"type":"session.close","reason":"\xff"}', b'{"type":"session.close","other":"\xc3("}', b"\x80"],
)
def test_utf8_is_checked_over_the_whole_frame(frame: bytes) -> None:
    with pytest.raises(InvalidUtf8):
        DECODER.decode(frame)


def test_last_of_duplicate_keys_counts() -> None:
    assert DECODER.decode(b'{"type":"session.close","reason":"a","reason":"b"}') == SessionClose("b")
    assert DECODER.decode(b'{"type":"session.close","reason":5,"reason":"b"}') == SessionClose("b")
    assert DECODER.decode(b'{"type":"session.init","type":"session.close","reason":"b"}') == SessionClose("b")
    assert refusal(b'{"type":"session.close","reason":"b","reason":5}').param == "reason"


def test_type_may_come_last() -> None:
    assert DECODER.decode(b'{"reason":"b","type":"session.close"}') == SessionClose("b")


def test_unknown_fields_are_ignored() -> None:
    frame = b'{"type":"session.close","trace":{"deep":[1,{"x":1e999}]},"reason":"b"}'

    assert DECODER.decode(frame) == SessionClose("b")


def test_number_out_of_range_is_told_as_such() -> None:
    assert refusal(b'{"type":"session.init","payload":{"seed":1e999}}').message == (
        "payload.seed: expected an integer from 0 to 9223372036854775807, got a number out of range"
    )


@pytest.mark.parametrize(
    "frame",
    [
        b'{"type":"session.init","payload":{"tools":[%s0]}}',
        b'{"type":"session.init","payload":{"config":{"a":[%s0]}}}',
        b'{"type":"input.append","input":{"frames":[%s0]}}',
        b'{"type":"no.such.event","a":[%s0]}',
    ],
)
def test_items_are_bounded_so_that_one_frame_cannot_stop_the_others(frame: bytes) -> None:
    found = refusal(frame % (b"[]," * (MAX_ITEMS + 1)))

    assert found.code == "invalid_payload"
    assert "at most 65536 items" in found.message


def test_longest_prompt_fits_whatever_it_holds() -> None:
    event = DECODER.decode(
        json.dumps({"type": "session.init", "payload": {"system_prompt": "," * 32_768}}).encode()
    )

    assert isinstance(event, SessionInit)
    assert event.payload is not None
    assert event.payload.system_prompt == "," * 32_768


def test_long_values_are_not_echoed() -> None:
    frame = json.dumps({"type": "x" * 100_000}).encode()

    assert refusal(frame).message == "type: unknown event a string"


def test_message_quotes_only_what_can_be_printed() -> None:
    assert refusal(b'{"type":"a\\u0000\\u202eb"}').message == "type: unknown event a string"


# ---------------------------------------------------------------------------------------------- base64


@pytest.mark.parametrize("space", [" ", "\n", "\r\n", "\t", "\v", "\f"])
def test_white_space_in_base64_is_removed(space: str) -> None:
    text = space + "AACA" + space + "Pw==" + space

    assert decode_audio(text, "f32", "input.audio").samples.tolist() == [1.0]


@pytest.mark.parametrize(
    "text",
    [
        "AACAPw",
        "AACAPw=",
        "AACAPw===",
        "AACA-w==",
        "AACA_w==",
        "AACAPw==AACAPw==",
        "====",
        "é",
        "AA\x00A",
        "A",
    ],
)
def test_anything_else_in_base64_is_refused(text: str) -> None:
    with pytest.raises(Refusal) as caught:
        decode_audio(text, "f32", "input.audio")
    assert (caught.value.code, caught.value.param) == ("invalid_payload", "input.audio")


# ----------------------------------------------------------------------- the fast path and the plain one


def plainly(frame: bytes) -> tuple[str, Any]:
    """What the standard library alone makes of an append, by the same rules."""
    try:
        event = json.loads(frame, parse_constant=lambda _: (_ for _ in ()).throw(ValueError()))
    except (ValueError, RecursionError):
        return ("invalid_json", None)
    if not isinstance(event, dict):
        return ("invalid_payload", None)
    name = event.get("type")
    if name is None or name == "":
        return ("missing_field", None)
    if not isinstance(name, str):
        return ("invalid_payload", None)
    if name != "input.append":
        return ("unknown_event", None)
    fields = event.get("input")
    if fields is None:
        return ("missing_field", None)
    if not isinstance(fields, dict):
        return ("invalid_payload", None)
    text = fields.get("audio")
    if text is None:
        return ("missing_field", None)
    if not isinstance(text, str):
        return ("invalid_payload", None)
    kept = text.translate(dict.fromkeys(map(ord, " \t\n\r\v\f")))
    try:
        data = base64.b64decode(kept.encode("ascii"), validate=True)
    except ValueError:
        return ("invalid_payload", None)
    if len(kept) % 4 or len(data) % 4:
        return ("invalid_payload", None)
    values = np.frombuffer(data, "<f4")
    if any(not math.isfinite(value) or abs(value) > 16 for value in values):
        return ("invalid_payload", None)
    return ("ok", [max(-1.0, min(1.0, float(value))) for value in values])


def fast(frame: bytes) -> tuple[str, Any]:
    try:
        event = DECODER.decode(frame)
        assert isinstance(event, InputAppend)
        if event.input is None or event.input.audio is None:
            return ("missing_field", None)
        assert isinstance(event.input.audio, str)
        return ("ok", decode_audio(event.input.audio, "f32", "input.audio").samples.tolist())
    except Refusal as refused:
        return (str(refused.code), None)


audio_texts = st.one_of(
    st.lists(st.floats(width=32), max_size=12).map(
        lambda values: base64.b64encode(np.array(values, "<f4").tobytes()).decode()
    ),
    st.binary(max_size=20).map(lambda data: base64.b64encode(data).decode()),
    st.text("AQgw/+= \n-_", max_size=16),
    st.text(max_size=8),
)
appends = st.fixed_dictionaries(
    {"type": st.just("input.append"), "input": st.fixed_dictionaries({"audio": audio_texts})}
)
oddities = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
shapes = st.one_of(
    appends,
    st.fixed_dictionaries(
        {"type": st.just("input.append"), "input": oddities.filter(lambda v: not isinstance(v, dict))}
    ),
    st.fixed_dictionaries({"type": oddities, "other": oddities}),
    oddities,
)


@settings(max_examples=400, deadline=None)
@given(event=shapes, escape=st.booleans(), cut=st.integers(0, 3))
@example({"type": "input.append", "input": {"audio": "AACAPw=="}}, True, 0)
def test_fast_path_equals_the_plain_one(event: Any, escape: bool, cut: int) -> None:
    frame = json.dumps(event, ensure_ascii=escape)
    if escape:
        frame = frame.replace("/", "\\/")
    encoded = frame.encode(errors="surrogatepass")[: -cut or None]
    try:
        encoded.decode()
    except UnicodeDecodeError:
        with pytest.raises(InvalidUtf8):
            DECODER.decode(encoded)
        return
    if b"\\ud" in encoded:
        return  # lone surrogates, which the standard library lets pass
    assert fast(encoded) == plainly(encoded)


@settings(max_examples=300, deadline=None)
@given(st.binary(max_size=60))
def test_no_bytes_raise_anything_else(frame: bytes) -> None:
    with suppress(Refusal, InvalidUtf8):
        DECODER.decode(frame)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(["session.init", "input.append", "session.close"]), oddities, oddities)
def test_no_json_raises_anything_else(name: str, first: Any, second: Any) -> None:
    event = {"type": name, "payload": first, "input": first, "reason": second, "config": second}
    for extra in ({}, {"payload": {"config": first, "voice": second, "seed": first, "tools": second}}):
        frame = json.dumps({**event, **extra}).encode()
        message = ""
        try:
            DECODER.decode(frame)
        except Refusal as refused:
            message = refused.message
        assert "`" not in message, "the library quotes types so; we do not"


# ------------------------------------------------------------------------------------------------- out


def delta(shape: type, **fields: Any) -> Any:
    return shape(session_id="s", input_id="i", metrics=Metrics(), **fields)


@given(st.binary(max_size=400))
def test_audio_delta_equals_plain_json(audio: bytes) -> None:
    event = delta(AudioDelta, kind="audio", audio=audio, response_id='a"b', chunk_index=0)

    assert json.loads(encode(event)) == {
        "type": "response.output.delta",
        "kind": "audio",
        "session_id": "s",
        "input_id": "i",
        "response_id": 'a"b',
        "chunk_index": 0,
        "metrics": {},
        "audio": base64.b64encode(audio).decode(),
    }


def test_encoding_leaves_the_event_as_it_was() -> None:
    event = delta(AudioDelta, kind="audio", audio=b"abcd")

    assert encode(event) == encode(event)


def test_optional_fields_are_omitted_and_metrics_are_not() -> None:
    assert json.loads(encode(delta(ListenDelta, kind="listen"))).keys() == {
        "type",
        "kind",
        "session_id",
        "input_id",
        "metrics",
    }
    assert json.loads(encode(delta(TextDelta, kind="text", text="")))["text"] == ""


def test_large_append_is_decoded() -> None:
    frame = json.dumps({"type": "input.append", "input": {"audio": pcm(60)}}).encode()
    event = DECODER.decode(frame)

    assert isinstance(event, InputAppend)
    assert event.input is not None
    assert isinstance(event.input.audio, str)
    assert decode_audio(event.input.audio, "f32", "input.audio").samples.size == 960_000
