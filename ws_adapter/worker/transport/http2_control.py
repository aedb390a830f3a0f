"""What `h2` minds of a connection: headers, settings, pings and resets.

DATA, WINDOW_UPDATE and GOAWAY pass it by. The first two are nearly all of the traffic and cost a fraction
that way; after a GOAWAY `h2` would hear nothing more of the streams that go on. Whatever rests on how it
works inside is in this module, and tests/ws_adapter/worker/transport/test_http2_control.py fails when it
works otherwise.
"""

from collections.abc import Sequence
from typing import Final, TypeAlias

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import Event
from h2.settings import SettingCodes, Settings

MAX_FRAME: Final = 2**17
"""Bytes in the body of one frame that we take."""

FEW_STREAMS: Final = 64
"""So many streams that are over may be remembered, and as many as are open."""

Headers: TypeAlias = Sequence[tuple[str, str]]


class _Connection(H2Connection):
    """Counts streams where that matters: the library walks through all of them, open or over, whenever one is
    opened, and a connection to a worker may have thousands."""

    _look_at = FEW_STREAMS

    def _open_streams(self, remainder: int) -> int:
        known = len(self.streams)
        if known < min(self._look_at, self.remote_settings.max_concurrent_streams):
            return known
        count = super()._open_streams(remainder)  # which forgets those that are over
        self._look_at = 2 * count + FEW_STREAMS
        return count


class Control:
    """The client's side. What it has to say waits in `due`. Methods raise `h2.exceptions.ProtocolError`."""

    def __init__(self) -> None:
        self._h2 = _Connection(H2Configuration(client_side=True, header_encoding=None))

    @property
    def window(self) -> int:
        """Bytes that a new stream may send."""
        return self._h2.remote_settings.initial_window_size

    @property
    def frame_size(self) -> int:
        """Bytes in the body of one frame that the other side takes."""
        return self._h2.max_outbound_frame_size

    @property
    def most_streams(self) -> int:
        """Streams that the other side lets us have open at once."""
        return self._h2.remote_settings.max_concurrent_streams

    def due(self) -> bytes:
        """Takes what is to be sent."""
        return self._h2.data_to_send()

    def begin(self, connection_window: int, stream_window: int) -> None:
        """The preface: the other side may send so many bytes ahead, in all and on each stream."""
        values = {
            SettingCodes.ENABLE_PUSH: 0,
            SettingCodes.INITIAL_WINDOW_SIZE: stream_window,
            SettingCodes.MAX_FRAME_SIZE: MAX_FRAME,
            SettingCodes.MAX_HEADER_LIST_SIZE: H2Connection.DEFAULT_MAX_HEADER_LIST_SIZE,
        }
        # Its own way to other settings counts from their acknowledgement on, and costs a second frame.
        self._h2.local_settings = Settings(client=True, initial_values=values)
        self._h2.max_inbound_frame_size = MAX_FRAME
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(connection_window - self._h2.inbound_flow_control_window)

    def open(self, headers: Headers) -> int:
        """A new stream; returns its number."""
        number = self._h2.get_next_available_stream_id()
        self._h2.send_headers(number, headers)
        return number

    def end(self, number: int) -> None:
        """Nothing more will be sent on a stream; `h2` has seen none of what was."""
        self._h2.end_stream(number)

    def reset(self, number: int, code: ErrorCodes) -> None:
        """Ends a stream on both sides."""
        self._h2.reset_stream(number, code)

    def ping(self) -> None:
        """Asks for a sign of life."""
        self._h2.ping(bytes(8))

    def close(self, code: ErrorCodes = ErrorCodes.NO_ERROR) -> None:
        """Ends the connection."""
        self._h2.close_connection(code)

    def receive(self, frame: bytes) -> list[Event]:
        """What a whole frame says. After an error `due` tells the other side of it."""
        return self._h2.receive_data(frame)
