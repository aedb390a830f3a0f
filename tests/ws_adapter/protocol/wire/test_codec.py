"""Frames in and out: strict, bounded, in our own words, and the same as the plain way of doing it."""

import base64
import json
import math
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.support.long import examples
from ws_adapter.protocol.duplex import earlier_events, realtime_events, ws_duplex_events
from ws_adapter.protocol.duplex.realtime_events import (
    AudioDelta,
    ClientEvent,
    InputAppend,
    ListenDelta,
    SessionClose,
    SessionInit,
    TextDelta,
)
from ws_adapter.protocol.wire import scan
from ws_adapter.protocol.wire.codec import Clip, CutBase64, EventDecoder, decode_audio, encode
from ws_adapter.protocol.wire.errors import InvalidUtf8, Refusal
from ws_adapter.protocol.wire.events import Metrics

DECODER: EventDecoder[ClientEvent] = EventDecoder(SessionInit | InputAppend | SessionClose)


def refusal(frame: bytes) -> Refusal:
    with pytest.raises(Refusal) as caught:
        DECODER.decode(frame)
    return caught.value


NO_JSON = [
    *(b"", b"hello", b'{"type":"session.close"', b'{"type":"session.close"} {}', b'{"type":5,"x":NaN}'),
    *(b'{"type":"session.close","reason":NaN}', b'{"type":"session.close","extra":Infinity}'),
    *(b'{"type":"session.close","extra":[-Infinity]}', b"{'type':'session.close'}", b"\xef\xbb\xbf{}"),
    *(b'{"type":"session.close","reason":"\\ud800"}', b'{"type":"session.close","reason":"a\nb"}'),
    *(b"[" * 200_000, b'{"type":"session.close","x":' + b"[" * 200_000),
    b'{"type":"session.init","payload":{"config":{"a":' + b'{"a":' * 200_000,
    b'{"x":' * 200_000 + b"1" + b"}" * 200_000,
]


@pytest.mark.parametrize("frame", NO_JSON, ids=range(len(NO_JSON)))
def test_not_json(frame: bytes) -> None:
    assert refusal(frame).code == "invalid_json"


def test_frame_without_object_or_known_type_is_rejected() -> None:
    for frame in (b"[]", b"null", b"5", b'"session.close"', b"true"):
        assert refusal(frame).code == "invalid_payload", frame
    for name, code in (
        *(("", "missing_field"), ("null", "missing_field"), ('""', "missing_field")),
        *(("7", "invalid_payload"), ('["session.close"]', "invalid_payload")),
        *(('"session.update"', "unknown_event"), ('"Session.Close"', "unknown_event")),
    ):
        found = refusal(f'{{"type":{name}}}'.encode() if name else b"{}")
        assert (found.code, found.param) == (code, "type"), name


def test_utf8_is_checked_over_the_whole_frame() -> None:
    broken = (
        b'{"type":"session.close","reason":"\xff"}',
        b'{"type":"session.close","other":"\xc3("}',
        b"\x80",
    )
    for frame in broken:
        with pytest.raises(InvalidUtf8):
            DECODER.decode(frame)


def test_last_of_duplicate_keys_counts_the_type_may_come_last_and_unknown_fields_are_ignored() -> None:
    for frame in (
        b'{"type":"session.close","reason":"a","reason":"b"}',
        b'{"type":"session.close","reason":5,"reason":"b"}',
        b'{"type":"session.init","type":"session.close","reason":"b"}',
        b'{"reason":"b","type":"session.close"}',
        b'{"type":"session.close","trace":{"deep":[1,{"x":1e999}]},"reason":"b"}',
    ):
        assert DECODER.decode(frame) == SessionClose("b"), frame
    assert refusal(b'{"type":"session.close","reason":"b","reason":5}').param == "reason"


def test_error_message_names_number_out_of_range_and_quotes_no_unsafe_text() -> None:
    assert refusal(b'{"type":"session.init","payload":{"seed":1e999}}').message == (
        "payload.seed: expected an integer from 0 to 9223372036854775807, got a number out of range"
    )
    for frame in (json.dumps({"type": "x" * 100_000}).encode(), b'{"type":"a\\u0000\\u202eb"}'):
        assert refusal(frame).message == "type: unknown event a string"


def test_deep_nesting_in_an_unknown_field_is_ignored_or_no_json() -> None:
    nested = {n: b"[" * n + b"5" + b"]" * n for n in (500, 100_000)}
    frame = b'{"type":"session.close","nonsense":%s,"reason":"b"}'
    assert DECODER.decode(frame % nested[500]) == SessionClose("b")
    assert refusal(frame % nested[100_000]).code == "invalid_json"


