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
    """Base of every kind of conversation."""

    def __init__(self, session: _Session, loop: LoopThread, timeout_s: float) -> None:
        self._session = session
        self._loop = loop
        self._timeout_s = timeout_s

    @property
    def trace_id(self) -> str | None:
        """Finds this conversation in the server's traces; None if the server does not trace."""
        return self._session.trace_id

    def receive(self, *, timeout_s: float | None = None) -> _Event | None:
        """Wait for the next event; None after the last. No event is lost when `CallTimeout` is raised."""
        event: _Event | None = self._call(_next(self._session), timeout_s)
        return event

    def close(self, *, timeout_s: float | None = None) -> None:
        """End the conversation. Harmless when repeated."""
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
    """A full-duplex conversation; `antiphon.DuplexSession` says what each call does and raises."""

    @property
    def id(self) -> str:
        """The server's name for this session."""
        return self._session.id

    @property
    def dropped_events(self) -> int:
        """How many events were dropped because they were not read in time."""
        return self._session.dropped_events

    def send_audio(
        self, audio: Samples | bytes, *, force_listen: bool = False, timeout_s: float | None = None
    ) -> str:
        """Send audio that the model is to hear; return its `input_id`."""
        return self._call(self._session.send_audio(audio, force_listen=force_listen), timeout_s)

    def send_frame(self, picture: Image | bytes | str | Path, *, timeout_s: float | None = None) -> None:
        """Show the model a picture."""
        self._call(self._session.send_frame(picture), timeout_s)

    def force_listen(self, *, timeout_s: float | None = None) -> str:
        """Make the model stop speaking at once; return the `input_id` of that unit."""
        return self._call(self._session.force_listen(), timeout_s)

    @property
    def is_paused(self) -> bool:
        """Whether the conversation is paused."""
        return self._session.is_paused

    def pause(self, *, timeout_s: float | None = None) -> None:
        """Let the conversation stand still until `resume`."""
        self._call(self._session.pause(), timeout_s)

    def resume(self, *, timeout_s: float | None = None) -> None:
        """Go on after `pause`."""
        self._call(self._session.resume(), timeout_s)

    def stream_file(self, path: str | Path, *, then_silence: bool = True) -> "Streaming":
        """Send a recording in real time while the block is open: `with session.stream_file(path):`."""
        stream = self._session.stream_file(path, then_silence=then_silence)
        return Streaming(stream, self._loop, self._timeout_s)


class ChatTurn(_Conversation[AsyncChatTurn, ChatEvent]):
    """The answer to a chat; `antiphon.ChatTurn` says what each call does and raises."""

    def answer(self, *, timeout_s: float | None = None) -> Answer:
        """Read what is left, and return the answer as a whole."""
        return self._call(self._session.answer(), timeout_s)


class TranscriptionSession(_Conversation[AsyncTranscriptionSession, TranscriptionEvent]):
    """A transcription; `antiphon.TranscriptionSession` says what each call does and raises."""

    @property
    def id(self) -> str:
        """The server's name for this session."""
        return self._session.id

    def use_model(self, model: str, *, timeout_s: float | None = None) -> None:
        """Choose the model of the utterances that have not begun yet."""
        self._call(self._session.use_model(model), timeout_s)

    def send_audio(self, audio: Samples | bytes, *, timeout_s: float | None = None) -> None:
        """Send audio to be written down."""
        self._call(self._session.send_audio(audio), timeout_s)

    def end_utterance(self, *, timeout_s: float | None = None) -> None:
        """Say that the utterance is complete."""
        self._call(self._session.end_utterance(), timeout_s)

    def stream_file(self, path: str | Path, *, real_time: bool = False) -> "Streaming":
        """Send a recording as an utterance while the block is open: `with session.stream_file(path):`."""
        return Streaming(self._session.stream_file(path, real_time=real_time), self._loop, self._timeout_s)


class Streaming:
    """A recording that is sent while its block is open; see `antiphon.FileStream`."""

    def __init__(self, stream: FileStream, loop: LoopThread, timeout_s: float) -> None:
        self._stream = stream
        self._loop = loop
        self._timeout_s = timeout_s

    @property
    def duration_s(self) -> float:
        """Length of the recording."""
        return self._stream.duration_s

    @property
    def sent(self) -> bool:
        """Whether the whole recording is out."""
        return self._stream.sent

    def wait_sent(self, *, timeout_s: float | None = None) -> None:
        """Return when the whole recording is out, or when the conversation ended before that.

        Unless told otherwise it may take as long as the recording, and the deadline of the client beyond.
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
    """Return the next event, None after the last: a StopAsyncIteration does not pass through a future."""
    async for event in session:
        return event
    return None
