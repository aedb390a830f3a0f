"""What the duplex model needs to hold chats."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from inference_service.engine.api import ChatSetup, Sink, Window
from inference_service.engine.context import Context
from inference_service.engine.prompt import Dialogue, Sight, Sound, TurnIntake, Words
from inference_service.engine.runtime import Runtime
from inference_service.engine.speech import SpeechState
from inference_service.engine.spoken_turn import SpokenTurn
from inference_service.engine.voice import Voice
from inference_service.models.chat_template import ChatTemplate
from inference_service.models.duplex import DuplexModel
from inference_service.models.errors import CheckpointError
from inference_service.models.tokenizer import Tokenizer

Look = Callable[[list[Tensor]], list[Tensor]]


class Chat:
    """Opens the chats of a duplex runtime and reads their prompts.

    `look` gives the embeddings [n, hidden] of pictures, with the marks round them.
    """

    def __init__(
        self,
        runtime: Runtime,
        model: DuplexModel,
        tokenizer: Tokenizer,
        template: ChatTemplate,
        look: Look,
        second_tokens: int,
        picture_tokens: int,
    ) -> None:
        self._runtime = runtime
        self._model = model
        self._look = look
        self._turn_end = tokenizer.special.turn_eos
        self._end_rows = runtime.embed([self._turn_end]).detach()
        end = tokenizer.special.im_end
        size = model.config.language.vocab_size
        self._dialogue = Dialogue(
            template,
            limit=runtime.info.context_limit,
            ends=frozenset((end,)),
            forbidden=torch.tensor([i for i in range(size) if not tokenizer.is_text(i) and i != end]),
            opens_with_space=True,
            speaks=True,
            clip_marks=(_token(template, "<|audio_start|>"), _token(template, "<|audio_end|>")),
            second_tokens=second_tokens,
            side=model.config.vision.image_size if model.config.vision else 0,
            picture_tokens=picture_tokens,
        )

    def open(self, session_id: str, slot: int, setup: ChatSetup, sink: Sink) -> SpokenTurn:
        """A session in a clean slot."""
        runtime = self._runtime
        return SpokenTurn(
            session_id,
            slot,
            sink,
            Context(runtime.language, slot, Window(), self._dialogue.limit),
            TurnIntake(self._dialogue, setup.system_prompt),
            setup=setup,
            dialogue=self._dialogue,
            generator=torch.Generator().manual_seed(setup.seed),
            voice=Voice(
                SpeechState(slot, torch.Generator().manual_seed(setup.seed)),
                self._model.vocoder.initial_state(setup.seed),
                self._turn_end,
                self._end_rows,
                runtime.info.duplex_defaults.tts_temperature,
            ),
        )

    def hear(self, turns: Sequence[SpokenTurn]) -> None:
        """Embeds the next portion of each turn's prompt; the pictures of all turns in one batch."""
        portions = [turn.next_portion() for turn in turns]
        shown = [passage.pixels for portion in portions for passage in portion if isinstance(passage, Sight)]
        seen = iter(self._look(shown))
        for turn, portion in zip(turns, portions, strict=True):
            rows = [next(seen) if isinstance(it, Sight) else self._embedded(turn, it) for it in portion]
            turn.read(torch.cat(rows))

    def _embedded(self, turn: SpokenTurn, passage: Words | Sound) -> Tensor:
        if isinstance(passage, Words):
            return self._runtime.embed(passage.ids)
        if passage.begins:
            turn.ear = self._model.apm.initial_state()
        ((heard,), (turn.ear,)) = self._model.apm.encode([passage.mel.to(self._runtime.device)], [turn.ear])
        return heard


def _token(template: ChatTemplate, text: str) -> int:
    token = template.token(text)
    if token is None:
        raise CheckpointError(f"tokenizer.json lacks {text}, which a chat needs.")
    return token
