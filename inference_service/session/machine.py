"""One session as a state machine: no I/O, no tasks, no clock of its own.

Requests, the engine's events and the time go in through methods; effects go out through `SessionEffects` and
`EngineSession`. A method raises `SessionError` for a broken rule: the caller must then fail the session with
that error. After `fail` every method is safe to call and nothing more is answered.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Protocol

from inference_service.errors import (
    AttachTimeout,
    BadField,
    ConfigRepeated,
    ConfigRequired,
    IdleTimeout,
    PayloadInvalid,
    SessionError,
    SessionFault,
    SessionLimit,
    StreamExists,
    UnitOutOfOrder,
    UnitStalled,
    engine_error,
)
from inference_service.interface.engine import (
    Closed,
    EngineSession,
    Event,
    Failure,
    Progress,
    Ready,
    SessionFailed,
)
from inference_service.interface.setups import Content, SessionSetup
from inference_service.session.units import Generate, Rewind, Stream, Timer, Unit, UnitAnswer, Units


class Phase(Enum):
    """The phases of a session."""

    ATTACHING = auto()
    """Some of the three streams have not been opened."""
    CONFIGURING = auto()
    """The session waits for the config, or for the engine to read it."""
    ACTIVE = auto()
    DRAINING = auto()
    """The session accepts no further unit, and finishes the accepted ones."""
    CLOSING = auto()
    """The session is over, and the engine cleans up."""
    CLOSED = auto()


_RUNNING = (Phase.ACTIVE, Phase.DRAINING)
"""The phases in which units are being served."""


@dataclass(frozen=True)
class Limits:
    """Time limits in seconds, and limits of unfinalised units, which are lower where units are long.

    `go_away_ahead_s` is the time between the notice and the end of a drain. `step_s` is the limit of one step
    of the engine; a longer step counts as a hang.
    """

    attach_s: float = 5.0
    config_s: float = 30.0
    unit_s: float = 10.0
    cleanup_s: float = 5.0
    go_away_ahead_s: float = 30.0
    step_s: float = 10.0
    window: int = 2
    stream_window: int = 8
    """The window of TRANSCRIBE and TOKENS sessions."""

    def window_of(self, setup: SessionSetup) -> int:
        """Return the limit of units in flight for a session of this kind."""
        return self.stream_window if setup.is_stream else self.window


@dataclass(frozen=True)
class GoAway:
    """A notice that the session will be ended in `time_left_s` seconds."""

    time_left_s: float
    reason: str


Answer = UnitAnswer | GoAway


class SessionEffects(Protocol):
    """The effects of a session outside its engine session."""

    def open(self, setup: SessionSetup) -> EngineSession:
        """Start the engine session."""

    def ready(self, answer: Ready) -> None:
        """Report that the session accepts units now. Called once."""

    def send(self, stream: Stream, answer: Answer, unit: Unit | None = None) -> None:
        """Send an answer on one stream; `unit` comes with the last answer of each of its steps."""

    def cleaning(self, error: SessionError | None, units: Sequence[Unit]) -> None:
        """Handle the end of the session with unfinished `units`; its caches are not clean yet.
        Called once.
        """

    def clean(self) -> None:
        """Handle that the engine holds nothing of the session any more. Called once, after `cleaning`."""

    def end(self, error: SessionError | None) -> None:
        """End all three streams, with OK if `error` is None. Called once."""


class SessionMachine:
    """All state of one session outside the engine. Times are seconds of any monotonic clock."""

    def __init__(self, session_id: str, effects: SessionEffects, limits: Limits, now: float) -> None:
        self.session_id = session_id
        self._effects = effects
        self._limits = limits
        self._engine: EngineSession | None = None
        self._attached: set[Stream] = set()
        self._configured = False
        self._is_automatic = False
        self._cancelled = 0  # the highest unit cancelled before there was an engine session
        self._units = Units(max(limits.window, limits.stream_window), effects.send)
        self._since = now  # when this phase began; CONFIGURING begins anew with the config
        self._max_duration_s: float | None = None
        self._idle_timeout_s: float | None = None
        self._patience = 0.0  # `patience` in the running phases
        self._enter(Phase.ATTACHING)
        self._outcome: SessionError | None = None
        self._ended = False

    @property
    def phase(self) -> Phase:
        """The current phase."""
        return self._phase

    @property
    def is_attached(self) -> bool:
        """Whether all three streams are open."""
        return len(self._attached) == len(Stream)

    # ------------------------------------------------------------------ streams

    def attach(self, stream: Stream, now: float) -> None:
        """Attach a stream of the session. Raises `StreamExists`, which must not fail the session."""
        if stream in self._attached or self._phase is not Phase.ATTACHING:
            raise StreamExists(
                f"Session {self.session_id} has its {stream.value} stream already.", stream=stream.value
            )
        self._attached.add(stream)
        if self.is_attached:
            self._enter(Phase.CONFIGURING, since=now)

    def half_close(self, stream: Stream, now: float) -> None:
        """Handle the half-close of `stream`; on Prefill that drains the session."""
        if self.is_over:
            return
        if stream is Stream.PREFILL:
            self.require_config()
        self._units.half_close(stream)
        self._advance(now)

    def fail(self, error: SessionError, now: float) -> None:
        """End the session with `error`; only the first end of a session counts."""
        if not self.is_over:
            self._close(error, now)

    def abandon(self, error: SessionError, now: float) -> None:
        """End the session without waiting for an engine that will never answer."""
        self.fail(error, now)
        self._end()

    # ----------------------------------------------------------------- requests

    def expect_config(self, unit: int) -> None:
        """Note that a config came as `unit`; the caller reads it, and then calls `open`."""
        if self._configured:
            raise ConfigRepeated("The session is configured already; its config cannot change.")
        if unit != 0:
            raise UnitOutOfOrder(f"The config is unit 0, not {unit}.", unit=unit, expected=0)
        self._configured = True

    def require_config(self) -> None:
        """Raise `ConfigRequired` as long as no config has come."""
        if not self._configured:
            raise ConfigRequired("The first message on Prefill must be unit 0 with the config.")

    def open(
        self,
        setup: SessionSetup,
        now: float,
        *,
        max_duration_s: float | None = None,
        idle_timeout_s: float | None = None,
        automatic: bool = False,
    ) -> None:
        """Start the session in the engine with a valid config.

        With `automatic`, units arrive only through `run_automatically`. Raises `UnitOutOfOrder` if a Generate
        or Finalize was read before.
        """
        if not self.is_over:
            self._is_automatic = automatic
            if automatic and self._units.newest:
                self._require_manual(Stream.FINALIZE, self._units.newest)
            self._units.bound(self._limits.window_of(setup))
            self._since = now
            self._max_duration_s, self._idle_timeout_s = max_duration_s, idle_timeout_s
            waits = (self._limits.unit_s, max_duration_s, idle_timeout_s)
            self._patience = min(wait for wait in waits if wait is not None)
            self._engine = self._effects.open(setup)
            if self._cancelled:
                self._engine.cancel(self._cancelled)

    def prefill(self, number: int, content: Content | Failure, now: float) -> None:
        """Accept a unit with its input, or with the reason why the input cannot be used."""
        if not self.is_over and self._accept(number, content, now) is not None:
            self._units.check_askable()
            self._advance(now)

    def run_automatically(
        self, number: int, content: Content | Failure, run: Generate, now: float, *, keep_last_token: bool
    ) -> None:
        """Accept a unit as `prefill` does, and run and close it without further requests."""
        if self.is_over or (unit := self._accept(number, content, now)) is None:
            return
        self._units.admit(Stream.GENERATE, number, now)
        self._units.admit(Stream.FINALIZE, number, now)
        unit.run, unit.finalize, unit.keep_last_token = run, True, keep_last_token
        self._advance(now)

    def _accept(self, number: int, content: Content | Failure, now: float) -> Unit | None:
        self.require_config()
        unit = self._units.admit(Stream.PREFILL, number, now)
        if unit is None:
            return None
        if isinstance(content, Failure):
            self._units.refuse(unit, content)
        else:
            unit.content = content
        return unit

    def generate(self, number: int, run: Generate, now: float) -> None:
        """Request that a unit be run. Raises `UnitOutOfOrder` where units run automatically."""
        if not self.is_over:
            self._require_manual(Stream.GENERATE, number)
            if unit := self._units.admit(Stream.GENERATE, number, now):
                unit.run = run
                self._advance(now)

    def finalize(self, number: int, now: float, *, keep_last_token: bool = False) -> None:
        """Request that a unit be closed. Raises `UnitOutOfOrder` where units run automatically."""
        if not self.is_over:
            self._require_manual(Stream.FINALIZE, number)
            if unit := self._units.admit(Stream.FINALIZE, number, now):
                unit.finalize, unit.keep_last_token = True, keep_last_token
                self._advance(now)

    def _require_manual(self, stream: Stream, number: int) -> None:
        if self._is_automatic:
            raise UnitOutOfOrder(
                f"{stream.value} asks for unit {number}, but the config has automatic_units: "
                "every unit is generated and finalised by itself.",
                stream=stream.value,
                unit=number,
            )

    def cancel(self, number: int) -> None:
        """Cancel every unit up to and including `number` at once, also those that arrive later."""
        if number < 1:
            raise PayloadInvalid(BadField("unit", "must be 1 or more in a cancel"))
        if self._engine is None:
            self._cancelled = max(self._cancelled, number)
        elif not self.is_over:
            self._engine.cancel(number)

    def rewind(self, order: Rewind, now: float) -> None:
        """Remove words that were spoken and not heard."""
        if order.unit < 1:
            raise PayloadInvalid(BadField("unit", "must be 1 or more in a rewind"))
        if not self.is_over:
            self.require_config()
            self._units.rewind(order, now)
            self._advance(now)

    def go_away(self, notice: GoAway) -> None:
        """Announce the end; units already accepted are still served."""
        if not self.is_over:
            self._effects.send(Stream.GENERATE, notice)

    # ------------------------------------------------------------------- engine

    def event(self, event: Event, now: float) -> None:
        """Handle an event of the engine. After the session's end only `Closed` counts."""
        match event:
            case Closed():
                self.fail(SessionFault("The engine closed the session."), now)
                self._finish()
            case _ if self.is_over:
                return
            case Ready():
                self._enter(Phase.ACTIVE, since=now)
                self._units.start(event.prompt_tokens, now)
                self._effects.ready(event)
                self._advance(now)
            case Progress() if self._phase is Phase.CONFIGURING:
                self._since = now  # the prompt makes progress, or waits for other sessions
            case Progress():
                self._units.progress(now)
            case SessionFailed():
                self.fail(engine_error(event.reason, event.message, event.field), now)
            case _:
                self._units.answer(event, now)
                if self._units.answers_advance:
                    self._advance(now)

    def _advance(self, now: float) -> None:
        """Advance the units as far as possible, and end the session after the last one."""
        if self._phase not in _RUNNING or self._engine is None:
            return
        self._units.advance(self._engine, now)
        if self.is_over:
            return  # an answer ended it
        if self._units.is_ending:
            self._enter(Phase.DRAINING)
        if self._units.is_finished:
            self._close(None, now)

    # ---------------------------------------------------------------- the clock

    def deadline(self) -> float | None:
        """The time at which `expire` is due, if nothing happens before."""
        return min((timer.when for timer in self._timers()), default=None)

    def expire(self, now: float) -> None:
        """End the session if a request or the engine is overdue."""
        due = min((timer for timer in self._timers() if timer.when <= now), key=_when, default=None)
        if due is None:
            return
        if self._phase is Phase.CLOSING:
            self._end()  # the slot stays taken until the engine says that it is clean
        else:
            self.fail(due.error(due.message), now)

    def _timers(self) -> Iterator[Timer]:
        limits = self._limits
        match self._phase:
            case Phase.ATTACHING:
                missing = " and ".join(s.value for s in Stream if s not in self._attached)
                message = f"{missing} did not attach within {limits.attach_s:g} s."
                yield Timer(self._since + limits.attach_s, AttachTimeout, message)
            case Phase.CONFIGURING if self._engine is None:
                message = f"No config came within {limits.config_s:g} s."
                yield Timer(self._since + limits.config_s, AttachTimeout, message)
            case Phase.CONFIGURING:
                message = f"The model did not read the config within {limits.config_s:g} s."
                yield Timer(self._since + limits.config_s, UnitStalled, message)
            case Phase.ACTIVE | Phase.DRAINING:
                yield from self._running_timers()
            case Phase.CLOSING if not self._ended:
                yield Timer(self._since + limits.cleanup_s, SessionFault, "")

    def _running_timers(self) -> Iterator[Timer]:
        yield from self._units.deadlines(self._limits.unit_s)
        idle_since = self._units.idle_since
        if self._idle_timeout_s is not None and idle_since is not None:
            message = f"No unit came for {self._idle_timeout_s:g} s."
            yield Timer(idle_since + self._idle_timeout_s, IdleTimeout, message)
        if self._max_duration_s is not None:
            message = f"The session reached its max_duration of {self._max_duration_s:g} s."
            yield Timer(self._since + self._max_duration_s, SessionLimit, message)

    # ------------------------------------------------------------------ the end

    def _enter(self, phase: Phase, since: float | None = None) -> None:
        """Enter a phase, whose timers count from `since`; None keeps the start of the current timers."""
        self._phase = phase
        self.patience = self._patience if phase in _RUNNING else 0.0
        """Shortest limit in seconds of anything that starts now; 0 outside the running phases."""
        self.is_over = phase in (Phase.CLOSING, Phase.CLOSED)
        """Whether the session accepts and answers nothing any more."""
        if since is not None:
            self._since = since

    def _close(self, outcome: SessionError | None, now: float) -> None:
        self._outcome = outcome
        self._enter(Phase.CLOSING, since=now)
        self._effects.cleaning(outcome, self._units.open_units)
        if self._engine is None:
            self._finish()
        else:
            self._engine.close()

    def _finish(self) -> None:
        if self._phase is Phase.CLOSING:
            self._enter(Phase.CLOSED)
            self._effects.clean()
            self._end()
            # Break the reference cycle, since no method needs these any more. The engine's state of a session
            # is large, and would stay until the next garbage collection.
            self._engine = None
            del self._effects, self._units

    def _end(self) -> None:
        if not self._ended:
            self._ended = True
            self._effects.end(self._outcome)


def _when(timer: Timer) -> float:
    return timer.when
