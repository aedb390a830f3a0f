"""The duplex model on its device: it hears, sees, decides and speaks."""

import time
from collections.abc import Sequence
from itertools import islice
from typing import Any, cast

import torch
from torch import Tensor

from inference_service.engine.api import (
    ChatSetup,
    DuplexSettings,
    DuplexSetup,
    Mode,
    ModelInfo,
    SessionFailed,
    SessionSetup,
    Sink,
    TokensSetup,
    TranscribeSetup,
    Window,
    WindowMode,
)
from inference_service.engine.chat import Chat
from inference_service.engine.context import Context
from inference_service.engine.conversation import Conversation
from inference_service.engine.decoder import PackedDecoder
from inference_service.engine.intake import DuplexIntake
from inference_service.engine.participant import Participant, Speaking
from inference_service.engine.runtime import Runtime
from inference_service.engine.sampler import TextSampler
from inference_service.engine.speech import Speaker, SpeechState
from inference_service.engine.spoken_turn import SpokenTurn
from inference_service.engine.stream import Stream
from inference_service.engine.tokens import Tokens
from inference_service.engine.transcriber import Transcriber
from inference_service.engine.transcript import Transcript
from inference_service.media.image import MAX_FRAMES
from inference_service.media.mel import HOP, SAMPLE_RATE
from inference_service.models.config import ModelConfig
from inference_service.models.duplex import DuplexModel
from inference_service.models.errors import CheckpointError
from inference_service.models.tokenizer import Tokenizer

SPEECH_CAPACITY = 512
"""Entries of speech context in a slot: about fifteen units of one turn."""
_UNIT_ROOM = 128
"""Room above the window for the longest unit that settings allow, pictures aside."""
_MARKS = 2
"""`<image>` and `</image>`."""


