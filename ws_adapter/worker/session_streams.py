"""A session at a worker: three gRPC streams as one object.

A unit is one message on Prefill, and all its answers come on Generate (`automatic_units`). A worker of the
previous release has no `automatic_units`. There a unit is written on all three calls without waiting, and its
output is held back until Prefill has answered its input. Either way the answers become signals, on the event
loop.
"""

import asyncio
import logging
from bisect import bisect_right
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar

from google.protobuf.message import Message
from google.rpc import code_pb2

from antiphon.contract import (
    METADATA_LEASE,
    METADATA_SESSION_ID,
    METADATA_WORKER_ID,
    Reason,
)
from antiphon.v1 import inference_service_pb2 as pb
from ws_adapter.process.errors import AttachFailed
from ws_adapter.protocol.core.actions import Run, RunSegment, RunTurn, RunUnit
from ws_adapter.protocol.core.config import WorkerSetup
from ws_adapter.protocol.core.signals import Finalized, GoingAway, Signal
from ws_adapter.worker import convert as messages
from ws_adapter.worker.failure import reason_of, worker_of
from ws_adapter.worker.journal import Journal, Parts
from ws_adapter.worker.replay import Replay
from ws_adapter.worker.sent_output import DivergedError
from ws_adapter.worker.transport.call import Call
from ws_adapter.worker.transport.channel import Channel
from ws_adapter.worker.transport.rpc import Metadata, Received, RpcError

logger = logging.getLogger(__name__)

ATTACH_TIMEOUT_S: Final = 5.0

WRITES_WAITING: Final = 16
"""The most waiting writes of a stream: more than the units and cancels of a session's window."""

LARGE: Final = 2**20
"""The size in bytes from which a unit is serialised off the event loop."""

RELEASE_GRACE_S: Final = 0.5
"""The seconds that a released session may take to finish its units."""

CLEANUP_S: Final = 10.0
"""The most seconds of waiting for the cleaning of a slot."""

SIBLINGS_S: Final = 0.5
"""The seconds after a broken call in which the statuses of the other two may arrive."""

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


def is_large(run: Run) -> bool:
    """Return whether a unit takes too long to serialise on the event loop."""
    match run:
        case RunUnit():
            return len(run.audio) + sum(map(len, run.frames)) >= LARGE
        case RunTurn():
            return run.turn.size >= LARGE
        case RunSegment():
            return len(run.audio) >= LARGE


def prefill_bytes(run: Run, traceparent: str) -> bytes:
    """Return the serialised input of a unit, for `SessionStreams.run`."""
    return messages.prefill(run, traceparent).SerializeToString()


class SignalReceiver(Protocol):
    """The receiver of a worker's signals about one session."""

    @property
    def said(self) -> Callable[[*tuple[Signal, ...]], object]:
        """A callback for the signals of each message, in order, except the end."""

    def failed(self, reason: Reason) -> None:
        """Handle the end of the session by its worker; called once."""


