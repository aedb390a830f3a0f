"""Conversations with blocking calls."""

from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from antiphon.audio.pacing import FileStream
from antiphon.audio.samples import Samples
from antiphon.protocol.events import Answer, ChatEvent, Event, TranscriptionEvent
from antiphon.protocol.messages import Image
from antiphon.session.chat import ChatTurn as AsyncChatTurn
from antiphon.session.duplex import DuplexSession as AsyncDuplexSession
from antiphon.session.transcription import TranscriptionSession as AsyncTranscriptionSession
from antiphon.sync.loop_thread import LoopThread, checked

T = TypeVar("T")
_Event = TypeVar("_Event")
_Session = TypeVar("_Session", bound=AsyncDuplexSession | AsyncChatTurn | AsyncTranscriptionSession)


class _Conversation(Generic[_Session, _Event]):
    """The base of every kind of conversation."""

    def __init__(self, session: _Session, loop: LoopThread, timeout_s: float) -> None:
        self._session = session
        self._loop = loop
        self._timeout_s = timeout_s

    @property
    def trace_id(self) -> str | None:
        """The id of this conversation's trace on the server; None if the server does not trace."""
        return self._session.trace_id

    def receive(self, *, timeout_s: float | None = None) -> _Event | None:
        """Wait for the next event; None after the last. No event is lost when `CallTimeout` is raised."""
        event: _Event | None = self._call(_next(self._session), timeout_s)
        return event

    def close(self, *, timeout_s: float | None = None) -> None:
        """End the conversation. Repeated calls do nothing."""
        self._call(self._session.close(), timeout_s)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> _Event:
        event = self.receive()
        if event is None:
            raise StopIteration
        return event

    def _call(self, coroutine: Coroutine[Any, Any, T], timeout_s: float | None) -> T:
        return self._loop.call(coroutine, self._timeout_s if timeout_s is None else checked(timeout_s))


class DuplexSession(_Conversation[AsyncDuplexSession, Event]):
    """A full-duplex conversation; `antiphon.DuplexSession` describes each call and its errors."""

    @property
    def id(self) -> str:
        """The server's name for this session."""
        return self._session.id

    @property
    def dropped_events(self) -> int:
        """The number of events that were dropped because the program read too slowly."""
        return self._session.dropped_events

    def send_audio(
        self, audio: Samples | bytes, *, force_listen: bool = False, timeout_s: float | None = None
    ) -> str:
        """Send input audio; return its `input_id`."""
        return self._call(self._session.send_audio(audio, force_listen=force_listen), timeout_s)

    def send_frame(self, picture: Image | bytes | str | Path, *, timeout_s: float | None = None) -> None:
        """Send a picture to the model."""
        self._call(self._session.send_frame(picture), timeout_s)

    def force_listen(self, *, timeout_s: float | None = None) -> str:
        """Stop the model's speech at once; return the `input_id` of that unit."""
        return self._call(self._session.force_listen(), timeout_s)

    @property
    def is_paused(self) -> bool:
        """Whether the conversation is paused."""
        return self._session.is_paused

    def pause(self, *, timeout_s: float | None = None) -> None:
        """Pause the conversation until `resume`."""
        self._call(self._session.pause(), timeout_s)

    def resume(self, *, timeout_s: float | None = None) -> None:
        """Continue after `pause`."""
        self._call(self._session.resume(), timeout_s)

    def stream_file(self, path: str | Path, *, then_silence: bool = True) -> "Streaming":
        """Send a recording in real time while the block is open: `with session.stream_file(path):`."""
        stream = self._session.stream_file(path, then_silence=then_silence)
        return Streaming(stream, self._loop, self._timeout_s)


class ChatTurn(_Conversation[AsyncChatTurn, ChatEvent]):
    """The answer to a chat; `antiphon.ChatTurn` describes each call and its errors."""

    def answer(self, *, timeout_s: float | None = None) -> Answer:
        """Read the remaining events and return the whole answer."""
        return self._call(self._session.answer(), timeout_s)


class TranscriptionSession(_Conversation[AsyncTranscriptionSession, TranscriptionEvent]):
    """A transcription; `antiphon.TranscriptionSession` describes each call and its errors."""

    @property
    def id(self) -> str:
        """The server's name for this session."""
        return self._session.id

    def use_model(self, model: str, *, timeout_s: float | None = None) -> None:
        """Choose the model of all utterances that begin later."""
        self._call(self._session.use_model(model), timeout_s)

    def send_audio(self, audio: Samples | bytes, *, timeout_s: float | None = None) -> None:
        """Send audio to transcribe."""
        self._call(self._session.send_audio(audio), timeout_s)

    def end_utterance(self, *, timeout_s: float | None = None) -> None:
        """Complete the utterance."""
        self._call(self._session.end_utterance(), timeout_s)

    def stream_file(self, path: str | Path, *, real_time: bool = False) -> "Streaming":
        """Send a recording as an utterance while the block is open: `with session.stream_file(path):`."""
        return Streaming(self._session.stream_file(path, real_time=real_time), self._loop, self._timeout_s)


class Streaming:
    """A recording that is sent while its block is open, as by `antiphon.FileStream`."""

    def __init__(self, stream: FileStream, loop: LoopThread, timeout_s: float) -> None:
        self._stream = stream
        self._loop = loop
        self._timeout_s = timeout_s

    @property
    def duration_s(self) -> float:
        """The length of the recording in seconds."""
        return self._stream.duration_s

    @property
    def sent(self) -> bool:
        """Whether the whole recording was sent."""
        return self._stream.sent

    def wait_sent(self, *, timeout_s: float | None = None) -> None:
        """Wait until the whole recording is sent, or until the conversation ends.

        The default deadline is the length of the recording plus the deadline of the client.
        """
        allowed = self.duration_s + self._timeout_s if timeout_s is None else checked(timeout_s)
        self._loop.call(self._stream.wait_sent(), allowed)

    def __enter__(self) -> Self:
        self._loop.call(entered(self._stream), self._timeout_s)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call(self._stream.__aexit__(kind, error, trace), self._timeout_s)


async def entered(block: AbstractAsyncContextManager[T]) -> T:
    """Enter a block as a coroutine."""
    return await block.__aenter__()


async def _next(session: Any) -> Any:
    """Return the next event, None after the last: a StopAsyncIteration cannot pass through a future."""
    async for event in session:
        return event
    return None