class DuplexRuntime(Runtime):
    """Loaded weights of the duplex architecture and their caches."""

    def __init__(self, model: DuplexModel, tokenizer: Tokenizer, config: ModelConfig, slots: int) -> None:
        self.tokenizer = tokenizer
        self.config = config
        self.unit_tokens = SAMPLE_RATE // HOP // 2 // config.audio.pool
        self.picture_tokens = config.vision.queries + _MARKS if config.vision else 0
        room = _UNIT_ROOM + MAX_FRAMES * self.picture_tokens
        language = PackedDecoder(model.llm.model, slots, config.context_limit + room)
        info = model_info(config, chats=tokenizer.chat_template is not None)
        super().__init__(info, language, model.llm.model.embed_tokens, model.llm.lm_head)
        self.model = model
        self.speaker = Speaker(model.tts, slots, SPEECH_CAPACITY)
        # A decision is text or a token of the unit loop; everything else would break the context's shape.
        decisions = tokenizer.special.decisions
        self.forbidden = torch.tensor(
            [i for i in range(config.language.vocab_size) if not tokenizer.is_text(i) and i not in decisions],
            dtype=torch.long,
        )
        self._side = config.vision.image_size if config.vision else 0
        self._prefix = tokenizer.encode_template(config.prompt_prefix)
        self._suffix = tokenizer.encode_template(config.prompt_suffix)
        self._transcriber = Transcriber(
            self, model.apm, tokenizer, config.transcription_prompt, self.unit_tokens
        )
        self._tokens = Tokens(self, tokenizer.plain, frozenset((tokenizer.special.im_end,)))
        template = tokenizer.chat_template
        self._chat = (
            Chat(self, model, tokenizer, template, self._look, self.unit_tokens, self.picture_tokens)
            if template is not None
            else None
        )

    def open(self, session_id: str, slot: int, setup: SessionSetup, sink: Sink) -> Participant[Any]:
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

    def converse(self, session_id: str, slot: int, setup: DuplexSetup, sink: Sink) -> Conversation:
        """A full-duplex session in a clean slot."""
        generator = torch.Generator().manual_seed(setup.seed)
        return Conversation(
            session_id,
            slot,
            sink,
            Context(self.language, slot, setup.window, self.config.context_limit),
            DuplexIntake(self._side),
            setup,
            self.tokenizer,
            self.model.apm.initial_state(),
            TextSampler(self.tokenizer.special, self.forbidden, generator),
            SpeechState(slot, torch.Generator().manual_seed(setup.seed)),
            self.model.vocoder.initial_state(setup.seed),
            self.unit_tokens,
            self.picture_tokens,
        )

    def start(self, session: Participant[Any]) -> SessionFailed | None:
        if isinstance(session, Transcript):
            return self._transcriber.start(session)
        if isinstance(session, Stream):
            return self._tokens.start(session)
        if isinstance(session, SpokenTurn):
            session.ready()
            return None
        return self._start_conversation(cast(Conversation, session))

    def _start_conversation(self, conversation: Conversation) -> SessionFailed | None:
        ids = [*self._prefix, *self.tokenizer.encode(conversation.setup.system_prompt), *self._suffix]
        window = conversation.setup.window
        room = self.config.context_limit
        if window.mode is WindowMode.BASIC:
            if not 0 < window.low_tokens <= window.high_tokens <= room:
                return _refused(f"the window needs 0 < low_tokens <= high_tokens <= {room}")
            room = window.low_tokens
        room -= 2 * conversation.longest_unit
        if len(ids) > room:
            return _refused(f"has {len(ids)} tokens; at most {max(0, room)} leave room for units")
        conversation.to_feed = self.embed(ids)
        return None

    def hear(self, sessions: Sequence[Participant[Any]]) -> None:
        """Encodes the next unit of each session, in one batch for each kind of session."""
        self._hear_conversations([session for session in sessions if isinstance(session, Conversation)])
        self._transcriber.hear([session for session in sessions if isinstance(session, Transcript)])
        self._tokens.hear([session for session in sessions if isinstance(session, Stream)])
        if self._chat is not None:
            self._chat.hear([session for session in sessions if isinstance(session, SpokenTurn)])

    def _hear_conversations(self, conversations: Sequence[Conversation]) -> None:
        if not conversations:
            return
        units = [c.orders.first.input for c in conversations if c.orders.first and c.orders.first.input]
        mels = [unit.mel.to(self.device) for unit in units]
        heard, states = self.model.apm.encode(mels, [c.ear for c in conversations])
        slices = iter(self._look([picture for unit in units for picture in unit.pictures]))
        for conversation, unit, audio, state in zip(conversations, units, heard, states, strict=True):
            carried = [*conversation.context.carry(), self.tokenizer.special.unit]
            seen = list(islice(slices, len(unit.pictures)))
            conversation.start_unit(self.embed(carried), seen, audio, state)

    def _look(self, pictures: list[Tensor]) -> list[Tensor]:
        """The slices of all pictures, each [n, hidden] with its marks, encoded in one batch."""
        if not pictures:
            return []
        special = self.tokenizer.special
        begin, end = self.embed([special.image, special.image_end]).split(1)
        slices = self.model.see([picture.to(self.device) for picture in pictures])
        return [torch.cat([begin, embeds, end]) for embeds in slices]

    def speak(self, sessions: Sequence[Participant[Any]]) -> None:
        """One step of the speech head for all who speak, and the vocoder for those who have finished."""
        speaking = []
        for session in cast(Sequence[Speaking], sessions):
            job = session.speech_job()
            if job is not None:
                speaking.append((session, job))
            else:
                session.spoken(None, time.monotonic())
        if not speaking:
            return
        self.speaker.step([job for _, job in speaking])
        spoken_at = time.monotonic()
        finished = [(session, job) for session, job in speaking if job.finished]
        audio = self.model.vocoder.decode(
            [job.codes for _, job in finished], [s.vocoder for s, _ in finished]
        )
        for (session, _), sound in zip(finished, audio, strict=True):
            session.spoken(sound, spoken_at)

    def clear(self, slot: int) -> None:
        super().clear(slot)
        self.speaker.decoder.cache.clear(slot)


def _refused(problem: str) -> SessionFailed:
    return SessionFailed("CONFIG_INVALID", problem)


def _modes(config: ModelConfig, chats: bool) -> frozenset[Mode]:
    has = {
        Mode.AUDIO: True,
        Mode.TOKENS: True,
        Mode.VIDEO: config.vision,
        Mode.CHAT: chats,
        Mode.TRANSCRIBE: config.transcription_prompt,
    }
    return frozenset(mode for mode, reason in has.items() if reason)


def model_info(config: ModelConfig, *, chats: bool = False) -> ModelInfo:
    """What sessions are told about a model, which `chats` if it has a chat template.

    Raises `CheckpointError` for defaults that are no settings.
    """
    try:
        defaults = DuplexSettings(**config.duplex_defaults)
    except TypeError as error:
        raise CheckpointError(f"config.json has unknown duplex defaults: {error}.") from None
    return ModelInfo(
        name=config.name,
        context_limit=config.context_limit,
        input_sample_rate_hz=SAMPLE_RATE,
        output_sample_rate_hz=config.vocoder.sample_rate_hz,
        unit_seconds=1.0,
        duplex_defaults=defaults,
        window=Window(WindowMode.BASIC, config.window_high, config.window_low),
        modes=_modes(config, chats),
        sees=config.vision is not None,
        vocabulary=config.language.vocab_size,
    )
