"""The codec of one unit, compared with the standard library."""

import base64
import json
import time
from collections.abc import Callable

import msgspec
import numpy as np

from benchmarks.load.payload import APPEND, RESULT, SPEECH
from benchmarks.report import Goal, Report
from ws_adapter.protocol.duplex.ws_duplex_events import AudioChunk, ClientEvent, Result
from ws_adapter.protocol.wire.codec import EventDecoder, decode_audio, encode

_DECODER: EventDecoder[ClientEvent] = EventDecoder(ClientEvent)
_PLAIN = json.loads(RESULT) | {"audio_data": None}
_EVENT = msgspec.convert(_PLAIN, Result)
_EVENT.audio_data = SPEECH


def decode() -> object:
    """Decode a frame to validated samples, as the adapter does."""
    event = _DECODER.decode(APPEND)
    assert isinstance(event, AudioChunk)
    assert event.audio_base64 is not None
    return decode_audio(event.audio_base64, "f32", "audio_base64")


def decode_plainly() -> object:
    """Decode a frame to samples with the standard library, and validate them with numpy."""
    samples = np.frombuffer(base64.b64decode(json.loads(APPEND)["audio_base64"], validate=True), "<f4")
    assert np.isfinite(samples).all()
    return samples


def write() -> bytes:
    """Encode an event as a frame, as the adapter does."""
    return encode(_EVENT)


def write_plainly() -> bytes:
    """Encode an event as a frame with the standard library."""
    return json.dumps(_PLAIN | {"audio_data": base64.b64encode(SPEECH).decode()}).encode()


def us(function: Callable[[], object], seconds: float = 0.5) -> float:
    """Return the CPU time of one call in microseconds: the least of several runs."""
    runs, calls, best = 0, 50, float("inf")
    end = time.monotonic() + seconds
    while time.monotonic() < end or runs < 3:
        begin = time.process_time()
        for _ in range(calls):
            function()
        best = min(best, (time.process_time() - begin) / calls * 1e6)
        runs += 1
    return best


def unit_us() -> float:
    """Return the CPU-microseconds of the codec for one unit, in both directions."""
    return us(decode) + us(write)


async def measure(is_short: bool) -> Report:
    """Return the table of the codec."""
    seconds = 1.0 if is_short else 5.0
    own = us(decode, seconds), us(write, seconds)
    plain = us(decode_plainly, seconds), us(write_plainly, seconds)
    return Report(
        "codec",
        "JSON and base64 of one unit",
        ("direction", "adapter, us", "standard library, us", "ratio"),
        [("in", own[0], plain[0], plain[0] / own[0]), ("out", own[1], plain[1], plain[1] / own[1])],
        (
            Goal("codec in, standard library over adapter", plain[0] / own[0], 8, at_most=False),
            Goal("codec out, standard library over adapter", plain[1] / own[1], 40, at_most=False),
        ),
    )
