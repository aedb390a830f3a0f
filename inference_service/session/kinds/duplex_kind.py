"""Full-duplex sessions: their input, their prompt, and the encoding of each next unit."""

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from antiphon.contract import Reason
from inference_service.device.rows import Rows
from inference_service.device.transfer import upload
from inference_service.engine.batch.context import Context, Memory
from inference_service.engine.batch.draw import TextSampler
from inference_service.engine.batch.noise import SPEECH, Noise
from inference_service.engine.batch.speech import SpeechState
from inference_service.engine.guard import blame
from inference_service.engine.runtime import Runtime
from inference_service.errors import UnitRefused
from inference_service.interface.engine import SessionFailed, Sink
from inference_service.interface.setups import (
    MODELS_VOICE,
    Content,
    DuplexSetup,
    StandaloneText,
    TextPurpose,
    UnitInput,
    WindowMode,
)
from inference_service.media.mel import SAMPLE_RATE
from inference_service.media.memo import PROMPTS_KNOWN, VOICES_KNOWN, Memo, digest
from inference_service.media.pool import Priority
from inference_service.session.base.session import Preprocessor, SessionKind
from inference_service.session.kinds.components import (
    SLICE_MARKS,
    DuplexComponents,
    DuplexPrompt,
    Interject,
    Listener,
    Look,
    Senses,
    Sound,
)
from inference_service.session.kinds.duplex import DuplexSession, PreparedInput
from inference_service.session.kinds.reference_voice import ReferenceVoice

_MEMORY_MARKER = "\n\nprevious: "
"""Text before the words of the units that the window dropped."""


MOST_TEXT = 2048
"""Limit of text tokens in one unit."""
MOST_WORDS = 24
"""Limit of recognised word tokens in one unit; an utterance with more of them adds none."""
_LATE_S = 0.2
"""Seconds of waiting after which a unit is prepared without recognised words."""


class DuplexPreprocessor(Preprocessor[PreparedInput]):
    """The preparation of units in order: features of sound, slices of pictures, tokens of texts."""

    def __init__(
        self,
        senses: Senses,
        voice: ReferenceVoice,
        write: Callable[[bool], DuplexPrompt] | None = None,
        interject: Interject | None = None,
        listener: Listener | None = None,
        encode: Callable[[str], list[int]] | None = None,
    ) -> None:
        """Create the preprocessor.

        `write` gives the session's prompt, with or without a voice in it. `encode` gives the ids of words
        that a `listener` has recognised.
        """
        self._interject = interject
        self._listener = listener
        self._encode = encode
        self._utterances: deque[tuple[Any, float]] = deque()
        """Utterances to recognise for units that are not prepared yet, each with its time of arrival."""
        self._senses = senses
        self._hearing = senses.hearing()
        self._write = write
        self._prompt: DuplexPrompt | None = None
        self.voice = voice

    def priority(self, content: Content | None) -> Priority | None:
        """Feed the sound of a unit to the recogniser, and return the priority of the unit.

        A unit that ends an utterance waits for the words. `prefill` calls this once for each unit, in order.
        """
        if content is None:
            return self.voice.priority
        if self._listener is not None and isinstance(content, UnitInput):
            utterance = self._listener.follow(content.pcm) if content.pcm is not None else None
            self._utterances.append((utterance, time.monotonic()))
            if utterance is not None and content.recorded is None:
                return Priority.WORDS
        if isinstance(content, UnitInput) and content.frames:
            return Priority.PICTURES
        is_read = isinstance(content, UnitInput) and content.texts
        return None if self._hearing.is_quick and not is_read else Priority.SOUND

    def begin(self) -> None:
        self.voice.begin()
        self.prompt()

    def prompt(self) -> DuplexPrompt:
        """Return the session's prompt; the first call renders it."""
        if self._prompt is None:
            assert self._write is not None
            self._prompt = self._write(bool(self.voice.heard))
        return self._prompt

    def prepare(self, content: Content) -> PreparedInput:
        if not isinstance(content, UnitInput):
            raise TypeError(f"A duplex session takes UnitInput, not {type(content).__name__}.")
        words = self._words(content)
        pictures = tuple(
            self._senses.look(data, field=f"duplex.frames[{i}]", max_slices=content.max_slice_nums)
            for i, data in enumerate(content.frames)
        )
        texts = self._read(content.texts)
        opens_turn = any(text.purpose is TextPurpose.COMMENTARY for text in content.texts)
        if content.pcm is None:
            return PreparedInput(None, pictures, texts, opens_turn, content.recorded)
        if len(content.pcm) > SAMPLE_RATE:
            raise ValueError(f"A unit has at most {SAMPLE_RATE} samples, not {len(content.pcm)}.")
        pcm = content.pcm
        if len(pcm) < SAMPLE_RATE:
            pcm = np.pad(pcm, (0, SAMPLE_RATE - len(pcm)))
        heard = torch.from_numpy(self._hearing.feed(pcm))
        return PreparedInput(heard, pictures, texts, opens_turn, content.recorded, words)

    def _words(self, content: UnitInput) -> tuple[int, ...]:
        """Return the ids of the recognised words of the utterance that the unit has ended.

        A replayed unit has the words of its record.
        """
        utterance, came = self._utterances.popleft() if self._utterances else (None, 0.0)
        if content.recorded is not None:
            if utterance is not None and self._listener is not None and content.recorded.words:
                self._listener.know(utterance)
            return content.recorded.words
        if utterance is None or self._listener is None or self._encode is None:
            return ()
        if time.monotonic() - came > _LATE_S:
            return ()
        ids = self._encode(self._listener.words(utterance))
        return tuple(ids) if len(ids) <= MOST_WORDS else ()

    def _read(self, texts: Sequence[StandaloneText]) -> tuple[int, ...]:
        ids: list[int] = []
        for text in texts:
            assert self._interject is not None
            ids += self._interject(text)
        if len(ids) > MOST_TEXT:
            problem = f"have {len(ids)} tokens; at most {MOST_TEXT} go into one unit"
            raise UnitRefused(Reason.INPUT_TOO_LONG, f"duplex.texts {problem}.", "duplex.texts")
        return tuple(ids)


