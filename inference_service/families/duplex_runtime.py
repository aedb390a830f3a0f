"""The runtime of a duplex model: it hears, sees, decides and speaks."""

import time
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from inference_service.device.rows import Rows
from inference_service.engine.batch.decoder import PackedDecoder
from inference_service.engine.batch.speech import Speaker, SpeechJob
from inference_service.engine.guard import blame
from inference_service.engine.runtime import Runtime
from inference_service.interface.setups import (
    ChatSetup,
    DuplexSetup,
    TokensSetup,
    TranscribeSetup,
)
from inference_service.media.image import MAX_FRAMES
from inference_service.session.base.session import Session
from inference_service.session.kinds.components import (
    SLICE_MARKS,
    VOICES_AT_ONCE,
    DuplexComponents,
    SpeakingSession,
    SpeechCodes,
    View,
)
from inference_service.session.kinds.duplex_kind import DuplexKind
from inference_service.session.kinds.duplex_transcription import DuplexTranscriptionKind
from inference_service.session.kinds.spoken_chat import SpokenChatKind
from inference_service.session.kinds.tokens import TokensKind

UNIT_ROOM = 128
"""Entries above the window for the longest unit that settings allow, without pictures."""


class DuplexRuntime(Runtime):
    """Loaded weights of a duplex architecture, with their caches."""

    def __init__(self, components: DuplexComponents, slots: int) -> None:
        self.components = components
        self.tokenizer = components.tokenizer
        self.slice_rows = components.slice_tokens or 1
        capacity = slot_capacity(
            components.info.context_limit, components.slice_tokens if components.eye else None
        )
        language = PackedDecoder(components.language, slots, capacity, embeddings=components.embeddings)
        super().__init__(components.info, language, components.head)
        speech = components.speech
        self.speaker = Speaker(speech.head, slots, speech.capacity) if speech else None
        special, template = components.tokenizer.special, components.tokenizer.chat_template
        self.kinds[DuplexSetup] = DuplexKind(self, components, self.look)
        self.kinds[TokensSetup] = TokensKind(self, components.tokenizer.plain, frozenset((special.im_end,)))
        self.kinds[TranscribeSetup] = DuplexTranscriptionKind(
            self,
            components.ear,
            components.tokenizer,
            components.transcription_prompt,
            components.unit_tokens,
        )
        if template is not None:
            self.kinds[ChatSetup] = SpokenChatKind(self, components, template, self.look)

    def see(self, slices: list[Any]) -> list[Tensor]:
        assert self.components.eye is not None
        return self.components.eye.see(slices)

    def look(self, views: Sequence[View], seen: Sequence[Tensor]) -> list[list[Rows]]:
        """Return the slices of each picture with their marks; `seen` has the embeddings [n, hidden] of each
        slice.
        """
        special, embeddings = self.tokenizer.special, iter(seen)
        whole = special.image, special.image_end
        detail = self.components.detail_marks or whole
        return [
            [
                Rows.join([Rows.of_ids([begin]), Rows.of(next(embeddings), name), Rows.of_ids([end])])
                for (begin, end), name in zip(
                    [whole, *[detail] * (len(view.slices) - 1)], view.names, strict=True
                )
            ]
            for view in views
        ]

    def speak(self, sessions: Sequence[Session[Any]]) -> None:
        """Run one step of the speech head for all speaking sessions, and the vocoder for those that have
        finished.

        A tick starts the vocoder for at most `VOICES_AT_ONCE` sessions; those delayed longest come first. A
        later tick takes a sound that is not complete yet, so that the device works meanwhile.
        """
        speaking = []
        for session in cast(Sequence[SpeakingSession], sessions):
            with blame(session):
                job = session.speech_job()
                if job is not None:
                    speaking.append((session, job))
                else:
                    session.spoken(None, time.monotonic())
        if not speaking:
            return
        assert self.speaker is not None
        # A job has all its codes already if its sound is still being computed, or if an earlier attempt at
        # this step failed after the last code.
        going_on = [(c, job) for c, job in speaking if not job.finished and job.recorded is None]
        replayed = [job for _, job in speaking if not job.finished and job.recorded is not None]
        if replayed:
            self.speaker.replay(replayed)
        if going_on:
            steps = self.speaker.forward([job for _, job in going_on])
            for (session, job), step in zip(going_on, steps, strict=True):
                with blame(session):
                    self.speaker.take(job, step)
        finished = [(session, job) for session, job in speaking if job.finished]
        awaited = {id(job) for _, job in finished if job.sound is not None}
        unsaid = [(session, job) for session, job in finished if job.sound is None]
        # One group a tick, so that many units that end together do not make a tick long.
        unsaid.sort(key=lambda each: each[1].put_off, reverse=True)
        for _, job in unsaid[VOICES_AT_ONCE:]:
            job.put_off += 1
        if unsaid:
            self._say(unsaid[:VOICES_AT_ONCE])
        for session, job in finished:
            if job.sound is not None and (job.sound.is_here or id(job) in awaited):
                with blame(session):
                    session.spoken(job.sound.take(), job.spoken_at)

    def _say(self, finished: list[tuple[SpeakingSession, SpeechJob]]) -> None:
        """Compute the sound of each job; on failure restore the state of each voice."""
        assert self.components.speech is not None
        marks = [session.mouth.mark() for session, _ in finished if session.mouth is not None]
        spoken_at = time.monotonic()
        chunks = [SpeechCodes(session.mouth, job.codes, job.ends_turn) for session, job in finished]
        try:
            sounds = self.components.speech.mouth.say(chunks)
        except Exception:
            for go_back in marks:
                go_back()
            raise
        for (_, job), sound in zip(finished, sounds, strict=True):
            job.sound, job.spoken_at = sound, spoken_at

    @property
    def decoders(self) -> list[PackedDecoder]:
        return [self.language] if self.speaker is None else [self.language, self.speaker.decoder]

    @torch.inference_mode()
    def capture(self) -> None:
        super().capture()
        if self.device.type == "cpu":
            return
        self.components.ear.capture(self.language.cache.slots)
        if self.speaker is not None and self.components.speech is not None:
            self.speaker.capture()
            self.components.speech.mouth.capture()

    def clear(self, slot: int) -> None:
        super().clear(slot)
        if self.speaker is not None:
            self.speaker.decoder.cache.clear(slot)


def slot_capacity(context_limit: int, slice_tokens: int | None) -> int:
    """Return the rows of a session's slot in the language model's cache; without vision, `slice_tokens` is
    None.
    """
    pictures = MAX_FRAMES * (slice_tokens + SLICE_MARKS) if slice_tokens is not None else 0
    return context_limit + UNIT_ROOM + pictures
