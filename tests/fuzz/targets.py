"""The fuzz targets: every decoder of untrusted bytes, with the invariants for any input.

A target takes bytes and returns. The documented rejection of bad input is a normal return; any other
exception is a bug.
"""

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

import numpy as np
from google.protobuf.message import DecodeError
from websockets.http11 import Request
from websockets.server import ServerProtocol

from antiphon.v1 import inference_service_pb2 as pb
from antiphon_service.telemetry.context import parse_traceparent
from inference_service.config.resolve import MODES, resolve
from inference_service.errors import SessionError, UnitRefused
from inference_service.interface.setups import UnitInput
from inference_service.media.image import decode_frame, decode_picture
from inference_service.models.minicpmo.slices import slice_image
from inference_service.rpc.messages import requests
from inference_service.session import metadata
from tests.support.scripted_engine import EVERYTHING
from tests.ws_adapter.support.pools import catalogue as catalogue_of
from ws_adapter.access.keys import Keys
from ws_adapter.pages import responses
from ws_adapter.process.errors import ConfigurationError
from ws_adapter.protocol.chat.content import MAX_MEDIA_BYTES, ChatRules, read_request
from ws_adapter.protocol.chat.fields import ChatFields
from ws_adapter.protocol.chat.realtime_chat import RealtimeChat
from ws_adapter.protocol.chat.ws_chat import Chat
from ws_adapter.protocol.completions.machine import CompletionMachine
from ws_adapter.protocol.completions.request import read_completion
from ws_adapter.protocol.core.actions import (
    CloseSocket,
    OpenWorkerSession,
    RunSegment,
    RunTurn,
    RunUnit,
    Send,
    TakeSlot,
)
from ws_adapter.protocol.core.config import Mode
from ws_adapter.protocol.core.machine import Action, Machine, Offload
from ws_adapter.protocol.core.signals import Finalized, Piece, Ready, UnitDone, UnitEnd
from ws_adapter.protocol.core.turn import Speech
from ws_adapter.protocol.duplex.input import BYTES_PER_S, MAX_FRAMES
from ws_adapter.protocol.duplex.machine import DuplexMachine
from ws_adapter.protocol.duplex.negotiation import DialectNegotiator
from ws_adapter.protocol.duplex.vocabulary import Begin, HoldFrame, Input, Vocabulary
from ws_adapter.protocol.duplex.ws_duplex import Duplex
from ws_adapter.protocol.media.images import read_frame
from ws_adapter.protocol.media.reference_voice import read_voice
from ws_adapter.protocol.transcription.commands import Append, Rejection, read_command
from ws_adapter.protocol.transcription.machine import Transcription
from ws_adapter.protocol.wire.codec import RequestDecoder, decode_audio, encode
from ws_adapter.protocol.wire.errors import InvalidUtf8, Refusal
from ws_adapter.protocol.wire.events import VoiceFields
from ws_adapter.protocol.wire.limits import Limits
from ws_adapter.web.http1 import RequestReader
from ws_adapter.web.routes import select

Target = Callable[[bytes], None]

FRAME_SEPARATOR = b"\n"
"""JSON needs no line break, so one input can be a whole conversation."""

_CATALOGUE = catalogue_of(voices={"amber"})
_KINDS = tuple(resolve(pb.SessionConfig(mode=mode), EVERYTHING, lambda: 7).setup for mode in MODES)
_READY = Ready(prompt_tokens=20, context_limit=8192, max_units_in_flight=2, generate_audio=True)


def _new_token() -> str:
    return "000000000000"


def _realtime() -> Vocabulary:
    return DialectNegotiator("sess_000000000000", Mode.VIDEO, 60.0, _new_token, lambda: "rt_1")


def _duplex() -> Vocabulary:
    return Duplex("label", Mode.VIDEO, Limits(), _new_token, announces_slot=True)


def _read_event(vocabulary: Vocabulary, frame: bytes) -> None:
    with suppress(Refusal, InvalidUtf8):
        match vocabulary.decode(frame):
            case Begin(read=read):
                setup = read(_CATALOGUE)
                assert len(setup.system_prompt) <= 32_768
            case Input(read=read_append):
                append = read_append(None)
                samples = append.clip.samples
                assert not samples.size or (np.isfinite(samples).all() and np.abs(samples).max() <= 1.0)
                assert len(append.frames) <= MAX_FRAMES
            case HoldFrame(read=read_picture):
                read_picture()


