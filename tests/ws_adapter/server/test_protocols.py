"""Every kind of session has its machine."""

from collections.abc import Iterator

from ws_adapter.process.clock import LoopClock
from ws_adapter.protocol.core.config import Mode
from ws_adapter.protocol.wire.limits import Limits
from ws_adapter.server.protocols import MACHINES, MachineFactory
from ws_adapter.web.routes import COMPLETING, Dialect, Selection, select
from ws_adapter.web.session_ids import new_session_id, new_token

PATHS = (
    "/v1/realtime",
    "/ws/duplex",
    "/ws/duplex/adx_a",
    "/ws/duplex/omni_a",
    "/ws/chat",
    "/v1/transcription",
    "/v1/live/sessions",
    "/v1/realtime?model=antiphon-mini",
)


def selections() -> Iterator[Selection]:
    """Yield every selection that a client can ask for."""
    for path in PATHS:
        for mode in Mode:
            for target in (path, f"{path}{'&' if '?' in path else '?'}mode={mode}"):
                found = select(target, [], mode, None if mode is not Mode.TRANSCRIPTION else set(Mode))
                if isinstance(found, Selection):
                    yield found
    opened = select("/v1/realtime", [], Mode.VIDEO, set(Mode), {Mode.TRANSCRIPTION})  # by a client secret
    assert isinstance(opened, Selection)
    yield opened
    by_itself = select(
        "/v1/realtime?model=m", [], Mode.VIDEO, {Mode.AUDIO}, holds_chats=lambda model: model != "m"
    )
    assert isinstance(by_itself, Selection)
    yield by_itself
    yield COMPLETING


async def test_each_selection_has_one_machine() -> None:
    clock = LoopClock()
    maker = MachineFactory(clock)
    found = set()
    for selection in selections():
        found.add((selection.dialect, selection.mode))
        machine = maker.make(selection, new_session_id(selection.dialect), Limits(), lambda: None, clock)
        assert not machine.is_over

    assert found == set(MACHINES)
    assert {dialect for dialect, _ in found} == set(Dialect)


def test_no_token_is_drawn_twice() -> None:
    tokens = [new_token() for _ in range(1000)]

    assert len(set(tokens)) == len(tokens)
    assert all(len(bytes.fromhex(token)) == 6 for token in tokens)
