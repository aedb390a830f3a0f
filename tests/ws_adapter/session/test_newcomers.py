"""Sessions that ask for nothing: a bounded number, and the caller with most of them loses one."""

from ws_adapter.protocol.wire import errors
from ws_adapter.protocol.wire.errors import Verdict
from ws_adapter.session.pending_sessions import PendingSessions


class Silent:
    """A session that has asked for nothing."""

    def __init__(self) -> None:
        self.has_asked = False
        self.verdict: Verdict | None = None

    def end(self, verdict: Verdict) -> None:
        self.verdict = verdict


def test_one_too_many_ends_the_oldest_of_the_caller_with_most() -> None:
    newcomers = PendingSessions(4)
    lonely = Silent()
    newcomers.enter(lonely, "a")
    flood = [Silent() for _ in range(10)]
    for one in flood:
        newcomers.enter(one, "b")
    assert lonely.verdict is None
    assert [one.verdict for one in flood] == [errors.NOT_STARTED] * 7 + [None] * 3
    assert len(newcomers) == 4


def test_session_that_has_asked_for_a_slot_or_has_left_is_no_newcomer() -> None:
    newcomers = PendingSessions(2)
    first, gone, *others = [Silent() for _ in range(4)]
    newcomers.enter(first, "a")
    first.has_asked = True
    newcomers.enter(gone, "a")
    newcomers.leave(gone)
    newcomers.leave(gone)
    for one in others:
        newcomers.enter(one, "a")
    assert [one.verdict for one in (first, gone, *others)] == [None] * 4