def _act(machine: Machine, waiting: list[Action], now: float) -> None:
    """Execute a machine's actions; the worker answers each unit at once."""
    is_duplex = isinstance(machine, DuplexMachine)
    while waiting:
        action, *waiting = waiting
        match action:
            case Send(event=event):
                told = json.loads(encode(event))
                assert isinstance(machine, CompletionMachine) or isinstance(told["type"], str)
            case Offload(work=work):
                waiting += work()(now)
            case TakeSlot() if not is_duplex:
                waiting += machine.granted(now)
            case OpenWorkerSession() if not is_duplex:
                waiting += machine.signal(_READY, now)
            case RunUnit():
                assert len(action.audio) == BYTES_PER_S
                assert len(action.frames) <= MAX_FRAMES
                done = UnitDone(action.unit, UnitEnd.LISTEN, 30)
                waiting += machine.signal(done, now) + machine.signal(Finalized(action.unit), now)
            case RunSegment(unit=unit, audio=pcm, ends=ends):
                assert np.isfinite(np.frombuffer(pcm, "<f4")).all()
                done = UnitDone(unit, UnitEnd.TURN if ends else UnitEnd.CHUNK, 30)
                waiting += machine.signal(done, now) + machine.signal(Finalized(unit), now)
            case RunTurn():
                for said in (Piece(1, "Yes.", b""), UnitDone(1, UnitEnd.TURN, 30)):
                    waiting += machine.signal(said, now)
            case CloseSocket():
                assert machine.is_over
                assert not waiting, "nothing follows the end"


def _steps(data: bytes) -> Iterator[tuple[float, bytes]]:
    """The times and frames of a conversation."""
    return ((step * 0.1, frame) for step, frame in enumerate(data.split(FRAME_SEPARATOR)[:200]))


def _converse(vocabulary: Vocabulary, data: bytes) -> None:
    machine = DuplexMachine(vocabulary, Limits(), lambda: _CATALOGUE, _new_token)
    machine.granted(0.0)
    for now, frame in _steps(data):
        _act(machine, machine.text_frame(frame, now), now)
        if machine.setup is not None:
            for told in machine.signal(_READY, now):
                assert not isinstance(told, CloseSocket)
        machine.tick(now, others_wait=False)


def transcription_event(data: bytes) -> None:
    with suppress(Rejection, InvalidUtf8):
        command = read_command(data)
        if isinstance(command, Append):
            assert command.pcm
            assert len(command.pcm) % 2 == 0


def transcription_conversation(data: bytes) -> None:
    machine = Transcription("sess-0", 0, Limits(), lambda: _CATALOGUE)
    for now, frame in _steps(data):
        _act(machine, machine.text_frame(frame, now), now)
        _act(machine, machine.tick(now, others_wait=False), now)


def chat_request(data: bytes) -> None:
    with suppress(Refusal, InvalidUtf8):
        fields = RequestDecoder(ChatFields).decode(data)
        request = read_request(fields, ChatRules("", speaks=True), _CATALOGUE.of(""))
        assert any(message.role == "user" for message in request.turn.messages)
        assert request.turn.size <= MAX_MEDIA_BYTES + len(data)
        for message in request.turn.messages:
            assert message.parts
            for part in message.parts:
                if isinstance(part, Speech):
                    samples = np.frombuffer(part.data, "<f4")
                    assert np.isfinite(samples).all()
                    assert np.abs(samples).max(initial=0.0) <= 1.0


def completion(data: bytes) -> None:
    with suppress(Refusal, InvalidUtf8):
        request = read_completion(data, _CATALOGUE)
        assert request.model in _CATALOGUE.models
        assert any(message.role == "user" for message in request.turn.messages)
    _chat(CompletionMachine(Limits(), lambda: _CATALOGUE, _new_token(), 0), data)


def _chat(machine: Machine, data: bytes) -> None:
    _act(machine, machine.opened(0.0), 0.0)
    for now, frame in _steps(data):
        _act(machine, machine.text_frame(frame, now), now)
        machine.tick(now, others_wait=False)


