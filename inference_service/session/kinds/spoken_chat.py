"""A chat session that can speak its answers."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field

import torch
from torch import Tensor

from inference_service.device.rows import Rows
from inference_service.engine.batch.context import Context
from inference_service.engine.batch.noise import SPEECH, Noise
from inference_service.engine.batch.speech import SpeechJob, SpeechState
from inference_service.engine.guard import blame
from inference_service.engine.runtime import Runtime
from inference_service.interface.engine import End, Piece, Sink
from inference_service.interface.setups import ChatSetup, Window
from inference_service.models.chat_template import ChatTemplate
from inference_service.models.errors import CheckpointError
from inference_service.session.base.session import SessionKind, Stage
from inference_service.session.kinds.chat import POISONED, ChatSession
from inference_service.session.kinds.components import (
    SLICE_MARKS,
    DuplexComponents,
    Look,
    MouthState,
    Sound,
    SpeakingSession,
    View,
)
from inference_service.session.kinds.prompt import (
    ChatPreprocessor,
    Dialogue,
    PictureRules,
    PromptPicture,
    Words,
    call_grammar,
    shared_beginnings,
)
from inference_service.session.kinds.reference_voice import ReferenceVoice
from inference_service.session.kinds.speech_groups import SpeechGroups


@dataclass(eq=False)
class SpokenChatSession(ChatSession, SpeakingSession):
    """A chat session of a model with a voice.

    In a spoken turn, decoding pauses while a group of words is spoken. After the last word, the token that
    ends a turn for the speech head is fed to get its hidden state.
    """

    _: KW_ONLY
    groups: SpeechGroups
    hidden: list[Tensor] = field(default_factory=list)
    """Hidden states, each [hidden], of the answer's tokens that were fed, and of the end of the turn."""
    voiced: int = 0
    """Tokens of the answer that the voice has taken."""
    is_ending: bool = False
    """Whether the end of the turn is queued or fed."""

    @property
    def mouth(self) -> MouthState | None:  # type: ignore[override]
        return self.groups.mouth

    @property
    def speaks(self) -> bool:
        """Whether this turn is spoken."""
        return self.run.unit.input is not None and self.run.unit.input.speaks

    def go_on(self) -> None:
        if not self.speaks:
            return
        assert self.last_hidden is not None
        self.hidden.append(self.last_hidden.clone())
        self._feed_voice()
        if self.run.finish is not None:
            if not self.is_ending:
                self._feed_end()
                return
            self.groups.end(self.hidden[-1])
        if self.groups.next():
            self.run.begin_speech()
            self.stage = Stage.SPEAK
        elif self.run.finish is not None:
            self.finish(End.TURN)

    def _feed_voice(self) -> None:
        """Pass the text that was sent, and whose tokens were fed, to the voice."""
        answer, template = self.run.answer, self.dialogue.template
        until = min(answer.released, len(self.hidden))
        for i in range(self.voiced, until):
            if answer.is_said(i):
                token = answer.tokens[i]
                self.groups.add(token, template.decode([token]), self.hidden[i])
        self.voiced = until

    def close(self, token: int | None) -> int | None:
        if not self.speaks or not self.run.answer.announced:
            return super().close(token)
        if token is None:
            self._feed_end()
        return token

    def _feed_end(self) -> None:
        self.to_feed, self.is_ending = Rows.of_ids([self.groups.turn_end]), True

    def speech_job(self) -> SpeechJob | None:
        return None if self.is_cancelled else self.groups.job

    def spoken(self, audio: Tensor | None, spoken_at: float) -> None:
        run, job = self.run, self.groups.job
        assert job is not None
        run.codes += len(job.codes)
        run.end_speech(spoken_at)
        if self.is_cancelled:
            self.finish(End.CANCELLED)
            return
        if job.poisoned:
            run.failure = POISONED
            self.finish(End.FAILED)
            return
        if audio is not None and len(audio):
            self.events.append(Piece(run.number, audio=audio.numpy()))
        if self.groups.next():
            run.begin_speech()
        elif run.finish is not None:
            self.finish(End.TURN)
        else:
            self.stage = Stage.DECODE

    def begin_generate(self) -> bool:
        begins = super().begin_generate()
        if begins:
            is_own = self.run.noise is self.noise
            self.groups.noise = None if is_own else self.run.noise
        return begins

    def leave(self) -> None:
        super().leave()
        self.ear = self.groups.mouth = self.running = None

    def finish(self, end: End) -> None:
        self.groups.drop_turn()
        self.hidden, self.voiced, self.is_ending = [], 0, False
        super().finish(end)


