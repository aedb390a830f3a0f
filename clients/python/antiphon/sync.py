"""A blocking client for scripts: the asyncio client on a loop in a thread of its own.

>>> with antiphon.sync.connect("ws://localhost:8006") as client:
...     with client.duplex() as session, session.stream_file("question.wav"):
...         for event in session:
...             match event:
...                 case antiphon.TextDelta(text=text):
...                     print(text, end="")
...                 case antiphon.TurnEnd():
...                     break

Every call has a deadline, `timeout_s` of `connect` or of the call, and raises `CallTimeout` when it passes.
Calls may come from several threads: one may send while another iterates. Nothing here may be called from a
coroutine: `antiphon.connect` is for those.
"""

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Generic, Literal, Self, TypeVar

from antiphon.audio.pacing import FileStream
from antiphon.audio.samples import Samples
from antiphon.client import Client as AsyncClient
from antiphon.client import connect as connect_async
from antiphon.connection.retry import Retry
from antiphon.errors import CallTimeout
from antiphon.protocol.chat import GenerationConfig, ImageConfig, Speech
from antiphon.protocol.duplex import DuplexConfig
from antiphon.protocol.events import Answer, ChatEvent, Event, Queued, TranscriptionEvent
from antiphon.protocol.messages import Clip, Image, Message, Tool
from antiphon.session.chat import ChatTurn as AsyncChatTurn
from antiphon.session.duplex import DuplexSession as AsyncDuplexSession
from antiphon.session.transcription import TranscriptionSession as AsyncTranscriptionSession

TIMEOUT_S: Final = 60.0
"""Longest that a call takes unless told otherwise."""

_MARGIN_S: Final = 10.0
"""The loop keeps the deadline itself; a thread that waits for it allows this much more."""

T = TypeVar("T")
_Event = TypeVar("_Event")
_Session = TypeVar("_Session", bound=AsyncDuplexSession | AsyncChatTurn | AsyncTranscriptionSession)


def connect(
    url: str, api_key: str | None = None, *, retry: Retry | None = None, timeout_s: float = TIMEOUT_S
) -> "Client":
    """Return a client of the server at `url`, to be used with `with`; `antiphon.connect` says the rest.

    `timeout_s` is the deadline of every call, also of those that open a conversation and may wait in the
    queue. Raises `ConnectError` if `url` is no address, and ValueError for a deadline that is none.
    """
    return Client(connect_async(url, api_key, retry=retry), timeout_s)


