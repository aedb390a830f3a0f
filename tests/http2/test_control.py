"""What the adapter relies on inside `h2`, each against another `h2` at the other end."""

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
SETTINGS = 4


class Pair:
    """A control and the server it talks to."""

    def __init__(self, **settings: int) -> None:
        self.control = Control()
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

    assert [kind for kind, _, _ in sent] == [SETTINGS, 8]
    assert settings[SettingCodes.INITIAL_WINDOW_SIZE] == STREAM_WINDOW
    assert settings[SettingCodes.MAX_FRAME_SIZE] == MAX_FRAME
    assert settings[SettingCodes.ENABLE_PUSH] == 0
    assert pair.server.outbound_flow_control_window == CONNECTION_WINDOW
    number = pair.control.open(REQUEST)
    pair.say()
    assert pair.server.local_flow_control_window(number) == STREAM_WINDOW
    assert pair.server.max_outbound_frame_size == MAX_FRAME


def test_frames_of_our_size_are_taken_before_the_settings_are_acknowledged() -> None:
    control = Control()
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


def test_settings_without_values_are_told_too() -> None:
    control = Control()
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
    control = Control()
    control.begin(CONNECTION_WINDOW, STREAM_WINDOW)
    control.due()
    with pytest.raises(ProtocolError):
        control.receive((1).to_bytes(3) + struct.pack("!BBL", SETTINGS, 0, 0) + b"x")

    assert [kind for kind, _, _ in frames(control.due())] == [7]


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
