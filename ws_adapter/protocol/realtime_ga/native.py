"""Turns that the model takes by itself (`semantic_vad`): it hears the user all the time, and speaks when it
decides to. A response is one spoken turn of it."""

from collections import OrderedDict
from collections.abc import Iterable
from typing import Final, Literal

from ws_adapter.protocol.core.actions import Action, Rewind, Withdraw
from ws_adapter.protocol.core.answer import Answer, Outcome
from ws_adapter.protocol.core.config import DuplexConfig, Mode, SessionSetup
from ws_adapter.protocol.core.signals import (
    OUTPUT_RATE_HZ,
    Finalized,
    Piece,
    Prefilled,
    Ready,
    Rewound,
    UnitDone,
    UnitEnd,
)
from ws_adapter.protocol.core.turn import Turn
from ws_adapter.protocol.duplex.flow import Step, UnitFlow, summed
from ws_adapter.protocol.duplex.input import Append
from ws_adapter.protocol.realtime_ga.conversation import Conversation
from ws_adapter.protocol.realtime_ga.response import Asked, Response
from ws_adapter.protocol.realtime_ga.settings import Settings, format_of, voice_of
from ws_adapter.protocol.realtime_ga.wire.events import type_of
from ws_adapter.protocol.realtime_ga.wire.refusals import code_of
from ws_adapter.protocol.realtime_ga.wire.resources import ResponseError
from ws_adapter.protocol.realtime_ga.wire.teller import Teller
from ws_adapter.protocol.realtime_ga.worker_slot import Hold, WorkerSlot
from ws_adapter.protocol.wire.codec import Clip, Samples
from ws_adapter.protocol.wire.errors import ErrorCode, Refusal, Verdict, invalid
from ws_adapter.protocol.wire.events import NO_TOKENS
from ws_adapter.protocol.wire.limits import Limits, is_due

MOST_SPOKEN: Final = 16
"""Items of which it is known in which units they were said."""

_WIDTH: Final = 4
"""Bytes of a sample of the worker."""


