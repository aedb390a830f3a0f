"""One turn of the engine's loop over all sessions."""

import time
from collections.abc import Collection

from inference_service.engine.conversation import Conversation
from inference_service.engine.runtime import Runtime
from inference_service.engine.scheduler import Request, schedule
from inference_service.engine.unit import Stage

TOKEN_BUDGET = 1024
"""Rows of one forward, all sessions together."""


class Tick:
    """Close, hear, think, decide and speak: each step once, for everybody who is ready for it."""

    def __init__(self, runtime: Runtime, budget: int = TOKEN_BUDGET) -> None:
        self._runtime = runtime
        self._budget = budget

    def has_work(self, conversations: Collection[Conversation]) -> bool:
        """Whether a tick would do anything for anyone."""
        return any(
            c.to_feed is not None or c.stage is Stage.SPEAK or c.wants_unit or c.wants_decision or c.wants_end
            for c in conversations
        )

    def run(self, conversations: Collection[Conversation]) -> None:
        """One tick; everything that happened is in the sessions' events afterwards."""
        self._close(conversations)
        self._hear(conversations)
        self._think(conversations)
        self._decide(conversations)
        self._speak(conversations)

    def _close(self, conversations: Collection[Conversation]) -> None:
        """Ends units whose last word has been sent; a forward is needed only where a window slides."""
        ending = [c for c in conversations if c.wants_end]
        for conversation in ending:
            conversation.end_unit()
        sliding = [c.context for c in ending if c.context.must_slide]
        if sliding:
            self._runtime.settle(sliding)
        for conversation in ending:
            conversation.finalize()

    def _hear(self, conversations: Collection[Conversation]) -> None:
        starting = []
        for conversation in conversations:
            if conversation.wants_unit and not conversation.refuse_unit():
                starting.append(conversation)
        if starting:
            self._runtime.hear(starting)

    def _think(self, conversations: Collection[Conversation]) -> None:
        """One forward for everybody's prompts, units and tokens."""
        waiting = {c.slot: (c, c.to_feed) for c in conversations if c.to_feed is not None}
        requests = [
            Request(slot, len(rows), c.arrival, c.stage is Stage.DECODE)
            for slot, (c, rows) in waiting.items()
        ]
        grants = schedule(requests, self._budget)
        if not grants:
            return
        granted = [(*waiting[grant.session], grant.tokens) for grant in grants]
        segments = [c.context.segment(rows[:tokens]) for c, rows, tokens in granted]
        for (conversation, _, _), hidden in zip(granted, self._runtime.think(segments), strict=True):
            conversation.take(hidden)

    def _decide(self, conversations: Collection[Conversation]) -> None:
        ready = [
            c for c in conversations if c.wants_decision and (c.stage is Stage.DECODE or c.begin_generate())
        ]
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
        speaking = []
        for conversation in conversations:
            if conversation.stage is Stage.SPEAK:
                job = conversation.speech_job()
                if job is not None:
                    speaking.append((conversation, job))
                else:
                    conversation.spoken(None, time.monotonic())
        if not speaking:
            return
        self._runtime.speaker.step([job for _, job in speaking])
        spoken_at = time.monotonic()
        finished = [(c, job) for c, job in speaking if job.finished]
        audio = self._runtime.model.vocoder.decode(
            [job.codes for _, job in finished], [c.vocoder for c, _ in finished]
        )
        for (conversation, _), sound in zip(finished, audio, strict=True):
            conversation.spoken(sound, spoken_at)
