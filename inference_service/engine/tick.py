"""One turn of the engine's loop over all sessions."""

import time
from collections.abc import Collection, Sequence
from typing import Any

from torch import Tensor

from inference_service.engine.api import NAMED_TICKS, Ticked
from inference_service.engine.decoder import Segment
from inference_service.engine.guard import Guard
from inference_service.engine.participant import Participant, Stage
from inference_service.engine.runtime import Runtime
from inference_service.engine.scheduler import Request, schedule

Sessions = Collection[Participant[Any]]


class Tick:
    """Close, hear, think, decide and speak: each step once, for everybody who is ready for it.

    What fails is failed by `guard`, see there.
    """

    def __init__(self, runtime: Runtime, budget: int | None = None) -> None:
        self.guard = Guard(runtime.probe)
        self._runtime = runtime
        self._budget = budget or runtime.budget
        self._count = 0

    def has_work(self, sessions: Sessions) -> bool:
        """Whether a tick would do anything for anyone."""
        return any(session.has_work for session in sessions)

    def run(self, sessions: Sessions) -> Ticked | None:
        """One tick; everything that happened is in the sessions' events afterwards.

        None if the model did not run.
        """
        started = time.monotonic()
        self._close(sessions)
        self._hear(sessions)
        fed = self._think(sessions)
        self._decide(sessions)
        served = {c.slot: c for c in (*(c for c, _ in fed), *self._speak(sessions))}
        if not served:
            return None
        self._count += 1
        members: tuple[tuple[str, int], ...] = ()
        if self._count % NAMED_TICKS == 0:
            members = tuple((c.id, c.orders.first.number) for c in served.values() if c.orders.first)
        tokens = sum(rows for _, rows in fed)
        return Ticked(self._count, started, time.monotonic(), len(served), tokens, members)

    def _close(self, sessions: Sessions) -> None:
        """Ends units whose last word has been sent; forwards are needed only where a window slides."""
        guard = self.guard
        ending = [c for c in sessions if c.wants_end]
        for session in ending:
            guard.attempt(session, session.end_unit)
        sliding = [c for c in ending if c.wants_end and c.context.must_slide]
        guard.run(sliding, lambda group: self._runtime.settle([c.context for c in group]))
        for session in ending:
            if session.wants_end:
                guard.attempt(session, session.finalize)
        rebuilding = [c for c in ending if c.context.rebuilt and c.stage is not Stage.FAILED]
        guard.run(rebuilding, lambda group: self._runtime.rebuild([c.context for c in group]))
        for session in rebuilding:
            if session.stage is not Stage.FAILED:
                guard.attempt(session, session.context.end_rebuild)

    def _hear(self, sessions: Sessions) -> None:
        starting = []
        for session in sessions:
            if session.wants_unit and self.guard.attempt(session, session.refuse_unit) is False:
                starting.append(session)
        self.guard.run(starting, self._runtime.hear, lambda session: session.wants_unit)

    def _think(self, sessions: Sessions) -> list[tuple[Participant[Any], int]]:
        """One forward for everybody's prompts, units and tokens; who had how many rows in it."""
        waiting = {c.slot: (c, c.to_feed) for c in sessions if c.to_feed is not None}
        requests = [
            Request(slot, len(rows), c.arrival, c.stage is Stage.DECODE)
            for slot, (c, rows) in waiting.items()
        ]
        segments: dict[int, Segment] = {}
        for grant in schedule(requests, self._budget):
            session, rows = waiting[grant.session]
            segment = self.guard.attempt(session, session.context.segment, rows[: grant.tokens])
            if segment is not None:
                segments[session.slot] = segment
        thought = self.guard.together(
            [waiting[slot][0] for slot in segments],
            lambda group: self._runtime.think([segments[c.slot] for c in group]),
        )
        for session, hidden in thought:
            self.guard.attempt(session, session.take, hidden)
            session.tell_progress(time.monotonic())
        return [(session, len(segments[session.slot].embeds)) for session, _ in thought]

    def _decide(self, sessions: Sessions) -> None:
        guard, runtime = self.guard, self._runtime
        ready = [
            c
            for c in sessions
            if c.wants_decision and (c.stage is Stage.DECODE or guard.attempt(c, c.begin_generate))
        ]
        decisions: dict[int, int] = {}
        for session, scores in guard.together(ready, lambda group: list(runtime.scores(_last_hidden(group)))):
            token = guard.attempt(session, session.decide, scores)
            if token is not None:
                decisions[session.slot] = token
        deciding = [c for c in ready if c.slot in decisions]
        embedded = guard.together(
            deciding, lambda group: runtime.embed([decisions[c.slot] for c in group]).split(1)
        )
        for session, row in embedded:
            guard.attempt(session, session.feed, decisions[session.slot], row)

    def _speak(self, sessions: Sessions) -> Sequence[Participant[Any]]:
        speaking = [session for session in sessions if session.stage is Stage.SPEAK]
        self.guard.run(speaking, self._runtime.speak, lambda session: session.stage is Stage.SPEAK)
        return speaking


def _last_hidden(sessions: Sequence[Participant[Any]]) -> list[Tensor]:
    return [c.last_hidden for c in sessions if c.last_hidden is not None]
