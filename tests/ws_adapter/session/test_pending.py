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
    lonely, asked, gone = Silent(), Silent(), Silent()
    newcomers.enter(lonely, "a")
    newcomers.enter(asked, "b")
    asked.has_asked = True  # for a slot: it is no newcomer
    newcomers.enter(gone, "b")
    newcomers.leave(gone)
    newcomers.leave(gone)
    flood = [Silent() for _ in range(10)]
    for one in flood:
        newcomers.enter(one, "b")
    assert [one.verdict for one in (lonely, asked, gone)] == [None] * 3
    assert [one.verdict for one in flood] == [errors.NOT_STARTED] * 7 + [None] * 3
    assert len(newcomers) == 4
