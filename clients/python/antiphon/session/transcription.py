"""Transcription of one utterance after another over one WebSocket."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Final, Self

from websockets.exceptions import ConnectionClosed

from antiphon.audio.files import read_audio
from antiphon.audio.pacing import FileStream
from antiphon.audio.samples import INPUT_RATE_HZ, Samples, as_samples, pieces
from antiphon.connection import refusals
from antiphon.connection.endpoint import NORMAL_CLOSURE, open_websocket
from antiphon.connection.resuming import ResumingSocket
from antiphon.errors import AntiphonError, ConnectError, ProtocolError
from antiphon.protocol import transcription
from antiphon.protocol.events import ErrorEvent, TranscriptionEvent
from antiphon.session.endings import closed_here, ended

LEAD_S: Final = 1200.0
"""The seconds that a recording is sent ahead of real time.

A server buffers at most 1800 s of unprocessed audio.
"""

_GREETING_TIMEOUT_S: Final = 60.0

_LONGEST_APPEND: Final = 30 * INPUT_RATE_HZ
"""The largest number of samples in one message; longer audio is split."""

_REFUSALS: Final = frozenset({"model_not_found", "model_not_validated"})
"""The error codes after which no request on this socket can succeed."""

_REJECTIONS: Final = frozenset({"buffer_full", "invalid_audio"})
"""The error codes that cost some audio, but not the utterance."""


class TranscriptionSession:
    """A transcription session. Send audio and iterate over events at the same time.

    `Client.transcribe` returns it. The first audio begins an utterance, and `end_utterance` ends it; the next
    audio begins another one with an empty context. Iterating yields `TextDelta` while the audio still
    arrives, and one `Transcript` for each utterance that was ended, in order. An utterance that fails yields
    one `ErrorEvent` instead, and the session goes on. Iterating ends after `close`; any other end raises
    `SessionClosed`, or `ProtocolError` if the server has no such model.
    """

    def __init__(self, socket: ResumingSocket, opened: transcription.Opened) -> None:
        self._socket = socket
        socket.offered(opened.resume)
        self._id = opened.session_id
        self._last_error: ErrorEvent | None = None
        """The last event, if it was an error."""
        self._committed = False
        self._unfinished = False
        self._closing = False
        self._end: AntiphonError | None = None

    @classmethod
    async def open(cls, url: str, api_key: str | None, model: str, *, reconnect: bool = False) -> Self:
        """Connect and choose the model; `url` is the whole address.

        Raises `ConnectError`, `QueueFull` or `AuthError`, and `ProtocolError` if the server has no model for
        transcription.
        """
        reopen = partial(open_websocket, api_key=api_key)
        socket = ResumingSocket(await reopen(url), url, reopen if reconnect else None)
        try:
            session = cls(socket, await _await_greeting(socket))
            await session.use_model(model)
        except BaseException:
            await socket.close(NORMAL_CLOSURE)
            raise
        return session

    @property
    def id(self) -> str:
        """The server's name for this session."""
        return self._id

    @property
    def trace_id(self) -> str | None:
        """The id of this session's trace on the server; None if the server does not trace."""
        return self._socket.trace_id

    async def use_model(self, model: str) -> None:
        """Choose the model of all utterances that begin later. Raises `SessionClosed`."""
        await self._send(transcription.update(model))

    async def send_audio(self, audio: Samples | bytes) -> None:
        """Send audio to transcribe: float32 in [-1, 1], shape `(samples,)`, 16 kHz mono, or its bytes.

        The audio may have any length; it begins an utterance if none is open. The server buffers 30 min of
        unprocessed audio and rejects more, with the `ErrorEvent` `buffer_full`. Raises `AudioError`,
        `SessionClosed`.
        """
        samples = as_samples(audio)
        self._unfinished = True
        if not self._committed:
            self._committed = True
            await self._send(transcription.commit(final=False))
        for piece in pieces(samples, _LONGEST_APPEND):
            await self._send(transcription.append(piece))

    async def end_utterance(self) -> None:
        """Complete the utterance: its last words and its `Transcript` follow.

        Without an open utterance nothing happens. Raises `SessionClosed`.
        """
        if self._unfinished:
            self._unfinished = self._committed = False
            await self._send(transcription.commit(final=True))

    def stream_file(self, path: str | Path, *, real_time: bool = False) -> FileStream:
        """Send a recording as an utterance while its block is open: `async with session.stream_file(path):`.

        The file is one that `read_audio` reads. It is sent as fast as the server accepts it, but at most 20
        min ahead of real time; with `real_time` it is sent at the pace of a microphone. Leaving the block
        stops the stream. Raises `AudioError`, whose text names the remedy, and OSError.
        """
        return FileStream(
            self.send_audio, read_audio(path), lead_s=0.0 if real_time else LEAD_S, finish=self.end_utterance
        )

    async def close(self) -> None:
        """End the session; wait at most 2 s.

        Events that have arrived can still be read. Repeated calls do nothing.
        """
        self._closing = True
        await self._socket.close(NORMAL_CLOSURE)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> TranscriptionEvent:
        while self._end is None:
            try:
                event = transcription.decode(await self._socket.recv())
            except ProtocolError as breach:
                self._end = breach
            except ConnectionClosed:
                if self._closing:
                    raise StopAsyncIteration from None
                self._end = self._lost()
            else:
                self._last_error = event if isinstance(event, ErrorEvent) else None
                if isinstance(event, ErrorEvent):
                    self._take(event)
                if event is not None and not isinstance(event, transcription.Opened) and self._end is None:
                    return event
        raise self._end

    def _take(self, error: ErrorEvent) -> None:
        if error.code in _REFUSALS:
            self._end = refusals.from_error_event(error)
        elif error.code not in _REJECTIONS:
            # The open utterance may have failed, so the next audio begins one. If an earlier utterance
            # failed, the further commit changes nothing.
            self._committed = False

    async def _send(self, frame: str) -> None:
        if self._end is not None:
            raise self._end
        if self._closing:
            raise closed_here("The session was closed here.")
        try:
            await self._socket.send(frame)
        except ConnectionClosed:
            raise self._lost() from None

    def _lost(self) -> AntiphonError:
        return ended(self._socket.close_code, self.trace_id, error=self._last_error)


async def _await_greeting(socket: ResumingSocket) -> transcription.Opened:
    """Return `session.created`, which the server sends first."""
    try:
        async with asyncio.timeout(_GREETING_TIMEOUT_S):
            while True:
                event = transcription.decode(await socket.recv())
                if isinstance(event, transcription.Opened):
                    return event
                if isinstance(event, ErrorEvent):
                    raise refusals.from_error_event(event)
    except TimeoutError:
        text = f"The server said nothing for {_GREETING_TIMEOUT_S:.0f} s after the connection was opened."
        raise ConnectError(text, reason="timeout", retryable=True) from None
    except ConnectionClosed:
        raise refusals.from_close(socket.close_code) from None