class Native:
    """See above. The settings are those that hold when it begins, and stay."""

    def __init__(
        self, settings: Settings, conversation: Conversation, teller: Teller, limits: Limits
    ) -> None:
        is_silent = settings.modality == "text"
        self.setup = SessionSetup(
            mode=Mode.AUDIO,
            system_prompt=settings.instructions,
            duplex=DuplexConfig(generate_audio=False if is_silent else None),
            voice=voice_of(settings.voice_name),
            model=settings.model,
        )
        self.active: Response | None = None
        """The turn that the model is speaking."""
        self.has_begun = False
        self.idle_at: float | None = None
        """When nothing was heard for too long."""
        self._settings = settings
        self._conversation = conversation
        self._teller = teller
        self._limits = limits
        self._flow = UnitFlow(limits, lambda: teller.new_id("turn"))
        self._tokens = NO_TOKENS
        """Of the open response."""
        self._item_id = ""
        self._spoken: OrderedDict[str, list[tuple[int, int]]] = OrderedDict()
        """The units that said an item, and the samples of each."""
        self._finalized = 0
        self._rewind: Rewind | None = None
        """What waits for its unit to be closed."""

    @property
    def held_bytes(self) -> int:
        """Of input that waits or is at the worker."""
        return self._flow.held_bytes

    @property
    def deadline(self) -> float | None:
        """When `tick` is due."""
        times = [at for at in (self._flow.deadline, self.idle_at) if at is not None]
        return min(times, default=None)

    @property
    def verdict(self) -> Verdict | None:
        """Why the session cannot go on."""
        return self._flow.answers.verdict

    def check(self, settings: Settings) -> None:
        """Raises `Refusal` for settings that a conversation under way cannot have."""
        own, stays = self._settings, "stays as it is while the model takes turns by itself"
        fixed = {
            "session.instructions": own.instructions != settings.instructions,
            "session.output_modalities": own.modality != settings.modality,
            "session.audio.output.voice": own.voice_name != settings.voice_name,
            "session.audio.output.format": own.output.format != settings.output.format,
            "session.audio.input.turn_detection.type": type(own.turn_detection)
            is not type(settings.turn_detection),
        }
        for path, is_changed in fixed.items():
            if is_changed:
                raise invalid(path, stays)

    # ---------------------------------------------------------------------------------- the worker

    def advance(self, slot: WorkerSlot, by: float) -> list[Action]:
        """What brings the conversation to a worker, at the latest then."""
        actions: list[Action] = []
        if slot.hold in (Hold.OPENING, Hold.READY) and slot.setup != self.setup:
            actions += slot.leave()  # it was opened for turns of chat
        match slot.hold:
            case Hold.NONE:
                actions += slot.want(by)
            case Hold.HELD:
                actions += slot.open(self.setup)
        return actions

    def begin(self, ready: Ready, now: float) -> list[Action]:
        """The model hears from now on, and what it was told before."""
        self.has_begun, self.idle_at = True, now + self._limits.duplex_idle_s
        return self._do(self._flow.begin(ready, now))

    def signal(self, signal: Prefilled | Piece | UnitDone | Finalized | Rewound, now: float) -> list[Action]:
        """The worker has news of a unit."""
        actions = self._do(self._flow.signal(signal, now))
        if isinstance(signal, Finalized):
            self._finalized = signal.unit
            actions += self._due_rewind()
        return actions

    # ------------------------------------------------------------------------------------ the user

    def hear(self, samples: Samples, now: float) -> list[Action]:
        """More of what the user says."""
        if self.has_begun:
            self.idle_at = now + self._limits.duplex_idle_s
        return self._do(self._flow.append(Append(Clip(samples), ""), now))

    def congested(self, is_congested: bool, now: float) -> list[Action]:
        """While the client does not read, the model hears nothing more."""
        self._flow.congested = is_congested
        return self._do(self._flow.advance(now))

    def tick(self, now: float) -> list[Action]:
        """Fills up a second that comes no further."""
        return self._do(self._flow.tick(now))

    def is_idle(self, now: float) -> bool:
        """Whether nothing was heard for too long."""
        return is_due(self.idle_at, now)

    def interrupt(self, reason: Literal["turn_detected", "client_cancelled"]) -> list[Action]:
        """The model is silent from now on, and listens to what comes."""
        response, self.active = self.active, None
        if response is None:
            return []
        return [*self._do(self._flow.interrupt()), *response.cancelled(reason)]

    def rewind(self, item_id: str, heard_ms: int) -> list[Action]:
        """The model forgets what it said after that. Of an item of long ago nothing is known any more."""
        units = self._spoken.get(item_id)
        if not units:
            return []
        heard = heard_ms * OUTPUT_RATE_HZ // 1000
        self._rewind = Rewind(units[-1][0])
        for unit, samples in units:
            if heard < samples:
                self._rewind = Rewind(unit, heard)
                break
            heard -= samples
        return self._due_rewind()

    def _due_rewind(self) -> list[Action]:
        order = self._rewind
        if order is None or order.unit > self._finalized:
            return []
        self._rewind = None
        return [order]

    # ----------------------------------------------------------------------------------- the answers

    def _do(self, steps: Iterable[Step]) -> list[Action]:
        actions: list[Action] = []
        for step in steps:
            if isinstance(step, Answer):
                actions += self._answer(step)
            elif not isinstance(step, Withdraw):  # what was told was told with no answer
                actions.append(step)
        return actions

    def _answer(self, answer: Answer) -> list[Action]:
        done = answer.unit.done
        if answer.outcome is Outcome.SPEECH and done is not None:
            return self._speak(answer, done)
        actions: list[Action] = []
        if answer.outcome is Outcome.FAILED and answer.failure is not None:
            refusal = Refusal(*answer.failure)
            code = code_of(refusal)
            actions.append(self._teller.error(code, refusal.message))
            if self.active is not None and code is not None:
                actions += self.active.failed(ResponseError(type_of(code), code, refusal.message))
                self.active = None
        if answer.response_id is not None and self.active is not None and done is not None:
            actions += self._end(done)
        return actions

    def _speak(self, answer: Answer, done: UnitDone) -> list[Action]:
        actions: list[Action] = []
        if self.active is None:
            self.active, self._tokens, self._item_id = self._new_response(), NO_TOKENS, ""
            actions += self.active.created()
        if answer.text or answer.audio:
            actions += self.active.said(Piece(done.unit, answer.text, answer.audio))
            if not self._item_id:
                self._item_id = self._conversation.last_id or ""
                self._spoken[self._item_id] = []
                while len(self._spoken) > MOST_SPOKEN:
                    self._spoken.popitem(last=False)
            self._spoken[self._item_id].append((done.unit, len(answer.audio) // _WIDTH))
        self._tokens = summed(self._tokens, answer.own)
        return [*actions, *(self._end(done) if answer.ends_turn else ())]

    def _end(self, done: UnitDone) -> list[Action]:
        response, self.active = self.active, None
        assert response is not None
        end = UnitEnd.CONTEXT_FULL if done.end is UnitEnd.CONTEXT_FULL else UnitEnd.TURN
        return response.done(UnitDone(done.unit, end, done.context_tokens, self._tokens))

    def _new_response(self) -> Response:
        settings = self._settings
        self._conversation.make_room()
        asked = Asked(
            turn=Turn(()),
            setup=self.setup,
            modality=settings.modality,
            format=format_of(settings.output.format),
            voice=settings.voice_name,
            max_output_tokens="inf",
            conversation=self._conversation,
        )
        return Response(asked, self._teller)


def model_decides(what: str) -> Refusal:
    """Why something cannot be asked of a model that takes turns by itself."""
    return Refusal(
        ErrorCode.INVALID_PAYLOAD, f"{what}: the model takes turns by itself (semantic_vad)", "type"
    )
