"""One session on a worker: Prefill, Generate and Finalize as one object."""

import asyncio
import uuid
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, Self, TypeAlias, TypeVar

import grpc
import numpy as np

from antiphon.audio.samples import Samples, as_samples
from antiphon.contract import METADATA_LEASE, METADATA_SESSION_ID, Reason
from antiphon.errors import (
    AntiphonError,
    AudioError,
    ConnectError,
    ProtocolError,
    ReplayError,
    SessionClosed,
)
from antiphon.grpc.acquire import Lease
from antiphon.grpc.dial import open_channel
from antiphon.grpc.journal import Journal
from antiphon.grpc.outputs import (
    Finalized,
    Output,
    Prefilled,
    Ready,
    UnitDone,
    UnitError,
    from_finalize,
    from_generate,
    from_prefill,
)
from antiphon.grpc.status import Status
from antiphon.grpc.turns import Choice, add_tools, audio_chunk, message
from antiphon.protocol.messages import Message, Tool, history
from antiphon.session.mailbox import Mailbox, WaitingMailbox
from antiphon.v1 import common_pb2 as common
from antiphon.v1 import inference_service_pb2 as pb
from antiphon.v1.inference_service_pb2_grpc import InferenceServiceStub

_READY_TIMEOUT_S: Final = 40.0
_SILENCE_TIMEOUT_S: Final = 30.0
"""The seconds that a sender waits for a message of the worker while the window is full."""

_DRAIN_TIMEOUT_S: Final = 10.0

_SIBLINGS_TIMEOUT_S: Final = 1.0
"""The seconds in which the other streams end by themselves after one failed, as the contract requires."""

Request = TypeVar("Request")
_Call: TypeAlias = "grpc.aio.StreamStreamCall[Any, Any]"


class _Requests(Mailbox[Request]):
    """The queue of requests for one stream, from which gRPC reads one at a time.

    The unit window bounds it: a stream holds a few requests for each unit in flight.
    """

    def write(self, request: Request) -> None:
        self._add(request)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Request:
        return await self.get()


