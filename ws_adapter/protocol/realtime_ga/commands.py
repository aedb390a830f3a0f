"""The effect of each client event on a session that has begun."""

from collections.abc import Callable
from functools import partial
from typing import Any

from msgspec import Struct

from ws_adapter.protocol.core.machine import Action
from ws_adapter.protocol.realtime_ga.answers import Answers
from ws_adapter.protocol.realtime_ga.client_items import read_item
from ws_adapter.protocol.realtime_ga.dialogue import Dialogue
from ws_adapter.protocol.realtime_ga.response_settings import NOTHING_DIFFERENT, read_input
from ws_adapter.protocol.realtime_ga.retrieval import with_media
from ws_adapter.protocol.realtime_ga.wire import events
from ws_adapter.protocol.realtime_ga.wire.client_events import (
    AudioAppend,
    AudioClear,
    AudioCommit,
    ClientEvent,
    ItemCreate,
    ItemDelete,
    ItemRetrieve,
    ItemTruncate,
    OutputClear,
    ResponseCancel,
    ResponseCreate,
    SessionUpdate,
)
from ws_adapter.protocol.realtime_ga.wire.event_factory import EventFactory
from ws_adapter.protocol.realtime_ga.wire.events import Code
from ws_adapter.protocol.realtime_ga.wire.items import Item
from ws_adapter.protocol.realtime_ga.wire.refusals import Denied
from ws_adapter.protocol.wire import errors
from ws_adapter.protocol.wire.codec import CutBase64, decode_base64
from ws_adapter.protocol.wire.errors import ErrorCode, Refusal
from ws_adapter.protocol.wire.limits import LARGE_FRAME


class DeferredRead(Struct, frozen=True):
    """A slow reading of an event of `size` bytes: `read` may take long and changes nothing, `then` takes
    its result."""

    size: int
    read: Callable[[], Any]
    then: Callable[[Any], list[Action]]


class Commands:
    """The effects of client events. A method that raises `Refusal` has changed nothing."""

    def __init__(self, factory: EventFactory, answers: Answers) -> None:
        self._factory = factory
        self._answers = answers
        self._refuses_audio = False
        """Whether the client was told that its audio is not accepted."""

    def obey(
        self, event: ClientEvent, dialogue: Dialogue, size: int, now: float
    ) -> list[Action] | DeferredRead:
        """Carry out an event whose frame had `size` bytes."""
        match event:
            case AudioAppend():
                return self._append(event, dialogue, size, now)
            case SessionUpdate():
                return dialogue.update(event, now)
            case AudioCommit():
                self._refuses_audio = False
                return dialogue.commit()
            case AudioClear():
                self._refuses_audio = False
                return dialogue.clear()
            case OutputClear():
                self._answers.flush()
            case ItemCreate():
                return self._create_item(event, dialogue, size)
            case ItemRetrieve():
                return self._retrieve(event, dialogue)
            case ItemTruncate():
                return dialogue.truncate(event)
            case ItemDelete():
                return dialogue.delete(event)
            case ResponseCreate():
                fields = event.response or NOTHING_DIFFERENT
                read = partial(read_input, fields, dialogue.settings, dialogue.conversation)
                return DeferredRead(size, read, lambda given: dialogue.respond(fields, given))
            case ResponseCancel():
                return dialogue.cancel(event)
        return []

    def _append(
        self, event: AudioAppend, dialogue: Dialogue, size: int, now: float
    ) -> list[Action] | DeferredRead:
        assert event.audio is not None
        try:
            if isinstance(event.audio, CutBase64) and event.audio.data is None:
                raise Refusal(ErrorCode.SERVICE_UNAVAILABLE, errors.OVERLOADED.message)
            dialogue.check_audio(0)
            data = decode_base64(event.audio, "audio")
            dialogue.check_audio(len(data))
        except Refusal:
            if self._refuses_audio:
                return []  # the client was told before, and audio comes continuously
            self._refuses_audio = True
            raise
        self._refuses_audio = False
        if size <= LARGE_FRAME:
            return dialogue.heard(dialogue.buffer.append(data), now)
        return DeferredRead(
            size, partial(dialogue.buffer.append, data), lambda samples: dialogue.heard(samples, now)
        )

    def _create_item(self, event: ItemCreate, dialogue: Dialogue, size: int) -> DeferredRead:
        assert event.item is not None
        new_id, settings = self._factory.new_id("item"), dialogue.settings
        read = partial(read_item, event.item, new_id, settings.input_format, settings.abilities, "item")
        return DeferredRead(size, read, lambda entry: dialogue.create_item(event, entry))

    def _retrieve(self, event: ItemRetrieve, dialogue: Dialogue) -> DeferredRead:
        assert event.item_id is not None
        entry = dialogue.conversation.find(event.item_id, Code.RETRIEVE_UNKNOWN)
        if self._answers.is_congested:
            raise Denied(Code.RATE_LIMITED, "read the pending events; then items can be retrieved")
        size = len(entry.sound) + entry.size
        seconds = size / dialogue.buffer.format.bytes_per_s

        def tell(item: Item) -> list[Action]:
            return [self._factory.sound(events.ItemRetrieved, seconds, item=item)]

        return DeferredRead(size, partial(with_media, entry, dialogue.settings.input_format), tell)
