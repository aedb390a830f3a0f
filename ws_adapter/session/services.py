"""Services that all sessions of a server share."""

from dataclasses import dataclass, field

from ws_adapter.detection.detector import Detector
from ws_adapter.dispatch.base import Dispatcher
from ws_adapter.options import AdapterOptions
from ws_adapter.process.clock import Clock
from ws_adapter.process.load import Load
from ws_adapter.session.readers import Readers
from ws_adapter.session.spare_slots import SpareSlots
from ws_adapter.shared_journal.journals import SharedJournals
from ws_adapter.usage.accounts import Accounts
from ws_adapter.worker.journal import Journals
from ws_adapter.worker.registry import Registry


@dataclass(slots=True)
class Services:
    """Services that all sessions of a server share."""

    options: AdapterOptions
    """The current options, replaced when settings are reloaded."""
    dispatcher: Dispatcher
    registry: Registry
    clock: Clock
    load: Load
    readers: Readers
    detector: Detector
    journals: Journals
    accounts: Accounts
    shared_journals: SharedJournals | None = None
    """Journals of sessions in Redis; None where it keeps none."""
    spare_slots: SpareSlots = field(default_factory=SpareSlots)
