"""The flow of units: cut, queued, run at the worker, and answered, each once and in order; and barge-in."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, TypeAlias

from msgspec.structs import replace

from antiphon.contract import Reason
from ws_adapter.protocol.core.actions import CancelUnits, RunUnit, Withdraw
from ws_adapter.protocol.core.answer import Answer, Outcome, Unit
from ws_adapter.protocol.core.signals import (
    Finalized,
    Moved,
    Piece,
    Prefilled,
    Ready,
    UnitDone,
    UnitEnd,
    UnitSignal,
)
from ws_adapter.protocol.duplex.input import SECOND_S, Append, SilenceTail, UnitCutter
from ws_adapter.protocol.duplex.saved import SavedAnswers, SavedFlow
from ws_adapter.protocol.duplex.texts import TextQueue
from ws_adapter.protocol.wire.errors import (
    CONTEXT_IS_FULL,
    FAILURES_IN_A_ROW,
    GAVE_UP,
    VERDICTS,
    ErrorCode,
    Verdict,
)
from ws_adapter.protocol.wire.events import NO_TOKENS, InputTokenDetails, OutputTokenDetails, TokenUsage
from ws_adapter.protocol.wire.limits import MOST_AT_WORKER, Limits

Step: TypeAlias = Answer | RunUnit | CancelUnits | Withdraw


class UnitFlow:
    """The flow of units: appends in, steps out. Input that comes before `begin` is held.

    At most `max_units_in_flight` units are at the worker, counted until they are finalised; the others wait
    here. Under back-pressure (`congested`), no unit is given to the worker. A unit is `unit_s` long; `limits`
    count units of a second.
    """

    def __init__(self, limits: Limits, new_token: Callable[[], str], unit_s: float = SECOND_S) -> None:
        self.congested = False
        self.unit_s: Final = unit_s
        self._tail = SilenceTail(limits.silence_tail_units, unit_s)
        self._cutter = UnitCutter(limits.unit_flush_s, unit_s)
        most_units = round(limits.max_waiting_units / unit_s)
        self._backlog = Backlog(limits.max_lag_s, most_units, limits.max_waiting_bytes)
        self.answers = Answers(self._tail, new_token)
        self.texts = TextQueue()
        self._window = 0
        self._unfinalized: dict[int, int] = {}
        """The bytes of each unit at the worker."""
        self._running_bytes = 0
        """The bytes of all units at the worker."""
        self._last_number = 0
        self._last_cancelled = 0

    @property
    def keeps_all(self) -> bool:
        """Whether waiting units are never dropped for newer ones, until none waits any more."""
        return self._backlog.keeps_all

    def keep_all(self) -> None:
        """Drop no waiting or new unit, until none waits any more."""
        self._backlog.keeps_all = True

    @property
    def waiting_s(self) -> float:
        """The seconds of input that wait here."""
        return len(self._backlog) * self.unit_s

    @property
    def held_bytes(self) -> int:
        """The bytes of input that are carried or wait here, or are at the worker."""
        return self._cutter.size + self._backlog.bytes + self._running_bytes + self.texts.bytes

    @property
    def deadline(self) -> float | None:
        """The time at which `tick` is due next."""
        if not self._window:
            return None
        flush_at, silence_at = self._flush_at, self._tail.due_at
        if silence_at is None or self._backlog or not self._has_room():
            return flush_at
        return silence_at if flush_at is None else min(flush_at, silence_at)

    def begin(self, ready: Ready, now: float) -> list[Step]:
        """Begin with a ready worker; held input counts as if it had just arrived."""
        self._window = min(max(1, ready.max_units_in_flight), MOST_AT_WORKER)
        self.answers.begin(ready)
        self._cutter.restamp(now)
        self._backlog.restamp(now)
        self._tail.restamp(now)
        return self.advance(now)

    def append(self, append: Append, now: float) -> list[Step]:
        """Handle an append."""
        actions: list[Step] = []
        units = self._cutter.append(append, now)
        self._tail.appended(append.seconds, now)
        if append.force_listen:
            self._backlog.force_listen()
            actions += self._interrupt()
        self._put(units)
        return actions + self.advance(now)

    def signal(self, signal: UnitSignal, now: float) -> Sequence[Step]:
        """Handle a signal of the worker about a unit."""
        if isinstance(signal, Piece):
            return self._cancel() if self.answers.piece(signal) else ()
        if isinstance(signal, UnitDone):
            self.answers.done(signal)
            return self.answers.collect()
        if isinstance(signal, Finalized):
            self._running_bytes -= self._unfinalized.pop(signal.unit, 0)
            return self.advance(now)
        if isinstance(signal, Prefilled):
            self.answers.prefilled(signal)
        if isinstance(signal, Moved):
            return self._restart(now)
        return ()

    def tick(self, now: float) -> list[Step]:
        """Handle the due timers: pad and run the carried input, and feed silence."""
        if not self._window:
            return []
        actions: list[Step] = []
        flush_at = self._flush_at
        if flush_at is not None and now >= flush_at:
            self._put(self._cutter.flush(now))
            actions += self.advance(now)
        silence_at = self._tail.due_at
        if silence_at is not None and now >= silence_at and self._has_room() and not self._backlog:
            self._tail.fed(now)
            self._put([self._cutter.silence(now)])
            actions += self.advance(now)
        return actions

    def hold_frame(self, frame: bytes | None) -> None:
        """Keep a picture for the next unit; None is a picture without use to the model, only counted."""
        self._cutter.hold_frame(frame)

    def force_next(self) -> None:
        """Force the next unit to listen."""
        if not self._backlog.force_next():
            self._cutter.force_next()

    def interrupt(self) -> list[Step]:
        """Interrupt the model; it listens to all waiting units and to the unit that is incomplete now."""
        self._backlog.force_listen()
        self._cutter.force_next()
        return self._interrupt()

    def advance(self, now: float) -> list[Step]:
        """Give waiting units to the worker while it has room, and answer dropped units."""
        runs: list[Step] = []
        while self._has_room():
            unit = self._backlog.take(now)
            if unit is None:
                break
            self._last_number += 1
            self._unfinalized[self._last_number] = size = _size(unit)
            self._running_bytes += size
            self.answers.started(unit, self._last_number)
            unit.texts = self.texts.take() if self.texts.bytes else ()
            slices, listens = unit.max_slice_nums if unit.frames else None, unit.force_listen
            runs.append(
                RunUnit(
                    self._last_number, unit.audio, listens, unit.frames, slices, unit.ready_at, unit.texts
                )
            )
        return [*self.answers.collect(), *runs] if self._window else []

    def save(self, now: float) -> SavedFlow:
        """Return the state of a session that has begun, in the form of `Answers.save`."""
        return SavedFlow(
            self.answers.save(now),
            self._cutter.save(now),
            self._tail.save(now),
            self.texts.waiting,
            self._window,
            dict(self._unfinalized),
            self._last_number,
            self._last_cancelled,
        )

    def restore(self, saved: SavedFlow, now: float) -> None:
        """Go on from a saved state."""
        self._backlog.put(self.answers.restore(saved.answers, now))
        self._cutter.restore(saved.cutter, now)
        self._tail.restore(saved.tail, now)
        for text in saved.texts:
            self.texts.put(text)
        self._window = saved.window
        self._unfinalized = dict(saved.unfinalized)
        self._running_bytes = sum(saved.unfinalized.values())
        self._last_number, self._last_cancelled = saved.last_number, saved.last_cancelled

    @property
    def _flush_at(self) -> float | None:
        is_speaking = self.answers.response_id is not None
        return self._cutter.late_at if is_speaking else self._cutter.flush_at

    def _has_room(self) -> bool:
        return len(self._unfinalized) < self._window and not self.congested and self.answers.verdict is None

    def _put(self, units: list[Unit]) -> None:
        self.answers.expect(units)
        if dropped := [unit for unit in units if unit.is_dropped]:
            if any(unit.force_listen for unit in dropped):
                self._cutter.force_next()
            units = [unit for unit in units if not unit.is_dropped]
        self._backlog.put(units)
        if not self._window:
            self.answers.forget_dropped()

    def _restart(self, now: float) -> list[Step]:
        """Discard the output of the units at the lost worker, which another one runs again from their
        beginning.

        Waiting units count their wait from now, so that the pause makes none of them late.
        """
        self._backlog.restamp(now)
        first = self.answers.restart()
        if first is None:
            return []
        self._last_cancelled = min(self._last_cancelled, first - 1)
        return self._cancel()

    def _interrupt(self) -> list[Step]:
        """Interrupt the open response, or the one that a unit at the worker is about to open."""
        actions: list[Step] = []
        if self.answers.response_id is not None:
            actions.append(Withdraw(self.answers.response_id))
        self.answers.mute()
        return actions + self._cancel()

    def _cancel(self) -> list[Step]:
        """Cancel the generation of muted units, each once."""
        last = self.answers.muted_speech
        if last is None or last <= self._last_cancelled:
            return []
        self._last_cancelled = last
        return [CancelUnits(last)]


class Answers:
    """The pending answers, given out unit by unit in order.

    `new_token` returns a unique token for the id of a response. `verdict` is set once the session cannot
    continue; no answer follows.
    """

    def __init__(self, tail: SilenceTail, new_token: Callable[[], str]) -> None:
        self.verdict: Verdict | None = None
        self.response_id: str | None = None
        """The open response, while the model is speaking."""
        self.tokens = NO_TOKENS
        """The tokens of the session so far, its prompt included."""
        self._tail = tail
        self._new_token = new_token
        self._pending: deque[Unit] = deque()
        self._at_worker: dict[int, Unit] = {}
        self._answered = 0
        self._dropped_total = 0
        self._failures = 0
        self._context_tokens = 0
        self._context_limit = 0
        self._has_audio_output = True

    def begin(self, ready: Ready) -> None:
        """Begin with a configured session."""
        self._context_tokens = ready.prompt_tokens
        self._context_limit = ready.context_limit
        self._has_audio_output = ready.generate_audio
        self.tokens = ready.tokens

    @property
    def owes(self) -> bool:
        """Whether a unit has not been answered."""
        return bool(self._pending)

    # -------------------------------------------------------------------------------- units and signals

    def expect(self, units: list[Unit]) -> None:
        """Expect an answer for each of these units in order, also for those that are dropped."""
        self._pending.extend(units)

    def forget_dropped(self) -> None:
        """Count units that are dropped before the session begins; they get no answer."""
        for unit in [unit for unit in self._pending if unit.is_dropped]:
            self._pending.remove(unit)
            self._dropped_total += 1

    def started(self, unit: Unit, number: int) -> None:
        """Note that `unit` was given to the worker as `number`."""
        self._at_worker[number] = unit

    def prefilled(self, signal: Prefilled) -> None:
        """Handle the signal that a unit's input is in the context."""
        if unit := self._at_worker.get(signal.unit):
            unit.prefilled = signal

    def piece(self, signal: Piece) -> bool:
        """Handle a part of a unit's output; return whether the unit is muted."""
        unit = self._at_worker.get(signal.unit)
        if unit is None:
            return False
        unit.speaks = True
        if not unit.is_muted:
            unit.said.append(signal)
        return unit.is_muted

    def done(self, signal: UnitDone) -> None:
        """Handle the end of a unit at the worker."""
        if unit := self._at_worker.pop(signal.unit, None):
            unit.done = signal

    def restart(self) -> int | None:
        """Discard the output of all units at the worker; return the first number, None without any."""
        for unit in self._at_worker.values():
            unit.said.clear()
            unit.speaks, unit.prefilled = False, None
        return min(self._at_worker, default=None)

    def mute(self) -> None:
        """Mute the units at the worker: each will be answered by a listen."""
        for unit in self._at_worker.values():
            unit.is_muted = not unit.force_listen
            unit.said.clear()

    @property
    def muted_speech(self) -> int | None:
        """The number of the last muted unit at the worker, once the model is known to speak; None before.

        If a unit were cancelled before its first word, the model would begin its answer in the next unit.
        """
        muted = {number: unit for number, unit in self._at_worker.items() if unit.is_muted}
        is_speaking = self.response_id is not None or any(unit.speaks for unit in muted.values())
        return max(muted, default=None) if is_speaking else None

    # --------------------------------------------------------------------------------------- the state

    def save(self, now: float) -> SavedAnswers:
        """Return the state, with the unanswered units.

        Units at the worker are saved without their input, which the journal has, and without their output.
        """
        numbers = {id(unit): number for number, unit in self._at_worker.items()}
        return SavedAnswers(
            self.response_id,
            self.tokens,
            tuple(_saved(unit, id(unit) in numbers, now) for unit in self._pending),
            tuple(numbers.get(id(unit), 0) for unit in self._pending),
            self._answered,
            self._dropped_total,
            self._failures,
            self._context_tokens,
            self._context_limit,
            self._has_audio_output,
        )

    def restore(self, saved: SavedAnswers, now: float) -> list[Unit]:
        """Go on from a saved state; return the units that wait for the worker."""
        self.response_id, self.tokens = saved.response_id, saved.tokens
        for unit in saved.units:
            unit.ready_at = now - unit.ready_at
        self._pending = deque(saved.units)
        pairs = list(zip(saved.numbers, saved.units, strict=True))
        self._at_worker = {number: unit for number, unit in pairs if number}
        self._answered, self._dropped_total = saved.answered, saved.dropped_total
        self._failures = saved.failures
        self._context_tokens, self._context_limit = saved.context_tokens, saved.context_limit
        self._has_audio_output = saved.has_audio_output
        return [unit for number, unit in pairs if not (number or unit.is_dropped or unit.done)]

    # ---------------------------------------------------------------------------------------- answering

    def collect(self) -> list[Answer]:
        """Return the answers of all units that are finished, up to the first unfinished one."""
        answers: list[Answer] = []
        pending = self._pending
        while pending and self.verdict is None:
            head = pending[0]
            if head.done is None and not head.is_dropped:
                break
            pending.popleft()
            index = self._answered
            self._answered += 1
            if head.done is not None:
                answers.append(self._answer(head, head.done, index))
                head.said.clear()  # the answer has the output now
            elif answer := self._dropped(head, index):
                answers.append(answer)
        return answers

    def interrupted(self, answer: Answer, is_continued: bool) -> Answer:
        """Return the listen answer of an interrupted unit; `is_continued`: some of its speech was sent."""
        return replace(
            answer,
            outcome=Outcome.LISTEN,
            response_id=self._close_response(),
            text="",
            audio=b"",
            ends_turn=False,
            is_continued=is_continued,
        )

    def _answer(self, unit: Unit, done: UnitDone, index: int) -> Answer:
        self.tokens = summed(self.tokens, done.tokens)
        self._context_tokens = done.context_tokens
        prefilled = unit.prefilled
        timings = done.timings
        if timings.prefill is None and prefilled is not None:
            timings = replace(timings, prefill=prefilled.timings.prefill)
        end = done.end
        speaks = _speaks(unit, end)
        answer = Answer(
            Outcome.SPEECH if speaks else Outcome.LISTEN,
            index,
            unit,
            self._spoken(end) if speaks else self._close_response(),
            done.context_tokens,
            self._context_limit,
            self._dropped_total,
            self.tokens,
            done.tokens,
            "".join([piece.text for piece in unit.said]) if speaks else "",
            b"".join([piece.audio for piece in unit.said]) if speaks else b"",
            speaks and end is UnitEnd.TURN,
            self._has_audio_output,
            timings,
            prefilled.vision_slices if prefilled is not None else 0,
        )
        if end is UnitEnd.FAILED:
            answer = self._failed(answer, done.failure or Reason.INFERENCE_FAILED)
        else:
            self._failures = 0
        # Only the worker decides this: a sliding context stays at its limit, and the session continues.
        if end is UnitEnd.CONTEXT_FULL and self.verdict is None:
            self.verdict = CONTEXT_IS_FULL
        return answer

    def _spoken(self, end: UnitEnd) -> str | None:
        """Return the response of a unit with output; open one if there is none."""
        if self.response_id is None:
            self.response_id = f"resp_{self._new_token()}"
        self._tail.spoke()
        return self._close_response() if end is UnitEnd.TURN else self.response_id

    def _failed(self, answer: Answer, reason: Reason) -> Answer:
        verdict = VERDICTS.get(reason, VERDICTS[Reason.INFERENCE_FAILED])
        self._failures = self._failures + 1 if reason is Reason.INFERENCE_FAILED else 0
        if self._failures >= FAILURES_IN_A_ROW:
            self.verdict = GAVE_UP
        return replace(
            answer,
            outcome=Outcome.FAILED,
            failure=(verdict.code or ErrorCode.INFERENCE_ERROR, verdict.message),
        )

    def _dropped(self, unit: Unit, index: int) -> Answer | None:
        self._dropped_total += 1
        if self.response_id is not None:
            # Clients flush playback on a listen event, so a unit dropped during a response gets no event.
            return None
        return Answer(
            Outcome.DROPPED,
            index,
            unit,
            None,
            self._context_tokens,
            self._context_limit,
            self._dropped_total,
            self.tokens,
        )

    def _close_response(self) -> str | None:
        """Return the open response, and close it."""
        response_id, self.response_id = self.response_id, None
        if response_id is not None:
            self._tail.turn_ended(heard_everything=all(unit.injected_silence for unit in self._pending))
        return response_id


