"""Turns that the model takes by itself (`semantic_vad`): it gets the user's audio all the time, and
decides when to speak. A response is one of its spoken turns."""

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final, Literal

from ws_adapter.protocol.core.actions import Rewind, Withdraw
from ws_adapter.protocol.core.answer import Answer, Outcome, StandaloneText
from ws_adapter.protocol.core.blobs import Blobs, Saved
from ws_adapter.protocol.core.config import DuplexConfig, Mode, SessionSetup
from ws_adapter.protocol.core.machine import Action
from ws_adapter.protocol.core.signals import (
    OUTPUT_RATE_HZ,
    Finalized,
    Piece,
    Ready,
    TextPurpose,
    UnitDone,
    UnitEnd,
    UnitSignal,
)
from ws_adapter.protocol.core.turn import Turn
from ws_adapter.protocol.duplex.flow import Step, UnitFlow, summed
from ws_adapter.protocol.duplex.input import BYTES_PER_S, Append
from ws_adapter.protocol.duplex.texts import MOST_BYTES as MOST_TEXT_BYTES
from ws_adapter.protocol.realtime_ga.conversation import MOST_HISTORY, Conversation, prompt_of
from ws_adapter.protocol.realtime_ga.input_buffer import MOST_S, Replay
from ws_adapter.protocol.realtime_ga.response import Response, ResponseSettings
from ws_adapter.protocol.realtime_ga.saved.session import SavedNative
from ws_adapter.protocol.realtime_ga.settings import Settings, format_of, voice_of
from ws_adapter.protocol.realtime_ga.wire.event_factory import EventFactory
from ws_adapter.protocol.realtime_ga.wire.events import Code, type_of
from ws_adapter.protocol.realtime_ga.wire.refusals import Denied, code_of
from ws_adapter.protocol.realtime_ga.wire.resources import ResponseError
from ws_adapter.protocol.realtime_ga.worker_slot import WorkerSlot, WorkerSlotPhase
from ws_adapter.protocol.wire.codec import Clip, Samples
from ws_adapter.protocol.wire.errors import CONTEXT_IS_FULL, Refusal, Verdict
from ws_adapter.protocol.wire.events import NO_TOKENS
from ws_adapter.protocol.wire.limits import Limits

MOST_SPOKEN: Final = 16
"""The most items whose units are known."""

_WIDTH: Final = 4
"""Bytes of a sample at the worker."""

_WAITING_S: Final = 2 * int(MOST_S) + 1
"""The seconds that can wait: the bound, and the append that exceeds it."""

_CHUNK_TOKENS: Final = 20
"""The default limit of text tokens in a unit; the worker gets the limit of the client only if it is lower."""


