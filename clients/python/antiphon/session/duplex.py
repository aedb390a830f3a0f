"""One full-duplex conversation over one WebSocket."""

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Final, Self

from websockets.exceptions import ConnectionClosed

from antiphon.audio.files import read_audio
from antiphon.audio.pacing import FileStream
from antiphon.audio.samples import INPUT_RATE_HZ, Samples, as_samples, pieces
from antiphon.connection import refusals
from antiphon.connection.endpoint import CLOSE_TIMEOUT_S, NORMAL_CLOSURE, open_websocket
from antiphon.connection.resuming import ResumingSocket
from antiphon.errors import AntiphonError, ConnectError, ProtocolError
from antiphon.protocol import duplex
from antiphon.protocol.events import (
    Closed,
    ConnectionLost,
    Created,
    ErrorEvent,
    Event,
    Queued,
    Resumed,
)
from antiphon.protocol.frames import FrameQueue, frame_bytes
from antiphon.protocol.messages import Image
from antiphon.session.endings import REGULAR_ENDS, closed_here, ended
from antiphon.session.mailbox import EventMailbox

_SILENCE_OF_SERVER_S: Final = 60.0
"""The seconds without a message after which a server counts as dead, before `Created`.

A queue sends a message every 3 s.
"""

_LONGEST_APPEND: Final = 30 * INPUT_RATE_HZ
"""The largest number of samples in one message; longer audio is split."""

_PROTOCOL_ERROR: Final = 1002


