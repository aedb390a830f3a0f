"""One turn of the engine's loop over all sessions."""

import time
from collections.abc import Collection

from inference_service.engine.conversation import Conversation, Stage
from inference_service.engine.runtime import Runtime
from inference_service.engine.scheduler import Request, schedule
from inference_service.engine.speech import SpeechJob

TOKEN_BUDGET = 1024
"""Rows of one forward, all sessions together."""


class Tick:
    """Hear, think, decide, speak and close: each step once, for everybody who is ready for it."""

    def __init__(self, runtime: Runtime, budget: int = TOKEN_BUDGET) -> None:
        self._runtime = runtime
        self._budget = budget
        self._jobs: dict[int, SpeechJob] = {}

    def has_work(self, conversations: Collection[Conversation]) -> bool:
        """Whether a tick would do anything for anyone."""
        return any(self._wants(c) for c in conversations)

    @staticmethod
    def _wants(c: Conversation) -> bool:
        if c.to_feed is not None or c.wants_decision or c.stage is Stage.SPEAK:
            return True
        if c.stage is Stage.IDLE:
            return bool(c.units)
        return c.stage is Stage.DONE and c.running is not None and c.running.unit.finalize

    def run(self, conversations: Collection[Conversation]) -> None:
        """One tick; everything that happened is in the sessions' events afterwards."""
        self._close(conversations)
        self._hear(conversations)
        self._think(conversations)
        self._decide(conversations)
        self._speak(conversations)
        self._close(conversations)

    def _hear(self, conversations: Collection[Conversation]) -> None:
        starting = [c for c in conversations if c.stage is Stage.IDLE and c.units]
        if starting:
            self._runtime.hear(starting)

    def _think(self, conversations: Collection[Conversation]) -> None:
        """One forward for everybody's prompts, units and tokens."""
        waiting = {c.slot: c for c in conversations if c.to_feed is not None}
        requests = [
            Request(slot, len(c.to_feed), c.arrival, c.stage is Stage.DECODE)
            for slot, c in waiting.items()
            if c.to_feed is not None
        ]
        grants = schedule(requests, self._budget)
        if not grants:
            return
        segments = []
        for grant in grants:
            conversation = waiting[grant.session]
            assert conversation.to_feed is not None
            segments.append(conversation.context.segment(conversation.to_feed[: grant.tokens]))
        for grant, hidden in zip(grants, self._runtime.language.forward(segments), strict=True):
            waiting[grant.session].take(hidden)

    def _decide(self, conversations: Collection[Conversation]) -> None:
        ready = [c for c in conversations if c.wants_decision]
        ready = [c for c in ready if c.stage is Stage.DECODE or c.begin_generate()]
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
            for (conversation, token), row in zip(decisions, embeds, strict=True):
                conversation.feed(token, row[None])

    def _speak(self, conversations: Collection[Conversation]) -> None:
        """One step of the speech head for all who speak, and the vocoder for those who have finished."""
        speaking = {c.slot: c for c in conversations if c.stage is Stage.SPEAK}
        self._jobs = {slot: job for slot, job in self._jobs.items() if slot in speaking}
        for slot, conversation in speaking.items():
            if slot not in self._jobs:
                job = conversation.speech_job()
                if job is None:
                    conversation.spoken(0, None, time.monotonic())
                else:
                    self._jobs[slot] = job
        active = {slot: job for slot, job in self._jobs.items() if not speaking[slot].interrupted}
        if active:
            self._runtime.speaker.step(list(active.values()))
        finished = {
            slot: job for slot, job in self._jobs.items() if job.finished or speaking[slot].interrupted
        }
        spoken_at = time.monotonic()
        codes = [job.codes for job in finished.values()]
        audio = self._runtime.model.vocoder.decode(codes, [speaking[slot].vocoder for slot in finished])
        for (slot, job), sound in zip(finished.items(), audio, strict=True):
            del self._jobs[slot]
            speaking[slot].spoken(len(job.codes), sound, spoken_at)

    @staticmethod
    def _close(conversations: Collection[Conversation]) -> None:
        for conversation in conversations:
            if (
                conversation.stage is Stage.DONE
                and conversation.running
                and conversation.running.unit.finalize
            ):
                conversation.finalize()