class Session:
    """A session on one worker. Send units and iterate over outputs at the same time.

    The session's mode decides how a unit is sent: `send_unit` in AUDIO and VIDEO, `send_turn` in CHAT,
    `send_chunk` in TRANSCRIBE and TOKENS. Iterating yields `Ready` first. It ends when the worker has
    answered everything after `half_close`, or after the unit that filled the context; any other end raises,
    after the last output, the error that the worker gave. Outputs must be read: with 512 unread outputs
    back-pressure stops the streams and further sends.
    """

    def __init__(
        self, channel: grpc.aio.Channel, target: str, metadata: list[tuple[str, str]], timeout_s: float
    ):
        stub = InferenceServiceStub(channel)
        self._target = target
        self._prefill: _Requests[pb.PrefillRequest] = _Requests()
        self._generate: _Requests[pb.GenerateRequest] = _Requests()
        self._finalize: _Requests[pb.FinalizeRequest] = _Requests()
        self._calls: list[_Call] = [
            stub.Prefill(self._prefill, metadata=metadata, timeout=timeout_s),
            stub.Generate(self._generate, metadata=metadata, timeout=timeout_s),
            stub.Finalize(self._finalize, metadata=metadata, timeout=timeout_s),
        ]
        self._outputs: WaitingMailbox[Output] = WaitingMailbox()
        self._ready: asyncio.Future[Ready] = asyncio.get_running_loop().create_future()
        self._sent = 0
        self._cancelled = 0
        self._finalized = 0
        self._prefilled = 0
        self._is_automatic = False
        """Whether the worker generates and finalises units by itself.

        A worker of the previous release does not.
        """
        self._journal: Journal | None = None
        self._replayed = 0
        """The number of the last replayed unit; replayed units yield no outputs."""
        self._refusal: UnitError | None = None
        """The error of a unit that could not be replayed."""
        self._half_closed = False
        self._sending = asyncio.Lock()
        self._progress = asyncio.Event()
        self._end: AntiphonError | None = None
        self._run = asyncio.create_task(self._supervise(), name="antiphon grpc session")

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        target: str | grpc.aio.Channel | Lease,
        config: pb.SessionConfig,
        session_id: str | None = None,
        lease: str | None = None,
        *,
        timeout_s: float = 3600.0,
        credentials: grpc.ChannelCredentials | None = None,
        journal: Journal | None = None,
    ) -> AsyncIterator[Self]:
        """Open the three streams, send `config` and wait until the session accepts units.

        `target` is a lease from `acquire`; or the worker's own address (`host:port` or `unix:path`), never
        that of a load balancer; or a channel to it that several sessions share and that stays open.
        `session_id` is 1 to 64 visible ASCII characters, generated if left out. `lease` is the lease token
        for a `target` that is an address or a channel. `credentials` are for a worker with TLS:
        `grpc.ssl_channel_credentials(ca)`, with key and certificate where the worker asks for a client
        certificate. `journal` is cleared first and then records the units for `replay`. After `timeout_s` the
        session ends with DEADLINE_EXCEEDED. Leaving the block lets the worker finish what it has accepted,
        for at most 10 s; an exception inside it cancels everything at once.

        Raises `ConnectError`, `QueueFull`, `AuthError` or `ProtocolError`, with the worker's `reason`.
        """
        metadata = [(METADATA_SESSION_ID, session_id or uuid.uuid4().hex)]
        if isinstance(target, Lease):
            lease, target = target.token, target.target
        if lease is not None:
            metadata.append((METADATA_LEASE, lease))
        async with AsyncExitStack() as owned:
            name = "the given channel"
            if isinstance(target, str):
                name = target
                target = await owned.enter_async_context(open_channel(target, credentials))
            session = cls(target, name, metadata, timeout_s)
            owned.push_async_callback(session._abort)
            await session._configure(config if journal is None else journal.settle(config))
            if journal is not None:
                journal.begin(session.ready.model, session.ready.unit_s)
                session._journal = journal
            yield session
            await session._drain()

    @property
    def ready(self) -> Ready:
        """The worker's description of the session: its rates, limits and effective config."""
        return self._ready.result()

    async def send_unit(self, audio: Samples | bytes, *, force_listen: bool = False) -> int:
        """Send one unit of an AUDIO or VIDEO session and ask for its answer, without waiting for it.

        `audio`: float32 in [-1, 1], shape `(samples,)`, at `ready.input_rate_hz`, at most
        `ready.unit_samples` long; less is padded with silence. With `force_listen` the model stays silent in
        this unit. Returns the unit's number, from 1. Blocks only while `ready.max_units_in_flight` units are
        unfinished. Raises `AudioError`, `SessionClosed`.
        """
        samples = as_samples(audio)
        if len(samples) > self.ready.unit_samples:
            raise AudioError(
                f"A unit holds at most {self.ready.unit_samples} samples, not {len(samples)}. Cut the audio."
            )
        duplex = pb.DuplexInput(audio=audio_chunk(samples, self.ready.input_rate_hz))
        run = pb.GenerateUnit(force_listen=force_listen)
        return await self._send(pb.PrefillRequest(duplex=duplex), run)

    async def send_chunk(
        self,
        chunk: Sequence[int] | str | Samples | bytes | None = None,
        *,
        begin: bool = False,
        end: bool = False,
        sampling: common.SamplingParams | None = None,
        keep_last_token: bool = False,
    ) -> int:
        """Append a chunk to the context of a TOKENS or TRANSCRIBE session and request its output.

        In TOKENS `chunk` is token ids or text; in TRANSCRIBE it is audio of any length, as in `send_unit`. It
        is None only with `end`. `begin` drops the context first, `end` says that the utterance is complete.
        `sampling` holds for this chunk only. The last token that is drawn does not stay in the context,
        unless `keep_last_token`. Returns the unit's number, from 1. Blocks only while
        `ready.max_units_in_flight` units are unfinished. Raises `AudioError`, `SessionClosed`.
        """
        stream = pb.StreamInput(begin_utterance=begin, end_utterance=end)
        if isinstance(chunk, str):
            stream.text = chunk
        elif isinstance(chunk, bytes) or (isinstance(chunk, np.ndarray) and chunk.dtype.kind == "f"):
            stream.audio.CopyFrom(audio_chunk(as_samples(chunk), self.ready.input_rate_hz))
        elif chunk is not None:
            stream.token_ids.SetInParent()
            stream.token_ids.ids.extend(int(token) for token in chunk)
        run = pb.GenerateUnit(sampling=sampling)
        return await self._send(pb.PrefillRequest(stream=stream), run, keep_last_token=keep_last_token)

    async def send_turn(
        self,
        messages: str | Sequence[Message],
        *,
        sampling: common.SamplingParams | None = None,
        tts: pb.TtsConfig | None = None,
        image: pb.ImageConfig | None = None,
        omni_mode: bool = False,
        enable_thinking: bool = False,
        use_tts_template: bool = False,
        tools: Sequence[Tool] = (),
        tool_choice: Choice = "auto",
        parallel_tool_calls: bool = True,
    ) -> int:
        """Request an answer of a CHAT session to a whole history, or to the text of one user message.

        The session keeps nothing of earlier units. Clips are mono at `ready.input_rate_hz`. `sampling` holds
        for this answer only. `tools` are functions that the model may call; `tool_choice` can require a call,
        of any tool or of one. Without `parallel_tool_calls` an answer has one call at most. Returns the
        unit's number, from 1. Blocks only while `ready.max_units_in_flight` units are unfinished. Raises
        `AudioError`, `SessionClosed`.
        """
        turn = pb.TurnInput(
            messages=[message(it, self.ready.input_rate_hz) for it in history(messages)],
            tts=tts,
            image=image,
            omni_mode=omni_mode,
            enable_thinking=enable_thinking,
            use_tts_template=use_tts_template,
        )
        if tools:
            add_tools(turn, tools, tool_choice, parallel_calls=parallel_tool_calls)
        return await self._send(pb.PrefillRequest(turn=turn), pb.GenerateUnit(sampling=sampling))

    async def replay(self, journal: Journal) -> list[int]:
        """Restore the state of the session of `journal` in a new session, before anything else is sent.

        Open the new session with `journal.config`. The worker prefills the recorded units again and sends no
        output for them. Then the units without an answer are sent as usual. Returns the numbers of the
        latter, oldest first; their answers are complete. The journal goes on with this session.

        Raises `ReplayError`. If its `retryable` is false, the worker cannot replay this journal: nothing was
        sent, and the session can still be used. If it is true, the worker refused a unit, and another session
        is needed. Raises `SessionClosed` as `send_unit` does, and then the journal is unchanged.
        """
        async with self._sending:
            ready = self.ready
            if self._sent:
                raise ReplayError("A session replays nothing after its first unit.", reason="late")
            if not ready.effective.records or ready.model != journal.model:
                text = f"The worker at {self._target} does not replay units of {journal.model or 'no model'}."
                raise ReplayError(text, reason=Reason.CONTENT_UNSUPPORTED)
            self._replayed = len(journal)
            for request in journal.recorded():
                await self._write_when_free(request)
            await self._wait_for_window(self._replayed)
            if self._refusal is not None:
                refusal = self._refusal
                raise ReplayError(refusal.message, reason=refusal.reason, retryable=True)
            self._cancelled = self._sent
            self._journal = journal
            requests = journal.unanswered(self._sent + 1)
            return [await self._write_when_free(request) for request in requests]

    def cancel(self) -> None:
        """Cancel the output of every unit sent so far; the units stay in the context.

        The request overtakes all waiting requests. The turn stays open until a unit with `force_listen`
        closes it.
        """
        if self._sent > self._cancelled and not self._half_closed:
            self._cancelled = self._sent
            self._generate.write(pb.GenerateRequest(unit=self._sent, cancel=pb.CancelUnits()))

    def half_close(self) -> None:
        """End the input: the worker answers the accepted units, then iterating ends.

        Repeated calls do nothing.
        """
        if not self._half_closed:
            self._half_closed = True
            for requests in (self._prefill, self._generate, self._finalize):
                requests.finish()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Output:
        return await self._outputs.get()

    async def _configure(self, config: pb.SessionConfig) -> None:
        request = pb.PrefillRequest(unit=0, config=config)
        request.config.automatic_units = True
        self._prefill.write(request)
        either: set[asyncio.Future[Any]] = {self._ready, self._run}
        await asyncio.wait(either, timeout=_READY_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED)
        if self._ready.done():
            return
        if self._run.done():
            raise self._end or ConnectError("The worker ended the session before it began.", reason="closed")
        text = f"The worker at {self._target} took longer than {_READY_TIMEOUT_S:.0f} s to begin the session."
        raise ConnectError(text, reason=Reason.ATTACH_TIMEOUT, retryable=True)

    async def _send(
        self, prefill: pb.PrefillRequest, run: pb.GenerateUnit, *, keep_last_token: bool = False
    ) -> int:
        """Assign a number to a unit and write its request; a worker of the previous release gets three."""
        async with self._sending:
            await self._wait_for_window()
            self._sent += 1
            prefill.unit = self._sent
            if self._is_automatic:
                prefill.run.CopyFrom(run)
                prefill.keep_last_token = keep_last_token
                self._write(prefill)
                return self._sent
            self._prefill.write(prefill)
            self._generate.write(pb.GenerateRequest(unit=self._sent, run=run))
            self._finalize.write(pb.FinalizeRequest(unit=self._sent, keep_last_token=keep_last_token))
            return self._sent

    async def _write_when_free(self, request: pb.PrefillRequest) -> int:
        """Assign a number to a unit of a journal and write it."""
        await self._wait_for_window()
        self._sent += 1
        request.unit = self._sent
        self._write(request)
        return self._sent

    def _write(self, request: pb.PrefillRequest) -> None:
        if self._journal is not None and self.ready.effective.records:
            self._journal.sent(request)
        self._prefill.write(request)

    async def _wait_for_window(self, finalized: int = 0) -> None:
        """Wait until the window has room for another unit, and until the unit `finalized` is closed."""
        while not self._run.done() and (
            self._finalized < finalized or self._sent - self._finalized >= self.ready.max_units_in_flight
        ):
            self._progress.clear()
            try:
                async with asyncio.timeout(_SILENCE_TIMEOUT_S):
                    await self._progress.wait()
            except TimeoutError:
                text = f"The worker said nothing for {_SILENCE_TIMEOUT_S:.0f} s. Are the outputs read?"
                raise SessionClosed(Reason.UNIT_TIMEOUT, message=text) from None
        if self._run.done():
            raise self._end or SessionClosed("ended", grpc.StatusCode.OK.value[0])
        if self._half_closed:
            raise SessionClosed(
                "half_closed", message="Units cannot be sent after half_close.", retryable=False
            )

    async def _supervise(self) -> None:
        """Read all three streams until they end, and determine the error that ended the session."""
        prefill, generate, finalize = self._calls
        readers = {
            asyncio.create_task(self._read(prefill, self._on_prefill)),
            asyncio.create_task(self._read(generate, self._on_generate)),
            asyncio.create_task(self._read(finalize, self._on_finalize)),
        }
        try:
            await asyncio.wait(readers, return_when=asyncio.FIRST_EXCEPTION)
            await asyncio.wait(readers, timeout=_SIBLINGS_TIMEOUT_S)
            self._end = await self._final_error(readers)
        finally:
            self._cancel_calls()
            for reader in readers:
                reader.cancel()
            await asyncio.gather(*readers, return_exceptions=True)
            self._outputs.finish(self._end)
            self._progress.set()

    async def _read(self, call: _Call, handle: Callable[[Any], Awaitable[None]]) -> None:
        responses: AsyncIterable[Any] = call
        async for response in responses:
            await handle(response)

    async def _on_prefill(self, response: pb.PrefillResponse) -> None:
        output = from_prefill(response)
        await self._outputs.put(output)
        if isinstance(output, Ready) and not self._ready.done():
            self._is_automatic = output.effective.automatic_units
            self._ready.set_result(output)

    async def _on_generate(self, response: pb.GenerateResponse) -> None:
        if 0 < response.unit <= self._replayed:
            self._on_replayed(response)
            return
        if response.HasField("done") and self._journal is not None:
            done = response.done
            self._journal.done(response.unit, done.record if done.HasField("record") else None)
        for output in from_generate(response):
            match output:
                case Prefilled():
                    self._prefilled = output.unit
                case UnitDone(error=UnitError()) if self._is_automatic and output.unit > self._prefilled:
                    await self._outputs.put(Prefilled(output.unit, 0, output.error))
                case Finalized():
                    self._finalized = output.unit
            await self._outputs.put(output)
        self._progress.set()

    def _on_replayed(self, response: pb.GenerateResponse) -> None:
        for output in from_generate(response):
            match output:
                case UnitDone(error=UnitError() as error):
                    self._refusal = self._refusal or error
                case Finalized():
                    self._finalized = output.unit
        self._progress.set()

    async def _on_finalize(self, response: pb.FinalizeResponse) -> None:
        output: Finalized = from_finalize(response)
        self._finalized = output.unit
        self._progress.set()
        await self._outputs.put(output)

    async def _final_error(self, readers: set[asyncio.Task[None]]) -> AntiphonError | None:
        """Return the error that ended the session, None if it ended well.

        All three calls end with the same status; the most informative one counts.
        """
        for reader in readers:
            if reader.done() and not reader.cancelled() and isinstance(reader.exception(), ProtocolError):
                return ProtocolError(str(reader.exception()))
        statuses = [
            Status.of(await call.code(), await call.details(), await call.trailing_metadata())
            for call in self._calls
            if call.done()
        ]
        worst = max(statuses, key=lambda status: status.weight, default=None)
        if worst is None or worst.code is grpc.StatusCode.OK:
            return None
        return worst.error(self._target, ready=self._ready.done())

    async def _drain(self) -> None:
        self.half_close()
        self._outputs.discard()
        await asyncio.wait({self._run}, timeout=_DRAIN_TIMEOUT_S)

    async def _abort(self) -> None:
        self.half_close()  # also ends the tasks in which gRPC waits for requests
        self._outputs.discard()
        self._cancel_calls()
        await asyncio.wait({self._run})

    def _cancel_calls(self) -> None:
        for call in self._calls:
            call.cancel()