class DuplexKind(SessionKind[DuplexSession]):
    """The full-duplex sessions of a model."""

    def __init__(self, runtime: Runtime, components: DuplexComponents, look: Look) -> None:
        self._runtime = runtime
        self._components = components
        self._look = look
        self._forbidden = torch.tensor(components.forbidden, dtype=torch.long).to(runtime.device)
        chunk_eos = components.tokenizer.special.chunk_eos
        self._forbidden_ids = frozenset(components.forbidden) - {chunk_eos}
        self._slice_tokens = components.slice_tokens + SLICE_MARKS if components.eye else 0
        self._prompts: Memo[DuplexPrompt] = Memo(PROMPTS_KNOWN)
        self._sounds: Memo[list[Sound]] = Memo(VOICES_KNOWN)
        self._clips: Memo[Tensor] = Memo(VOICES_KNOWN)

    def open(self, session_id: str, slot: int, setup: DuplexSetup, sink: Sink) -> DuplexSession:
        components = self._components
        prompts = components.speech.prompts if components.speech and setup.duplex.generate_audio else None
        salt = setup.tenant.salt
        voice = ReferenceVoice(
            components.reference(setup.voice),
            components.senses,
            prompts,
            self._sounds,
            given=setup.voice,
            salt=salt,
        )
        text = setup.system_prompt

        def write(hears_voice: bool) -> DuplexPrompt:
            return self._prompts.get(
                digest(salt, text, hears_voice),
                lambda: components.duplex_prompts.prompt(text, hears_voice=hears_voice),
            )

        return DuplexSession(
            session_id,
            slot,
            sink,
            Context(
                self._runtime.language, slot, setup.window, self._runtime.info.context_limit, setup.tenant
            ),
            DuplexPreprocessor(
                components.senses,
                voice,
                write,
                components.interject,
                components.recogniser() if components.recogniser is not None else None,
                components.tokenizer.encode,
            ),
            setup=setup,
            tokenizer=self._components.tokenizer,
            sampler=TextSampler(
                self._components.tokenizer.special,
                self._forbidden,
                Noise(setup.seed),
                reference_quirks=components.reference_quirks,
            ),
            speech=SpeechState(slot, Noise(setup.seed, SPEECH)),
            unit_tokens=components.unit_tokens,
            word_tokens=components.info.words_per_unit,
            slice_tokens=self._slice_tokens,
            forbidden_ids=self._forbidden_ids,
            turn_bound=components.turn_bound,
            reference_quirks=components.reference_quirks,
        )

    def rows_of(self, system_prompt: str) -> Iterator[Rows]:
        """Yield the rows of a system prompt without a voice, and with the operator's voice if any."""
        components = self._components
        prompt = components.duplex_prompts.prompt(system_prompt, hears_voice=False)
        yield Rows.of_ids([*prompt.before, *prompt.after])
        pcm = components.reference(MODELS_VOICE).heard
        if pcm is not None and components.senses is not None:
            prompt = components.duplex_prompts.prompt(system_prompt, hears_voice=True)
            heard = torch.cat(self._heard_clip(list(components.senses.sounds(pcm))))
            voice = Rows.of(heard, digest(pcm))
            yield Rows.join([Rows.of_ids(prompt.before), voice, Rows.of_ids(prompt.after)])

    def start(self, session: DuplexSession) -> SessionFailed | None:
        runtime, components = self._runtime, self._components
        preprocessor = cast(DuplexPreprocessor, session.preprocessor)
        setup, voice, prompt = session.setup, preprocessor.voice, preprocessor.prompt()
        before = Rows.of_ids(prompt.before)
        if voice.heard:
            before = Rows.join([before, Rows.of(self._heard_voice(voice), voice.key)])
        room = runtime.info.context_limit
        window = setup.window
        if window.mode is not WindowMode.OFF:
            if not 0 < window.low_tokens <= window.high_tokens <= room:
                return _refused(f"the window needs 0 < low_tokens <= high_tokens <= {room}")
            room = window.low_tokens
        room -= 2 * session.longest_unit
        if window.mode is WindowMode.CONTEXT:
            marker = components.tokenizer.encode(_MEMORY_MARKER)
            session.context.memory = Memory(marker, prompt.after, len(before))
            room -= len(session.context.memory.marker) + window.remembered_tokens
        length = len(before) + len(prompt.after)
        if length > room:
            return _refused(f"has {length} tokens; at most {max(0, room)} leave room for units")
        session.to_feed = session.context.begin(Rows.join([before, Rows.of_ids(prompt.after)]))
        session.ear = components.ear.initial_state()
        if components.speech is not None and setup.duplex.generate_audio:
            session.mouth = components.speech.mouth.initial_state(voice.spoken, setup.seed)
        return None

    def prepare(self, session: DuplexSession) -> Iterator[None]:
        voice, speech = cast(DuplexPreprocessor, session.preprocessor).voice, self._components.speech
        if voice.heard:
            self._heard_voice(voice)
            yield
        if speech is not None and session.setup.duplex.generate_audio:
            yield from speech.mouth.prepare(voice.spoken)

    def _heard_voice(self, voice: ReferenceVoice) -> Tensor:
        """Return embeddings [n, hidden] of a voice for the prompt."""
        return self._clips.get(voice.memo_key, lambda: torch.cat(self._heard_clip(voice.heard)))

    def _heard_clip(self, sounds: Sequence[Sound]) -> list[Tensor]:
        """Return embeddings [n, hidden] of the parts of a clip."""
        state, heard = None, []
        for sound in sounds:
            rows, state = self._components.ear.listen(sound, state)
            heard.append(rows)
        return heard

    def hear(self, sessions: Sequence[DuplexSession]) -> None:
        units = [c.queue.first.input for c in sessions if c.queue.first and c.queue.first.input]
        both = list(zip(sessions, units, strict=True))
        hearing = [(c, unit.heard) for c, unit in both if unit.heard is not None]
        heard = self._heard(hearing)
        for session, unit in both:
            with blame(session):
                views = self._look(unit.pictures, session.seen) if unit.pictures else ()
                seen = [rows for view in views for rows in view]
                audio, ear = heard.get(session.slot, (Rows.of_ids([]), session.ear))
                session.start_unit(session.context.carry(), seen, audio, ear)

    def _heard(self, hearing: list[tuple[DuplexSession, Tensor]]) -> dict[int, tuple[Rows, Any]]:
        """Return by slot the embeddings of the second, and the ear's state after it."""
        if not hearing:
            return {}
        features = upload(self._runtime.device, *(features.numpy() for _, features in hearing))
        audio, ears = self._components.ear.encode(features, [c.ear for c, _ in hearing])
        slots = [c.slot for c, _ in hearing]
        return dict(zip(slots, zip(map(Rows.of, audio), ears, strict=True), strict=True))


def _refused(problem: str) -> SessionFailed:
    return SessionFailed("CONFIG_INVALID", problem)
