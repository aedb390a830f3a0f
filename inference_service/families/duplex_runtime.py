"""A duplex model on its device: it hears, sees, decides and speaks."""

import time
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from inference_service.api.engine import SessionFailed, Sink
from inference_service.api.setups import (
    ChatSetup,
    DuplexSetup,
    SessionSetup,
    TokensSetup,
    TranscribeSetup,
    WindowMode,
)
from inference_service.engine.batch.context import Context, Memory
from inference_service.engine.batch.decoder import PackedDecoder
from inference_service.engine.batch.sampler import TextSampler
from inference_service.engine.batch.speech import Speaker, SpeechJob, SpeechState
from inference_service.engine.guard import blame
from inference_service.engine.runtime import Runtime
from inference_service.engine.sessions.base import Session, SpeakingSession
from inference_service.engine.sessions.components import (
    VOICES_AT_ONCE,
    DuplexComponents,
    Opening,
    Sound,
    SpeechCodes,
    View,
)
from inference_service.engine.sessions.duplex import DuplexSession
from inference_service.engine.sessions.duplex_transcription import DuplexTranscription
from inference_service.engine.sessions.preprocessing import DuplexPreprocessor, VoicePreprocessor
from inference_service.engine.sessions.spoken_chat import SpokenChatSession
from inference_service.engine.sessions.tokens import TokensSession
from inference_service.families.chat import Chat
from inference_service.families.token_streams import Tokens
from inference_service.families.transcriber import Transcriber
from inference_service.media.image import MAX_FRAMES
from inference_service.media.memo import PROMPTS_KNOWN, VOICES_KNOWN, Memo, digest

UNIT_ROOM = 128
"""Room above the window for the longest unit that settings allow, pictures aside."""
SLICE_MARKS = 2
"""Before and behind a slice of a picture."""
_MEMORY_MARKER = "\n\nprevious: "
"""Stands before what was said in units that the window dropped."""