class SessionStreams:
    """One session at a worker, once attached."""

    def __init__(
        self,
        channel: Channel,
        session_id: str,
        lease_token: str,
        listener: SignalReceiver,
        deadline_s: float,
        trace: Metadata,
    ) -> None:
        self._listener = listener
        self._released = False
        self._failed = False
        self._running = 3
        self._configured = False
        self._is_automatic: bool | None = None
        """Whether the worker runs units automatically; None before `Ready`."""
        self.ready: pb.SessionReady | None = None
        """The worker's description of the session."""
        self.journal: Journal | None = None
        """The journal that records all answers; None without one."""
        self._replay: Replay | None = None
        """The replay of another session's units."""
        self._replayed: list[int] = []
        """The numbers of the replayed units in that session, in order."""
        self._offset = 0
        """The number of a unit for the listener, less its number in this session."""
        self._last_unit = 0
        self._last_prefilled = 0
        self._early: deque[tuple[Signal, int]] = deque()
        """Signals whose unit's input is not answered yet, with the number of that unit."""
        self._ended = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        metadata = (
            (METADATA_SESSION_ID, session_id),
            (METADATA_LEASE, lease_token),
            *trace,
        )
        self._prefill: SessionStream[pb.PrefillRequest, pb.PrefillResponse] = SessionStream(
            channel, "Prefill", pb.PrefillResponse, metadata, deadline_s, self._on_prefill, self._on_end
        )
        self._generate: SessionStream[pb.GenerateRequest, pb.GenerateResponse] = SessionStream(
            channel, "Generate", pb.GenerateResponse, metadata, deadline_s, self._on_generate, self._on_end
        )
        self._finalize: SessionStream[pb.FinalizeRequest, pb.FinalizeResponse] = SessionStream(
            channel, "Finalize", pb.FinalizeResponse, metadata, deadline_s, self._on_finalize, self._on_end
        )
        self._all: tuple[SessionStream[Any, Any], ...] = self._prefill, self._generate, self._finalize

    @classmethod
    async def attach(
        cls,
        channel: Channel,
        worker_id: str,
        session_id: str,
        lease_token: str,
        listener: SignalReceiver,
        deadline_s: float,
        trace: Metadata = (),
    ) -> "SessionStreams":
        """Open the three calls and wait until the worker with this id has accepted them.

        `listener` gets all signals, and `failed` once if the session ends without `release`. `deadline_s`
        bounds the calls as a last backstop. `trace` is the trace context, metadata of all three calls.
        Raises `AttachFailed`; then, as on cancellation, the calls are cancelled.
        """
        streams = cls(channel, session_id, lease_token, listener, deadline_s, trace)
        attached = False
        try:
            async with asyncio.timeout(ATTACH_TIMEOUT_S):
                await asyncio.gather(*(stream.attached(worker_id) for stream in streams._all))
            attached = True
        except TimeoutError:
            raise AttachFailed(Reason.ATTACH_TIMEOUT) from None
        except RpcError as error:
            raise AttachFailed(reason_of(error), worker_of(error)) from None
        finally:
            if not attached:
                streams._released = True  # attached calls report no more signals
                streams._cancel_all()
        return streams

    # ---------------------------------------------------------------------------------- to the worker

    def open(self, setup: WorkerSetup, max_duration_s: float) -> None:
        """Configure the session; the worker answers with `Ready`."""
        config = messages.session_config(setup, max_duration_s)
        self.open_with(pb.PrefillRequest(unit=0, config=config).SerializeToString())

    def open_with(self, config: bytes) -> None:
        """Configure the session with a serialised message."""
        self._configured = True
        self._prefill.write_serialized(config)

    def replay(self, journal: Journal, traceparent: str, done: Callable[[bool], None]) -> None:
        """Replay the units of a journal; the units that are run next continue from them.

        `done` is called with True once the worker has closed the last one, or with False if one fails.
        These units cause no signals.
        """
        assert self.ready is not None, "units come after Ready"
        numbers = self._replayed = journal.numbers
        self._offset = journal.next_unit - len(numbers) - 1
        self._last_unit = len(numbers)
        window = self.ready.max_units_in_flight
        units = journal.replay(traceparent)
        self._replay = Replay(units, len(numbers), window, self._write_parts, done)
        self._replay.start()

    def _write_parts(self, parts: Parts) -> None:
        self._prefill.write_serialized(*parts)

    def run(self, run: Run, traceparent: str = "", prefill: bytes | None = None) -> None:
        """Give a unit to the worker, with its trace context; it answers with `UnitDone` and `Finalized`.

        To be called after `Ready`, which has the limit of units in flight. `prefill` is the result of
        `prefill_bytes` for a large unit, else None.
        """
        assert self._is_automatic is not None, "units come after Ready"
        if self._is_automatic:
            self.write_unit(run.unit, messages.automatic_parts(run, traceparent, prefill))
            return
        self._last_unit = run.unit
        parts = messages.prefill_parts(run, traceparent) if prefill is None else (prefill,)
        self._prefill.write_serialized(*parts)
        self._generate.write_serialized(messages.generate_bytes(run))
        self._finalize.write_serialized(messages.finalize_bytes(run.unit))

    def write_unit(self, unit: int, parts: Parts) -> None:
        """Give an automatic unit to the worker, as serialised by `convert.automatic_parts`."""
        self._last_unit = unit - self._offset
        if self._offset:
            parts = (*parts, messages.unit_number(self._last_unit))
        self._prefill.write_serialized(*parts)

    def cancel(self, unit: int) -> None:
        """Cancel every unit up to and including `unit`; each is still answered."""
        self._cancel(unit - self._offset)

    def _cancel(self, unit: int) -> None:
        self._generate.write(pb.GenerateRequest(unit=unit, cancel=pb.CancelUnits()))

    def rewind(self, unit: int, heard_samples: int | None) -> None:
        """Undo the output after `heard_samples` of `unit`, None for all its samples; `Rewound` answers."""
        number = unit - self._offset
        if self._replay is not None and number <= self._replay.count:
            number = bisect_right(self._replayed, unit)
            if not number:
                heard_samples = 0  # the units of the output are no longer in the journal
            elif self._replayed[number - 1] != unit:
                heard_samples = None  # the unit itself is not in the journal
        back = pb.RewindUnits(heard_samples=heard_samples)
        self._generate.write(pb.GenerateRequest(unit=max(1, number), rewind=back))

    def release(self) -> None:
        """Give the session up: no more signals. The slot is clean once `ended` returns."""
        if self._released:
            return
        self._released = True
        if self._ended.is_set():
            return
        if not self._configured:
            self._cancel_session()  # a half-close before the config would violate the contract
            return
        if self._last_unit:
            self._cancel(self._last_unit)
        for stream in self._all:
            stream.half_close()
        self._wait(RELEASE_GRACE_S, self._cancel_session)

    async def ended(self) -> None:
        """Wait until all three calls are over."""
        await self._ended.wait()

    # -------------------------------------------------------------------------------- from the worker

    def _tell(self, *signals: Signal) -> None:
        if signals and not self._released and not self._failed:
            self._listener.said(*signals)

    def _tell_failure(self, reason: Reason) -> None:
        if not self._released and not self._failed:
            self._listener.failed(reason)

    def _on_prefill(self, answer: pb.PrefillResponse) -> None:
        self._last_prefilled = answer.unit
        if answer.HasField("ready"):
            self.ready = answer.ready
            self._is_automatic = answer.ready.effective.automatic_units
        if (signal := messages.prefill_answer(answer)) is not None:
            self._tell(signal)
        while self._early and self._early[0][1] <= self._last_prefilled:
            self._tell(self._early.popleft()[0])

    def _on_generate(self, answer: pb.GenerateResponse) -> None:
        if answer.HasField("go_away"):
            self._tell(GoingAway(messages.seconds(answer.go_away.time_left)))
        unit = answer.unit
        if self._replay is not None and unit:
            if self._replay.owns(unit) and not answer.HasField("rewound"):
                self._replay.answered(answer)
                return
            unit += self._offset
        if answer.HasField("rewound"):
            if self.journal is not None:
                unit = self.journal.rewound(answer.rewound)
            self._tell_in_order(0, messages.rewound(unit, answer.rewound))
        if self._is_automatic:
            self._last_prefilled = max(self._last_prefilled, unit)  # in order on this one stream
        signals: list[Signal] = []
        try:
            self._convert(unit, answer, signals)
        except DivergedError:
            self._tell_in_order(unit, *signals)
            self._fail(Reason.WORKER_LOST)
        else:
            self._tell_in_order(unit, *signals)

    def _convert(self, unit: int, answer: pb.GenerateResponse, signals: list[Signal]) -> None:
        """Append the signals in an answer about a unit, and record the answer in the journal.

        Raises `DivergedError` if a repeated answer differs.
        """
        journal, is_done = self.journal, answer.HasField("done")
        repeating = journal if journal is not None and journal.repeats_answers else None
        has_input = self._is_automatic and answer.HasField("prefilled")
        if has_input and (repeating is None or repeating.takes_input(unit)):
            signals.append(messages.prefilled(unit, answer.prefilled))
        if repeating is not None:
            repeating.record_answer(unit, answer)
        piece = messages.piece(answer, unit)
        if piece is not None and journal is not None:
            journal.spoke(unit, len(piece.audio) // 4)
            piece = piece if repeating is None else repeating.unsent_part(unit, piece)
        if repeating is not None and is_done:
            repeating.check_end(unit)
        if piece is not None:
            signals.append(piece)
        is_closed = bool(self._is_automatic) and answer.HasField("finalized")
        if is_done:
            if journal is not None:
                journal.done(unit, answer.done, is_closed=is_closed)
            signals.append(messages.unit_done(unit, answer.done))
        if is_closed:
            if journal is not None and not is_done:
                journal.finalized(unit)
            signals.append(Finalized(unit))

    def _tell_in_order(self, behind: int, *signals: Signal) -> None:
        """Report signals once the input of the unit `behind` has been answered."""
        if self._early or behind > self._last_prefilled:
            self._early.extend((signal, behind) for signal in signals)
        else:
            self._tell(*signals)

    def _on_finalize(self, answer: pb.FinalizeResponse) -> None:
        self._tell(messages.finalized(answer))

    def _on_end(self, reason: Reason | None) -> None:
        self._running -= 1
        while self._early:
            self._tell(self._early.popleft()[0])
        if reason is Reason.WORKER_LOST and self._running and not self._failed and not self._released:
            # grpcio reports this for a call that ends during a write; another call may have the reason.
            self._wait(SIBLINGS_S, self._lose)
        elif reason is not None:
            self._fail(reason)
        if not self._running:
            # All three calls ended with OK, which the worker does only after a `release`.
            self._tell_failure(Reason.WORKER_LOST)
            if self._timer is not None:
                self._timer.cancel()
            self._ended.set()

    def _lose(self) -> None:
        self._fail(Reason.WORKER_LOST)

    def _fail(self, reason: Reason) -> None:
        """Report the first reason of a failure; the worker then ends the other calls with the same reason."""
        if self._failed:
            return
        self.journal = None  # later answers reach no listener, so they must not be recorded
        self._tell_failure(reason)
        self._failed = True
        if self._running and not self._released:
            self._wait(CLEANUP_S, self._cancel_all)

    def _cancel_session(self) -> None:
        """Cancel the session by one call; the worker ends the others when the slot is clean."""
        self._finalize.cancel()
        self._wait(CLEANUP_S, self._cancel_all)

    def _cancel_all(self) -> None:
        for stream in self._all:
            stream.cancel()

    def _wait(self, seconds: float, then: Callable[[], None]) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = asyncio.get_running_loop().call_later(seconds, then)


class SessionStream(Generic[Request, Response]):
    """One stream of a session.

    `on_message` is called for each answer. `on_end` is called once after the attachment: None for OK, else
    the reason.
    """

    def __init__(
        self,
        channel: Channel,
        method: str,
        response: type[Response],
        metadata: Metadata,
        deadline_s: float,
        on_message: Callable[[Response], None],
        on_end: Callable[[Reason | None], None],
    ) -> None:
        self._on_end = on_end
        self._is_attached = False
        self._is_cancelled = False
        self._refusal: RpcError | None = None
        self._make: Callable[[], Call[Response]] = lambda: channel.call(
            method, response, on_message, self._ended, timeout_s=deadline_s, metadata=metadata
        )
        self._call = self._make()

    async def attached(self, worker_id: str) -> None:
        """Begin the call and wait until the worker has accepted it.

        Raises `RpcError` if the worker refuses it, or if another one answers.
        """
        try:
            metadata = await self._begun()
        finally:
            self._make = _no_call  # it refers to this stream
        answering = metadata.get(METADATA_WORKER_ID.encode(), b"").decode("latin-1")
        if answering != worker_id:
            logger.warning("a call for worker %s was answered by %.64r", worker_id, answering)
            raise RpcError(code_pb2.UNAVAILABLE, "another worker answers")
        if self._refusal is not None:  # it arrived together with the metadata
            raise self._refusal
        self._is_attached = True

    async def _begun(self) -> Received:
        again = False
        while True:
            await self._call.start(again=again)
            try:
                return await self._call.initial_metadata()
            except RpcError as error:
                if not error.was_refused or self._is_cancelled:
                    raise
            self._call, self._refusal, again = self._make(), None, True

    def write(self, request: Request) -> None:
        """Queue `request` for sending, without waiting. After the end it does nothing.

        Raises `asyncio.QueueFull` when too many wait.
        """
        self.write_serialized(request.SerializeToString())

    def write_serialized(self, *parts: bytes) -> None:
        """Queue a serialised message, in parts. Raises `asyncio.QueueFull` when too many wait."""
        if len(self._call.waiting) >= WRITES_WAITING:
            raise asyncio.QueueFull
        self._call.write_serialized(*parts)

    def half_close(self) -> None:
        """Half-close the stream."""
        self._call.half_close()

    def cancel(self) -> None:
        """End the call from this side."""
        self._is_cancelled = True
        self._call.cancel()

    def _ended(self, error: RpcError | None) -> None:
        if self._is_attached:
            on_end, self._on_end = self._on_end, _ignore_end
            on_end(None if error is None else reason_of(error))
        else:
            self._refusal = error or RpcError(code_pb2.UNKNOWN, "the call ended before it began")


def _no_call() -> Call[Any]:
    """Raise an error: an attached or refused stream makes no further call."""
    raise AssertionError("the stream has had its call")


def _ignore_end(reason: Reason | None) -> None:
    """Do nothing: the end was reported."""