def _saved(unit: Unit, is_at_worker: bool, now: float) -> Unit:
    """Return a copy of a unit whose `ready_at` is its age."""
    if is_at_worker:
        return replace(
            unit,
            audio=b"",
            frames=(),
            ready_at=now - unit.ready_at,
            said=[],
            speaks=False,
            prefilled=None,
        )
    return replace(unit, ready_at=now - unit.ready_at, said=list(unit.said))


def _speaks(unit: Unit, end: UnitEnd) -> bool:
    """Return whether the output of a unit with this end is sent to the client."""
    if end is UnitEnd.CONTEXT_FULL:
        return any(piece.text or piece.audio for piece in unit.said)
    return (end is UnitEnd.CHUNK or end is UnitEnd.TURN) and not unit.is_muted


class Backlog:
    """Waiting units in input order, bounded in number and bytes.

    Only a unit with a newer append behind it is dropped. When units are taken, those that have waited longer
    than `max_lag_s` are dropped. Beyond `max_units` or `max_bytes` the oldest are dropped at once.
    `force_listen` of a dropped unit moves to the next one.
    """

    def __init__(self, max_lag_s: float, max_units: int, max_bytes: int) -> None:
        self._max_lag_s = max_lag_s
        self._max_units = max_units
        self._max_bytes = max_bytes
        self.bytes = 0
        """The bytes of the waiting units."""
        self.keeps_all = False
        """Whether no unit is dropped, until none waits any more; the producer limits their number."""
        self._units: deque[Unit] = deque()

    def __len__(self) -> int:
        return len(self._units)

    def put(self, units: list[Unit]) -> None:
        """Add the units of one append."""
        self._units.extend(units)
        self.bytes += sum(map(_size, units))
        while self._is_over() and self._is_superseded(self._units[0]):
            self._drop()

    def take(self, now: float) -> Unit | None:
        """Return the next unit to run, None if none waits."""
        while self._units:
            head = self._units[0]
            if now - head.ready_at > self._max_lag_s and self._is_superseded(head):
                self._drop()
                continue
            self.bytes -= _size(head)
            return self._units.popleft()
        self.keeps_all = False
        return None

    def force_listen(self) -> None:
        """Run every waiting unit with `force_listen`."""
        for unit in self._units:
            unit.force_listen = True

    def force_next(self) -> bool:
        """Set `force_listen` on the oldest waiting unit; return False if none waits."""
        if self._units:
            self._units[0].force_listen = True
        return bool(self._units)

    def restamp(self, now: float) -> None:
        """Count every unit's wait from `now`, for input that was held."""
        for unit in self._units:
            unit.ready_at = now

    def _is_over(self) -> bool:
        return len(self._units) > self._max_units or self.bytes > self._max_bytes

    def _is_superseded(self, unit: Unit) -> bool:
        return not self.keeps_all and unit.append < self._units[-1].append

    def _drop(self) -> None:
        unit = self._units.popleft()
        unit.is_dropped = True
        self.bytes -= _size(unit)
        if unit.force_listen:
            self._units[0].force_listen = True


def _size(unit: Unit) -> int:
    """Return the number of bytes of a unit's input."""
    return len(unit.audio) + (sum(map(len, unit.frames)) if unit.frames else 0)


def summed(one: TokenUsage, other: TokenUsage) -> TokenUsage:
    """Return the sum of two token usages."""
    read, other_read = one.input_token_details, other.input_token_details
    made, other_made = one.output_token_details, other.output_token_details
    return TokenUsage(
        one.total_tokens + other.total_tokens,
        one.input_tokens + other.input_tokens,
        one.output_tokens + other.output_tokens,
        InputTokenDetails(
            read.text_tokens + other_read.text_tokens,
            read.audio_tokens + other_read.audio_tokens,
            read.vision_tokens + other_read.vision_tokens,
            read.cached_tokens + other_read.cached_tokens,
        ),
        OutputTokenDetails(
            made.text_tokens + other_made.text_tokens, made.audio_tokens + other_made.audio_tokens
        ),
    )