def test_items_are_bounded_so_that_one_frame_cannot_stop_the_others() -> None:
    for frame in (
        b'{"type":"session.init","payload":{"tools":[%s0]}}',
        b'{"type":"session.init","payload":{"config":{"a":[%s0]}}}',
        b'{"type":"input.append","input":{"frames":[%s0]}}',
        b'{"type":"no.such.event","a":[%s0]}',
    ):
        found = refusal(frame % (b"[]," * (scan.MAX_ITEMS // 2)))
        assert found.code == "invalid_payload", frame
        assert "at most 8192 items" in found.message


def test_longest_prompt_of_any_content_is_accepted() -> None:
    event = DECODER.decode(written({"type": "session.init", "payload": {"system_prompt": "," * 32_768}}))
    assert isinstance(event, SessionInit)
    assert event.payload is not None
    assert event.payload.system_prompt == "," * 32_768


def test_white_space_in_base64_is_removed() -> None:
    for space in (" ", "\n", "\r\n", "\t", "\v", "\f"):
        text = space + "AACA" + space + "Pw==" + space
        assert decode_audio(text, "f32", "input.audio").samples.tolist() == [1.0]


def test_anything_else_in_base64_is_refused() -> None:
    broken = ["AACAPw", "AACAPw=", "AACAPw===", "AACA-w==", "AACA_w==", "AACAPw==AACAPw=="]
    for text in [*broken, "====", "é", "AA\x00A", "A"]:
        with pytest.raises(Refusal) as caught:
            decode_audio(text, "f32", "input.audio")
        assert (caught.value.code, caught.value.param) == ("invalid_payload", "input.audio"), text


G3: EventDecoder[Any] = EventDecoder(realtime_events.ClientEvent)
G2: EventDecoder[Any] = EventDecoder(earlier_events.ClientEvent)
D: EventDecoder[Any] = EventDecoder(ws_duplex_events.ClientEvent)

LONG = base64.b64encode(np.linspace(-1, 1, 800, dtype="<f4").tobytes()).decode()
ODD = base64.b64encode(bytes(range(256)) * 9).decode()
FRAMES = [
    (G3, {"type": "input.append", "input": {"audio": LONG, "force_listen": False, "input_id": "in-7"}}),
    (G3, {"type": "input.append", "input": {"audio_base64": LONG, "hints": {"force_listen": True}}}),
    (G3, {"input": {"frames": ["/9j/4AAQ"], "audio_data": LONG, "format": "pcm16"}, "type": "input.append"}),
    (G3, {"type": "input.append", "input": {"audio": {"data": LONG}}}),
    (G3, {"type": "input.append", "input": {"audio": {"audio_base64": LONG}}}),
    (G3, {"type": "input.append", "audio": LONG}),
    (G3, {"type": "input.append", "input": {"audio": "", "audio_base64": LONG}}),
    (G3, {"type": "input.append", "input": {"trace": {"audio": LONG}, "audio": "AACAPw=="}}),
    (G3, {"type": "input.append", "input": {"input_id": 'say "audio":"', "audio": LONG}}),
    (G3, {"type": "session.init", "payload": {"voice": {"audio": LONG}}}),
    (G2, {"type": "input_audio_buffer.append", "audio": LONG, "force_listen": False}),
    (G2, {"audio": ODD, "type": "input_audio_buffer.append", "max_slice_nums": 3}),
    (D, {"type": "audio_chunk", "audio_base64": LONG, "frame_base64_list": ["/9j/4AAQ"]}),
    (D, {"type": "audio_chunk", "audio": LONG, "audio_base64": ODD}),
    (D, {"type": "client_diagnostic", "audio": LONG}),
]  # fmt: skip
"""Events that clients send, and events that resemble them."""


def heard(text: str) -> object:
    """Return the decoded audio or its refusal; an empty text counts as no audio."""
    try:
        clip = decode_audio(text, "f32", "audio")
    except Refusal as refused:
        return (refused.code, refused.message)
    return (bool(text), clip.data, clip.clipped)


def told(event: Any) -> Any:
    """An event as plain data, its audio as what it comes to."""
    fields = msgspec.structs.asdict(event)
    for name, value in fields.items():
        if isinstance(value, msgspec.Struct):
            fields[name] = told(value)
        elif isinstance(value, str) and name.startswith("audio"):
            fields[name] = heard(value)
    return (type(event).__name__, fields)


def outcome(decode: Callable[[bytes], Any], frame: bytes) -> Any:
    try:
        return told(decode(frame))
    except InvalidUtf8:
        return "invalid UTF-8"
    except Refusal as refused:
        return (refused.code, refused.message, refused.param)


def same_either_way(decoder: EventDecoder[Any], frame: bytes) -> Any:
    """Return the outcome of `frame`, which must be equal with its audio cut out and without."""
    found = outcome(decoder.decode, frame)
    assert found == outcome(decoder._decode_whole, frame)
    return found


def written(event: Any, **style: Any) -> bytes:
    return json.dumps(event, **style).encode()


@pytest.mark.parametrize(("decoder", "event"), FRAMES, ids=range(len(FRAMES)))
@pytest.mark.parametrize("style", [{}, {"separators": (",", ":")}, {"indent": 2}], ids=str)
def test_cut_audio_means_the_same(decoder: EventDecoder[Any], event: Any, style: Any) -> None:
    frame = written(event, **style)
    same_either_way(decoder, frame)
    same_either_way(decoder, frame.replace(b"/", b"\\/"))
    same_either_way(decoder, frame[:-1])
    same_either_way(decoder, frame + b" {}")


@pytest.mark.parametrize(
    ("decoder", "frame", "place"),
    [
        (G3, b'{"type":"input.append","input":{"audio":"%b"}}', "input.audio"),
        (G3, b'{"type": "input.append", "input": {"audio_data" : "%b", "frames": []}}', "input.audio_data"),
        (G2, b'{"type":"input_audio_buffer.append","audio":"%b","video_frames":["AAAA"]}', "audio"),
        (D, b'{"type":"audio_chunk","audio_base64":"%b","frame_base64_list":["AAAA"]}', "audio_base64"),
        (D, b'{"audio_base64":"%b","type":"audio_chunk"}', "audio_base64"),
    ],
)
def test_usual_appends_are_cut(decoder: EventDecoder[Any], frame: bytes, place: str) -> None:
    found = attrgetter(place)(decoder.decode(frame % LONG.encode()))
    assert isinstance(found, CutBase64)
    assert found.data == base64.b64decode(LONG)


@pytest.mark.parametrize(
    "frame",
    [
        b'{"type":"input.append","input":{"audio":"%b","audio":"AACAPw=="}}',
        b'{"type":"input.append","input":{"audio":"AACAPw==","audio":"%b"}}',
        b'{"type":"input.append","input":{"audio":"%b"},"input":{"audio":"AACAPw=="}}',
        b'{"type":"input.append","input":{"audio":"%b","audio":null}}',
        b'{"type":"input.append","input":{"audio":"%b","audio":7}}',
        b'{"type":"input.append","input":{"audio":7,"audio":"%b"}}',
        b'{"type":"input.append","input":{"audio":"%b"},"type":"session.close"}',
        b'{"type":"input.append","input":{"audio":"%b","reason":"\xc3\xa9"}}',
        b'{"type":"input.append","input":{"audio":"%b","reason":"\xc3"}}',
        b'{"type":"input.append","input":{"audio":"%b\xc3\xa9"}}',
        b'{"type":"input.append","input":{"audio":"%b\n"}}',
        b'{"type":"input.append","input":{"audio":"%b "}}',
        b'{"type":"input.append","input":{"audio":"%b\\"}}',
        b'{"type":"input.append","input":{"audio":"%b\\","x":"b"}}',
        b'{"type":"input.append","input":{"audio":"%b\\u0041\\u0041\\u0041\\u0041"}}',
        b'{"type":"input.append","input":{"audio":"%b}}',
        b'{"type":"input.append","input":{"audio":"%b":1}}',
        b'{"type":"input.append","input":{"audio":""%b""}}',
        b'{"type":"input.append","input":{"audio":"x""%b"}}',
        b'{"type":"input.append","input":{"\\u0061udio":"%b","audio":"AACAPw=="}}',
        b'{"type":"input.append","input":{"input_id":"\\"audio\\":\\"%b"}}',
        b'{"type":"input.append","input":{"input_id":"\\\\"audio":"%b"}}',
        b'{"type":"input.append","input":{"audio":"%b","seed":1e999,"max_slice_nums":99}}',
        b'{"type":"input.append","input":{"audio":"%b","x":NaN}}',
        b'{"type":"input.append","input":{"audio":"%b","x":' + b"[" * 3000,
        b'["type","input.append",{"audio":"%b"}]',
        b'{"type":"input.append","input":null,"audio":"%b"}',
        b'{"type":"input.append","input":["audio",{"audio":"%b"}]}',
    ],
    ids=range(28),
)
def test_traps_mean_the_same(frame: bytes) -> None:
    same_either_way(G3, frame.replace(b"%b", LONG.encode()))


def test_items_late_audio_and_tokens_of_others_mean_the_same() -> None:
    items = [[]] * (scan.MAX_ITEMS // 2)
    found = same_either_way(G3, written({"type": "input.append", "input": {"audio": LONG, "note": items}}))
    assert "at most 8192 items" in found[1]
    late = {"type": "audio_chunk", "frame_base64_list": ["A" * 5000], "audio_base64": LONG}
    assert same_either_way(D, written(late))[1]["audio_base64"] == heard(LONG)
    token = str(G3.decode(written({"type": "input.append", "input": {"audio": LONG}})).input.audio)
    other = {"type": "input.append", "input": {"audio": LONG, "input_id": token, "note": [token]}}
    assert same_either_way(G3, written(other))[1]["input"][1]["input_id"] == token


pieces = st.sampled_from(
    [bytes([byte]) for byte in b'"\\/=,:{}[] \n\x00A-\xff']
    + [piece.encode() for piece in ('\\"', "\\/", "==", "é", '","audio":"', '":"', '"audio":', '{"audio":"')]
    + [piece.encode() for piece in ('"}', '"}}', "null", "1e999", "NaN", "\\u0041", LONG)]
)


@st.composite
def mutations(draw: st.DrawFn) -> tuple[EventDecoder[Any], bytes]:
    """A frame with a few places replaced, removed or inserted into, mostly near the ends of its audio."""
    decoder, event = draw(st.sampled_from(FRAMES))
    frame = written(event, ensure_ascii=draw(st.booleans()))
    for _ in range(draw(st.integers(1, 3))):
        begin = frame.find(LONG.encode()[:40])
        near = [place for place in (begin, begin + len(LONG)) if begin >= 0]
        ends = st.sampled_from(near).flatmap(lambda end: st.integers(max(0, end - 12), end + 12))
        at = draw(st.one_of(ends, st.integers(0, len(frame))) if near else st.integers(0, len(frame)))
        frame = frame[:at] + draw(pieces | st.just(b"")) + frame[at + draw(st.integers(0, 3)) :]
    return decoder, frame


@settings(max_examples=examples(600), deadline=None)
@given(mutations())
def test_any_change_to_a_frame_means_the_same(found: tuple[EventDecoder[Any], bytes]) -> None:
    same_either_way(*found)


@settings(max_examples=examples(100), deadline=None)
@given(st.integers(0, 255), st.integers(0, len(LONG) - 1))
def test_any_byte_in_the_audio_means_the_same(byte: int, at: int) -> None:
    text = bytearray(LONG.encode())
    text[at] = byte
    same_either_way(G2, b'{"type":"input_audio_buffer.append","audio":"%b"}' % bytes(text))


@pytest.mark.parametrize(("encoding", "width"), [("f32", 4), ("pcm16", 2)])
@pytest.mark.parametrize("samples", [1, 2, 4, 800, 801, 802])
@pytest.mark.parametrize(
    ("decoder", "frame", "place"),
    [
        (G3, b'{"type":"input.append","input":{"audio":"%b"}}', "input.audio"),
        (G3, b'{"type":"input.append","input":{"audio":{"base64":"%b"}}}', "input.audio.base64"),
        (G2, b'{"type":"input_audio_buffer.append","audio":"%b"}', "audio"),
        (D, b'{"type":"audio_chunk","audio_data":"%b"}', "audio_data"),
    ],
)
def test_sized_audio_is_not_looked_at(
    decoder: EventDecoder[Any], frame: bytes, place: str, samples: int, encoding: Any, width: int
) -> None:
    text = base64.b64encode(bytes(samples * width))
    clip = decode_audio(attrgetter(place)(decoder.decode(frame % text, sized_only=True)), encoding, place)
    assert (clip.count, clip.undecoded, clip.samples.size) == (samples, samples, 0)


def test_sized_audio_may_be_anything_and_the_frame_is_judged_by_all_else() -> None:
    for size in (8, 4096):
        frame = written({"type": "audio_chunk", "audio_base64": "!" * size})
        audio = D.decode(frame, sized_only=True).audio_base64
        assert decode_audio(audio, "f32", "a").count == size * 3 // 16
    frame = written({"type": "input.append", "input": {"audio": LONG, "format": "mp3"}})
    with pytest.raises(Refusal) as caught:
        G3.decode(frame, sized_only=True)
    assert caught.value.param == "input.format"


def test_clip_gives_back_the_bytes_that_came() -> None:
    data = np.linspace(-1, 1, 100, dtype="<f4").tobytes()
    whole = decode_audio(base64.b64encode(data).decode(), "f32", "audio")
    clipped = decode_audio(base64.b64encode(np.full(9, 2.0, "<f4").tobytes()).decode(), "f32", "audio")
    assert whole.data == data
    assert clipped.data == np.ones(9, "<f4").tobytes()
    assert Clip(whole.samples[10:20]).data == data[40:80]
    assert Clip(np.frombuffer(data, "<f4", count=10)).data == data[:40]


def plainly(frame: bytes) -> tuple[str, Any]:
    """Decode an append by the same rules with the standard library alone."""
    try:
        event = json.loads(frame, parse_constant=lambda _: (_ for _ in ()).throw(ValueError()))
    except (ValueError, RecursionError):
        return ("invalid_json", None)
    invalid, missing = ("invalid_payload", None), ("missing_field", None)
    if not isinstance(event, dict):
        return invalid
    name = event.get("type")
    if name is None or name == "":
        return missing
    if name != "input.append":
        return ("unknown_event", None) if isinstance(name, str) else invalid
    fields = event.get("input")
    if not isinstance(fields, dict):
        return missing if fields is None else invalid
    text = fields.get("audio")
    if not isinstance(text, str):
        return missing if text is None else invalid
    kept = text.translate(dict.fromkeys(map(ord, " \t\n\r\v\f")))
    try:
        data = base64.b64decode(kept.encode("ascii"), validate=True)
    except ValueError:
        return invalid
    if len(kept) % 4 or len(data) % 4:
        return invalid
    values = np.frombuffer(data, "<f4")
    if any(not math.isfinite(value) or abs(value) > 16 for value in values):
        return invalid
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


@settings(max_examples=examples(400), deadline=None)
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


@settings(max_examples=examples(300), deadline=None)
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
        assert "`" not in message or b"`" in frame, "the library quotes types so; we do not"


def delta(shape: type, **fields: Any) -> Any:
    return shape(session_id="s", input_id="i", metrics=Metrics(), **fields)


def result(audio: bytes | None, text: str) -> ws_duplex_events.Result:
    zeros = {name: 0 for name in ws_duplex_events.Result.__struct_fields__}
    given = {"is_listen": audio is None, "text": text, "end_of_turn": False, "dropped": None}
    return ws_duplex_events.Result(**zeros | given | {"dropped_total": None, "audio_data": audio})


def earlier(audio: bytes, text: str) -> Any:
    fields = {"end_of_turn": False, "kv_cache_length": 168, "response_id": "resp", "metrics": Metrics()}
    return earlier_events.AudioDelta(text=text, audio=audio, input_id='","audio":"AAAA"', **fields)


SPOKEN: list[tuple[Callable[[bytes, str], Any], str]] = [
    (lambda audio, text: delta(AudioDelta, kind="audio", audio=audio, response_id=text), "audio"),
    (earlier, "audio"),
    (result, "audio_data"),
]


@pytest.mark.parametrize(("make", "name"), SPOKEN, ids=["G3", "G2", "D"])
@given(
    audio=st.binary(max_size=400), text=st.text() | st.sampled_from(['"audio":"AAAA"', '","audio_data":"'])
)
def test_audio_equals_plain_json(
    make: Callable[[bytes, str], Any], name: str, audio: bytes, text: str
) -> None:
    event = make(audio, text)
    plain = json.loads(msgspec.json.encode(event))
    assert plain[name] == base64.b64encode(audio).decode()
    assert json.loads(encode(event)) == plain


def test_encoding_leaves_the_event_as_it_was_and_optional_fields_out() -> None:
    event = delta(AudioDelta, kind="audio", audio=b"abcd")
    assert encode(event) == encode(event)
    listened = json.loads(encode(delta(ListenDelta, kind="listen")))
    assert listened.keys() == {"type", "kind", "session_id", "input_id", "metrics"}
    assert json.loads(encode(delta(TextDelta, kind="text", text="")))["text"] == ""
    assert json.loads(encode(result(None, "")))["audio_data"] is None