class SpokenChatKind(SessionKind[SpokenChatSession]):
    """The chats of a duplex model.

    `look` gives, for each picture, the rows of its slices with the marks round them. Its input is embeddings
    [n, hidden] without marks.
    """

    def __init__(
        self, runtime: Runtime, components: DuplexComponents, template: ChatTemplate, look: Look
    ) -> None:
        self._runtime = runtime
        self._components = components
        self._look = look
        special = components.tokenizer.special
        self._turn_end = special.turn_eos
        rules = components.chat
        numbered = rules.numbers_pictures
        self._dialogue = Dialogue(
            template,
            limit=runtime.info.context_limit,
            ends=rules.ends,
            forbidden=_without(rules.forbidden, template.around_calls).to(runtime.device),
            opens_with_space=rules.opens_with_space,
            speaks=components.speech is not None,
            senses=components.senses,
            clip_marks=(_token(template, "<|audio_start|>"), _token(template, "<|audio_end|>")),
            picture=PictureRules(
                components.slice_tokens + SLICE_MARKS,
                (_token(template, "<image_id>"), _token(template, "</image_id>")) if numbered else None,
                tuple(components.tokenizer.encode("\n")) if numbered else (),
                runtime.info.max_slices,
            )
            if components.eye
            else None,
            hearing_opens_speech=rules.hearing_opens_speech,
            omni_joint=rules.omni_joint,
            interleaves_videos=rules.interleaves_videos,
            grammar=call_grammar(template, runtime.info.vocabulary, rules.ends),
        )

    def open(self, session_id: str, slot: int, setup: ChatSetup, sink: Sink) -> SpokenChatSession:
        runtime, components = self._runtime, self._components
        prompts = components.speech.prompts if components.speech else None
        reference = components.reference(setup.voice)
        voice = ReferenceVoice(reference, None, prompts, given=setup.voice, salt=setup.tenant.salt)
        return SpokenChatSession(
            session_id,
            slot,
            sink,
            Context(runtime.language, slot, Window(), self._dialogue.limit, setup.tenant),
            ChatPreprocessor(self._dialogue, setup.system_prompt, voice),
            setup=setup,
            dialogue=self._dialogue,
            noise=Noise(setup.seed),
            groups=SpeechGroups(
                SpeechState(slot, Noise(setup.seed, SPEECH)),
                self._turn_end,
                runtime.info.duplex_defaults.tts_temperature,
            ),
        )

    def rows_of(self, system_prompt: str) -> Iterator[Rows]:
        return shared_beginnings(self._dialogue.template, system_prompt)

    def prepare(self, session: SpokenChatSession) -> Iterator[None]:
        voice, speech = session.preprocessor.voice, self._components.speech
        return speech.mouth.prepare(voice.spoken if voice else None) if speech else iter(())

    def start(self, session: SpokenChatSession) -> None:
        if self._components.speech is not None:
            voice = session.preprocessor.voice
            spoken = voice.spoken if voice else None
            session.groups.mouth = self._components.speech.mouth.initial_state(spoken, session.setup.seed)
        session.ready()

    def hear(self, sessions: Sequence[SpokenChatSession]) -> None:
        """Embed the next portion of each turn's prompt."""
        for session in sessions:
            with blame(session):
                portion = session.next_portion()
                seen = iter(
                    self._look([it.view for it in portion if isinstance(it, PromptPicture)], session.seen)
                )
                rows: list[Rows] = []
                for it in portion:
                    rows += (
                        self._seen(it.view, next(seen))
                        if isinstance(it, PromptPicture)
                        else [self._embedded(session, it)]
                    )
                session.read(Rows.join(rows))

    def _seen(self, view: View, slices: list[Rows]) -> Iterator[Rows]:
        """Yield the slices of a picture, and the ids that end the rows of its details."""
        rules = self._dialogue.picture
        for i, rows in enumerate(slices):
            if rules and rules.line_end and view.columns and i > 1 and (i - 1) % view.columns == 0:
                yield Rows.of_ids(rules.line_end)
            yield rows

    def _embedded(self, session: SpokenChatSession, passage: Words | Sound) -> Rows:
        if isinstance(passage, Words):
            return Rows.of_ids(passage.ids)
        heard, session.ear = self._components.ear.listen(passage, session.ear)
        return Rows.of(heard, passage.name)


def _without(ids: Tensor, taken: Collection[int]) -> Tensor:
    return torch.tensor([it for it in ids.tolist() if it not in taken], dtype=torch.long)


def _token(template: ChatTemplate, text: str) -> int:
    token = template.token(text)
    if token is None:
        raise CheckpointError(f"tokenizer.json lacks {text}, which a chat needs.")
    return token
