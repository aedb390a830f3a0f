"""What both sides rely on inside `h2`, each against another `h2` at the other end."""

import struct
from collections import Counter

import pytest
from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    Event,
    RemoteSettingsChanged,
    RequestReceived,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import ProtocolError
from h2.settings import SettingCodes
from h2.stream import H2Stream

from antiphon.http2.control import FEW_STREAMS, MAX_FRAME, Control

REQUEST = [
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/x"),
    (":authority", "worker"),
    ("te", "trailers"),
]
STREAM_WINDOW, CONNECTION_WINDOW = 2**20, 2**24
PREFACE = len(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
DATA, HEADERS, RST_STREAM, SETTINGS, GOAWAY, WINDOW_UPDATE = 0, 1, 3, 4, 7, 8
ANSWER = [(":status", "200"), ("content-type", "application/grpc")]


class Pair:
    """A control and the server it talks to."""

    def __init__(self, **settings: int) -> None:
        self.control = Control(is_client=True)
        self.server = H2Connection(H2Configuration(client_side=False, header_encoding="utf-8"))
        self.server.initiate_connection()
        self.server.update_settings({SettingCodes[name]: value for name, value in settings.items()})
        self.control.begin(CONNECTION_WINDOW, STREAM_WINDOW)
        self.preface = self.control.due()
        self.heard: list[Event] = []
        self.told = self.server.receive_data(self.preface)
        self.answer()

    def answer(self) -> list[Event]:
        """What the control makes of what the server has to say."""
        events = self.control.receive(self.server.data_to_send())
        self.say()
        return events

    def say(self) -> list[Event]:
        """What the server makes of what the control has to say."""
        events = self.server.receive_data(self.control.due())
        self.heard += events
        return events


class Served:
    """A control of a server, and the client that talks to it."""

    def __init__(self, takes: int | None = 10) -> None:
        self.control = Control(is_client=False, takes=takes, most_headers=8192)
        self.control.begin(CONNECTION_WINDOW, STREAM_WINDOW)
        self.first = self.control.due()
        self.client = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self.client.initiate_connection()
        self.client.receive_data(self.first)
        data = self.client.data_to_send()
        self.control.receive(data[:PREFACE])
        for frame in whole_frames(data[PREFACE:]):
            self.control.receive(frame)
        self.tell()

    def ask(self, *, end: bool = False) -> int:
        """A new stream, whose headers have been read."""
        number: int = self.client.get_next_available_stream_id()
        self.client.send_headers(number, REQUEST, end_stream=end)
        assert RequestReceived in [type(event) for event in self.hear()]
        return number

    def hear(self) -> list[Event]:
        """What the control makes of what the client has to say."""
        return [
            event
            for frame in whole_frames(self.client.data_to_send())
            for event in self.control.receive(frame)
        ]

    def tell(self) -> list[Event]:
        """What the client makes of what the control has to say."""
        events: list[Event] = self.client.receive_data(self.control.due())
        return events


def whole_frames(data: bytes) -> list[bytes]:
    """Each frame with its head."""
    found = []
    while data:
        end = 9 + int.from_bytes(data[:3])
        found.append(data[:end])
        data = data[end:]
    return found


def settings(**values: int) -> bytes:
    """A SETTINGS frame."""
    body = b"".join(struct.pack("!HL", SettingCodes[name], value) for name, value in values.items())
    return len(body).to_bytes(3) + struct.pack("!BBL", SETTINGS, 0, 0) + body


def frames(data: bytes) -> list[tuple[int, int, bytes]]:
    """Kind, stream and body of each frame."""
    found = []
    while data:
        size = int.from_bytes(data[:3])
        kind, _, stream = struct.unpack_from("!BBL", data, 3)
        found.append((kind, stream, data[9 : 9 + size]))
        data = data[9 + size :]
    return found


def test_the_first_settings_are_ours_and_there_are_no_second_ones() -> None:
    pair = Pair()
    sent = frames(pair.preface[PREFACE:])
    settings = dict(struct.iter_unpack("!HL", sent[0][2]))

    assert [kind for kind, _, _ in sent] == [SETTINGS, WINDOW_UPDATE]
    assert settings[SettingCodes.INITIAL_WINDOW_SIZE] == STREAM_WINDOW
    assert settings[SettingCodes.MAX_FRAME_SIZE] == MAX_FRAME
    assert settings[SettingCodes.ENABLE_PUSH] == 0
    assert pair.server.outbound_flow_control_window == CONNECTION_WINDOW
    number = pair.control.open(REQUEST)
    pair.say()
    assert pair.server.local_flow_control_window(number) == STREAM_WINDOW
    assert pair.server.max_outbound_frame_size == MAX_FRAME


def test_frames_of_our_size_are_taken_before_the_settings_are_acknowledged() -> None:
    control = Control(is_client=True)
    control.begin(CONNECTION_WINDOW, STREAM_WINDOW)
    unknown = (2**16).to_bytes(3) + struct.pack("!BBL", 0x42, 0, 0) + bytes(2**16)

    assert control.receive(unknown)
    with pytest.raises(ProtocolError):
        control.receive((MAX_FRAME + 1).to_bytes(3) + struct.pack("!BBL", 0x42, 0, 0) + bytes(MAX_FRAME + 1))


def test_settings_of_the_server_count_at_once() -> None:
    pair = Pair()
    pair.server.update_settings(
        {
            SettingCodes.MAX_CONCURRENT_STREAMS: 7,
            SettingCodes.INITIAL_WINDOW_SIZE: 1000,
            SettingCodes.MAX_FRAME_SIZE: 20_000,
        }
    )
    events = pair.answer()

    assert any(isinstance(event, RemoteSettingsChanged) for event in events)
    assert (pair.control.most_streams, pair.control.window, pair.control.frame_size) == (7, 1000, 20_000)


def test_larger_frames_than_we_take_we_do_not_send() -> None:
    """While a frame leaves nothing else does, and what was begun cannot be held back."""
    pair = Pair(MAX_FRAME_SIZE=2**24 - 1)
    assert pair.control.frame_size == MAX_FRAME


def test_settings_without_values_are_told_too() -> None:
    control = Control(is_client=True)
    control.begin(CONNECTION_WINDOW, STREAM_WINDOW)
    events = control.receive(bytes(3) + struct.pack("!BBL", SETTINGS, 0, 0))

    assert [type(event) for event in events] == [RemoteSettingsChanged]


@pytest.mark.parametrize("we_end_first", [True, False])
def test_a_stream_ends_though_none_of_its_data_passed_by(we_end_first: bool) -> None:
    """Both ends count it as closed, so that another fits under a limit of one."""
    pair = Pair(MAX_CONCURRENT_STREAMS=1)
    number = pair.control.open(REQUEST)
    pair.say()
    if we_end_first:
        pair.control.end(number)
        pair.say()
    pair.server.send_headers(number, [(":status", "200"), ("content-type", "application/grpc")])
    pair.server.send_headers(number, [("grpc-status", "0")], end_stream=True)
    events = pair.answer()
    if not we_end_first:
        pair.control.reset(number, ErrorCodes.NO_ERROR)
        pair.say()

    shapes = [type(event) for event in events]
    assert ResponseReceived in shapes
    assert TrailersReceived in shapes
    shape = StreamEnded if we_end_first else StreamReset
    assert [event.stream_id for event in pair.heard if isinstance(event, shape)] == [number]
    assert pair.control.open(REQUEST) == number + 2
    pair.say()
    assert sum(isinstance(event, RequestReceived) for event in pair.heard) == 2


def test_trailers_are_taken_after_a_content_length_that_h2_has_not_seen() -> None:
    pair = Pair()
    number = pair.control.open(REQUEST)
    pair.say()
    pair.server.send_headers(number, [(":status", "200"), ("content-length", "5")])
    pair.control.receive(pair.server.data_to_send())
    pair.server.send_data(number, b"12345")
    pair.server.data_to_send()  # passes by
    pair.server.send_headers(number, [("grpc-status", "0")], end_stream=True)

    assert any(isinstance(event, TrailersReceived) for event in pair.answer())


def test_one_stream_more_than_the_server_takes_is_an_error() -> None:
    pair = Pair(MAX_CONCURRENT_STREAMS=1)
    pair.control.open(REQUEST)
    with pytest.raises(ProtocolError):
        pair.control.open(REQUEST)


def test_of_its_own_errors_h2_tells_the_other_side() -> None:
    control = Control(is_client=True)
    control.begin(CONNECTION_WINDOW, STREAM_WINDOW)
    control.due()
    with pytest.raises(ProtocolError):
        control.receive((1).to_bytes(3) + struct.pack("!BBL", SETTINGS, 0, 0) + b"x")

    assert [kind for kind, _, _ in frames(control.due())] == [GOAWAY]


def test_opening_a_stream_takes_no_longer_with_many(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: Counter[str] = Counter()
    is_open = H2Stream.open.fget  # type: ignore[attr-defined]

    def counted(stream: H2Stream) -> bool:
        looks["at"] += 1
        answer: bool = is_open(stream)
        return answer

    pair = Pair(MAX_CONCURRENT_STREAMS=4096)
    monkeypatch.setattr(H2Stream, "open", property(counted))
    for _ in range(2000):
        pair.control.open(REQUEST)

    assert looks["at"] < 10 * 2000


def test_streams_that_are_over_are_forgotten() -> None:
    pair = Pair()
    for _ in range(20 * FEW_STREAMS):
        pair.control.reset(pair.control.open(REQUEST), ErrorCodes.CANCEL)
        assert len(pair.control._h2.streams) <= 2 * FEW_STREAMS


# ----------------------------------------------------------------------------------------------- the server


def test_the_first_settings_of_a_server_are_all_that_it_says() -> None:
    served = Served(takes=7)
    sent = frames(served.first)
    values = dict(struct.iter_unpack("!HL", sent[0][2]))

    assert [kind for kind, _, _ in sent] == [SETTINGS, WINDOW_UPDATE]
    assert values[SettingCodes.MAX_CONCURRENT_STREAMS] == 7
    assert values[SettingCodes.MAX_HEADER_LIST_SIZE] == 8192
    assert values[SettingCodes.MAX_FRAME_SIZE] == MAX_FRAME
    assert SettingCodes.ENABLE_PUSH not in values or values[SettingCodes.ENABLE_PUSH] == 0
    assert served.client.outbound_flow_control_window == CONNECTION_WINDOW


def test_a_stream_more_than_a_server_takes_is_for_others_to_refuse() -> None:
    """`h2` would end the connection."""
    served = Served(takes=2)
    served.client.remote_settings.update({SettingCodes.MAX_CONCURRENT_STREAMS: 100})
    served.client.remote_settings.acknowledge()
    numbers = [served.ask() for _ in range(5)]
    served.control.reset(numbers[-1], ErrorCodes.REFUSED_STREAM)

    assert [event.stream_id for event in served.tell() if isinstance(event, StreamReset)] == numbers[-1:]


@pytest.mark.parametrize("caller_ends_first", [True, False])
def test_a_call_ends_though_none_of_its_data_passed_by(caller_ends_first: bool) -> None:
    served = Served()
    number = served.ask()
    served.client.send_data(number, b"request", end_stream=True)
    served.client.data_to_send()  # passes by
    if caller_ends_first:
        served.control.ended(number)
    served.control.answer(number, ANSWER)
    served.control.answer(number, [("grpc-status", "0")], is_end=True)
    if not caller_ends_first:
        served.control.reset(number, ErrorCodes.NO_ERROR)
    shapes = [type(event) for event in served.tell()]

    assert shapes[:3] == [ResponseReceived, TrailersReceived, StreamEnded]
    assert served.control._h2.streams[number].closed
    assert served.client.open_outbound_streams == 0


@pytest.mark.parametrize("length", [0, 5, 7])
def test_a_call_ends_whatever_its_length_was_said_to_be(length: int) -> None:
    served = Served()
    number: int = served.client.get_next_available_stream_id()
    served.client.send_headers(number, [*REQUEST, ("content-length", str(length))])
    served.hear()
    served.control.ended(number)
    served.control.answer(number, [*ANSWER, ("grpc-status", "0")], is_end=True)

    assert StreamEnded in [type(event) for event in served.tell()]


@pytest.mark.parametrize("is_forgotten", [False, True])
@pytest.mark.parametrize("is_reset", [False, True])
def test_a_reset_that_comes_after_the_end_is_not_answered(is_forgotten: bool, is_reset: bool) -> None:
    served = Served()
    number = served.ask(end=not is_reset)
    served.control.answer(number, [*ANSWER, ("grpc-status", "0")], is_end=True)
    if is_reset:
        served.control.reset(number, ErrorCodes.NO_ERROR)
    served.client.reset_stream(number, ErrorCodes.CANCEL)
    crossing = served.client.data_to_send()
    served.tell()
    if is_forgotten:
        served.control._h2._look_at = 0
        assert served.control._h2.open_inbound_streams == 0
        assert number not in served.control._h2.streams

    assert served.control.receive(crossing) == []
    assert served.control.due() == b""
    assert served.ask() == number + 2


def test_headers_are_remembered_in_4_kib_however_much_the_caller_would_remember() -> None:
    served = Served()
    served.control.receive(settings(HEADER_TABLE_SIZE=2**32 - 1))
    for i in range(200):
        number = served.ask(end=True)
        served.control.answer(number, [*ANSWER, ("grpc-message", f"another text, number {i}")], is_end=True)
        served.tell()

    assert len(served.control._h2.encoder.header_table.dynamic_entries) < 4096 // 32


@pytest.mark.parametrize(
    "sizes", [(0,), (0, 4096), (100, 50), (2**32 - 1, 10), (10, 2**32 - 1), (0, 0), (4096,), (20, 20, 4096)]
)
def test_how_much_is_remembered_is_told_before_the_next_headers(sizes: tuple[int, ...]) -> None:
    served = Served()
    decoder = served.client.decoder
    for i in range(2):  # before anything was remembered, and after
        for size in sizes:
            served.client.update_settings({SettingCodes.HEADER_TABLE_SIZE: size})
            served.hear()
            served.tell()
        number = served.ask(end=True)
        served.control.answer(number, [*ANSWER, ("grpc-message", f"text {i}")], is_end=True)
        assert StreamEnded in [type(event) for event in served.tell()]
        assert decoder.header_table_size == min(sizes[-1], 4096)


def test_sizes_that_change_all_the_time_are_not_all_kept() -> None:
    served = Served()
    for i in range(1000):
        served.control.receive(settings(HEADER_TABLE_SIZE=i % 2))
    assert len(served.control._h2.encoder.table_size_changes) <= 2


def test_streams_of_callers_that_are_over_are_forgotten() -> None:
    served = Served()
    for _ in range(20 * FEW_STREAMS):
        number = served.ask(end=True)
        served.control.answer(number, [*ANSWER, ("grpc-status", "0")], is_end=True)
        served.tell()
        assert len(served.control._h2.streams) <= 2 * FEW_STREAMS


def test_headers_that_should_not_be_are_for_others_to_refuse() -> None:
    """`h2` would end the connection."""
    served = Served()
    served.client.config.validate_outbound_headers = False
    served.client.config.normalize_outbound_headers = False
    number: int = served.client.get_next_available_stream_id()
    served.client.send_headers(number, [*REQUEST, ("Padded", " x "), ("connection", "close")])

    (request,) = [event for event in served.hear() if isinstance(event, RequestReceived)]
    assert (b"Padded", b" x ") in request.headers
