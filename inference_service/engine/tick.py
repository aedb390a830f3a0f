"""One turn of the engine's loop over all sessions."""

import time
from collections.abc import Collection, Sequence
from typing import Any

from inference_service.engine.api import NAMED_TICKS, Ticked
from inference_service.engine.participant import Participant, Stage
from inference_service.engine.runtime import Runtime
from inference_service.engine.scheduler import Request, schedule

Sessions = Collection[Participant[Any]]


class Tick:
    """Close, hear, think, decide and speak: each step once, for everybody who is ready for it."""

    def __init__(self, runtime: Runtime, budget: int | None = None) -> None:
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
        ending = [c for c in sessions if c.wants_end]
        for session in ending:
            session.end_unit()
        sliding = [c.context for c in ending if c.context.must_slide]
        if sliding:
            self._runtime.settle(sliding)
        for session in ending:
            session.finalize()
        rebuilding = [c.context for c in ending if c.context.rebuilt]
        if rebuilding:
            self._runtime.rebuild(rebuilding)

    def _hear(self, sessions: Sessions) -> None:
        starting = []
        for session in sessions:
            if session.wants_unit and not session.refuse_unit():
                starting.append(session)
        if starting:
            self._runtime.hear(starting)

    def _think(self, sessions: Sessions) -> list[tuple[Participant[Any], int]]:
        """One forward for everybody's prompts, units and tokens; who had how many rows in it."""
        waiting = {c.slot: (c, c.to_feed) for c in sessions if c.to_feed is not None}
        requests = [
            Request(slot, len(rows), c.arrival, c.stage is Stage.DECODE)
            for slot, (c, rows) in waiting.items()
        ]
        grants = schedule(requests, self._budget)
        if not grants:
            return []
        granted = [(*waiting[grant.session], grant.tokens) for grant in grants]
        segments = [c.context.segment(rows[:tokens]) for c, rows, tokens in granted]
        for (session, _, _), hidden in zip(granted, self._runtime.think(segments), strict=True):
            session.take(hidden)
            session.tell_progress(time.monotonic())
        return [(session, tokens) for session, _, tokens in granted]

    def _decide(self, sessions: Sessions) -> None:
        ready = [c for c in sessions if c.wants_decision and (c.stage is Stage.DECODE or c.begin_generate())]
        if not ready:
            return
        hidden = [c.last_hidden for c in ready if c.last_hidden is not None]
        decisions = [
            (c, token)
            for c, scores in zip(ready, self._runtime.scores(hidden), strict=True)
            if (token := c.decide(scores)) is not None
        ]
        if decisions:
            embeds = self._runtime.embed([token for _, token in decisions])
            for (session, token), row in zip(decisions, embeds, strict=True):
                session.feed(token, row[None])

    def _speak(self, sessions: Sessions) -> Sequence[Participant[Any]]:
        speaking = [session for session in sessions if session.stage is Stage.SPEAK]
        if speaking:
            self._runtime.speak(speaking)
        return speaking
