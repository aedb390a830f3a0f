"""What the dialects of `/v1/realtime` have in common, whichever of them is spoken."""

from collections.abc import Callable

from ws_adapter.protocol.core import render
from ws_adapter.protocol.core.config import Mode
from ws_adapter.protocol.duplex.append import InputRules
from ws_adapter.protocol.duplex.vocabulary import Place
from ws_adapter.protocol.wire.errors import Refusal
from ws_adapter.protocol.wire.events import ServerEvent, SessionQueueDone


class RealtimePath:
    """The queue, errors, and what a session brings along; see `Vocabulary`.

    `recording_id` is that of the session's recording, if one is made.
    """

    ignores_second_opener = False

    def __init__(
        self,
        session_id: str,
        mode: Mode,
        max_append_s: float,
        new_id: Callable[[str], str],
        recording_id: str | None = None,
    ) -> None:
        self._session_id = session_id
        self._mode = mode
        self._rules = InputRules(max_append_s, mode is Mode.VIDEO, new_id)
        self._recording_id = recording_id

    def queued(self, place: Place, *, is_update: bool) -> ServerEvent:
        """See `Vocabulary.queued`."""
        return render.queued(place, is_update=is_update)

    def slot_assigned(self, *, has_waited: bool) -> list[ServerEvent]:
        """See `Vocabulary.slot_assigned`."""
        return [SessionQueueDone()]

    def refused(self, refusal: Refusal, input_id: str | None) -> ServerEvent:
        """See `Vocabulary.refused`."""
        return render.error(refusal.code, refusal.message, refusal.param, input_id)
