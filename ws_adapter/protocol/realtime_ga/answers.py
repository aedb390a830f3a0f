"""The responses of a session: one is at the worker, others wait for it, and output waits for the client."""

from collections import deque
from collections.abc import Sequence
from typing import Final, Literal

from antiphon.contract import Reason
from ws_adapter.protocol.chat.reply import failure
from ws_adapter.protocol.core.actions import Send
from ws_adapter.protocol.core.blobs import Blobs, Saved
from ws_adapter.protocol.core.machine import Action
from ws_adapter.protocol.core.signals import OUTPUT_RATE_HZ, Piece, Prefilled, UnitDone, UnitEnd
from ws_adapter.protocol.realtime_ga.response import Response
from ws_adapter.protocol.realtime_ga.saved.session import SavedAnswers, SavedPiece
from ws_adapter.protocol.realtime_ga.wire.event_factory import EventFactory
from ws_adapter.protocol.realtime_ga.wire.events import Code, type_of
from ws_adapter.protocol.realtime_ga.wire.refusals import Denied, code_of
from ws_adapter.protocol.realtime_ga.wire.resources import ResponseError
from ws_adapter.protocol.realtime_ga.worker_slot import WorkerSlot, WorkerSlotPhase
from ws_adapter.protocol.wire.errors import VERDICTS, ErrorCode, Refusal

MOST_OUT_OF_BAND: Final = 8
"""The most waiting responses outside the conversation."""

MOST_UNSENT_S: Final = 60.0
"""The most seconds of an answer that may wait for a client that does not read."""

AT_ONCE_S: Final = 1.0
"""The seconds of such an answer that are sent at a time when the client reads again."""

_BYTES_PER_S: Final = 4 * OUTPUT_RATE_HZ


