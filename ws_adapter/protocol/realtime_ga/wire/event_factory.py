"""Server events of one session, each with an id of its own."""

from collections.abc import Callable
from typing import Any

from ws_adapter.protocol.core.actions import Send
from ws_adapter.protocol.realtime_ga.wire.events import Code, RealtimeEvent, error


class EventFactory:
    """The events of one session; `new_token` returns random digits for ids."""

    def __init__(self, new_token: Callable[[], str]) -> None:
        self._new_token = new_token
        self._ids = new_token()
        self._told = 0

    @property
    def count(self) -> tuple[str, int]:
        """The prefix of all event ids, and the number of the last one."""
        return self._ids, self._told

    def go_on(self, ids: str, told: int) -> None:
        """Continue after the last event of another adapter, whose `count` is `ids` and `told`."""
        self._ids, self._told = ids, told

    def new_id(self, kind: str) -> str:
        """Return an id for an object of this kind, such as `item_0123456789ab`."""
        return f"{kind}_{self._new_token()}"

    def event(self, shape: type[RealtimeEvent], **fields: Any) -> Send:
        """Return an event of this shape."""
        return self.sound(shape, None, **fields)

    def sound(self, shape: type[RealtimeEvent], seconds: float | None, **fields: Any) -> Send:
        """Return an audio event of this shape, with the seconds of its audio."""
        return Send(shape(event_id=self._new_event_id(), **fields), audio_s=seconds)

    def error(
        self, code: Code | None, message: str, param: str | None = None, event_id: str | None = None
    ) -> Send:
        """Return an error; `event_id` is the client's id of the event at fault."""
        return Send(error(self._new_event_id(), code, message, param, event_id))

    def _new_event_id(self) -> str:
        self._told += 1
        return f"event_{self._ids}{self._told}"