def audio(data: bytes) -> None:
    text = data.decode("latin-1")
    for encoding in ("f32", "pcm16"):
        with suppress(Refusal):
            samples = decode_audio(text, encoding, "audio").samples  # type: ignore[arg-type]
            assert samples.dtype == np.float32
            assert not samples.size or float(np.abs(samples).max()) <= 1.0


def reference_audio(data: bytes) -> None:
    fields = VoiceFields(ref_audio=base64.b64encode(data).decode())
    with suppress(Refusal):
        voice = read_voice((("payload", fields),), None)
        assert voice.llm_reference is None or 8_000 * 4 <= len(voice.llm_reference) <= 480_000 * 4


def reference_audio_path(data: bytes) -> None:
    """A path as the name of a voice: it is never opened."""
    fields = VoiceFields(ref_audio_path=data.decode("utf-8", "replace"))
    with suppress(Refusal):
        voice = read_voice((("payload", fields),), {"amber"})
        assert voice.voice_id in (None, "amber")


def public_picture(data: bytes) -> None:
    with suppress(Refusal):
        assert read_frame(base64.b64encode(data).decode(), "frame") == data


def picture(data: bytes) -> None:
    with suppress(UnitRefused):
        pixels = decode_frame(data, field="frames[0]", side=64)
        assert np.isfinite(pixels).all()
        slices, grid = slice_image(decode_picture(data, field="frames[0]"), 9, 448)
        assert len(slices) == 1 + (grid[0] * grid[1] if grid else 0) <= 10


def prefill(data: bytes) -> None:
    try:
        request = pb.PrefillRequest.FromString(data)
    except DecodeError:
        return
    if request.HasField("config"):
        with suppress(SessionError):
            resolve(request.config, EVERYTHING, lambda: 7)
    else:
        for setup in _KINDS:
            with suppress(SessionError, UnitRefused):
                unit = requests.content(request, setup, EVERYTHING)
                assert not isinstance(unit, UnitInput) or np.isfinite(unit.pcm).all()


def call_metadata(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    with suppress(SessionError):
        session_id = metadata.session_id([("antiphon-session-id", text)])
        assert 1 <= len(session_id) <= 64
    parse_traceparent(text, text)


def http_request(data: bytes) -> None:
    """Bytes are one request at most, which has an answer; the library can read an opening handshake."""
    reader, half = RequestReader(), len(data) // 2
    request = reader.feed(data[:half]) or reader.feed(data[half:])
    if request is None:
        return
    if request.fault is not None:
        responses.unreadable(request.fault)
    elif request.refused_body is not None:
        responses.body_refused(request.refused_body)
    elif request.wants_websocket:
        protocol = ServerProtocol()
        protocol.receive_data(reader.split()[0])
        (opening,) = protocol.events_received()
        assert isinstance(opening, Request), "the library reads what is handed on to it"


def request_target(data: bytes) -> None:
    target, *offered = data.decode("latin-1").split("\n")
    select(target, offered, Mode.VIDEO, frozenset(Mode))


def key_file(data: bytes) -> None:
    with NamedTemporaryFile() as file:
        file.write(data)
        file.flush()
        with suppress(ConfigurationError):
            Keys(Path(file.name)).find("secret")


TARGETS: dict[str, Target] = {
    "realtime_event": lambda data: _read_event(_realtime(), data),
    "duplex_event": lambda data: _read_event(_duplex(), data),
    "realtime_conversation": lambda data: _converse(_realtime(), data),
    "duplex_conversation": lambda data: _converse(_duplex(), data),
    "chat_conversation": lambda data: _chat(Chat(Limits(), lambda: _CATALOGUE), data),
    "realtime_chat_conversation": lambda data: _chat(
        RealtimeChat("sess_000000000000", Limits(), lambda: _CATALOGUE, _new_token), data
    ),
    **{
        target.__name__: target
        for target in (
            *(chat_request, completion, transcription_event, transcription_conversation),
            *(audio, reference_audio, reference_audio_path, public_picture, picture),
            *(prefill, call_metadata, http_request, request_target, key_file),
        )
    },
}
"""A conversation is a frame of its dialect on each line."""
