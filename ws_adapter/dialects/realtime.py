"""G3, the current dialect of `/v1/realtime`, in full-duplex modes: the state machine of one session.

Events in, actions out; nothing here does I/O or reads a clock. All times are seconds of one monotonic clock.
"""

import re
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from antiphon.semconv import Reason
from ws_adapter.codec import EventDecoder
from ws_adapter.dialects import errors, render
from ws_adapter.dialects.actions import Action, CloseSocket, OpenWorkerSession, Send
from ws_adapter.dialects.append import read_append
from ws_adapter.dialects.config import Catalogue, SessionSetup, public_path, read_init
from ws_adapter.dialects.errors import CloseCode, ErrorCode, InvalidUtf8, Refusal, Verdict
from ws_adapter.dialects.events import (
    ClientEvent,
    Diagnostic,
    ErrorEvent,
    InputAppend,
    Metrics,
    SessionClose,
    SessionClosed,
    SessionCreated,
    SessionInit,
    SessionQueued,
    SessionQueueDone,
    SessionQueueUpdate,
)
from ws_adapter.dialects.flow import UnitFlow
from ws_adapter.dialects.limits import (
    ERRORS_PER_S,
    EVENTS_PER_WINDOW,
    EVENTS_WINDOW_S,
    Limits,
    RateWindow,
)
from ws_adapter.dialects.worker import Failed, GoingAway, Ready, Signal

_IDLE_RECHECK_S: Final = 1.0
_OWN_REASON: Final = re.compile(r"[a-z0-9_]{1,64}")
_DECODER: Final[EventDecoder[ClientEvent]] = EventDecoder(SessionInit | InputAppend | SessionClose)

_TIME_IS_UP: Final = errors.VERDICTS[Reason.SESSION_LIMIT]
_IDLE: Final = errors.VERDICTS[Reason.IDLE_TIMEOUT]
_NO_INIT: Final = Verdict(None, "no session.init came in time", "timeout", CloseCode.NORMAL)
_SLOW: Final = Verdict(
    None, "the client does not read what it is sent", "slow_consumer", CloseCode.POLICY_VIOLATION
)
_FLOOD: Final = "too many {things}: at most {count} in {seconds:g} s are allowed"

_REFUSED_SETTINGS: Final = frozenset({Reason.MODEL_NOT_FOUND, Reason.VOICE_NOT_FOUND})
"""The worker does not take the config, but the client may send a corrected one."""


class State(Enum):
    """Where a session is in its life."""

    QUEUED = auto()
    CONNECTED = auto()
    CONFIGURING = auto()
    ACTIVE = auto()
    CLOSING = auto()
    CLOSED = auto()


