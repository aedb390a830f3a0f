"""Answers in input order: what the worker says becomes one answer for each unit, and each unit gets one."""

from collections import deque
from collections.abc import Callable

from msgspec.structs import replace

from antiphon.semconv import Reason
from ws_adapter.protocol.core.answer import Answer, Outcome, Unit
from ws_adapter.protocol.core.signals import Piece, Prefilled, Ready, UnitDone, UnitEnd
from ws_adapter.protocol.duplex.input import SilenceTail
from ws_adapter.protocol.wire.errors import (
    CONTEXT_IS_FULL,
    FAILURES_IN_A_ROW,
    GAVE_UP,
    VERDICTS,
    ErrorCode,
    Verdict,
)
from ws_adapter.protocol.wire.events import NO_TOKENS, InputTokenDetails, OutputTokenDetails, TokenUsage


class Answers:
    """Holds what is owed to the client and gives it out, unit by unit.

    `new_token` makes the ids of responses differ. `verdict` is set once the session cannot go on; no answer
    comes after that.
    """

    def __init__(self, tail: SilenceTail, new_token: Callable[[], str]) -> None:
        self.verdict: Verdict | None = None
        self.response_id: str | None = None
        """The response that is open: the model is speaking."""
        self.tokens = NO_TOKENS
        """Of the session so far, its prompt included."""
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
        """The session is configured."""
        self._context_tokens = ready.prompt_tokens
        self._context_limit = ready.context_limit
        self._has_audio_output = ready.generate_audio
        self.tokens = ready.tokens

    # ------------------------------------------------------------------------------------ what happens

    def expect(self, units: list[Unit]) -> None:
        """Units were cut; each will be answered in this order, also if it is dropped."""
        self._pending.extend(units)

    def forget_dropped(self) -> None:
        """Units that are dropped before the session begins get no answer, and are counted."""
        for unit in [unit for unit in self._pending if unit.is_dropped]:
            self._pending.remove(unit)
            self._dropped_total += 1

    def started(self, unit: Unit, number: int) -> None:
        """`unit` was given to the worker as `number`."""
        self._at_worker[number] = unit

    def prefilled(self, signal: Prefilled) -> None:
        """The worker has the input of a unit."""
        if unit := self._at_worker.get(signal.unit):
            unit.prefilled = signal

    def piece(self, signal: Piece) -> bool:
        """The worker said a part of a unit; whether it is muted."""
        unit = self._at_worker.get(signal.unit)
        if unit is None:
            return False
        unit.speaks = True
        if not unit.is_muted:
            unit.said.append(signal)
        return unit.is_muted

    def done(self, signal: UnitDone) -> None:
        """The worker is done with a unit."""
        if unit := self._at_worker.pop(signal.unit, None):
            unit.done = signal

    def mute(self) -> None:
        """Nothing more is said by the units at the worker: each will be answered by a listen."""
        for unit in self._at_worker.values():
            unit.is_muted = not unit.force_listen
            unit.said.clear()

    @property
    def muted_speech(self) -> int | None:
        """The last muted unit at the worker, once the model is known to speak; None before.

        Stopped before its first word, the model would begin its answer in the next unit.
        """
        muted = {number: unit for number, unit in self._at_worker.items() if unit.is_muted}
        is_speaking = self.response_id is not None or any(unit.speaks for unit in muted.values())
        return max(muted, default=None) if is_speaking else None

    # ---------------------------------------------------------------------------------------- answering

    def collect(self) -> list[Answer]:
        """The answer of every unit whose turn it is and whose end is known."""
        answers: list[Answer] = []
        while self._pending and self.verdict is None:
            head = self._pending[0]
            if head.done is None and not head.is_dropped:
                break
            self._pending.popleft()
            index = self._answered
            self._answered += 1
            if head.done is not None:
                answers.append(self._answer(head, head.done, index))
                head.said.clear()  # the answer has it
            elif answer := self._dropped(head, index):
                answers.append(answer)
        return answers

    def silenced(self, answer: Answer, is_continued: bool) -> Answer:
        """The listen of a unit whose speech was taken back; `is_continued`: a part of it had been sent."""
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
        answer = Answer(
            Outcome.LISTEN,
            index,
            unit,
            None,
            done.context_tokens,
            self._context_limit,
            self._dropped_total,
            self.tokens,
            own=done.tokens,
            has_audio_output=self._has_audio_output,
            timings=timings,
            vision_slices=prefilled.vision_slices if prefilled is not None else 0,
        )
        match done.end:
            case UnitEnd.FAILED:
                answer = self._failed(answer, done.failure or Reason.INFERENCE_FAILED)
            case UnitEnd.CHUNK | UnitEnd.TURN if not unit.is_muted:
                answer = self._spoken(answer, done)
            case UnitEnd.CONTEXT_FULL if any(piece.text or piece.audio for piece in unit.said):
                answer = self._spoken(answer, done)
            case _:
                answer = replace(answer, response_id=self._close_response())
        if done.end is not UnitEnd.FAILED:
            self._failures = 0
        full = done.end is UnitEnd.CONTEXT_FULL or 0 < self._context_limit <= done.context_tokens
        if full and self.verdict is None:
            self.verdict = CONTEXT_IS_FULL
        return answer

    def _spoken(self, answer: Answer, done: UnitDone) -> Answer:
        if self.response_id is None:
            self.response_id = f"resp_{self._new_token()}"
        self._tail.spoke()
        response_id: str | None = self.response_id
        ends_turn = done.end is UnitEnd.TURN
        if ends_turn:
            response_id = self._close_response()
        return replace(
            answer,
            outcome=Outcome.SPEECH,
            response_id=response_id,
            text="".join(piece.text for piece in answer.unit.said),
            audio=b"".join(piece.audio for piece in answer.unit.said),
            ends_turn=ends_turn,
        )

    def _failed(self, answer: Answer, reason: Reason) -> Answer:
        verdict = VERDICTS.get(reason, VERDICTS[Reason.INFERENCE_FAILED])
        self._failures = self._failures + 1 if reason is Reason.INFERENCE_FAILED else 0
        if self._failures >= FAILURES_IN_A_ROW:
            self.verdict = GAVE_UP
        return replace(
            answer,
            outcome=Outcome.FAILED,
            response_id=self._close_response(),
            failure=(verdict.code or ErrorCode.INFERENCE_ERROR, verdict.message),
        )

    def _dropped(self, unit: Unit, index: int) -> Answer | None:
        self._dropped_total += 1
        if self.response_id is not None:
            # Clients flush playback on a listen: the unit that is speaking answers for this one.
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
        """The open response, which is open no longer."""
        response_id, self.response_id = self.response_id, None
        if response_id is not None:
            self._tail.turn_ended(heard_everything=all(unit.injected_silence for unit in self._pending))
        return response_id


def summed(one: TokenUsage, other: TokenUsage) -> TokenUsage:
    """Tokens of both together."""
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
