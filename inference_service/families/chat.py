"""What a duplex model needs to hold chats."""

from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor

from inference_service.api.engine import Sink
from inference_service.api.setups import ChatSetup, Window
from inference_service.engine.batch.context import Context
from inference_service.engine.batch.speech import SpeechState
from inference_service.engine.guard import blame
from inference_service.engine.runtime import Runtime
from inference_service.engine.sessions.components import DuplexComponents, Sound, View
from inference_service.engine.sessions.preprocessing import VoicePreprocessor
from inference_service.engine.sessions.prompt import ChatPreprocessor, Dialogue, PictureRules, Sight, Words
from inference_service.engine.sessions.speech_groups import SpeechGroups
from inference_service.engine.sessions.spoken_chat import SpokenChatSession
from inference_service.models.chat_template import ChatTemplate
from inference_service.models.errors import CheckpointError

Look = Callable[[Sequence[View], Sequence[Tensor]], list[list[Tensor]]]
_MARKS = 2


class Chat:
    """Opens the chats of a duplex runtime and reads their prompts.

    `look` gives, for each picture, the embeddings [n, hidden] of its slices with the marks round them, from
    those without.
    """

    def __init__(
        self, runtime: Runtime, components: DuplexComponents, template: ChatTemplate, look: Look
    ) -> None:
        self._runtime = runtime
        self._components = components
        self._look = look
        special = components.tokenizer.special
        self._turn_end = special.turn_eos
        self._end_rows = runtime.embed([self._turn_end]).detach()
        rules = components.chat
        numbered = rules.numbers_pictures
        self._dialogue = Dialogue(
            template,
            limit=runtime.info.context_limit,
            ends=rules.ends,
            forbidden=rules.forbidden,
            opens_with_space=rules.opens_with_space,
            speaks=components.speech is not None,
            senses=components.senses,
            clip_marks=(_token(template, "<|audio_start|>"), _token(template, "<|audio_end|>")),
            picture=PictureRules(
                components.slice_tokens + _MARKS,
                (_token(template, "<image_id>"), _token(template, "</image_id>")) if numbered else None,
                tuple(components.tokenizer.encode("\n")) if numbered else (),
            )
            if components.eye
            else None,
            hearing_opens_speech=rules.hearing_opens_speech,
            omni_joint=rules.omni_joint,
        )

    def open(self, session_id: str, slot: int, setup: ChatSetup, sink: Sink) -> SpokenChatSession:
        """A session in a clean slot."""
        runtime, components = self._runtime, self._components
        prompts = components.speech.prompts if components.speech else None
        voice = VoicePreprocessor(components.reference(setup.voice), None, prompts)
        return SpokenChatSession(
            session_id,
            slot,
            sink,
            Context(runtime.language, slot, Window(), self._dialogue.limit),
            ChatPreprocessor(self._dialogue, setup.system_prompt, voice),
            setup=setup,
            dialogue=self._dialogue,
            generator=torch.Generator().manual_seed(setup.seed),
            groups=SpeechGroups(
                SpeechState(slot, torch.Generator().manual_seed(setup.seed)),
                self._turn_end,
                self._end_rows,
                runtime.info.duplex_defaults.tts_temperature,
            ),
        )

    def start(self, turn: SpokenChatSession) -> None:
        """The session can take its first unit."""
        if self._components.speech is not None:
            spoken = (
                turn.preprocessor.voice.spoken
                if isinstance(turn.preprocessor, ChatPreprocessor) and turn.preprocessor.voice
                else None
            )
            turn.groups.mouth = self._components.speech.mouth.initial_state(spoken, turn.setup.seed)
        turn.ready()

    def hear(self, turns: Sequence[SpokenChatSession]) -> None:
        """Embeds the next portion of each turn's prompt."""
        for turn in turns:
            with blame(turn):
                portion = turn.next_portion()
                seen = iter(self._look([it.view for it in portion if isinstance(it, Sight)], turn.seen))
                rows: list[Tensor] = []
                for it in portion:
                    rows += (
                        self._seen(it.view, next(seen))
                        if isinstance(it, Sight)
                        else [self._embedded(turn, it)]
                    )
                turn.read(torch.cat(rows))

    def _seen(self, view: View, slices: list[Tensor]) -> Iterator[Tensor]:
        """The slices of a picture, and what ends the rows of its details."""
        rules = self._dialogue.picture
        for i, rows in enumerate(slices):
            if rules and rules.line_end and view.columns and i > 1 and (i - 1) % view.columns == 0:
                yield self._runtime.embed(list(rules.line_end))
            yield rows

    def _embedded(self, turn: SpokenChatSession, passage: Words | Sound) -> Tensor:
        if isinstance(passage, Words):
            return self._runtime.embed(passage.ids)
        heard, turn.ear = self._components.ear.listen(passage, turn.ear)
        return heard


def _token(template: ChatTemplate, text: str) -> int:
    token = template.token(text)
    if token is None:
        raise CheckpointError(f"tokenizer.json lacks {text}, which a chat needs.")
    return token
