"""What `h2` minds of a connection: headers, settings and resets.

DATA, WINDOW_UPDATE, PING and GOAWAY pass it by. The first are nearly all of the traffic and cost a fraction
that way; after a GOAWAY `h2` would hear nothing more of the streams that go on. Whatever rests on how it
works inside is in this module, and tests/http2/test_control.py fails when it works otherwise.
"""

import struct
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

HEAD: Final = struct.Struct("!LBL")
"""Of a frame: the length of its body with its kind behind it, flags, and the number of its stream."""
_DATA, _RST_STREAM, _END_STREAM = 0, 3, 1
NUMBER: Final = 2**31 - 1
"""Of a stream; the bit above is reserved."""
_TABLE: Final = 4096
"""Bytes of headers that are remembered to be said in short, however many the other side would remember: all
of them are searched for each header."""

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
    """What it has to say waits in `due`. Methods raise `h2.exceptions.ProtocolError`."""

    def __init__(
        self,
        *,
        is_client: bool,
        takes: int | None = None,
        most_headers: int = H2Connection.DEFAULT_MAX_HEADER_LIST_SIZE,
    ) -> None:
        """The other side is told to have at most `takes` streams open, and `most_headers` bytes of headers in
        each request or answer; whether it keeps to that is for others to see."""
        self._is_client = is_client
        self._takes = takes
        self._most_headers = most_headers
        # Of headers that should not be it makes the end of the connection, and so of everybody's calls on it.
        checks = is_client
        self._h2 = _Connection(
            H2Configuration(client_side=is_client, header_encoding=None, validate_inbound_headers=checks)
        )

    @property
    def window(self) -> int:
        """Bytes that a new stream may send."""
        return self._h2.remote_settings.initial_window_size

    @property
    def frame_size(self) -> int:
        """Bytes in the body of one frame that we send: as the other side takes them, and no more than we."""
        return min(self._h2.max_outbound_frame_size, MAX_FRAME)

    @property
    def most_streams(self) -> int:
        """Streams that the other side lets us have open at once."""
        return self._h2.remote_settings.max_concurrent_streams

    def due(self) -> bytes:
        """Takes what is to be sent."""
        return self._h2.data_to_send()

    def begin(self, connection_window: int, stream_window: int) -> None:
        """The first words: the other side may send so many bytes ahead, in all and on each stream."""
        values = {
            SettingCodes.INITIAL_WINDOW_SIZE: stream_window,
            SettingCodes.MAX_FRAME_SIZE: MAX_FRAME,
            SettingCodes.MAX_HEADER_LIST_SIZE: self._most_headers,
        }
        if self._is_client:
            values[SettingCodes.ENABLE_PUSH] = 0
        if self._takes is not None:
            values[SettingCodes.MAX_CONCURRENT_STREAMS] = self._takes
        # Its own way to other settings counts from their acknowledgement on, and costs a second frame.
        self._h2.local_settings = Settings(client=self._is_client, initial_values=values)
        self._h2.max_inbound_frame_size = MAX_FRAME
        self._h2.initiate_connection()
        self._h2.increment_flow_control_window(connection_window - self._h2.inbound_flow_control_window)
        if self._takes is not None:  # it would end the connection, where ending the stream is enough
            del values[SettingCodes.MAX_CONCURRENT_STREAMS]
            self._h2.local_settings = Settings(client=self._is_client, initial_values=values)

    def open(self, headers: Headers) -> int:
        """A new stream; returns its number."""
        number = self._h2.get_next_available_stream_id()
        self._h2.send_headers(number, headers)
        return number

    def answer(self, number: int, headers: Headers, *, is_end: bool = False) -> None:
        """The headers of an answer, or its trailers, after which nothing more will be sent on a stream."""
        self._h2.send_headers(number, headers, end_stream=is_end)

    def end(self, number: int) -> None:
        """Nothing more will be sent on a stream; `h2` has seen none of what was."""
        self._h2.end_stream(number)

    def ended(self, number: int) -> None:
        """The other side sends nothing more on a stream, as its last DATA said."""
        self._h2.streams[number]._expected_content_length = None  # it has seen none of the content
        self._h2.receive_data(HEAD.pack(_DATA, _END_STREAM, number))

    def reset(self, number: int, code: ErrorCodes) -> None:
        """Ends a stream on both sides."""
        self._h2.reset_stream(number, code)

    def close(self, code: ErrorCodes = ErrorCodes.NO_ERROR) -> None:
        """Ends the connection."""
        self._h2.close_connection(code)

    def receive(self, frame: bytes) -> list[Event]:
        """What a whole frame says. After an error `due` tells the other side of it."""
        if frame[3] == _RST_STREAM:
            number = HEAD.unpack_from(frame)[2] & NUMBER
            if number and number not in self._h2.streams:
                return []  # both ends may reset a stream at once; `h2` would answer it or give up
        events = self._h2.receive_data(frame)
        if self._h2.encoder.table_size_changes:
            self._limit_table()
        return events

    def _limit_table(self) -> None:
        """Of the sizes that the other side has named since we last said headers, it has to be told two."""
        encoder = self._h2.encoder
        encoder.header_table_size = last = min(encoder.header_table_size, _TABLE)
        encoder.table_size_changes = [min(last, *encoder.table_size_changes), last]
        encoder.header_table.resized = True
