"""The state of a Live session as plain data, from which another adapter continues it.

Times are ages in seconds at the moment of saving; a time in the future is negative.
"""

from msgspec import Struct

from ws_adapter.protocol.core.signals import TextPurpose
from ws_adapter.protocol.core.transcriptions import SavedTranscription
from ws_adapter.protocol.duplex.saved import SavedDeadlines, SavedFlow
from ws_adapter.protocol.live.conversation import SavedConversation
from ws_adapter.protocol.live.events import SessionResource
from ws_adapter.protocol.live.settings import Settings
from ws_adapter.protocol.wire.errors import Verdict


class SavedTerms(Struct, frozen=True):
    """The rarely changing state of a session, which is serialised again only if it changes."""

    settings: Settings
    resource: SessionResource
    ids: str
    interrupts: bool
    purposes: frozenset[TextPurpose]
    unit_s: float


class SavedLive(Struct, frozen=True):
    """The state of a `Live`. `terms` is the number of a serialised `SavedTerms`."""

    terms: int
    told: int
    flow: SavedFlow
    deadlines: SavedDeadlines
    conversation: SavedConversation
    speeches: int
    awaited: tuple[SavedTranscription, ...]
    end: Verdict | None
    end_ago: float | None
    is_flow_over: bool
