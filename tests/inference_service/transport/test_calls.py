"""Calls as gRPC's protocol over HTTP/2 has them, in all the ways in which they may be written down."""

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health_pb2 import HealthCheckRequest, HealthCheckResponse
from h2.errors import ErrorCodes
from hpack import Decoder, Encoder

from antiphon.http2.messages import Message
from antiphon.semconv import MAX_MESSAGE_BYTES
from antiphon.v1 import inference_service_pb2 as pb
from inference_service.transport.call import Call, MalformedRequest, Nobody, read_head
from inference_service.transport.health import CHECK, WATCH
from inference_service.transport.server import SERVICES, WorkerServer
from inference_service.transport.unary import MOST_BYTES, REQUEST_S
from tests.inference_service.conftest import Served
from tests.inference_service.support.caller import channel_to, duplex, soon, until, until_free
from tests.inference_service.support.raw_caller import (
    DATA,
    END_HEADERS,
    END_STREAM,
    GET_INFO,
    GOAWAY,
    HEADERS,
    PREFILL,
    SERVICE,
    SESSION,
    SESSION_PARTS,
    RawCaller,
    answers_in,
    begin_session,
    frame,
    framed,
    greeted,
    opened,
)
from tests.support.passing import Passing
from tests.support.scripted_engine import ScriptedEngine, running_worker, speak

OK = "0"
CANCELLED, DEADLINE_EXCEEDED, NOT_FOUND, RESOURCE_EXHAUSTED, FAILED_PRECONDITION, UNIMPLEMENTED, INTERNAL = (
    str(code.value[0])
    for code in (
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.FAILED_PRECONDITION,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.INTERNAL,
    )
)
QUESTION = framed(HealthCheckRequest(service=SERVICES[1]))
SERVING = framed(HealthCheckResponse(status=HealthCheckResponse.SERVING))
TOLD = ("antiphon-told", "twice")


@asynccontextmanager
async def talking(slots: int = 2) -> AsyncIterator[RawCaller]:
    """A caller of a worker, whose slots are all free again at the end."""
    engine = ScriptedEngine(speak("word"), repeat=True, slots=slots)
    async with running_worker(engine, slots=slots) as worker:
        async with greeted(worker.address) as raw:
            yield raw
        await until_free(worker.address, slots)


@asynccontextmanager
async def serving(
    answer: Callable[[Call], None], **values: int
) -> AsyncIterator[tuple[WorkerServer, RawCaller]]:
    """A server of one method, `/it`, and a caller with these settings."""
    server = WorkerServer({"/it": answer}, "127.0.0.1:0", slots=1, is_keyed=False, insecure_grpc=False)
    try:
        async with greeted(await server.start(), **values) as raw:
            yield server, raw
    finally:
        await server.stop(0.0)


# ----------------------------------------------------------------------------------------------- messages


async def test_a_message_may_be_split_anywhere() -> None:
    async with talking() as raw:
        raw.say(opened(0, 2**20))
        for size in range(1, len(QUESTION) + 1):
            number = raw.call(CHECK)
            parts = [QUESTION[at : at + size] for at in range(0, len(QUESTION), size)]
            raw.say(*(frame(DATA, 0, number, part) for part in parts), frame(DATA, END_STREAM, number))
            assert (size, await raw.status(number)) == (size, OK)
            assert raw.body[number] == SERVING


@pytest.mark.parametrize("size", [2**17, 1000, 77], ids=["few-frames", "frames", "tiny-frames"])
async def test_messages_and_frames_have_nothing_to_do_with_each_other(size: int) -> None:
    async with talking() as raw:
        raw.say(opened(0, 2**20))
        numbers = [raw.call(path, SESSION) for path in SESSION_PARTS]
        config = pb.PrefillRequest(config=pb.SessionConfig(mode=pb.SESSION_MODE_AUDIO))
        units = range(1, 3)
        requests = [
            [config, *(pb.PrefillRequest(unit=unit, duplex=duplex()) for unit in units)],
            [pb.GenerateRequest(unit=unit, run=pb.GenerateUnit()) for unit in units],
            [pb.FinalizeRequest(unit=unit) for unit in units],
        ]
        for number, messages in zip(numbers, requests, strict=True):
            whole = b"".join(framed(message) for message in messages)
            raw.say(*(frame(DATA, 0, number, whole[at : at + size]) for at in range(0, len(whole), size)))
            raw.say(opened(number, 2**20))
        await until(lambda: len([it for it in answers_in(raw.body[numbers[1]]) if it.HasField("done")]) == 2)


