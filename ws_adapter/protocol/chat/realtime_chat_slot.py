"""The slot of a session in the chat mode of `/v1/realtime`: one for the settings, then one for each turn."""

from dataclasses import replace

from ws_adapter.protocol.chat.realtime_chat_turn import ChatTurn
from ws_adapter.protocol.chat.saved import SavedChatSlot
from ws_adapter.protocol.core.actions import (
    LeaveSlot,
    OpenWorkerSession,
    RunTurn,
    TakeSlot,
)
from ws_adapter.protocol.core.config import ChatSetup
from ws_adapter.protocol.core.machine import Action
from ws_adapter.protocol.core.signals import Ready
from ws_adapter.protocol.core.state import SlotPhase
from ws_adapter.protocol.media.reference_voice import Voice


class ChatSlot:
    """A session's slot; methods return the actions that bring it into the requested state."""

    def __init__(self) -> None:
        self.phase = SlotPhase.NONE
        self.ready: Ready | None = None
        """The `Ready` of the last worker that took the settings."""
        self.is_going_away = False
        """Whether the worker drains."""
        self.unused_at: float | None = None
        """The time at which an unused slot is given back."""
        self._has_turns_voice = False

    def save(self, *, has_journal: bool) -> SavedChatSlot | None:
        """Return the state; None if no other worker can replace the present one."""
        if not has_journal or self.phase not in (SlotPhase.READY, SlotPhase.RUNNING):
            return None
        return SavedChatSlot(self.phase is SlotPhase.RUNNING, self.ready, self._has_turns_voice)

    def restore(self, saved: SavedChatSlot) -> None:
        """Go on from a saved state."""
        self.phase = SlotPhase.RUNNING if saved.is_running else SlotPhase.READY
        self.ready, self._has_turns_voice = saved.ready, saved.has_turns_voice

    def want(self, model: str) -> list[Action]:
        """Queue for a slot of a worker with this model, empty for any."""
        self.phase = SlotPhase.WANTED
        return [TakeSlot(model)]

    def open(self, setup: ChatSetup, turns_voice: Voice | None) -> list[Action]:
        """Send the settings to the new slot's worker, with the voice of the next turn if that has one."""
        self.phase = SlotPhase.OPENING
        self._has_turns_voice = turns_voice is not None
        return [OpenWorkerSession(replace(setup, voice=turns_voice) if turns_voice is not None else setup)]

    def begun(self, ready: Ready) -> None:
        """Note that the worker took the settings."""
        self.phase = SlotPhase.READY
        self.ready = ready

    def run(self, turn: ChatTurn) -> list[Action]:
        """Have the worker answer the turn."""
        assert self.ready is not None
        self.phase = SlotPhase.RUNNING
        return [RunTurn(1, turn.begin(self.ready, has_own_session=self._has_turns_voice))]

    def leave(self) -> list[Action]:
        """Give the slot back."""
        self.phase = SlotPhase.NONE
        self.unused_at = None
        self.is_going_away = False
        return [LeaveSlot()]
