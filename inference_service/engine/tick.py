"""One tick of the engine's loop: continuous batching of all sessions into one forward pass."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from torch import Tensor

from inference_service.device.rows import Rows
from inference_service.engine.batch.decoder import Segment
from inference_service.engine.batch.scheduler import Request, Share, is_urgent, schedule
from inference_service.engine.guard import Guard
from inference_service.engine.runtime import Runtime
from inference_service.interface.engine import NAMED_TICKS, Ticked
from inference_service.session.base.session import Session, Stage

Sessions = Collection[Session[Any]]
_OPENING_S = 0.005
"""Seconds of opening sessions after which a tick opens no further one."""
BACKGROUND_S = 0.1
"""Seconds between ticks with background work while other sessions have work."""
_PREPARED = object()
"""The sentinel for `next` when no portion of preparation is left."""
_UNDER_WAY = (Stage.PREFILL, Stage.HEARD, Stage.DECODE, Stage.SPEAK)
_SPEAKING_ROWS = 16
"""Cost of a step of speech, in rows of the language model."""


class Tick:
    """The steps of a tick, each run once for all sessions that are ready: close, open, rewind, see, hear,
    think, decide and speak.

    See encodes pictures, hear encodes units, think runs the language model, decide samples tokens, and speak
    runs the speech output. Sessions with a deadline come first, by their slack. Work without a deadline gets
    its `Share` in every step. `guard` handles errors.
    """

    def __init__(
        self, runtime: Runtime, budget: int | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.guard = Guard(runtime.probe)
        self._runtime = runtime
        self._budget = budget or runtime.budget
        self._clock = clock
        self._share = Share(min(self._budget, runtime.most_waiting))
        self._count = 0
        self._urgent: set[Session[Any]] = set()
        self._allowance = 0
        self._background_at = 0.0
        """Time of the next background work while other sessions have work."""
        self._others_s = 0.0

    def has_work(self, sessions: Sessions) -> bool:
        """Return whether a tick would do any work."""
        return any(session.has_work for session in sessions)

    def has_units(self, sessions: Sessions) -> bool:
        """Return whether a tick would do any work for a unit that is due soon."""
        now = self._clock()
        return any(session.has_work and is_urgent(session.due, now) for session in sessions)

    @property
    def pause_s(self) -> float:
        """Seconds for which work without a deadline leaves the processor to units after the last tick."""
        return self._share.pause(self._others_s)

    def run(
        self,
        sessions: Sessions,
        listen: Callable[[], None] | None = None,
        tell: Callable[[Sessions], None] | None = None,
    ) -> Ticked | None:
        """Run one tick; its results are in the sessions' events.

        `listen` carries out orders that arrived meanwhile, usually to generate and to finalise units.
        `tell` sends the events of sessions whose text is complete, before their speech is computed. The
        result is None if the model did not run.
        """
        started = self._clock()
        sessions = self._without_background(sessions, started)
        self._urgent = {session for session in sessions if is_urgent(session.due, started)}
        units_wait = any(session.has_work for session in self._urgent)
        self._allowance, self._others_s = self._share.rows(units_wait=units_wait), 0.0
        # Sessions that await a forward skip the earlier stages.
        free = [c for c in sessions if c.to_feed is None]
        if free:
            self._close(free)
            self._open(free)
            self._rewind(free)
            self._hear(free)
        fed = self._think(sessions)
        if listen is not None:
            listen()
        self._decide(sessions)
        if tell is not None and (saying := [c for c in sessions if c.stage is Stage.SPEAK and c.events]):
            tell(saying)
        speaking = self._speak(sessions)
        served = {c.slot: c for c in (*(c for c, _ in fed), *speaking)}
        members: tuple[tuple[str, int], ...] = ()
        if served and (self._count + 1) % NAMED_TICKS == 0:
            members = tuple((c.id, c.queue.first.number) for c in served.values() if c.queue.first)
        self._close(sessions)
        ended = self._clock()
        spent = ended - started - self._others_s
        self._share.spend(spent, self._others_s, units_waited=units_wait)
        for session in sessions:
            if session.may_tell(ended) and session.has_work:
                session.tell_progress(ended)
        if not served:
            return None
        self._count += 1
        tokens = sum(rows for _, rows in fed)
        return Ticked(
            self._count, started, ended, len(served), tokens, members, len(speaking), self._others_s
        )

    def _without_background(self, sessions: Sessions, now: float) -> Sessions:
        """Return the sessions of a tick, with background ones only if no other has work, or every
        `BACKGROUND_S`.
        """
        others = [session for session in sessions if not session.is_background]
        if len(others) == len(sessions):
            return sessions
        if now < self._background_at and self.has_work(others):
            return others
        self._background_at = now + BACKGROUND_S
        return sessions

    def _charge(self, since: float, others: int, total: int) -> None:
        """Charge work without a deadline, `others` of `total` parts, for its share of the time since then."""
        if others:
            self._others_s += (self._clock() - since) * others / total

    def _by_slack(self, sessions: Iterable[Session[Any]]) -> list[Session[Any]]:
        """Return the sessions with a deadline, earliest first, then the others, oldest first."""

        def slack(session: Session[Any]) -> tuple[bool, float, int]:
            due = session.due if session in self._urgent else None
            return due is None, session.arrival if due is None else due, session.slot

        return sorted(sessions, key=slack)

    def _close(self, sessions: Sessions) -> None:
        """End units whose last answer is sent; forwards are needed only where a window slides."""
        guard = self.guard
        ending = [c for c in sessions if c.stage is Stage.DONE and c.wants_end]
        if not ending:
            return
        for session in ending:
            guard.attempt(session, session.end_unit)
        sliding = [c for c in ending if c.wants_end and c.context.must_slide]
        guard.run(sliding, lambda group: self._runtime.settle([c.context for c in group]))
        for session in ending:
            if session.wants_end:
                guard.attempt(session, session.finalize)
        rebuilding = [c for c in ending if c.context.to_rebuild and c.stage is not Stage.FAILED]
        guard.run(rebuilding, lambda group: self._runtime.rebuild([c.context for c in group]))
        for session in rebuilding:
            if session.stage is not Stage.FAILED:
                guard.attempt(session, session.context.end_rebuild)

    def _open(self, sessions: Sessions) -> None:
        """Open sessions, oldest first, in portions of work on their voices.

        While units wait, a tick does one portion of one session: GPU work is asynchronous, so the clock alone
        bounds nothing. Otherwise it goes on for a few milliseconds.
        """
        opening = [session for session in sessions if session.stage is Stage.OPENING]
        if not opening or not self._allowance:
            return
        since = self._clock()
        for session in sorted(opening, key=lambda session: session.opened):
            while session.stage is Stage.OPENING:
                self.guard.attempt(session, self._open_further, session)
                if self._urgent or self._clock() - since > _OPENING_S:
                    break
            if self._urgent or self._clock() - since > _OPENING_S:
                break
        self._charge(since, 1, 1)

    def _open_further(self, session: Session[Any]) -> None:
        """Do the next portion of a session's opening; start it if there is none."""
        if session.preparing is None:
            session.preparing = self._runtime.prepare(session)
        if next(session.preparing, _PREPARED) is not _PREPARED:
            return
        session.preparing, session.stage = None, Stage.PROMPT
        refusal = self._runtime.start(session)
        if refusal is not None:
            session.fail(refusal)

    def _rewind(self, sessions: Sessions) -> None:
        """Carry out rewinds; rows that they feed again join those of all sessions."""
        for session in sessions:
            if session.wants_rewind:
                self.guard.attempt(session, session.rewind)

    def _hear(self, sessions: Sessions) -> None:
        """Encode the next unit, or a portion of it, for all sessions that wait for one and whose pictures
        are encoded.
        """
        wanting = [session for session in sessions if session.wants_unit]
        if not wanting:
            return
        if self._is_short_of_time():
            wanting = [c for c in wanting if c not in self._urgent or c.stage is Stage.PREFILL]
        waiting = self._see(self._by_slack(wanting))
        since, rows, starting = self._clock(), 0, []
        for session in waiting:
            if session not in self._urgent:
                if rows >= self._allowance:
                    continue
                rows += session.clip_rows
            if self.guard.attempt(session, session.refuse_unit) is False:
                starting.append(session)
        self.guard.run(starting, self._runtime.hear, lambda session: session.wants_unit)
        self._charge(since, self._others(starting), len(starting))

    def _is_short_of_time(self) -> bool:
        """Return whether a running unit has less than half of its time left, so that no further one is begun.

        Units that join the running ones make each step longer. If units arrive faster than they are done, all
        would be late. So the running ones are finished first, and the others begin together, which costs
        less. Two kinds of running units do not count: units whose order came after half of their time, and
        units of sessions that take the same step in every tick.
        """
        now = self._clock()
        return any(
            c.arrival + c.unit_s < now + c.unit_s / 2
            and c.has_work
            and c.stage in _UNDER_WAY
            and (c.queue.first is None or c.queue.first.ordered <= c.arrival + c.unit_s / 2)
            for c in self._urgent
            # A chunk of many seconds, whose deadline moves on, would delay the others for its whole length.
            if c.defers_others and c.due == c.arrival + c.unit_s
        )

    def _see(self, waiting: list[Session[Any]]) -> list[Session[Any]]:
        """Encode as many slices of pictures as a tick may; return the sessions with no slice left."""
        since, looking = self._clock(), {}
        rows = {True: self._runtime.most_waiting, False: self._allowance}
        ready = []
        for session in waiting:
            left = session.slices()[len(session.seen) :]
            is_unit = session in self._urgent
            granted = left[: max(0, -(-rows[is_unit] // self._runtime.slice_rows))]
            rows[is_unit] -= len(granted) * self._runtime.slice_rows
            if granted:
                looking[session] = granted
            if len(granted) == len(left):
                ready.append(session)
        if not looking:
            return ready

        def see(group: list[Session[Any]]) -> list[list[Tensor]]:
            seen = iter(self._runtime.see([piece for session in group for piece in looking[session]]))
            return [[next(seen) for _ in looking[session]] for session in group]

        for session, seen in self.guard.together(list(looking), see):
            session.seen += seen
        others = sum(len(granted) for session, granted in looking.items() if session not in self._urgent)
        self._charge(since, others, sum(map(len, looking.values())))
        return [session for session in ready if session.wants_unit]

    def _think(self, sessions: Sessions) -> list[tuple[Session[Any], int]]:
        """Run one forward of all prompts, units and tokens; return the rows of each session in it."""
        since = self._clock()
        waiting = {c.slot: (c, c.to_feed) for c in sessions if c.to_feed is not None}
        if not waiting:
            return []
        attempt, runtime = self.guard.attempt, self._runtime
        segments: dict[int, Segment] = {}
        for slot, count in self._granted(waiting).items():
            session, rows = waiting[slot]
            part = rows if count == len(rows) else rows[:count]
            segment = attempt(session, session.context.segment, part)
            if segment is not None:
                segments[slot] = segment
        thinking = [waiting[slot][0] for slot in segments]
        if not runtime.by_rows:
            ending = (c for c in thinking if len(segments[c.slot].rows) == len(waiting[c.slot][1]))
            runtime.expect({c.slot: draw for c in ending if (draw := attempt(c, c.foresee))})
        thought = self.guard.together(
            thinking, lambda group: runtime.think([segments[c.slot] for c in group])
        )
        if not runtime.by_rows:
            runtime.expect({})
        fed = []
        for session, hidden in thought:
            count = len(segments[session.slot].rows)
            fed.append((session, count))
            attempt(session, session.take, count, hidden)
        others = sum(rows for session, rows in fed if session not in self._urgent)
        self._charge(since, others, sum(rows for _, rows in fed))
        return fed

    def _granted(self, waiting: Mapping[int, tuple[Session[Any], Rows]]) -> dict[int, int]:
        """Return by slot how many of the waiting rows go into the next forward."""
        rows = {slot: len(rows) for slot, (_, rows) in waiting.items()}
        others = sum(rows[slot] for slot, (c, _) in waiting.items() if c not in self._urgent)
        if sum(rows.values()) <= self._budget and others <= self._allowance:
            return rows
        requests = [
            Request(
                slot, rows[slot], c.arrival, c.stage is Stage.DECODE, c.due if c in self._urgent else None
            )
            for slot, (c, _) in waiting.items()
        ]
        return {it.session: it.tokens for it in schedule(requests, self._budget, self._allowance)}

    def _decide(self, sessions: Sessions) -> None:
        guard, runtime, since = self.guard, self._runtime, self._clock()
        ready = [
            c
            for c in sessions
            if c.wants_decision and (c.stage is Stage.DECODE or guard.attempt(c, c.begin_generate))
        ]
        if not ready:
            return
        drawing = {c: draw for c in ready if (draw := guard.attempt(c, c.draw)) is not None}
        drawn = guard.together(
            list(drawing), lambda group: runtime.choose(_last_hidden(group), [drawing[c] for c in group])
        )
        decisions: dict[int, int] = {}
        for session, chosen in drawn:
            token = guard.attempt(session, session.decide, chosen)
            if token is not None:
                decisions[session.slot] = token
        for session in ready:
            if session.slot in decisions:
                guard.attempt(session, session.feed, decisions[session.slot])
        self._charge(since, self._others(ready), len(ready))

    def _speak(self, sessions: Sessions) -> Sequence[Session[Any]]:
        """Run one step of speech for every unit, and for as many other sessions as allowed."""
        since = self._clock()
        speaking = [session for session in sessions if session.stage is Stage.SPEAK]
        if not speaking:
            return speaking
        most = -(-self._allowance // _SPEAKING_ROWS)
        if self._others(speaking) > most:
            units = [session for session in speaking if session in self._urgent]
            rest = (session for session in speaking if session not in self._urgent)
            speaking = units + self._by_slack(rest)[:most]
        self.guard.run(speaking, self._runtime.speak, lambda session: session.stage is Stage.SPEAK)
        self._charge(since, self._others(speaking), len(speaking))
        return speaking

    def _others(self, sessions: Sequence[Session[Any]]) -> int:
        """Return how many of the sessions have no deadline."""
        return sum(session not in self._urgent for session in sessions)


def _last_hidden(sessions: Sequence[Session[Any]]) -> list[Tensor]:
    return [c.last_hidden for c in sessions if c.last_hidden is not None]