async def test_a_message_of_zero_bytes_is_one() -> None:
    async with talking() as raw:
        number = raw.ask(CHECK)
        assert await raw.status(number) == OK
        assert raw.body[number] == SERVING


@pytest.mark.parametrize(("size", "status"), [(MOST_BYTES, NOT_FOUND), (MOST_BYTES + 1, RESOURCE_EXHAUSTED)])
async def test_a_question_has_up_to_64_kib(size: int, status: str) -> None:
    request = HealthCheckRequest(service="x" * (size - 4))
    assert request.ByteSize() == size
    async with talking() as raw:
        assert await raw.status(raw.ask(CHECK, request)) == status


async def test_a_message_that_is_too_large_ends_its_session_before_it_has_come() -> None:
    async with talking() as raw:
        numbers = await begin_session(raw, *SESSION_PARTS)
        raw.say(frame(DATA, 0, numbers[0], b"\0" + (MAX_MESSAGE_BYTES + 1).to_bytes(4)))
        assert await raw.status(numbers[0]) == RESOURCE_EXHAUSTED
        assert [await raw.status(number) for number in numbers[1:]] == [CANCELLED, CANCELLED]
        assert await raw.status(raw.ask(GET_INFO)) == OK


async def test_compressed_messages_are_refused_with_what_would_not_be() -> None:
    async with talking() as raw:
        number = raw.call(GET_INFO, ("grpc-encoding", "gzip"))
        raw.say(frame(DATA, END_STREAM, number, framed(b"\x1f\x8b", is_compressed=True)))
        assert await raw.status(number) == UNIMPLEMENTED
        assert raw.told[number][0]["grpc-accept-encoding"] == "identity"


async def test_who_could_compress_need_not() -> None:
    async with talking() as raw:
        number = raw.ask(GET_INFO, b"", ("grpc-encoding", "gzip"), ("grpc-accept-encoding", "gzip"))
        assert await raw.status(number) == OK
        assert raw.body[number][0] == 0


async def test_the_rest_of_what_was_sent_behind_a_question_does_not_matter() -> None:
    async with talking() as raw:
        number = raw.call(GET_INFO)
        raw.say(frame(DATA, END_STREAM, number, framed() + b"\1garbage"))
        assert await raw.status(number) == OK


# -------------------------------------------------------------------------------------------------- heads


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/grpc", "200"),
        ("application/grpc+proto", "200"),
        ("application/grpc;charset=utf-8", "200"),
        ("Application/GRPC+json", "200"),
        ("application/grpc-web", "415"),
        ("application/json", "415"),
        ("", "415"),
    ],
)
async def test_what_is_no_grpc_by_its_content_type_is_told_so(content_type: str, status: str) -> None:
    async with talking() as raw:
        number = raw.call(GET_INFO, content_type=content_type)
        raw.say(frame(DATA, END_STREAM, number, framed()))
        await raw.status(number)
        assert raw.told[number][0][":status"] == status
        assert await raw.status(raw.ask(GET_INFO)) == OK


@pytest.mark.parametrize("end", [True, False])
@pytest.mark.parametrize("method", ["GET", "PUT", "OPTIONS"])
async def test_other_methods_of_http_are_told_so(method: str, end: bool) -> None:
    async with talking() as raw:
        number = raw.call(GET_INFO, end=end, pseudo_method=method)
        await raw.status(number)
        assert [headers[":status"] for headers in raw.told[number]] == ["405"]
        await raw.reached()
        assert raw.resets == ({} if end else {number: ErrorCodes.NO_ERROR})


@pytest.mark.parametrize("path", ["/", "/x", SERVICE, GET_INFO + "/", GET_INFO.lower()])
async def test_unknown_methods_are_unimplemented_in_one_frame(path: str) -> None:
    async with talking() as raw:
        number = raw.call(path, end=True)
        assert await raw.status(number) == UNIMPLEMENTED
        (headers,) = raw.told[number]
        assert headers[":status"] == "200"
        assert headers["content-type"] == "application/grpc"
        await raw.reached()
        assert not raw.resets


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("padded", " x "),
        ("empty", ""),
        ("Shout", "x"),
        ("te", "gzip"),
        ("connection", "keep-alive"),
        (":authority", "another"),
        (":odd", "x"),
        ("sp ace", "x"),
        ("", "x"),
        ("zero", "\0\r\n"),
        ("content-length", "0"),
    ],
)
async def test_headers_that_should_not_be_do_not_matter(name: str, value: str) -> None:
    async with talking() as raw:
        number = raw.ask(GET_INFO, b"", (name, value))
        assert await raw.status(number) == OK