class Native:
    """The native turns of a session.

    The session at the worker begins with the first audio. For a change that this session cannot take,
    another session is opened: it gets the unanswered audio again, and the history as text.
    """

    def __init__(
        self, settings: Settings, conversation: Conversation, factory: EventFactory, limits: Limits
    ) -> None:
        self.setup: SessionSetup | None = None
        """The setup at the worker; None: a session has to be opened."""
        self.active: Response | None = None
        """The response of the model's current turn."""
        self.has_begun = False
        self.has_spoken = False
        self.is_away = False
        """Whether a client's response is running as a chat turn, during which the model gets no audio."""
        self._settings = settings
        self._conversation = conversation
        self._factory = factory
        self._limits = replace(
            limits,
            max_lag_s=math.inf,
            max_waiting_units=_WAITING_S,
            max_waiting_bytes=_WAITING_S * BYTES_PER_S,
        )
        self._most_history = MOST_HISTORY
        self._is_stale = False
        """Whether the worker lacks a change: another session is opened when the user speaks next."""
        self._purposes: frozenset[TextPurpose] = frozenset()
        self._replay = Replay()
        self._tokens = NO_TOKENS
        """The tokens of the open response."""
        self._item_id = ""
        self._forget_session()

    def _forget_session(self) -> None:
        self.setup, self.has_begun, self._is_stale = None, False, False
        unit_s = self._settings.abilities.unit_ms / 1000
        self._flow = UnitFlow(self._limits, lambda: self._factory.new_id("turn"), unit_s)
        self._units_answered = 0
        self._spoken: OrderedDict[str, list[tuple[int, int]]] = OrderedDict()
        """The units of each spoken item, with the samples of each."""
        self._finalized = 0
        self._rewind: Rewind | None = None
        """A rewind that waits for its unit to be closed."""

    def save(
        self, responses: Sequence[Response], now: float, blobs: Blobs, *, has_journal: bool
    ) -> SavedNative:
        """Return the state, with the place of its response among `responses`.

        Without a journal another session is opened, which starts empty.
        """
        return SavedNative(
            self.setup if has_journal else None,
            responses.index(self.active) if self.active is not None else None,
            self.has_begun and has_journal,
            self.has_spoken,
            self.is_away,
            self._most_history,
            self._is_stale,
            self._purposes,
            self._replay.save(blobs),
            self._tokens,
            self._item_id,
            self._flow.save(now),
            self._units_answered,
            tuple((item_id, tuple(units)) for item_id, units in self._spoken.items()),
            self._finalized,
            self._rewind,
        )

    def restore(self, saved: SavedNative, responses: Sequence[Response], now: float, blobs: Saved) -> None:
        """Go on from a saved state. Raises `ValueError`, `KeyError` or `IndexError`."""
        self.setup, self.has_begun, self.has_spoken = saved.setup, saved.has_begun, saved.has_spoken
        self.active = responses[saved.active] if saved.active is not None else None
        self.is_away, self._most_history = saved.is_away, saved.most_history
        self._is_stale, self._purposes = saved.is_stale, saved.purposes
        self._replay.restore(saved.replay, blobs)
        self._tokens, self._item_id = saved.tokens, saved.item_id
        self._flow.restore(saved.flow, now)
        self._units_answered = saved.units_answered
        self._spoken = OrderedDict((item_id, list(units)) for item_id, units in saved.spoken)
        self._finalized, self._rewind = saved.finalized, saved.rewind

    @property
    def held_bytes(self) -> int:
        """Bytes of input that wait or are at the worker."""
        return self._flow.held_bytes + self._replay.held_bytes

    @property
    def deadline(self) -> float | None:
        """The time at which `tick` is due."""
        return self._flow.deadline

    @property
    def verdict(self) -> Verdict | None:
        """The reason why the session cannot continue."""
        verdict = self._flow.answers.verdict
        is_full = verdict is CONTEXT_IS_FULL and self._conversation.ratio is not None
        return None if is_full and self._units_answered > 1 else verdict

    def check_room(self, size: int) -> None:
        """Raise `Refusal` if `size` more samples exceed the bound of waiting input."""
        if self._flow.held_bytes + _WIDTH * size > MOST_S * BYTES_PER_S:
            message = f"at most {MOST_S:g} s of audio may wait for the model; send it in real time"
            raise Denied(Code.BUFFER_FULL, message, "audio")

    # ---------------------------------------------------------------------- the session at the worker

    def advance(self, slot: WorkerSlot, by: float, now: float) -> list[Action]:
        """Return the actions that open the session at a worker, at the latest `by`, once there is input."""
        actions: list[Action] = []
        if self._flow.answers.verdict is not None:
            response, self.active = self.active, None
            actions += [*(response.cut() if response is not None else ()), *self.restart(now)]
        if self._is_stale and not self._units_answered and not self._flow.held_bytes:
            actions += self.restart(now)  # the model has heard nothing yet
        if not self.has_begun and not self._flow.held_bytes:
            return actions
        if slot.phase in (WorkerSlotPhase.OPENING, WorkerSlotPhase.READY) and slot.setup is not self.setup:
            actions += slot.leave()  # it was opened for turns of chat, or is not up to date
        match slot.phase:
            case WorkerSlotPhase.NONE:
                actions += slot.want(by)
            case WorkerSlotPhase.HELD:
                actions += self.open(slot)
        return actions

    def open(self, slot: WorkerSlot) -> list[Action]:
        """Send the setup of the session to the waiting worker."""
        self.setup = self._new_setup()
        return slot.open(self.setup)

    def _new_setup(self) -> SessionSetup:
        settings = self._settings
        most = settings.max_output_tokens
        duplex = DuplexConfig(
            generate_audio=False if settings.modality == "text" else None,
            max_new_speak_tokens_per_chunk=int(most) if most != "inf" and int(most) < _CHUNK_TOKENS else None,
        )
        return SessionSetup(
            mode=Mode.AUDIO,
            system_prompt=prompt_of(settings.instructions, self._conversation.written(), self._most_history),
            duplex=duplex,
            voice=voice_of(settings.voice_name),
            model=settings.model,
            unit_ms=settings.abilities.unit_ms,
        )

    def restart(self, now: float) -> list[Action]:
        """Open another session, which gets the unanswered audio again."""
        congested = self._flow.congested
        self._forget_session()
        self._flow.congested = congested
        return self._put(self._replay.samples, now)

    def give_back(self, now: float) -> None:
        """Handle a slot that was given back: another session is opened when there is input for it."""
        self._replay.clear()
        self.restart(now)

    def shorten(self) -> bool:
        """Shorten the history for the next session after a failed opening; return False if there was none."""
        had_none = self.setup is None or self.setup.system_prompt == self._settings.instructions
        self.setup, self._most_history = None, self._most_history // 4
        return not had_none

    def begin(self, ready: Ready, now: float) -> list[Action]:
        """Begin to feed the model, first with the audio that it gets again."""
        self.has_begun, self._purposes = True, ready.text_purposes
        return self._do(self._flow.begin(ready, now))

    def signal(self, signal: UnitSignal, now: float) -> list[Action]:
        """Handle a signal of the worker about a unit."""
        actions = self._do(self._flow.signal(signal, now))
        if isinstance(signal, Finalized):
            self._finalized = signal.unit
            actions += self._due_rewind()
        return actions

    # ----------------------------------------------------------------------------- settings and texts

    def change(self, settings: Settings) -> None:
        """Apply other settings: at once if the worker can take them, else from the user's next words on."""
        old, self._settings = self._settings, settings
        own, new = ((one.modality, one.voice_name, one.max_output_tokens) for one in (old, settings))
        if own != new:
            self.expire()
        elif bool(old.instructions) != bool(settings.instructions):
            self.expire_prompt()
        elif old.instructions != settings.instructions:
            self.tell(settings.instructions)

    def tell(self, text: str) -> None:
        """Queue a text that the model reads before its next unit, if it can."""
        told, texts = StandaloneText(TextPurpose.INSTRUCTIONS, text), self._flow.texts
        can_read = self.has_begun and TextPurpose.INSTRUCTIONS in self._purposes
        if can_read and text and told.size <= MOST_TEXT_BYTES and not texts.is_full:
            texts.put(told)
        else:
            self.expire_prompt()

    def expire(self) -> None:
        """Mark the session at the worker as outdated: another one replaces it at the user's next words."""
        self._is_stale = self.setup is not None

    def expire_prompt(self) -> None:
        """Replace the session as `expire` does, unless the model reads no prompts."""
        if self._settings.abilities.reads_prompts:
            self.expire()

    def knows(self, item_id: str) -> bool:
        """Return whether the units of a spoken item are known."""
        return item_id in self._spoken

    def leave(self, *, user_speaks: bool) -> None:
        """Leave the native mode for a response that is answered as a turn of chat."""
        if not self.is_away:
            self.is_away = True
            if not user_speaks:
                self._replay.clear()
            self._forget_session()

    def come_back(self, now: float) -> list[Action]:
        """Return to the native mode; the model gets the audio since the chat turn."""
        self.is_away = False
        return self.restart(now)

    # ------------------------------------------------------------------------------------ the user

    def hear(self, samples: Samples, now: float) -> list[Action]:
        """Take more of the user's audio."""
        self._replay.hear(samples)
        return [] if self.is_away else self._put(samples, now)

    def _put(self, samples: Samples, now: float) -> list[Action]:
        return self._do(self._flow.append(Append(Clip(samples), ""), now)) if samples.size else []

    def user_began(self, samples: Samples, now: float) -> list[Action]:
        """Note that the user speaks since the first of these `samples`, which the model has already got."""
        self._replay.begin(samples)
        return self.restart(now) if self._is_stale and self.active is None and not self.is_away else []

    def user_was_answered(self) -> None:
        """Note that a turn of chat answered the user's words."""
        self._replay.clear()

    def congested(self, is_congested: bool, now: float) -> list[Action]:
        """Handle the start or end of back-pressure, during which the model gets no more audio."""
        self._flow.congested = is_congested
        return self._do(self._flow.advance(now))

    def tick(self, now: float) -> list[Action]:
        """Pad and run an incomplete unit."""
        return self._do(self._flow.tick(now))

    def interrupt(self, reason: Literal["turn_detected", "client_cancelled"]) -> list[Action]:
        """Interrupt the model, which listens to further input."""
        response, self.active = self.active, None
        if response is None:
            return []
        return [*self._do(self._flow.interrupt()), *response.cancelled(reason)]

    def rewind(self, item_id: str, heard_ms: int) -> list[Action]:
        """Undo the model's output of an item after `heard_ms`. Nothing happens if its units are not known any
        more."""
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
            elif not isinstance(step, Withdraw):  # no event sent here has an answer to withdraw
                actions.append(step)
        return actions

    def _answer(self, answer: Answer) -> list[Action]:
        self._units_answered += 1
        done = answer.unit.done
        if answer.outcome is Outcome.SPEECH and done is not None:
            return self._speak(answer, done)
        actions: list[Action] = []
        if answer.outcome is Outcome.FAILED and answer.failure is not None:
            refusal = Refusal(*answer.failure)
            code = code_of(refusal)
            actions.append(self._factory.error(code, refusal.message))
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
            self._replay.clear()
            actions += self.active.created()
        if answer.text or answer.audio:
            actions += self.active.said(Piece(done.unit, answer.text, answer.audio))
            if not self._item_id:
                self._item_id = self._conversation.last_id or ""
                self._spoken[self._item_id] = []
                while len(self._spoken) > MOST_SPOKEN:
                    self._spoken.popitem(last=False)
            self._spoken[self._item_id].append((done.unit, len(answer.audio) // _WIDTH))
            self.has_spoken |= self.active.has_spoken
        self._tokens = summed(self._tokens, answer.own)
        self.active.counted(self._tokens)
        if answer.ends_turn:
            return [*actions, *self._end(done)]
        most = self.active.asked.max_output_tokens
        if most != "inf" and self._tokens.output_token_details.text_tokens >= int(most):
            response, self.active = self.active, None
            return [*actions, *self._do(self._flow.interrupt()), *response.cut()]
        return actions

    def _end(self, done: UnitDone) -> list[Action]:
        response, self.active = self.active, None
        assert response is not None
        end = UnitEnd.CONTEXT_FULL if done.end is UnitEnd.CONTEXT_FULL else UnitEnd.TURN
        return response.done(UnitDone(done.unit, end, done.context_tokens, self._tokens))

    def _new_response(self) -> Response:
        settings = self._settings
        self._conversation.make_room()
        asked = ResponseSettings(
            turn=Turn(()),
            setup=settings.setup,
            modality=settings.modality,
            format=format_of(settings.output.format),
            voice=settings.voice_name,
            max_output_tokens=settings.max_output_tokens,
            conversation=self._conversation,
        )
        return Response(asked, self._factory)