class DuplexRuntime(Runtime):
    """Loaded weights of a duplex architecture and their caches."""

    def __init__(self, components: DuplexComponents, slots: int) -> None:
        self.components = components
        self.tokenizer = components.tokenizer
        self.slice_rows = components.slice_tokens or 1
        self.slice_tokens = components.slice_tokens + SLICE_MARKS if components.eye else 0
        capacity = slot_capacity(
            components.info.context_limit, components.slice_tokens if components.eye else None
        )
        language = PackedDecoder(components.language, slots, capacity)
        super().__init__(components.info, language, components.embeddings, components.head)
        speech = components.speech
        self.speaker = Speaker(speech.head, slots, speech.capacity) if speech else None
        self._openings: Memo[Opening] = Memo(PROMPTS_KNOWN)
        self._sounds: Memo[list[Sound]] = Memo(VOICES_KNOWN)
        self._clips: Memo[Tensor] = Memo(VOICES_KNOWN)
        self._transcriber = Transcriber(
            self,
            components.ear,
            components.tokenizer,
            components.transcription_prompt,
            components.unit_tokens,
        )
        self._tokens = Tokens(
            self, components.tokenizer.plain, frozenset((components.tokenizer.special.im_end,))
        )
        template = components.tokenizer.chat_template
        self._chat = Chat(self, components, template, self.look) if template is not None else None

    def open(self, session_id: str, slot: int, setup: SessionSetup, sink: Sink) -> Session[Any]:
        match setup:
            case DuplexSetup():
                return self.converse(session_id, slot, setup, sink)
            case ChatSetup() if self._chat is not None:
                return self._chat.open(session_id, slot, setup, sink)
            case TokensSetup():
                return self._tokens.open(session_id, slot, setup, sink)
            case TranscribeSetup():
                return self._transcriber.open(session_id, slot, setup, sink)
            case _:
                raise TypeError(f"This model takes no {type(setup).__name__}.")

    def converse(self, session_id: str, slot: int, setup: DuplexSetup, sink: Sink) -> DuplexSession:
        """A full-duplex session in a clean slot."""
        generator, components = torch.Generator().manual_seed(setup.seed), self.components
        prompts = components.speech.prompts if components.speech and setup.duplex.generate_audio else None
        voice = VoicePreprocessor(components.reference(setup.voice), components.senses, prompts, self._sounds)
        text = setup.system_prompt

        def write(hears_voice: bool) -> Opening:
            return self._openings.get(
                digest(text, hears_voice), lambda: components.openings.opening(text, hears_voice=hears_voice)
            )

        return DuplexSession(
            session_id,
            slot,
            sink,
            Context(self.language, slot, setup.window, self.info.context_limit),
            DuplexPreprocessor(components.senses, voice, write),
            setup=setup,
            tokenizer=self.tokenizer,
            sampler=TextSampler(
                self.tokenizer.special,
                components.forbidden,
                generator,
                reference_quirks=components.reference_quirks,
            ),
            speech=SpeechState(slot, torch.Generator().manual_seed(setup.seed)),
            unit_tokens=components.unit_tokens,
            slice_tokens=self.slice_tokens,
            turn_bound=components.turn_bound,
            reference_quirks=components.reference_quirks,
        )

    def start(self, session: Session[Any]) -> SessionFailed | None:
        if isinstance(session, DuplexTranscription):
            return self._transcriber.start(session)
        if isinstance(session, TokensSession):
            return self._tokens.start(session)
        if isinstance(session, SpokenChatSession):
            assert self._chat is not None
            self._chat.start(session)
            return None
        return self._start_conversation(cast(DuplexSession, session))

    def _start_conversation(self, conversation: DuplexSession) -> SessionFailed | None:
        preprocessor = cast(DuplexPreprocessor, conversation.preprocessor)
        setup, voice, opening = conversation.setup, preprocessor.voice, preprocessor.opening()
        before = self.embed(opening.before)
        if voice.heard:
            heard = self._clips.get(voice.key, lambda: torch.cat(self.heard_clip(voice.heard)))
            before = torch.cat([before, heard])
        room = self.info.context_limit
        window = setup.window
        if window.mode is not WindowMode.OFF:
            if not 0 < window.low_tokens <= window.high_tokens <= room:
                return _refused(f"the window needs 0 < low_tokens <= high_tokens <= {room}")
            room = window.low_tokens
        room -= 2 * conversation.longest_unit
        if window.mode is WindowMode.CONTEXT:
            conversation.context.memory = self._memory(opening, len(before))
            room -= len(conversation.context.memory.marker) + window.remembered_tokens
        length = len(before) + len(opening.after)
        if length > room:
            return _refused(f"has {length} tokens; at most {max(0, room)} leave room for units")
        conversation.to_feed = torch.cat([before, self.embed(opening.after)]) if opening.after else before
        conversation.ear = self.components.ear.initial_state()
        if self.components.speech is not None and setup.duplex.generate_audio:
            conversation.mouth = self.components.speech.mouth.initial_state(voice.spoken, setup.seed)
        return None

    def _memory(self, opening: Opening, fixed: int) -> Memory:
        return Memory(self.tokenizer.encode(_MEMORY_MARKER), opening.after, fixed)

    def heard_clip(self, sounds: Sequence[Sound]) -> list[Tensor]:
        """Embeddings [n, hidden] of the parts of a clip."""
        state, heard = None, []
        for sound in sounds:
            rows, state = self.components.ear.listen(sound, state)
            heard.append(rows)
        return heard

    def hear(self, sessions: Sequence[Session[Any]]) -> None:
        """Encodes the next unit of each session, in one batch for each kind of session."""
        self._hear_conversations([session for session in sessions if isinstance(session, DuplexSession)])
        self._transcriber.hear([session for session in sessions if isinstance(session, DuplexTranscription)])
        self._tokens.hear([session for session in sessions if isinstance(session, TokensSession)])
        if self._chat is not None:
            self._chat.hear([session for session in sessions if isinstance(session, SpokenChatSession)])

    def _hear_conversations(self, conversations: Sequence[DuplexSession]) -> None:
        if not conversations:
            return
        units = [c.queue.first.input for c in conversations if c.queue.first and c.queue.first.input]
        both = list(zip(conversations, units, strict=True))
        hearing = [(c, unit.heard.to(self.device)) for c, unit in both if unit.heard is not None]
        heard = self._heard(hearing)
        for conversation, unit in both:
            with blame(conversation):
                carried = [*conversation.context.carry(), self.tokenizer.special.unit]
                views = self.look(unit.pictures, conversation.seen)
                seen = [rows for view in views for rows in view]
                rows = self.embed(carried)
                audio, ear = heard.get(conversation.slot, (rows[:0], conversation.ear))
                conversation.start_unit(rows, seen, audio, ear)

    def _heard(self, hearing: list[tuple[DuplexSession, Tensor]]) -> dict[int, tuple[Tensor, Any]]:
        """By slot, the embeddings [n, hidden] of the second and the ear's state after it."""
        if not hearing:
            return {}
        audio, ears = self.components.ear.encode([it for _, it in hearing], [c.ear for c, _ in hearing])
        slots = [c.slot for c, _ in hearing]
        return dict(zip(slots, zip(audio, ears, strict=True), strict=True))

    def see(self, slices: list[Any]) -> list[Tensor]:
        assert self.components.eye is not None
        return self.components.eye.see(slices)

    def look(self, views: Sequence[View], seen: Sequence[Tensor]) -> list[list[Tensor]]:
        """The slices of each picture, each [n, hidden] with its marks; `seen` are their embeddings."""
        if not views:
            return []
        special, rows = self.tokenizer.special, iter(seen)
        whole = self.embed([special.image, special.image_end]).split(1)
        detail = (
            self.embed(list(self.components.detail_marks)).split(1) if self.components.detail_marks else whole
        )
        return [
            [
                torch.cat([begin, next(rows), end])
                for begin, end in [whole, *[detail] * (len(view.slices) - 1)]
            ]
            for view in views
        ]

    def speak(self, sessions: Sequence[Session[Any]]) -> None:
        """One step of the speech head for all who speak, and the mouth for those who have finished."""
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
        # A job is finished already only if a larger batch has failed since.
        going_on = [(session, job) for session, job in speaking if not job.finished]
        if going_on:
            steps = self.speaker.forward([job for _, job in going_on])
            for (session, job), step in zip(going_on, steps, strict=True):
                with blame(session):
                    self.speaker.take(job, step)
        spoken_at = time.monotonic()
        finished = [(session, job) for session, job in speaking if job.finished]
        unsaid = [(session, job) for session, job in finished if job.sound is None]
        for begin in range(0, len(unsaid), VOICES_AT_ONCE):
            self._say(unsaid[begin : begin + VOICES_AT_ONCE])
        for session, job in finished:
            with blame(session):
                session.spoken(job.sound, spoken_at)

    def _say(self, finished: list[tuple[SpeakingSession, SpeechJob]]) -> None:
        """Makes the sound of each job; if that fails, no voice has moved."""
        assert self.components.speech is not None
        marks = [session.mouth.mark() for session, _ in finished if session.mouth is not None]
        chunks = [SpeechCodes(session.mouth, job.codes, job.ends_turn) for session, job in finished]
        try:
            sounds = self.components.speech.mouth.say(chunks)
        except Exception:
            for go_back in marks:
                go_back()
            raise
        for (_, job), sound in zip(finished, sounds, strict=True):
            job.sound = sound

    def clear(self, slot: int) -> None:
        super().clear(slot)
        if self.speaker is not None:
            self.speaker.decoder.cache.clear(slot)


def slot_capacity(context_limit: int, slice_tokens: int | None) -> int:
    """Rows of a session's slot in the language model's cache; `slice_tokens` is None for a blind model."""
    pictures = MAX_FRAMES * (slice_tokens + SLICE_MARKS) if slice_tokens is not None else 0
    return context_limit + UNIT_ROOM + pictures


def _refused(problem: str) -> SessionFailed:
    return SessionFailed("CONFIG_INVALID", problem)
