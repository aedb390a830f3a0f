"""The contract that the machines of all protocols share."""

from collections.abc import Callable

import pytest

from tests.ws_adapter.support.chat_conversation import ChatJar, RealtimeChatJar
from tests.ws_adapter.support.conversation import Conversation
from tests.ws_adapter.support.driven import Driven
from tests.ws_adapter.support.duplex_conversation import DuplexConversation
from tests.ws_adapter.support.live_conversation import LiveConversation
from tests.ws_adapter.support.realtime_ga_conversation import RealtimeGaConversation
from tests.ws_adapter.support.transcription_conversation import TranscriptionConversation
from tests.ws_adapter.support.transcription_ga_conversation import TranscriptionGaConversation
from ws_adapter.protocol.core.blobs import Blobs
from ws_adapter.protocol.wire import errors

Build = Callable[[], Driven]

DROPS_STALE: dict[Build, bool] = {
    Conversation: True,
    DuplexConversation: True,
    LiveConversation: True,
    ChatJar: False,
    RealtimeChatJar: False,
    RealtimeGaConversation: False,
    TranscriptionConversation: False,
    TranscriptionGaConversation: False,
}
machines = pytest.mark.parametrize("build", DROPS_STALE)


@machines
def test_machine_of_units_drops_stale_input_and_every_machine_outlasts_its_adapter(build: Build) -> None:
    machine = build().dialect

    assert machine.drops_stale is DROPS_STALE[build]
    assert machine.lasts is True


@machines
def test_disconnected_machine_is_over_holds_nothing_and_says_nothing(build: Build) -> None:
    talk = build()
    talk.dialect.disconnected()

    assert talk.dialect.is_over is True
    assert talk.dialect.deadline is None
    assert talk.dialect.held_bytes == 0
    assert talk.dialect.text_frame(b'{"type": "session.update"}', talk.now) == []
    assert talk.dialect.shut_down() == []
    assert talk.dialect.ended(errors.SLOW) == []
    assert talk.dialect.save(talk.now, Blobs(), has_journal=True) is None


@machines
def test_machine_ends_once(build: Build) -> None:
    talk = build()
    assert talk.dialect.is_over is False

    talk.do(talk.dialect.ended(errors.SLOW))

    assert talk.closed is not None
    assert talk.dialect.is_over is True
    assert talk.dialect.ended(errors.SLOW) == []
