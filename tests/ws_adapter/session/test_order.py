"""The order in which a session carries out what its machine returns."""

from typing import Any, ClassVar

import pytest

from tests.ws_adapter.support.stage import running_adapter
from ws_adapter.protocol.core.actions import CloseSocket, Send, Withdraw
from ws_adapter.protocol.core.machine import Action
from ws_adapter.protocol.duplex.realtime_events import SessionClosed
from ws_adapter.protocol.wire.errors import CloseCode
from ws_adapter.server.protocols import MachineFactory


def told(reason: str) -> Send:
    return Send(SessionClosed(reason=reason))


class Script:
    """A machine that answers the first frame by an action that brings it a signal, and then by more."""

    drops_stale: ClassVar = False
    can_be_saved: ClassVar = False
    is_over = False
    is_waiting = False
    held_bytes = 0
    deadline = None

    def opened(self, now: float) -> list[Action]:
        return []

    def text_frame(self, frame: bytes, now: float, *, drops_input: bool = False) -> list[Action]:
        return [told("first"), Withdraw("response"), told("second"), told("third")]

    def withdrawn(self, sends: list[Send]) -> list[Action]:
        return [told("withdrawn"), CloseSocket(CloseCode.NORMAL, "done")]

    def shut_down(self) -> list[Action]:
        return []

    def disconnected(self) -> None:
        self.is_over = True


async def test_actions_caused_by_action_follow_its_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    def make(*_: Any) -> Script:
        return Script()

    monkeypatch.setattr(MachineFactory, "make", make)
    async with running_adapter("127.0.0.1:9", wait=False) as stage, stage.client() as client:
        await client.socket.send("{}")

        events, code = await client.end()

    assert [event["reason"] for event in events] == ["first", "second", "third", "withdrawn"]
    assert code == CloseCode.NORMAL
