"""The entry point of the SDK: `antiphon.connect`."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Literal, Self, TypeVar

from antiphon.connection.endpoint import CHAT, MODELS, REALTIME, TRANSCRIPTION, endpoint, page
from antiphon.connection.models import served_models
from antiphon.connection.retry import Retry, retrying
from antiphon.protocol.chat import GenerationConfig, ImageConfig, Speech
from antiphon.protocol.chat import request as chat_request
from antiphon.protocol.duplex import DuplexConfig, check_mode, init
from antiphon.protocol.events import Queued
from antiphon.protocol.messages import Clip, Message, Tool, history
from antiphon.session.chat import ChatTurn
from antiphon.session.duplex import DuplexSession
from antiphon.session.transcription import TranscriptionSession

_Opened = TypeVar("_Opened", DuplexSession, ChatTurn, TranscriptionSession)


def connect(url: str, api_key: str | None = None, *, retry: Retry | None = None) -> "Client":
    """Return a client of the server at `url`, for example `ws://localhost:8006`; use it with `async with`.

    Nothing is sent yet: each conversation opens a WebSocket of its own. With `retry` the client retries a
    conversation after a temporary refusal; without it the refusal is raised at once. Raises `ConnectError` if
    `url` is no valid address.
    """
    return Client(url, api_key, retry=retry)


class Client:
    """A client that opens conversations with one server."""

    def __init__(self, url: str, api_key: str | None = None, *, retry: Retry | None = None) -> None:
        self._url = url
        self._chat_url = endpoint(url, CHAT)
        self._transcription_url = endpoint(url, TRANSCRIPTION)
        self._models_url = page(url, MODELS)
        self._api_key = api_key
        self._retry = retry
        self._open: set[DuplexSession | ChatTurn | TranscriptionSession] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the conversations that other tasks still hold open."""
        for conversation in list(self._open):
            await conversation.close()

    @asynccontextmanager
    async def duplex(
        self,
        instructions: str | None = None,
        *,
        mode: Literal["audio", "video"] = "audio",
        voice: Clip | str | None = None,
        settings: DuplexConfig | Mapping[str, object] | None = None,
        on_queue: Callable[[Queued], object] | None = None,
        seed: int | None = None,
        reconnect: bool = False,
    ) -> AsyncIterator[DuplexSession]:
        """Open a full-duplex conversation: both sides may speak at any time.

        In the mode `video` the model also sees the pictures of `send_frame`. `instructions` is the system
        prompt. `voice` is the voice of the model, as reference audio of 0.5 s to 30 s (samples at 16 kHz, or
        a WAV file) or as the id of a voice of the server. `settings` override the model's defaults, and
        `seed` makes the answers repeatable on one server. `on_queue` is called with a `Queued` when no slot
        is free, and every few seconds until one is. With `reconnect` the client reopens a lost connection for
        as long as the server waits, and the conversation goes on. The events `ConnectionLost` and `Resumed`
        report it, and `send_audio` waits meanwhile. Leaving the block ends the conversation and waits at most
        2 s for the server to confirm.

        Raises `ConnectError`, `QueueFull`, `AuthError`, or `ProtocolError` if the settings are refused, here
        (`invalid_argument`) or by the server; `AudioError` for a voice that cannot be sent.
        """
        check_mode(mode)
        opening = partial(
            DuplexSession.open,
            endpoint(self._url, REALTIME, mode=mode),
            self._api_key,
            init(instructions, settings, seed, voice),
            on_queue,
            sees=mode == "video",
            reconnect=reconnect,
        )
        session = await retrying(self._retry, opening)
        async with self._holding(session):
            yield session

    @asynccontextmanager
    async def chat(
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
    ) -> AsyncIterator[ChatTurn]:
        """Request one answer to a chat: `messages` is the whole history, or the text of the user's message.

        The server keeps no history: each request contains all earlier messages. With `speech` the answer is
        spoken, too. With `streaming` it arrives in pieces during generation; without, as one `Answer`.
        `omni_mode` says that pictures and recordings of a message belong together in time; the model then
        also hears the sound of videos. With `enable_thinking` a model that supports it thinks before it
        answers. `tools` are functions that the model may call; `tool_choice` can require a call, of any tool
        or of one. Without `parallel_tool_calls` an answer has one call at most. `on_queue` is called with a
        `Queued` when no slot is free, and every few seconds until one is. With `reconnect` the client reopens
        a lost connection, and the answer goes on. Leaving the block before the answer is complete stops it.

        Raises `AudioError`, `ConnectError`, `QueueFull`, `AuthError`, or `ProtocolError` if something in the
        request is refused.
        """
        request = chat_request(
            history(messages),
            streaming=streaming,
            generation=generation,
            speech=speech,
            images=images,
            omni_mode=omni_mode,
            enable_thinking=enable_thinking,
            tools=tools,
            tool_choice=tool_choice,
            parallel_tool_calls=parallel_tool_calls,
        )
        opening = partial(
            ChatTurn.open, self._chat_url, self._api_key, request, on_queue, reconnect=reconnect
        )
        turn = await retrying(self._retry, opening)
        async with self._holding(turn):
            yield turn

    @asynccontextmanager
    async def transcribe(
        self, model: str | None = None, *, reconnect: bool = False
    ) -> AsyncIterator[TranscriptionSession]:
        """Open a transcription session with `model`, or with the model that the server serves.

        With `reconnect` the client reopens a lost connection for as long as the server waits, and the session
        goes on. Meanwhile `send_audio` blocks. Leaving the block ends the session.

        Raises `ConnectError`, `QueueFull` or `AuthError`, and `ProtocolError` if the server has no model for
        transcription.
        """

        async def opening() -> TranscriptionSession:
            asked = model
            if asked is None:
                asked = (await served_models(self._models_url, self._api_key, "transcription"))[0]
            return await TranscriptionSession.open(
                self._transcription_url, self._api_key, asked, reconnect=reconnect
            )

        session = await retrying(self._retry, opening)
        async with self._holding(session):
            yield session

    async def models(self) -> tuple[str, ...]:
        """Return the names of the models that are ready to serve; at least one.

        Raises `ConnectError`, `AuthError` or `ProtocolError`.
        """
        return await retrying(self._retry, partial(served_models, self._models_url, self._api_key))

    @asynccontextmanager
    async def _holding(self, conversation: _Opened) -> AsyncIterator[_Opened]:
        self._open.add(conversation)
        try:
            yield conversation
        finally:
            self._open.discard(conversation)
            await conversation.close()