@pytest.mark.parametrize("missing", [":method", ":path", ":scheme", ":authority", "content-type", "te"])
async def test_headers_that_are_missing_cost_the_call_and_not_the_connection(missing: str) -> None:
    async with talking() as raw:
        number = raw.next_number()
        headers = [each for each in Decoder().decode(raw.head(GET_INFO)) if each[0] != missing]
        raw.say(frame(HEADERS, END_HEADERS, number, Encoder().encode(headers)))
        raw.say(frame(DATA, END_STREAM, number, framed()))
        await raw.status(number)
        told = {**raw.told[number][0], **raw.told[number][-1]}
        refused = {":method": ("405", ""), "content-type": ("415", ""), ":path": ("200", UNIMPLEMENTED)}
        assert (told[":status"], told.get("grpc-status", "")) == refused.get(missing, ("200", OK))


def head(*more: tuple[bytes, bytes]) -> tuple[Call, float | None]:
    """What is read of a call with these headers more."""
    return read_head([(b":method", b"POST"), (b"content-type", b"application/grpc"), *more])


@pytest.mark.parametrize(
    ("text", "seconds"),
    [(b"2H", 7200), (b"3M", 180), (b"1S", 1), (b"0S", 0), (b"99999999H", 359_999_996_400), (b"250m", 0.25),
     (b"50u", 5e-5), (b"7n", 7e-9)],
)  # fmt: skip
def test_units_of_timeouts(text: bytes, seconds: float) -> None:
    assert head((b"grpc-timeout", text))[1] == pytest.approx(seconds)


@pytest.mark.parametrize(
    "text", [b"", b"S", b"1", b"-1S", b"1.5S", b"123456789S", b"1s", b"1 S", b"1S\n", "١S".encode()]
)
async def test_timeouts_that_are_none_are_bad_requests(text: bytes) -> None:
    with pytest.raises(MalformedRequest) as refused:
        head((b"grpc-timeout", text))
    assert refused.value.status == 400


async def test_a_malformed_timeout_costs_the_call_and_not_the_connection() -> None:
    async with talking() as raw:
        number = raw.ask(GET_INFO, b"", ("grpc-timeout", "soon"))
        await raw.status(number)
        assert raw.told[number] == [{":status": "400"}]
        assert await raw.status(raw.ask(GET_INFO)) == OK


@pytest.mark.parametrize("value", [b"\xfb\xff\0\1", b"\xfb\xff\0", b"\xfb", b""])
async def test_binary_metadata_with_padding_and_without(value: bytes) -> None:
    padded = base64.b64encode(value)
    for text in (padded, padded.rstrip(b"=")):
        call, _ = head((b"told-bin", text))
        assert call.metadata == [("told-bin", value)]


async def test_metadata_that_cannot_be_read_is_left_out() -> None:
    call, _ = head((b"told-bin", b"a"), (b"told", b"\xe4"), (b"grpc-x", b"y"), (b"te", b"trailers"))
    assert call.metadata == [("told", "ä")]


async def test_what_an_error_says_may_have_umlauts_and_percent_signs(served: Served) -> None:
    async with served(ScriptedEngine()) as new_caller:
        caller = await new_caller().open()
        await caller.send_config(model="Größe 100 %\n语")
        ending = await caller.end()
        assert repr("Größe 100 %\n语") in ending.message


# --------------------------------------------------------------------------------------------------- ends


@pytest.mark.parametrize("end", ["with-bytes", "empty", "trailers"])
async def test_whoever_has_ended_is_not_reset(end: str) -> None:
    async with talking() as raw:
        number = raw.call(CHECK)
        match end:
            case "with-bytes":
                raw.say(frame(DATA, END_STREAM, number, QUESTION))
            case "empty":
                raw.say(frame(DATA, 0, number, QUESTION[:-1]))
                raw.say(frame(DATA, 0, number, QUESTION[-1:]) + frame(DATA, END_STREAM, number))
            case _:
                trailers = frame(HEADERS, END_HEADERS | END_STREAM, number, raw.encoder.encode([("x", "y")]))
                raw.say(frame(DATA, 0, number, QUESTION[:-1]))
                raw.say(frame(DATA, 0, number, QUESTION[-1:]) + trailers)
        assert await raw.status(number) == OK
        assert await raw.status(raw.ask(GET_INFO)) == OK
        assert raw.resets in ({}, {number: ErrorCodes.NO_ERROR})
        assert not (raw.resets and end == "with-bytes")