class RealtimeDuplex:
    """One session. Every method returns what is to be done, in order.

    `catalogue` tells what the workers serve, None while none is known; `new_id(prefix)` makes ids.
    """

    def __init__(
        self,
        session_id: str,
        limits: Limits,
        catalogue: Callable[[], Catalogue | None],
        new_id: Callable[[str], str],
    ) -> None:
        self.state = State.QUEUED
        self._session_id = session_id
        self._limits = limits
        self._catalogue = catalogue
        self._new_id = new_id
        self._flow = UnitFlow(session_id, limits, new_id)
        self._setup: SessionSetup | None = None
        self._announced = False
        self._created = False
        self._limit_at: float | None = None
        self._init_at: float | None = None
        self._idle_at: float | None = None
        self._away_at: float | None = None
        self._events = RateWindow(EVENTS_PER_WINDOW, EVENTS_WINDOW_S)
        self._errors = RateWindow(ERRORS_PER_S, 1.0)

    @property
    def is_over(self) -> bool:
        """Whether the last event has been returned."""
        return self.state in (State.CLOSING, State.CLOSED)

    @property
    def setup(self) -> SessionSetup | None:
        """The accepted `session.init` that the worker has to be, or was, configured with."""
        return self._setup

    @property
    def deadline(self) -> float | None:
        """When `tick` is due next; None while nothing waits for time."""
        if self.is_over:
            return None
        own = (self._limit_at, self._init_at, self._idle_at, self._away_at)
        flow = self._flow.deadline if self.state is State.ACTIVE else None
        return min((at for at in (*own, flow) if at is not None), default=None)

    # ------------------------------------------------------------------------------------- the queue

    def queued(
        self, position: int, estimated_wait_s: float, ticket_id: str, queue_length: int
    ) -> list[Action]:
        """No slot is free; called again while that lasts. Nothing is said once the session had a slot."""
        if self.state is not State.QUEUED:
            return []
        shape = SessionQueueUpdate if self._announced else SessionQueued
        self._announced = True
        wait = round(estimated_wait_s, 1)
        event = shape(
            position=position, estimated_wait_s=wait, ticket_id=ticket_id, queue_length=queue_length
        )
        return [Send(event)]

    def granted(self, now: float) -> list[Action]:
        """The session is attached at a worker: for the first time, or again after it lost one early."""
        if self.state is State.QUEUED:
            self.state = State.CONNECTED
            if self._limits.session_limit_s:
                self._limit_at = now + self._limits.session_limit_s
            self._init_at = now + self._limits.init_timeout_s
            return [Send(SessionQueueDone()), *(self._configure(self._setup) if self._setup else [])]
        if self.state is State.CONFIGURING and self._setup is not None:
            return [OpenWorkerSession(self._setup)]
        return []

    def refused(self, verdict: Verdict) -> list[Action]:
        """The session gets no worker."""
        return [] if self.is_over else self._conclude(verdict)

    # ------------------------------------------------------------------------------------ the client

    def text_frame(self, frame: bytes, now: float) -> list[Action]:
        """The client sent a text frame."""
        if self.is_over:
            return []
        if not self._events.allow(now):
            return self._flood("events", EVENTS_PER_WINDOW, EVENTS_WINDOW_S)
        event = None
        try:
            event = _DECODER.decode(frame)
            return self._event(event, now)
        except InvalidUtf8:
            return self._conclude(Verdict(None, "invalid UTF-8", None, CloseCode.INVALID_UTF8))
        except Refusal as refusal:
            if refusal.code is ErrorCode.INVALID_JSON:
                return self._conclude(
                    Verdict(refusal.code, refusal.message, None, CloseCode.UNSUPPORTED_DATA)
                )
            return self._error(refusal, now, event)

    def binary_frame(self) -> list[Action]:
        """The client sent a binary frame."""
        if self.is_over:
            return []
        message = "expected a text frame holding JSON, got a binary frame"
        return self._conclude(Verdict(ErrorCode.INVALID_FRAME, message, None, CloseCode.UNSUPPORTED_DATA))

    def slow_consumer(self) -> list[Action]:
        """The client does not read."""
        return [] if self.is_over else self._conclude(_SLOW)

    def congested(self, is_congested: bool, now: float) -> list[Action]:
        """Whether so much output waits that no further unit may run."""
        self._flow.congested = is_congested
        return self._flowing(self._flow.advance(now), now) if self.state is State.ACTIVE else []

    def withdrawn(self, sends: list[Send]) -> list[Action]:
        """The answer to `Withdraw`: what was taken back, in the order of sending."""
        return self._flow.withdrawn(sends)

    def disconnected(self) -> None:
        """The connection is gone; nothing more will be said."""
        self.state = State.CLOSED

    # ------------------------------------------------------------------------------------ the worker

    def signal(self, signal: Signal, now: float) -> list[Action]:
        """The worker has news."""
        if self.is_over:
            return []
        match signal:
            case Ready():
                return self._begin(signal, now)
            case GoingAway():
                self._away_at = now + signal.time_left_s
                return []
            case Failed():
                return self._worker_failed(signal.reason, now)
            case _:
                return self._flowing(self._flow.signal(signal, now), now)

    # ---------------------------------------------------------------------------------------- time

    def tick(self, now: float, others_wait: bool) -> list[Action]:
        """Does what is due; `others_wait`: somebody queues, so an idle session may not hold its slot."""
        if self.is_over:
            return []
        if self._limit_at is not None and now >= self._limit_at:
            return self._conclude(_TIME_IS_UP)
        if self._away_at is not None and now >= self._away_at:
            return self._conclude(errors.SERVER_SHUTDOWN)
        if self._init_at is not None and now >= self._init_at:
            return self._conclude(_NO_INIT)
        if self._idle_at is not None and now >= self._idle_at:
            if others_wait:
                return self._conclude(_IDLE)
            self._idle_at = now + _IDLE_RECHECK_S
        if self.state is not State.ACTIVE:
            return []
        return self._flowing(self._flow.tick(now), now)

    def shut_down(self) -> list[Action]:
        """The server ends: without a slot the client may try elsewhere, with one its session is over."""
        if self.is_over:
            return []
        queued = self.state is State.QUEUED
        return self._conclude(errors.SHUTTING_DOWN if queued else errors.SERVER_SHUTDOWN)

    # ------------------------------------------------------------------------------ the state table

    def _event(self, event: ClientEvent, now: float) -> list[Action]:
        match event:
            case SessionClose():
                reason = event.reason or "user_stop"
                own = reason if _OWN_REASON.fullmatch(reason) else "client_closed"
                return self._conclude(Verdict(None, "", own, CloseCode.NORMAL))
            case SessionInit():
                return self._init(event)
            case InputAppend():
                return self._append(event, now)

    def _init(self, event: SessionInit) -> list[Action]:
        if self.state in (State.CONFIGURING, State.ACTIVE) or self._setup is not None:
            raise Refusal(ErrorCode.INVALID_EVENT, "session.init came before: it is sent once per session")
        setup = read_init(event, self._catalogue())
        if self.state is State.CONNECTED:
            return self._configure(setup)
        self._setup = setup
        return []

    def _configure(self, setup: SessionSetup) -> list[Action]:
        self.state = State.CONFIGURING
        self._setup = setup
        self._init_at = None
        return [OpenWorkerSession(setup)]

    def _append(self, event: InputAppend, now: float) -> list[Action]:
        if self._setup is None:
            raise Refusal(ErrorCode.NOT_READY, "input.append before session.init")
        append = read_append(event, self._limits.max_append_s, self._new_id)
        if self.state is State.ACTIVE:
            self._idle_at = now + self._limits.duplex_idle_s
        return self._flowing(self._flow.append(append, now), now)

    def _begin(self, ready: Ready, now: float) -> list[Action]:
        if self.state is not State.CONFIGURING or self._setup is None:
            return []
        self.state = State.ACTIVE
        self._created = True
        self._idle_at = now + self._limits.duplex_idle_s
        ignored = [public_path(path) for path in ready.ignored_fields]
        created = SessionCreated(
            session_id=self._session_id,
            mode="full_duplex",
            metrics=Metrics(prompt_length=ready.prompt_tokens, n_past_max=ready.context_limit or None),
            unsupported_fields=list(dict.fromkeys([*self._setup.unsupported, *ignored])),
        )
        return [Send(created), *self._flowing(self._flow.begin(ready, now), now)]

    def _worker_failed(self, reason: Reason, now: float) -> list[Action]:
        verdict = errors.VERDICTS[reason]
        if reason in _REFUSED_SETTINGS and self.state is State.CONFIGURING:
            self.state = State.CONNECTED
            self._setup = None
            self._flow = UnitFlow(self._session_id, self._limits, self._new_id)
            self._init_at = now + self._limits.init_timeout_s
            assert verdict.code is not None
            return self._error(Refusal(verdict.code, verdict.message), now)
        if self._away_at is not None:
            verdict = errors.SERVER_SHUTDOWN
        elif verdict.close is None:
            verdict = errors.VERDICTS[Reason.WORKER_LOST]
        return self._conclude(verdict)

    # -------------------------------------------------------------------------------------- endings

    def _flowing(self, actions: list[Action], now: float) -> list[Action]:
        """`actions` of the flow, up to where they end the session."""
        for index, action in enumerate(actions):
            is_error = isinstance(action, Send) and isinstance(action.event, ErrorEvent)
            if is_error and not self._errors.allow(now):
                return actions[:index] + self._flood("errors", ERRORS_PER_S, 1.0)
        if self._flow.verdict is not None and not self.is_over:
            return actions + self._conclude(self._flow.verdict)
        return actions

    def _error(self, refusal: Refusal, now: float, event: ClientEvent | None = None) -> list[Action]:
        if not self._errors.allow(now):
            return self._flood("errors", ERRORS_PER_S, 1.0)
        input_id = event.input.input_id if isinstance(event, InputAppend) and event.input else None
        return [Send(render.error(refusal.code, refusal.message, refusal.param, input_id))]

    def _flood(self, things: str, count: int, seconds: float) -> list[Action]:
        message = _FLOOD.format(things=things, count=count, seconds=seconds)
        return self._conclude(Verdict(ErrorCode.RATE_LIMITED, message, None, CloseCode.POLICY_VIOLATION))

    def _conclude(self, verdict: Verdict) -> list[Action]:
        self.state = State.CLOSING
        actions: list[Action] = []
        if verdict.code is not None:
            actions.append(Send(render.error(verdict.code, verdict.message)))
        if verdict.closed is not None:
            closed = SessionClosed(
                reason=verdict.closed,
                session_id=self._session_id if self._created else None,
                usage=render.usage(self._flow.tokens) if self._created else None,
                diagnostic=Diagnostic(verdict.message) if verdict.message else None,
            )
            actions.append(Send(closed))
        close = verdict.close if verdict.close is not None else CloseCode.INTERNAL_ERROR
        return [*actions, CloseSocket(close, verdict.closed or verdict.code or verdict.message)]
