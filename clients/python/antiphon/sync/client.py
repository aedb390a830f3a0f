"""A client that opens conversations with blocking calls."""

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from types import TracebackType
from typing import Final, Literal, Self, TypeVar

from antiphon.client import Client as AsyncClient
from antiphon.client import connect as connect_async
from antiphon.connection.retry import Retry
from antiphon.protocol.chat import GenerationConfig, ImageConfig, Speech
from antiphon.protocol.duplex import DuplexConfig
from antiphon.protocol.events import Queued
from antiphon.protocol.messages import Clip, Message, Tool
from antiphon.sync.loop_thread import LoopThread, checked, refuse_coroutines
from antiphon.sync.sessions import ChatTurn, DuplexSession, TranscriptionSession, entered

TIMEOUT_S: Final = 60.0
"""The default deadline of a call in seconds."""

T = TypeVar("T")


def connect(
    url: str, api_key: str | None = None, *, retry: Retry | None = None, timeout_s: float = TIMEOUT_S
) -> "Client":
    """Return a client of the server at `url`, for use with `with`.

    `antiphon.connect` describes the other arguments. `timeout_s` is the deadline of every call, also of those
    that open a conversation and may wait in the queue. Raises `ConnectError` if `url` is no address, and
    ValueError for an invalid deadline.
    """
    return Client(connect_async(url, api_key, retry=retry), timeout_s)


class Client:
    """A client that opens conversations with one server.

    It runs them in a thread of its own while its block is open.
    """

    def __init__(self, client: AsyncClient, timeout_s: float = TIMEOUT_S) -> None:
        self._client = client
        self._timeout_s = checked(timeout_s)
        self._loop: LoopThread | None = None

    def __enter__(self) -> Self:
        if self._loop is not None:
            raise RuntimeError("the block of this client is already open")
        refuse_coroutines()
        self._loop = LoopThread()
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
    ) -> Generator[DuplexSession]:
        """Open a full-duplex conversation like `antiphon.Client.duplex`; `timeout_s` limits the opening.

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
    ) -> Generator[ChatTurn]:
        """Request one answer, as `antiphon.Client.chat` does.

        `timeout_s` limits the queue and the prefill of the chat.
        """
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
    ) -> Generator[TranscriptionSession]:
        """Open a transcription, as `antiphon.Client.transcribe` does; `timeout_s` limits the opening."""
        with self._holding(self._client.transcribe(model, reconnect=reconnect), timeout_s) as session:
            yield TranscriptionSession(session, self._running, self._timeout_s)

    def models(self, *, timeout_s: float | None = None) -> tuple[str, ...]:
        """Return the names of the models that are ready to serve, as `antiphon.Client.models` does."""
        return self._running.call(self._client.models(), self._deadline(timeout_s))

    @contextmanager
    def _holding(self, opening: AbstractAsyncContextManager[T], timeout_s: float | None) -> Generator[T]:
        loop = self._running
        session = loop.call(entered(opening), self._deadline(timeout_s))
        try:
            yield session
        finally:
            loop.call(_left(opening), self._timeout_s)

    @property
    def _running(self) -> LoopThread:
        if self._loop is None:
            raise RuntimeError("the client is not open: use `with antiphon.sync.connect(...) as client:`")
        return self._loop

    def _deadline(self, timeout_s: float | None) -> float:
        return self._timeout_s if timeout_s is None else checked(timeout_s)


async def _left(block: AbstractAsyncContextManager[object]) -> None:
    await block.__aexit__(None, None, None)