async def test_whoever_has_not_ended_is_told_that_nothing_more_is_asked_for() -> None:
    async with talking() as raw:
        number = raw.call(CHECK)
        raw.say(frame(DATA, 0, number, QUESTION))
        assert await raw.status(number) == OK
        await raw.reached()
        assert raw.resets == {number: ErrorCodes.NO_ERROR}


@pytest.mark.parametrize("sent", [b"", b"\0\0", QUESTION[:-1]])
async def test_a_call_that_ends_before_its_message_is_an_error(sent: bytes) -> None:
    async with talking() as raw:
        numbers = [raw.call(CHECK), raw.call(CHECK, end=not sent)]
        raw.say(frame(DATA, END_STREAM, numbers[0], sent))
        if sent:
            raw.say(frame(DATA, 0, numbers[1], sent) + frame(DATA, END_STREAM, numbers[1]))
        assert [await raw.status(number) for number in numbers] == [INTERNAL, INTERNAL]


class Counting(Nobody):
    """Counts how often it is told that there is no further request."""

    def __init__(self, call: Call) -> None:
        self.ends = 0
        self._call = call
        call.take(self)

    def half_closed(self) -> None:
        self.ends += 1


@pytest.mark.parametrize("is_late", [False, True])
@pytest.mark.parametrize("data", [None, b"", QUESTION], ids=["headers", "empty", "request"])
async def test_the_end_of_the_requests_is_told_once(data: bytes | None, is_late: bool) -> None:
    handlers: list[Counting] = []

    def answer(call: Call) -> None:
        handlers.append(Counting(call))
        if not is_late:
            call.resume()

    async with serving(answer) as (_, raw):
        number = raw.call("/it", end=data is None)
        if data is not None:
            raw.say(frame(DATA, END_STREAM, number, data))
        await raw.reached()
        handlers[0]._call.resume()
        assert handlers[0].ends == 1


@pytest.mark.parametrize("length", ["0", "5", "12"])
async def test_a_content_length_does_not_matter(length: str) -> None:
    async with talking() as raw:
        numbers = [raw.call(path, SESSION, ("content-length", length)) for path in SESSION_PARTS]
        for number in numbers:
            raw.say(frame(DATA, END_STREAM, number))
        assert {await raw.status(number) for number in numbers} == {FAILED_PRECONDITION}  # there is no config
        assert not raw.is_over


async def test_a_caller_may_cancel_while_it_is_answered() -> None:
    async with talking() as raw:
        numbers = [raw.ask(GET_INFO) for _ in range(100)]
        for number in numbers:
            await raw.status(number)
            raw.say(opened(0, 2**16))
        for number in numbers:
            raw.say(frame(3, 0, number, bytes(4)))
        await raw.reached()
        assert not raw.is_over
        assert not raw.resets


# ---------------------------------------------------------------------------------------------- deadlines


async def test_a_call_whose_caller_waits_no_longer_is_over(passing: Passing) -> None:
    async with talking(slots=1) as raw:
        asked = raw.call(GET_INFO, ("grpc-timeout", "10S"))
        part = raw.call(PREFILL, SESSION, ("grpc-timeout", "10S"))
        other = raw.call(SESSION_PARTS[1], SESSION)
        await raw.begun(other)
        passing(10.0)
        assert await raw.status(asked) == DEADLINE_EXCEEDED
        assert await raw.status(part) == DEADLINE_EXCEEDED
        assert await raw.status(other) == CANCELLED


async def test_a_call_whose_answer_is_not_read_in_time_is_reset(passing: Passing) -> None:
    async with serving(fails, window=0) as (server, raw):
        number = raw.call(WATCH, ("grpc-timeout", "10S"))
        raw.say(frame(DATA, 0, number, framed()))
        await raw.begun(number)
        passing(10.0)
        assert await raw.status(number) == "reset"
        assert raw.resets[number] == ErrorCodes.CANCEL
        assert not server._health._watches


async def test_a_question_without_its_request_does_not_stay(passing: Passing) -> None:
    async with talking() as raw:
        number = raw.call(GET_INFO)
        raw.say(frame(DATA, 0, number, b"\0\0"))
        watching = raw.call(WATCH)
        raw.say(frame(DATA, 0, watching, framed()))
        await raw.begun(watching)
        passing(REQUEST_S)
        assert await raw.status(number) == DEADLINE_EXCEEDED
        await raw.reached()
        assert watching not in raw.ended | raw.resets.keys()


async def test_no_deadline_strikes_after_the_end(passing: Passing) -> None:
    async with talking() as raw:
        number = raw.ask(GET_INFO, b"", ("grpc-timeout", "10S"))
        assert await raw.status(number) == OK
        passing(10.0)
        assert await raw.status(raw.ask(GET_INFO)) == OK
        assert len(raw.told[number]) == 2