class Client:
    """Opens conversations with one server, and runs them in a thread of its own while its block is open."""

    def __init__(self, client: AsyncClient, timeout_s: float = TIMEOUT_S) -> None:
        self._client = client
        self._timeout_s = _checked(timeout_s)
        self._loop: _Loop | None = None

    def __enter__(self) -> Self:
        if self._loop is not None:
            raise RuntimeError("the block of this client is already open")
        _refuse_coroutines()
        self._loop = _Loop()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close conversations that are still open, and end the thread."""
        loop, self._loop = self._running, None
        try:
            loop.call(self._client.__aexit__(kind, error, trace), self._timeout_s)
        finally:
            loop.stop()

    @contextmanager
    def duplex(
        self,
        instructions: str | None = None,
        *,
        mode: Literal["audio", "video"] = "audio",
        voice: Clip | str | None = None,
        settings: DuplexConfig | Mapping[str, object] | None = None,
        on_queue: Callable[[Queued], object] | None = None,
        seed: int | None = None,
        reconnect: bool = False,
        timeout_s: float | None = None,
    ) -> Generator["DuplexSession"]:
        """Open a full-duplex conversation, as `antiphon.Client.duplex`; `timeout_s` is for opening it.

        `on_queue` is called in the thread of the client.
        """
        opening = self._client.duplex(
            instructions,
            mode=mode,
            voice=voice,
            settings=settings,
            on_queue=on_queue,
            seed=seed,
            reconnect=reconnect,
        )
        with self._holding(opening, timeout_s) as session:
            yield DuplexSession(session, self._running, self._timeout_s)

    @contextmanager
    def chat(
        self,
        messages: str | Sequence[Message],
        *,
        generation: GenerationConfig | None = None,
        speech: Speech | None = None,
        images: ImageConfig | None = None,
        streaming: bool = True,
        omni_mode: bool = False,
        enable_thinking: bool = False,
        tools: Sequence[Tool] = (),
        tool_choice: Literal["auto", "none", "required"] | Tool = "auto",
        parallel_tool_calls: bool = True,
        on_queue: Callable[[Queued], object] | None = None,
        reconnect: bool = False,
        timeout_s: float | None = None,
    ) -> Generator["ChatTurn"]:
        """Ask for one answer, as `antiphon.Client.chat`; `timeout_s` is for the queue and for reading it."""
        opening = self._client.chat(
            messages,
            generation=generation,
            speech=speech,
            images=images,
            streaming=streaming,
            omni_mode=omni_mode,
            enable_thinking=enable_thinking,
            tools=tools,
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
            on_queue=on_queue,
            reconnect=reconnect,
        )
        with self._holding(opening, timeout_s) as turn:
            yield ChatTurn(turn, self._running, self._timeout_s)

    @contextmanager
    def transcribe(
        self, model: str | None = None, *, reconnect: bool = False, timeout_s: float | None = None
    ) -> Generator["TranscriptionSession"]:
        """Open a transcription, as `antiphon.Client.transcribe`; `timeout_s` is for opening it."""
        with self._holding(self._client.transcribe(model, reconnect=reconnect), timeout_s) as session:
            yield TranscriptionSession(session, self._running, self._timeout_s)

    def models(self, *, timeout_s: float | None = None) -> tuple[str, ...]:
        """Return the names of the models that are ready to serve, as `antiphon.Client.models`."""
        return self._running.call(self._client.models(), self._deadline(timeout_s))

    @contextmanager
    def _holding(
        self, opening: AbstractAsyncContextManager[_Session], timeout_s: float | None
    ) -> Generator[_Session]:
        loop = self._running
        session = loop.call(_entered(opening), self._deadline(timeout_s))
        try:
            yield session
        finally:
            loop.call(_left(opening), self._timeout_s)

    @property
    def _running(self) -> "_Loop":
        if self._loop is None:
            raise RuntimeError("the client is not open: use `with antiphon.sync.connect(...) as client:`")
        return self._loop

    def _deadline(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else _checked(timeout_s)


class _Conversation(Generic[_Session, _Event]):
    """What all kinds of conversations have."""

    def __init__(self, session: _Session, loop: "_Loop", timeout_s: float) -> None:
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
        return self._loop.call(coroutine, self._timeout_s if timeout_s is None else _checked(timeout_s))


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

    def __init__(self, stream: FileStream, loop: "_Loop", timeout_s: float) -> None:
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
        allowed = self.duration_s + self._timeout_s if timeout_s is None else _checked(timeout_s)
        self._loop.call(self._stream.wait_sent(), allowed)

    def __enter__(self) -> Self:
        self._loop.call(_entered(self._stream), self._timeout_s)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call(self._stream.__aexit__(kind, error, trace), self._timeout_s)


class _Loop:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="antiphon.sync", daemon=True)
        self._thread.start()

    def call(self, coroutine: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Run a coroutine there and return its result.

        Raises what it raises, `CallTimeout` at the deadline, and RuntimeError within a coroutine.
        """
        try:
            _refuse_coroutines()
            if not self._thread.is_alive():
                raise RuntimeError("the client is closed")
        except RuntimeError:
            coroutine.close()
            raise
        future = asyncio.run_coroutine_threadsafe(_within(coroutine, timeout_s), self._loop)
        try:
            return future.result(timeout_s + _MARGIN_S)
        except TimeoutError:
            if future.done():
                raise
            future.cancel()
            raise CallTimeout(
                "The thread of antiphon.sync stands still; is a callback blocking it?"
            ) from None
        except BaseException:  # such as Ctrl-C
            future.cancel()
            raise

    def stop(self) -> None:
        """End the thread; tasks that are left over are cancelled."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_MARGIN_S)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
            left = asyncio.all_tasks(self._loop)
            for task in left:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
        finally:
            self._loop.close()


async def _within(coroutine: Coroutine[Any, Any, T], timeout_s: float) -> T:
    """The deadline strikes on the loop, between two steps of the coroutine, so that no result is lost."""
    try:
        async with asyncio.timeout(timeout_s) as deadline:
            return await coroutine
    except TimeoutError:
        if not deadline.expired():
            raise
        raise CallTimeout(f"The call took longer than its deadline of {timeout_s:g} s.") from None


async def _entered(block: AbstractAsyncContextManager[T]) -> T:
    return await block.__aenter__()


async def _left(block: AbstractAsyncContextManager[object]) -> None:
    await block.__aexit__(None, None, None)


async def _next(session: Any) -> Any:
    """The next event, None after the last: a StopAsyncIteration does not pass through a future."""
    async for event in session:
        return event
    return None


def _checked(timeout_s: float) -> float:
    if not 0.0 < timeout_s < float("inf"):
        raise ValueError(f"`timeout_s` is a number of seconds above 0, not {timeout_s!r}.")
    return timeout_s


def _refuse_coroutines() -> None:
    """Raise RuntimeError in a thread whose event loop would stand still meanwhile."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise RuntimeError(
        "antiphon.sync blocks, and an event loop is running in this thread: await antiphon.connect(...) "
        "here, or call antiphon.sync in another thread with asyncio.to_thread(...)."
    )
