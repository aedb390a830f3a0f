"""The opening event: voices count as input, load sheds them, and large ones are read in a thread."""

import base64
import json
from typing import Any

import numpy as np
import pytest

from tests.ws_adapter.support.conversation import SPEECH, Conversation, append, ready_signal
from tests.ws_adapter.support.duplex_conversation import DuplexConversation, chunk
from ws_adapter.protocol.core.actions import CloseSocket, OpenWorkerSession, Send
from ws_adapter.protocol.core.blobs import Blobs
from ws_adapter.protocol.core.machine import Offload
from ws_adapter.protocol.core.signals import Piece, UnitDone, UnitEnd
from ws_adapter.protocol.wire.limits import LARGE_FRAME


def opener(seconds: float) -> bytes:
    """Return a `session.init` with so many seconds of reference audio."""
    audio = np.full(round(seconds * 16_000), 0.1, np.float32).tobytes()
    voice = {"ref_audio_base64": base64.b64encode(audio).decode()}
    return json.dumps({"type": "session.init", "payload": {"voice": voice} if seconds else {}}).encode()


def test_voice_is_held_until_the_worker_has_it() -> None:
    talk = Conversation()
    talk.client(opener(1.0))
    assert talk.dialect.held_bytes == 64_000
    talk.connect()
    assert talk.dialect.held_bytes == 64_000
    talk.worker(ready_signal())
    assert talk.dialect.held_bytes == 0


@pytest.mark.parametrize(
    ("seconds", "drops", "closes"), [(1.0, True, True), (1.0, False, False), (0, True, False)]
)
def test_waiting_session_with_a_voice_is_shed_under_load(seconds: float, drops: bool, closes: bool) -> None:
    talk = Conversation()
    told = talk.dialect.text_frame(opener(seconds), talk.now, drops_input=drops)
    assert any(isinstance(action, CloseSocket) for action in told) is closes


@pytest.mark.parametrize("seconds", [1.0, 4.0])
def test_only_a_large_opener_is_read_in_a_thread(seconds: float) -> None:
    talk = Conversation()
    talk.connect()
    frame = opener(seconds)
    told = talk.dialect.text_frame(frame, talk.now)
    assert [type(action) for action in told] == [Offload if len(frame) > LARGE_FRAME else OpenWorkerSession]
    talk.do(told)
    assert len(talk.configured) == 1


def test_session_is_saved_while_it_runs_with_a_journal_and_no_verdict() -> None:
    def saved(**how: Any) -> bytes | None:
        return talk.dialect.save(talk.now, Blobs(), **{"has_journal": True, **how})

    talk = Conversation()
    assert saved() is None
    talk.connect()
    talk.client(opener(0))
    assert saved() is None, "the worker is not ready"
    talk.worker(ready_signal())
    assert saved() is not None
    assert saved(has_journal=False) is None
    talk.finish(0, UnitEnd.CONTEXT_FULL)
    assert saved() is not None, "no unit was run"
    talk.client({"type": "session.close"})
    assert saved() is None


@pytest.mark.parametrize(("build", "event"), [(Conversation, append()), (DuplexConversation, chunk())])
@pytest.mark.parametrize("end", [UnitEnd.CHUNK, UnitEnd.LISTEN, UnitEnd.FAILED])
def test_one_event_of_an_answer_is_its_first(
    build: type[Conversation], event: dict[str, Any], end: UnitEnd
) -> None:
    talk = build()
    talk.activate()
    talk.client(event)
    if end is UnitEnd.CHUNK:
        talk.dialect.signal(Piece(1, "Seven", SPEECH), talk.now)
    told = talk.dialect.signal(UnitDone(1, end, 100), talk.now)
    flags = [action.is_first for action in told if isinstance(action, Send)]
    if end is UnitEnd.FAILED:
        assert flags in ([False], [False, True]), "the error of a unit is not the first of its answer"
    else:
        assert flags == [True] + [False] * (len(flags) - 1)