# ------------------------------------------------------------------------------------------------- leaving


async def test_a_server_that_leaves_takes_no_call_and_ends_those_it_has() -> None:
    calls: list[Call] = []
    async with serving(calls.append) as (server, raw):
        number = raw.call("/it")
        await until(lambda: calls)
        stopping = asyncio.create_task(server.stop(60.0))
        await until(lambda: raw.farewell is not None)
        assert raw.farewell == ErrorCodes.NO_ERROR
        late = raw.call("/it")
        assert await raw.status(late) == "reset"
        assert raw.resets[late] == ErrorCodes.REFUSED_STREAM
        assert not stopping.done()
        calls[0].end(grpc.StatusCode.OK)
        assert await raw.status(number) == OK
        await soon(stopping)
        await raw.over()
        assert len(calls) == 1
        lasts = [int.from_bytes(body[:4]) for kind, _, _, body in raw.frames if kind == GOAWAY]
        assert lasts == [2**31 - 1, late], "they may not grow"


async def test_a_server_that_has_waited_long_enough_cuts_its_calls(passing: Passing) -> None:
    calls: list[Call] = []
    ends: list[grpc.StatusCode] = []
    async with serving(calls.append) as (server, raw):
        raw.call("/it")
        await until(lambda: calls)
        calls[0].on_over = ends.append
        stopping = asyncio.create_task(server.stop(60.0))
        await until(lambda: raw.farewell is not None)
        passing(60.0)
        await soon(stopping)
        await raw.over()
        await until(lambda: ends)
        assert ends == [grpc.StatusCode.CANCELLED]


async def test_a_call_that_ends_with_its_connection_is_no_error(caplog: pytest.LogCaptureFixture) -> None:
    calls: list[Call] = []
    async with serving(calls.append) as (server, raw):
        for _ in range(2):
            raw.call("/it")
        await until(lambda: len(calls) == 2)
        (connection,) = server._door.connections
        connection.close()
        calls[0].take(Nobody())
        calls[0].end(grpc.StatusCode.OK)
        calls[1].write(b"late")
        calls[1].end(grpc.StatusCode.OK)
        assert calls[0].connection is None
        await raw.over()
        assert calls[1].connection is None
    assert not caplog.records


# -------------------------------------------------------------------------------------------- faults of ours


class Faulty(Nobody):
    """Fails at its first request."""

    def __init__(self, call: Call) -> None:
        call.take(self)
        call.resume()

    def message_received(self, data: Message) -> None:
        raise ZeroDivisionError("canary")


def fails(call: Call) -> None:
    raise ZeroDivisionError("canary")


@pytest.mark.parametrize("answer", [fails, Faulty], ids=["at-once", "at-a-request"])
async def test_a_fault_of_ours_costs_its_call(
    answer: Callable[[Call], None], caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(answer) as (_, raw):
        number = raw.ask("/it")
        assert await raw.status(number) == INTERNAL
        assert "canary" not in str(raw.told[number])
        assert await raw.status(raw.ask(CHECK)) == OK
    assert "could not be handled" in caplog.text


# -------------------------------------------------------------------------------------------------- health


async def test_who_watches_is_told_of_each_change() -> None:
    async with serving(fails) as (server, raw):
        async with channel_to(raw.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            watches = [stub.Watch(HealthCheckRequest(service=name)) for name in (*SERVICES, "nobody's")]
            statuses = health_pb2.HealthCheckResponse
            unknown = statuses.SERVICE_UNKNOWN
            for is_serving, status in ((None, statuses.NOT_SERVING), (True, statuses.SERVING)):
                if is_serving is not None:
                    server.set_serving(is_serving)
                told = [(await soon(watch.read())).status for watch in watches]
                assert told == [status, status, unknown]
            for watch in watches:
                watch.cancel()
            await until(lambda: not server._health._watches)


async def test_who_reads_late_is_told_how_it_is_and_not_all_that_was() -> None:
    async with serving(fails, window=0) as (server, raw):
        number = raw.call(WATCH)
        raw.say(frame(DATA, 0, number, framed()))
        await raw.begun(number)
        await raw.reached()
        for is_serving in (True, False, True):
            server.set_serving(is_serving)
        raw.say(opened(number, 1000))
        not_serving = framed(HealthCheckResponse(status=HealthCheckResponse.NOT_SERVING))
        await until(lambda: raw.body[number] == not_serving + SERVING)