class Answers:
    """The responses of a session. `model` answers them; `wait_s` is the longest wait for a slot."""

    def __init__(self, factory: EventFactory, model: str, wait_s: float) -> None:
        self.slot = WorkerSlot(model)
        self.active: Response | None = None
        """The response that joins the conversation."""
        self.is_congested = False
        self.resumes_at: float | None = None
        """The time at which more of the waiting answer is sent."""
        self.failures = 0
        """The number of consecutive failures."""
        self.has_spoken = False
        """Whether the model's voice was used."""
        self.plays_until = 0.0
        """The end of playback of all sent audio, if the client plays it at once."""
        self._factory = factory
        self._wait_s = wait_s
        self._waiting: deque[Response] = deque()
        self._running: Response | None = None
        self._unsent: deque[Piece | UnitDone] = deque()
        self._unsent_bytes = 0

    def responses(self, native: Response | None) -> list[Response]:
        """Return all open responses, each once; `native` is a turn of the model's own."""
        found: list[Response] = []
        for one in (self.active, self._running, *self._waiting, native):
            if one is not None and one not in found:
                found.append(one)
        return found

    def is_waiting(self, response: Response) -> bool:
        """Return whether a response still has to be sent to a worker."""
        return response in self._waiting

    def save(
        self, responses: Sequence[Response], now: float, blobs: Blobs, *, has_journal: bool
    ) -> SavedAnswers:
        """Return the state; responses are saved as their places in `responses`."""
        pieces = [signal for signal in self._unsent if isinstance(signal, Piece)]
        return SavedAnswers(
            self.slot.save(has_journal=has_journal),
            responses.index(self.active) if self.active is not None else None,
            responses.index(self._running) if self._running is not None else None,
            tuple(map(responses.index, self._waiting)),
            tuple(SavedPiece(it.unit, it.text, blobs.keep(it.audio), it.call) for it in pieces),
            next((signal for signal in self._unsent if isinstance(signal, UnitDone)), None),
            self.failures,
            self.has_spoken,
            now - self.plays_until,
        )

    def restore(self, saved: SavedAnswers, responses: Sequence[Response], now: float, blobs: Saved) -> None:
        """Go on from a saved state, with the slot restored already. Raises `KeyError` or `IndexError`."""
        self.active = responses[saved.active] if saved.active is not None else None
        self._running = responses[saved.running] if saved.running is not None else None
        self._waiting = deque(responses[at] for at in saved.waiting)
        for it in saved.unsent:
            self._unsent.append(Piece(it.unit, it.text, blobs[it.audio], call=it.call))
            self._unsent_bytes += len(blobs[it.audio])
        if saved.done is not None:
            self._unsent.append(saved.done)
        self.failures, self.has_spoken = saved.failures, saved.has_spoken
        self.plays_until = now - saved.plays_until_ago
        self.resumes_at = now if self._unsent else None

    def lose_worker(self) -> list[Action]:
        """Handle a worker lost with the running response: it fails unless it is complete here."""
        response = self._running
        if response is None or any(isinstance(signal, UnitDone) for signal in self._unsent):
            return []
        if response.has_output or self._unsent or not response.turn.messages:
            return self.fail(response, Code.INTERNAL, VERDICTS[Reason.WORKER_LOST].message)
        self._running = None
        self._waiting.appendleft(response)
        return []

    @property
    def held_bytes(self) -> int:
        """Bytes that wait for the client."""
        return self._unsent_bytes

    @property
    def is_idle(self) -> bool:
        """Whether there are no open responses."""
        return self.active is None and self._running is None and not self._waiting

    def check(self, *, is_out_of_band: bool, spoken: Response | None = None) -> None:
        """Raise `Refusal` unless another response may be created; `spoken` is a turn of the model's own."""
        if not is_out_of_band and (active := self.active or spoken) is not None:
            message = f"Conversation already has an active response in progress: {active.id}"
            raise Denied(Code.ACTIVE_RESPONSE, message)
        if is_out_of_band and sum(response.is_out_of_band for response in self._waiting) >= MOST_OUT_OF_BAND:
            message = (
                f"{MOST_OUT_OF_BAND} responses outside the conversation already wait; wait until one is done"
            )
            raise Denied(Code.ACTIVE_RESPONSE, message)

    def create(self, response: Response) -> list[Action]:
        """Queue a response; responses of the conversation go before others."""
        if response.is_out_of_band:
            self._waiting.append(response)
        else:
            self.active = response
            self._waiting.appendleft(response)
        return response.created()

    def advance(self, now: float) -> list[Action]:
        """Return the actions that run the next response at the worker, or that first get a worker for it."""
        slot = self.slot
        if not self._waiting or self._running is not None:
            return []
        setup = self._waiting[0].asked.setup
        actions: list[Action] = []
        if slot.phase is WorkerSlotPhase.READY and slot.setup != setup:
            actions += slot.leave()  # another voice needs another session at the worker
        match slot.phase:
            case WorkerSlotPhase.NONE:
                actions += slot.want(now + self._wait_s)
            case WorkerSlotPhase.HELD:
                actions += slot.open(setup)
            case WorkerSlotPhase.READY:
                self._running = self._waiting.popleft()
                actions += slot.run(self._running.turn)
        return actions

    # ----------------------------------------------------------------------------- ends of responses

    def find(self, response_id: str | None) -> Response | None:
        """Return the open response with this id; None is the active one."""
        if response_id is None:
            return self.active
        asked = [self.active, self._running, *self._waiting]
        return next((one for one in asked if one is not None and one.id == response_id), None)

    def cancel(
        self, response: Response, reason: Literal["turn_detected", "client_cancelled"]
    ) -> list[Action]:
        """Stop a response and its work at the worker."""
        stops = self.slot.cancel() if response is self._running else []
        told = response.cancelled(reason)
        self._forget(response)
        return [*stops, *told]

    def fail(self, response: Response, code: Code, message: str) -> list[Action]:
        """Fail one response with an error."""
        error = ResponseError(type_of(code), code, message)
        told = [self._factory.error(code, message), *response.failed(error)]
        self._forget(response)
        return told

    def fail_all(self, code: Code, message: str) -> list[Action]:
        """Fail every response: there is no worker to answer."""
        asked = [self._running, *self._waiting]
        return [act for one in asked if one is not None for act in self.fail(one, code, message)]

    def _forget(self, response: Response) -> None:
        if response is self.active:
            self.active = None
        if response is self._running:
            self._running = None
            self._unsent.clear()
            self._unsent_bytes = 0
        elif response in self._waiting:
            self._waiting.remove(response)

    # ------------------------------------------------------------------------------------ the worker

    def signal(self, signal: Prefilled | Piece | UnitDone, now: float) -> list[Action]:
        """Return the actions for a signal about a turn; signals of a cancelled turn are ignored."""
        response = self._running
        if response is None or signal.unit != self.slot.unit:
            return []
        if isinstance(signal, Prefilled):
            response.prefilled(signal)
            return []
        if not self.is_congested and not self._unsent:
            return self._tell(response, signal, now)
        self._unsent.append(signal)
        if isinstance(signal, Piece):
            self._unsent_bytes += len(signal.audio)
            if self._unsent_bytes > MOST_UNSENT_S * _BYTES_PER_S:
                message = f"{MOST_UNSENT_S:g} s of the answer wait for a client that does not read"
                return [*self.slot.cancel(), *self.fail(response, Code.SLOW_CONSUMER, message)]
        return []

    def congested(self, is_congested: bool, now: float) -> None:
        """Handle the start or end of back-pressure."""
        self.is_congested = is_congested
        self.resumes_at = now if self._unsent and not is_congested else None

    def resume(self, now: float) -> list[Action]:
        """Return some of the answer that waits for the client."""
        told: list[Action] = []
        sent = 0
        while self._unsent and self._running is not None and sent < AT_ONCE_S * _BYTES_PER_S:
            signal = self._unsent.popleft()
            size = len(signal.audio) if isinstance(signal, Piece) else 0
            sent += size
            self._unsent_bytes -= size
            told += self._tell(self._running, signal, now)
        self.resumes_at = now if self._unsent else None
        return told

    def flush(self) -> None:
        """Drop all unsent audio and text."""
        self._unsent = deque(
            Piece(signal.unit, signal.text, b"") if isinstance(signal, Piece) else signal
            for signal in self._unsent
        )
        self._unsent_bytes = 0

    def _tell(self, response: Response, signal: Piece | UnitDone, now: float) -> list[Action]:
        told = response.said(signal) if isinstance(signal, Piece) else self._end(response, signal)
        seconds = sum(act.audio_s or 0.0 for act in told if isinstance(act, Send))
        if seconds:
            self.has_spoken, self.plays_until = True, max(now, self.plays_until) + seconds
        return told

    def _end(self, response: Response, signal: UnitDone) -> list[Action]:
        if signal.failure is Reason.INPUT_TOO_LONG and response.shorten():
            self._running = None
            self._waiting.appendleft(response)
            return []
        refusal = self._failure(signal)
        self.failures = self.failures + 1 if refusal and refusal.code is ErrorCode.INFERENCE_ERROR else 0
        if refusal is not None:
            return self.fail(response, code_of(refusal) or Code.INFERENCE_FAILED, refusal.message)
        told = response.done(signal)
        self._forget(response)
        return told

    @staticmethod
    def _failure(signal: UnitDone) -> Refusal | None:
        match signal.end:
            case UnitEnd.FAILED:
                return failure(signal)
            case UnitEnd.CANCELLED:
                return Refusal(ErrorCode.INFERENCE_ERROR, "the worker cancelled the answer; ask again")
        return None