class DuplexSession:
    """A conversation: send audio and iterate over events at the same time. `Client.duplex` returns it.

    Iterating yields `Created` first and `Closed` last. It ends without an error after `close`, at the
    session's time limit and with a full context. Any other end raises `SessionClosed` after the last event.

    Events are received whether or not they are read. At most 512 wait; beyond that the oldest audio is
    dropped, and `dropped_events` counts it.
    """

    def __init__(
        self, socket: ResumingSocket, decoder: duplex.Decoder, created: Created, *, sees: bool = False
    ) -> None:
        self._socket = socket
        socket.offered(created.resume)
        socket.on_lost = lambda window_s: self._mailbox.put(ConnectionLost(window_s))
        socket.on_resumed = lambda attempts: self._mailbox.put(Resumed(attempts))
        self._decoder = decoder
        self._created = created
        self._mailbox = EventMailbox()
        self._mailbox.put(created)
        self._inputs = count(1)
        self._frames = FrameQueue() if sees else None
        self._running = asyncio.Event()
        """An event that is cleared while the conversation is paused."""
        self._running.set()
        self._closing = False
        self._is_closed_here = False
        """Whether this side closed the conversation before the server ended it."""
        self._closed: Closed | None = None
        self._last_error: ErrorEvent | None = None
        """The last event before the end, if it was an error."""
        self._reader = asyncio.create_task(self._read(), name="antiphon session reader")

    @classmethod
    async def open(
        cls,
        url: str,
        api_key: str | None,
        init: str,
        on_queue: Callable[[Queued], object] | None,
        *,
        sees: bool = False,
        reconnect: bool = False,
    ) -> Self:
        """Connect, wait in the queue and initialise the session.

        `url` is the whole address, `init` the message that configures the session, and `sees` whether it
        accepts pictures.

        Raises `ConnectError`, `QueueFull`, `AuthError`, or `ProtocolError` if the settings are refused.
        """
        reopen = partial(open_websocket, api_key=api_key)
        socket = ResumingSocket(await reopen(url), url, reopen if reconnect else None)
        decoder = duplex.Decoder()
        try:
            created = await _await_created(socket, decoder, init, on_queue)
        except BaseException:
            await socket.close(NORMAL_CLOSURE)
            raise
        return cls(socket, decoder, created, sees=sees)

    @property
    def id(self) -> str:
        """The server's name for this session."""
        return self._created.session_id

    @property
    def trace_id(self) -> str | None:
        """The id of this session's trace on the server; None if the server does not trace."""
        if self._closed and self._closed.trace_id:
            return self._closed.trace_id
        return self._socket.trace_id

    @property
    def dropped_events(self) -> int:
        """The number of events that were dropped because the program read too slowly."""
        return self._mailbox.dropped

    @property
    def is_paused(self) -> bool:
        """Whether the conversation is paused."""
        return not self._running.is_set()

    async def pause(self) -> None:
        """Pause the conversation until `resume`. Repeated calls do nothing.

        Nothing is sent: `send_audio`, `send_frame` and `force_listen` raise `ProtocolError` with the reason
        `paused`, and `stream_file` keeps its position. No time passes for the model, which only finishes the
        current unit; `force_listen` before `pause` drops that output too. The session keeps its slot, and its
        limits still apply: the server ends an idle session after a minute if others wait for a slot. Raises
        `SessionClosed`.
        """
        self._check_open()
        self._running.clear()

    async def resume(self) -> None:
        """Continue after `pause`. Repeated calls do nothing. Raises `SessionClosed`."""
        self._check_open()
        self._running.set()

    async def send_audio(self, audio: Samples | bytes, *, force_listen: bool = False) -> str:
        """Send input audio: float32 in [-1, 1], shape `(samples,)`, 16 kHz mono, or its bytes.

        The audio may have any length; the server cuts it into units of one second. With `force_listen` the
        model stops speaking and listens to it. Returns the `input_id` that the events of these units carry.
        Raises `AudioError`, `SessionClosed`.
        """
        self._check_running()
        input_id = f"in-{next(self._inputs)}"
        for piece in pieces(as_samples(audio), _LONGEST_APPEND):
            frames = self._frames.take(len(piece)) if self._frames else []
            await self._send(duplex.append(piece, input_id, force_listen, frames))
        if force_listen and self._frames:
            self._frames.next_second()
        return input_id

    async def send_frame(self, picture: Image | bytes | str | Path) -> None:
        """Send a picture to the model, as the bytes or the path of its file.

        The file is a JPEG, PNG or WebP of at most 1 MiB and 4 megapixels. The session needs `mode="video"`.

        The picture goes with the next audio. The model sees at most four pictures in a second of audio:
        further ones wait for the next second, and only the newest four of them are kept. The server refuses a
        picture of too many pixels, together with its audio, with an `ErrorEvent`. Raises `ImageError`,
        `SessionClosed`, OSError for a path that cannot be read, and `ProtocolError` in another mode.
        """
        if self._frames is None:
            raise ProtocolError(
                'Pictures need a conversation with video: client.duplex(mode="video").',
                reason="unsupported_mode",
            )
        self._check_open()
        self._check_running()
        self._frames.put(await asyncio.to_thread(frame_bytes, picture))

    async def force_listen(self) -> str:
        """Stop the model's speech at once; the call counts as one unit of silence. Returns the `input_id`.

        Raises `SessionClosed`.
        """
        self._check_running()
        input_id = f"in-{next(self._inputs)}"
        await self._send(duplex.append(None, input_id, force_listen=True))
        if self._frames:
            self._frames.next_second()
        return input_id

    def stream_file(self, path: str | Path, *, then_silence: bool = True) -> FileStream:
        """Send a recording in real time while its block is open: `async with session.stream_file(path):`.

        The file is one that `read_audio` reads. Leaving the block stops the stream. After the file, silence
        follows while the block is open, since a model answers only while it gets input; `then_silence=False`
        stops at the end of the file. Raises `AudioError`, whose text names the remedy, and OSError.
        """
        return FileStream(self.send_audio, read_audio(path), then_silence=then_silence, running=self._running)

    async def close(self, reason: str = "user_stop") -> None:
        """End the conversation and wait at most 2 s for the server's `session.closed`.

        Repeated calls do nothing. `reason` matches `[a-z0-9_]{1,64}`; the server returns it in `Closed`.
        """
        first, self._closing = not self._closing, True
        self._running.set()
        self._is_closed_here = self._is_closed_here or self._closed is None
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                if first:
                    with contextlib.suppress(ConnectionClosed):
                        await self._socket.send(duplex.close(reason))
                await asyncio.wait({self._reader})
        if not self._reader.done():
            # A transport that has just closed by itself has no event loop any more, so abort fails.
            with contextlib.suppress(AttributeError):
                self._socket.abort()
            await asyncio.wait({self._reader})

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Event:
        return await self._mailbox.get()

    def _check_open(self) -> None:
        if self._closing or self._closed or self._reader.done():
            raise self._ended()

    def _check_running(self) -> None:
        if self.is_paused:
            raise ProtocolError("The conversation is paused: call resume() first.", reason="paused")

    async def _send(self, frame: str) -> None:
        if self._closing or self._closed:
            raise self._ended()
        try:
            await self._socket.send(frame)
        except ConnectionClosed:
            raise self._ended() from None

    async def _read(self) -> None:
        error: AntiphonError | None = None
        try:
            await self._receive()
        except ProtocolError as breach:
            error = breach
        except ConnectionClosed:
            pass
        finally:
            self._mailbox.finish(error or self._final_error())
            self._running.set()
        await self._socket.close(_PROTOCOL_ERROR if error else NORMAL_CLOSURE)

    async def _receive(self) -> None:
        """Read until the server has closed the conversation and then the socket."""
        while self._closed is None:
            event = self._decoder.decode(await self._socket.recv())
            if event is None or isinstance(event, Queued | duplex.Assigned | duplex.Continued):
                continue
            if not isinstance(event, Closed):
                self._last_error = event if isinstance(event, ErrorEvent) else None
            if isinstance(event, Closed):
                self._closed = event
            self._mailbox.put(event)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await self._socket.wait_closed()

    def _final_error(self) -> AntiphonError | None:
        """Return the exception that iterating raises after the last event, None without one."""
        if self._closing or (self._closed and self._closed.reason in REGULAR_ENDS):
            return None
        return self._ended()

    def _ended(self) -> AntiphonError:
        if self._is_closed_here:
            return closed_here("The conversation was closed here.")
        return ended(
            self._socket.close_code,
            self.trace_id,
            closed=self._closed.reason if self._closed else None,
            error=self._last_error,
            message=self._closed.message if self._closed else None,
        )


async def _await_created(
    socket: ResumingSocket,
    decoder: duplex.Decoder,
    init: str,
    on_queue: Callable[[Queued], object] | None,
) -> Created:
    """Run the opening: queue, `session.init`, `session.created`."""
    while True:
        try:
            async with asyncio.timeout(_SILENCE_OF_SERVER_S):
                event = decoder.decode(await socket.recv())
                if isinstance(event, duplex.Assigned):
                    # If the socket is closed already, the earlier frames contain the reason.
                    with contextlib.suppress(ConnectionClosed):
                        await socket.send(init)
        except TimeoutError:
            text = f"The server said nothing for {_SILENCE_OF_SERVER_S:.0f} s before the conversation began."
            raise ConnectError(text, reason="timeout", retryable=True) from None
        except ConnectionClosed:
            raise refusals.from_close(socket.close_code) from None
        if isinstance(event, Queued) and on_queue:
            on_queue(event)
        elif isinstance(event, ErrorEvent):
            raise refusals.from_error_event(event)
        elif isinstance(event, Closed):
            text = f"The server ended the conversation before it began: {event.message or event.reason}."
            raise ConnectError(text, reason=event.reason, retryable=event.reason == "server_shutdown")
        elif isinstance(event, Created):
            return event
