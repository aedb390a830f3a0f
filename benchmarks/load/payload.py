"""The messages of one unit: from client, adapter and worker.

85 KB of JSON from the client (one second of float32 in base64), 64 KB of protobuf to the worker, 96 KB of
protobuf back (one second of speech), 128 KB of JSON to the client. The dialect is that of `/ws/duplex`, which
answers each unit with one event.
"""

import base64
import json
from typing import Final

import numpy as np

from antiphon.v1 import common_pb2
from antiphon.v1 import inference_service_pb2 as pb

_random = np.random.default_rng(1)

PCM: Final = _random.uniform(-0.5, 0.5, 16_000).astype("<f4").tobytes()
"""The audio that a client sends in a second."""

SPEECH: Final = _random.uniform(-0.5, 0.5, 24_000).astype("<f4").tobytes()
"""The audio that the model generates in a second."""

PATH: Final = "/ws/duplex/adx_bench"
PREPARE: Final = b'{"type":"prepare"}'
PREPARED: Final = b'"prepared"'


def append(pcm: bytes) -> bytes:
    """Return the event that sends the audio `pcm`, float32 little-endian."""
    return json.dumps({"type": "audio_chunk", "audio_base64": base64.b64encode(pcm).decode()}).encode()


APPEND: Final = append(PCM)
ANSWER: Final = b'"result"'
DROPPED: Final = b'"dropped":true'

RESULT: Final = json.dumps(
    {
        "type": "result",
        "is_listen": False,
        "text": "",
        "end_of_turn": False,
        "current_time": 8,
        "kv_cache_length": 168,
        "cost_llm_ms": 41.0,
        "cost_tts_prep_ms": 0.0,
        "cost_tts_ms": 0.0,
        "cost_token2wav_ms": 0.0,
        "cost_all_ms": 212.0,
        "prefill_ms": 9.1,
        "wall_clock_ms": 181.2,
        "n_tokens": 6,
        "n_tts_tokens": 25,
        "vision_slices": 0,
        "vision_tokens": 0,
        "server_send_ts": 1795159658.4,
        "audio_data": base64.b64encode(SPEECH).decode(),
    }
).encode()
"""The answer to a unit, with the size of the adapter's answer."""

TRACEPARENT: Final = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"


def prefill(unit: int) -> pb.PrefillRequest:
    """Return the input of a unit."""
    request = pb.PrefillRequest(unit=unit, traceparent=TRACEPARENT)
    request.duplex.audio.encoding = common_pb2.AUDIO_ENCODING_PCM_F32LE
    request.duplex.audio.sample_rate_hz = 16_000
    request.duplex.audio.data = PCM
    return request


def generate(unit: int) -> pb.GenerateRequest:
    """Return the request to run a unit."""
    return pb.GenerateRequest(unit=unit, run=pb.GenerateUnit())


def finalize(unit: int) -> pb.FinalizeRequest:
    """Return the request to close a unit."""
    return pb.FinalizeRequest(unit=unit)


def prefilled(unit: int) -> pb.PrefillResponse:
    """Return the answer to the input of a unit."""
    answer = pb.PrefillResponse(unit=unit)
    answer.prefilled.context_tokens = 168
    answer.prefilled.usage.input_audio_tokens = 10
    answer.prefilled.timings.prefill.nanos = 9_100_000
    return answer


def generated(unit: int, speaks: bool) -> pb.GenerateResponse:
    """Return the output of a unit in one message."""
    answer = pb.GenerateResponse(unit=unit)
    if speaks:
        answer.audio.encoding = common_pb2.AUDIO_ENCODING_PCM_F32LE
        answer.audio.sample_rate_hz = 24_000
        answer.audio.data = SPEECH
    # Every speaking unit ends its turn: dropped units have no answer while a turn is open.
    answer.done.end = pb.UNIT_END_TURN if speaks else pb.UNIT_END_LISTEN
    answer.done.context_tokens = 168
    answer.done.usage.input_audio_tokens = 10
    answer.done.usage.output_text_tokens = 6
    answer.done.usage.output_audio_tokens = 25
    answer.done.timings.decode.nanos = 41_000_000
    answer.done.timings.total.nanos = 212_000_000
    return answer


def record(unit: int, end: pb.UnitEnd) -> pb.UnitRecord:
    """Return the record of a unit for a replay."""
    return pb.UnitRecord(
        end=end, sampled_ids=range(6), speech_codes=range(25), text_draws=6 * unit, speech_draws=25 * unit
    )


def finalized(unit: int) -> pb.FinalizeResponse:
    """Return the message that closes a unit."""
    answer = pb.FinalizeResponse(unit=unit, context_tokens=168)
    answer.session_usage.input_audio_tokens = 10 * unit
    return answer
