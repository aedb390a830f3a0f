"""Common rules of the current and the earlier dialect of `/v1/realtime`: queue, begin, end and errors."""

from abc import abstractmethod
from collections.abc import Iterator

from antiphon_command.probe.rules import (
    NORMAL_CLOSURE,
    Event,
    Queue,
    Rules,
    envelope,
)


class RealtimePath(Rules):
    """Rules of a session that waits in the queue, is created, converses and is closed."""

    path = "/v1/realtime"

    def __init__(self, mode: str) -> None:
        super().__init__()
        self.query = f"mode={mode}"
        self._queue = Queue("session.")
        self._response_id: str | None = None
        """The id of the open response."""

    def ending(self) -> list[Event]:
        return [{"type": "session.close", "reason": "user_stop"}]

    def received(self, event: Event) -> Iterator[str]:
        if self.is_over:
            yield f"{event['type']} after session.closed"
        yield from self._any(event)
        if self._queue.takes(event):
            yield from self._queue.received(event)
            return
        match event["type"]:
            case "session.created":
                if not self._queue.is_done:
                    yield "session.created before session.queue_done"
                yield from self._created(event)
                self.is_ready = True
            case "session.closed":
                self.is_over = True
                yield from self._closed(event)
            case "error":
                yield from envelope(event)
                yield f"an error that the client did not cause: {event.get('error')}"
            case _:
                yield from self._output(event)

    def _any(self, event: Event) -> Iterator[str]:
        """Yield the violations of any event."""
        yield from ()

    @abstractmethod
    def _created(self, event: Event) -> Iterator[str]:
        """Yield the violations of the session's beginning."""

    @abstractmethod
    def _output(self, event: Event) -> Iterator[str]:
        """Yield the violations of an event of the conversation."""

    @abstractmethod
    def _closed(self, event: Event) -> Iterator[str]:
        """Yield the violations of the session's end."""

    def finished(self, code: int | None) -> Iterator[str]:
        if not self.is_over:
            yield "the socket closed without session.closed"
        if code != NORMAL_CLOSURE:
            yield f"the close code is {code}, not {NORMAL_CLOSURE}"
