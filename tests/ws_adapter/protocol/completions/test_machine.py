"""A chat completion without I/O: what goes to the worker, and what is answered with which status."""

import base64
import json
from http import HTTPStatus
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from antiphon.contract import Reason
from tests.ws_adapter.support.conversation import Event, ready_signal
from tests.ws_adapter.support.pools import catalogue as catalogue_of
from tests.ws_adapter.support.tokens import tokens
from ws_adapter.protocol.completions.machine import CompletionMachine
from ws_adapter.protocol.core.actions import CloseSocket, OpenWorkerSession, Respond, RunTurn, Send, TakeSlot
from ws_adapter.protocol.core.machine import Action, Offload, Place
from ws_adapter.protocol.core.signals import (
    NO_TIMINGS,
    CallDelta,
    Failed,
    Finish,
    Piece,
    Prefilled,
    Signal,
    UnitDone,
    UnitEnd,
)
from ws_adapter.protocol.wire import errors
from ws_adapter.protocol.wire.codec import encode
from ws_adapter.protocol.wire.errors import VERDICTS, CloseCode, Verdict
from ws_adapter.protocol.wire.limits import Limits

CATALOGUE = catalogue_of(voices={"amber"}, calls_tools=True)
MODEL = next(iter(sorted(CATALOGUE.models)))
SPOKEN = np.full(2400, 0.5, "<f4").tobytes()
ASKED: Event = {"model": MODEL, "messages": [{"role": "user", "content": "Name a prime."}]}
ALOUD: Event = {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav"}}
DONE = UnitDone(1, UnitEnd.TURN, 31, tokens(input_text=27, output_text=4), finish=Finish.EOS)


class Jar:
    """One request, and all that came of it."""

    def __init__(self) -> None:
        self.machine = CompletionMachine(Limits(), lambda: CATALOGUE, "0123", 1_795_000_000)
        self.sent: list[Event] = []
        self.begun: Respond | None = None
        self.closed: CloseSocket | None = None
        self.actions: list[Action] = []
        self.do(self.machine.opened(0.0))

    @property
    def choice(self) -> Event:
        """Of the first event."""
        choice: Event = self.sent[0]["choices"][0]
        return choice

    def do(self, actions: list[Action]) -> None:
        for action in actions:
            self.actions.append(action)
            match action:
                case Send():
                    assert self.begun is not None, "nothing is sent before the status is known"
                    self.sent.append(json.loads(encode(action.event)))
                case Respond():
                    assert self.begun is None, "the status is told once"
                    self.begun = action
                case CloseSocket():
                    self.closed = action
                case Offload():
                    self.do(action.work()(0.0))

    def ask(self, body: Any = None, **fields: Any) -> None:
        given = ASKED | fields if body is None else body
        frame = given if isinstance(given, bytes) else json.dumps(given).encode()
        self.do(self.machine.text_frame(frame, 0.0))

    def start(self, **fields: Any) -> None:
        """Up to the turn at the worker."""
        self.ask(**fields)
        self.do(self.machine.granted(0.0))
        self.worker(ready_signal())

    def worker(self, *signals: Signal) -> None:
        for signal in signals:
            self.do(self.machine.signal(signal, 0.0))

    def answer(self, *signals: Signal) -> None:
        read = Prefilled(1, NO_TIMINGS, tokens=tokens(input_text=27))
        self.worker(read, *signals, DONE)

    def first(self, shape: Any) -> Any:
        return next(action for action in self.actions if isinstance(action, shape))

    @property
    def status(self) -> int:
        assert self.begun is not None
        return int(self.begun.status)


@pytest.fixture
def jar() -> Jar:
    return Jar()


def test_turn_uses_worker_of_its_model_and_truncation_gives_length_finish(jar: Jar) -> None:
    jar.start(seed=3, stop="x", max_tokens=5, temperature=0.0, tools=None)
    assert jar.first(TakeSlot).model == MODEL
    setup = jar.first(OpenWorkerSession).setup
    assert (setup.model, setup.seed) == (MODEL, 3)
    generation = jar.first(RunTurn).turn.generation
    assert (generation.stop, generation.max_new_tokens, generation.temperature) == (("x",), 5, 0.0)
    jar.worker(Prefilled(1, NO_TIMINGS), Piece(1, "Sev", b""), structs.replace(DONE, finish=Finish.LENGTH))
    assert jar.choice["finish_reason"] == "length"


def test_queued_client_gets_no_event_and_complete_answer_is_one_object(jar: Jar) -> None:
    jar.ask()
    jar.do(jar.machine.queued(Place(1, 3.0, "ticket", 1, False)))
    jar.do(jar.machine.granted(0.0))
    assert jar.sent == []
    assert jar.begun is None
    jar.worker(ready_signal())
    jar.answer(Piece(1, "Sev", b""), Piece(1, "en.", b""))
    assert jar.status == 200
    (told,) = jar.sent
    assert told["object"] == "chat.completion"
    assert jar.choice["message"]["content"] == "Seven."
    assert (told["usage"]["prompt_tokens"], told["usage"]["completion_tokens"]) == (27, 4)
    assert jar.closed == CloseSocket(CloseCode.NORMAL, errors.DONE)


@pytest.mark.parametrize("options", [{}, {"include_usage": True}], ids=["", "usage"])
def test_stream_begins_with_the_role_and_ends_with_the_reason(jar: Jar, options: Event) -> None:
    jar.start(stream=True, stream_options=options)
    jar.answer(Piece(1, "Sev", b""), Piece(1, "en.", b""))
    assert jar.begun == Respond(HTTPStatus.OK, streams=True)
    if options:
        assert [chunk["usage"] is None for chunk in jar.sent] == [True] * 4 + [False]
        assert jar.sent.pop()["choices"] == []
    else:
        assert all("usage" not in chunk for chunk in jar.sent)
    deltas = [chunk["choices"][0] for chunk in jar.sent]
    assert deltas[0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert [delta["delta"].get("content") for delta in deltas[1:]] == ["Sev", "en.", None]
    assert [delta["finish_reason"] for delta in deltas] == [None, None, None, "stop"]


def test_spoken_answer_has_its_samples_and_its_transcript(jar: Jar) -> None:
    jar.start(**ALOUD)
    jar.answer(Piece(1, "Seven.", SPOKEN))
    message = jar.choice["message"]
    data = base64.b64decode(message["audio"]["data"])
    assert (message["content"], message["audio"]["transcript"]) == (None, "Seven.")
    assert data[:4] == b"RIFF"
    assert np.frombuffer(data[44:], "<i2").tolist() == [16384] * 2400


TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALLS = (
    Piece(1, "", b"", call=CallDelta(0, "call_1", "weather")),
    Piece(1, "", b"", call=CallDelta(0, arguments="{}", complete=True)),
)


@pytest.mark.parametrize("stream", [False, True])
def test_spoken_answer_that_is_a_call_alone_has_no_audio(jar: Jar, stream: bool) -> None:
    spoken = {**ALOUD, "audio": {"voice": "alloy", "format": "pcm16" if stream else "wav"}}
    jar.start(**spoken, tools=[TOOL], stream=stream)
    jar.answer(*CALLS)
    told = [choice for event in jar.sent for choice in event["choices"]]
    assert told
    assert all("audio" not in choice["delta" if stream else "message"] for choice in told)
    assert told[-1]["finish_reason"] == "tool_calls"


def test_tool_calls_are_sent_complete_or_in_deltas() -> None:
    whole, pieces = Jar(), Jar()
    whole.start(tools=[TOOL])
    whole.answer(*CALLS)
    assert whole.choice["finish_reason"] == "tool_calls"
    assert whole.choice["message"]["tool_calls"][0]["function"] == {"name": "weather", "arguments": "{}"}
    pieces.start(tools=[TOOL], stream=True)
    pieces.answer(*CALLS)
    told = [chunk["choices"][0]["delta"].get("tool_calls") for chunk in pieces.sent]
    first, second = [calls[0] for calls in told if calls]
    assert (first["id"], first["function"]) == ("call_1", {"arguments": "", "name": "weather"})
    assert second == {"index": 0, "function": {"arguments": "{}"}}


def test_verdict_before_the_answer_has_its_status() -> None:
    for reason, status in (
        *((Reason.QUEUE_FULL, 429), (Reason.NO_FREE_SLOT, 503), (Reason.LOADING, 503)),
        *((Reason.MODEL_NOT_FOUND, 404), (Reason.WORKER_LOST, 500), (Reason.INPUT_TOO_LONG, 400)),
    ):
        jar = Jar()
        jar.ask(stream=True)
        jar.do(jar.machine.refused(VERDICTS[reason]))
        assert jar.status == status, reason
        assert jar.begun is not None
        assert not jar.begun.streams
        assert (jar.begun.retry_s is not None) is (status in (429, 503))
        assert jar.machine.is_over


@pytest.mark.parametrize("verdict", [errors.SERVER_SHUTDOWN, errors.SLOW, errors.KEY_WITHDRAWN])
def test_end_in_the_middle_of_a_stream_is_an_event(jar: Jar, verdict: Verdict) -> None:
    jar.start(stream=True)
    jar.worker(Prefilled(1, NO_TIMINGS), Piece(1, "Sev", b""))
    jar.do(jar.machine.ended(verdict))
    assert jar.status == 200
    assert jar.sent[-1]["error"]["message"] == verdict.message
    assert jar.closed is not None
    assert jar.closed.code is not CloseCode.NORMAL


def test_worker_that_is_lost_or_cannot_speak_is_one_error(jar: Jar) -> None:
    jar.start()
    jar.worker(Failed(Reason.WORKER_LOST))
    assert (jar.status, len(jar.sent)) == (500, 1)
    mute = Jar()
    mute.ask(**ALOUD)
    mute.do(mute.machine.granted(0.0))
    mute.worker(ready_signal(speaks=False))
    assert (mute.status, mute.sent[0]["error"]["param"]) == (400, "modalities")


def test_worker_input_error_names_client_field(jar: Jar) -> None:
    url = {"url": "data:video/mp4;base64," + base64.b64encode(b"\0\0\0\x18ftypisom" + bytes(16)).decode()}
    jar.start(messages=[{"role": "user", "content": [{"type": "video_url", "video_url": url}]}])
    assert jar.first(RunTurn).turn.omni_mode
    field = "turn.messages[0].content[0].video"
    failed = {"failure": Reason.VIDEO_INVALID, "field": field, "problem": "is cut short"}
    jar.worker(UnitDone(1, UnitEnd.FAILED, 31, **failed))
    assert jar.sent[0]["error"]["param"] == "messages[0].content[0].video_url.url"
    assert jar.sent[0]["error"]["message"] == "messages[0].content[0].video_url.url: is cut short"


def test_body_that_is_no_request_is_refused() -> None:
    for body, code, status in (
        *((b"", "invalid_json", 400), (b"\xff", "invalid_json", 400), (b"[]", "invalid_payload", 400)),
        *(({"messages": []}, "missing_field", 400), ({"model": 5, "messages": []}, "invalid_payload", 400)),
        ({"model": "other", "messages": []}, "model_not_found", 404),
    ):
        jar = Jar()
        jar.ask(body)
        assert (jar.status, jar.sent[0]["error"]["code"]) == (status, code)
        assert jar.machine.is_over
