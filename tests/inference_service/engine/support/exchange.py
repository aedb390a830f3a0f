"""A chat whose model is a script: every decision is forced by its scores, and no forward is run."""

import time
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from inference_service.device.rows import Rows
from inference_service.engine.batch.context import Context
from inference_service.engine.batch.noise import Noise
from inference_service.engine.batch.speech import SpeechState
from inference_service.families.antiphon_mini import MiniSenses
from inference_service.interface.engine import Failure
from inference_service.interface.setups import (
    ChatMessage,
    ChatSetup,
    Clip,
    Sampling,
    TurnInput,
    UnitOverrides,
    Window,
)
from inference_service.models.chat_template import ChatTemplate
from inference_service.models.vocoder import VocoderState
from inference_service.session.base.session import QueuedUnit, Stage
from inference_service.session.kinds.prompt import ChatPreprocessor, Dialogue, PictureRules, Words
from inference_service.session.kinds.speech_groups import SpeechGroups
from inference_service.session.kinds.spoken_chat import SpokenChatSession
from tests.inference_service.engine.support import decisions, tiny
from tests.inference_service.engine.support.talk import HIDDEN, Said, Scripted, decoder

SECOND = 16_000
MARKS = 2
"""The number of tokens around a picture or a clip."""


def chat_template() -> ChatTemplate:
    template = tiny.tokenizer().chat_template
    assert template is not None
    return template


DIALOGUE = Dialogue(
    chat_template(),
    limit=4096,
    ends=frozenset(),
    forbidden=torch.zeros(0, dtype=torch.long),
    speaks=True,
    senses=MiniSenses(tiny.SIDE, 10),
    clip_marks=(694, 696),
    picture=PictureRules(tiny.PICTURE_TOKENS + MARKS),
)
END = 642
"""`<|im_end|>`."""
TURN_END = 714
"""`<|turn_eos|>`."""
GREEDY = Sampling(temperature=0.0)


def clip(seconds: float, seed: int = 0) -> Clip:
    noise = np.random.default_rng(seed).standard_normal(round(seconds * SECOND))
    return Clip((noise * 0.1).astype(np.float32))


class Exchange(Scripted):
    """A chat whose session is ready."""

    def __init__(self, *, limit: int = 512, sampling: Sampling = GREEDY) -> None:
        self.template = DIALOGUE.template
        generator = torch.Generator().manual_seed(0)
        dialogue = replace(DIALOGUE, limit=limit, ends=frozenset((END,)), opens_with_space=True)
        self.turn = SpokenChatSession(
            "exchange",
            0,
            lambda event: None,
            Context(decoder(limit + 8), 0, Window(), limit),
            ChatPreprocessor(dialogue, ""),
            setup=ChatSetup(sampling, seed=0),
            dialogue=dialogue,
            noise=Noise(0),
            groups=SpeechGroups(
                SpeechState(0, Noise(0)),
                TURN_END,
                temperature=0.8,
                mouth=VocoderState(0.0, 0.0, torch.zeros(2, 240), torch.zeros(784), generator),
            ),
        )
        super().__init__(self.turn)
        self.fed = 0
        """Rows of the answer that have been fed."""
        self.turn.ready()
        self.opening = self._collected().events

    def encode(self, text: str) -> list[int]:
        """Ids of plain text."""
        (ids,) = self.template.prompt([("user", [text])])
        (frame,) = self.template.prompt([("user", [""])])
        assert isinstance(ids, list)
        assert isinstance(frame, list)
        return ids[4 : len(ids) - len(frame) + 4]

    def hear(
        self,
        text: str = "Hello",
        *,
        speaks: bool = False,
        failure: Failure | None = None,
        poisoned: bool = False,
    ) -> Said:
        """Queue the next turn and feed its rows as far as possible."""
        self.number += 1
        self.said, self.fed = Said(), 0
        turn = self.turn
        content = TurnInput((ChatMessage("user", (text,)),), speaks=speaks)
        prompt = None if failure else turn.preprocessor.prepare(content)
        turn.queue.prefill(QueuedUnit(self.number, prompt, time.monotonic(), failure))
        while turn.wants_unit and not turn.refuse_unit():
            rows = sum(len(it.ids) for it in turn.next_portion() if isinstance(it, Words))
            turn.read(Rows.of(torch.zeros(rows, HIDDEN)))
            while turn.to_feed is not None:
                turn.take(len(turn.to_feed[:64]), None if poisoned else torch.zeros(HIDDEN))
        return self._collected()

    def decide_on(self, scores: Tensor, *, poisoned: bool = False) -> Said:
        """Decide once on these scores."""
        turn = self.turn
        assert turn.wants_decision
        draw = turn.draw()
        chosen = None if draw is None else turn.decide(decisions.chosen(scores, draw))
        if chosen is not None:
            turn.feed(chosen)
        while turn.to_feed is not None:
            # The n-th row's hidden state is n everywhere.
            turn.take(1, None if poisoned else torch.full((HIDDEN,), float(self.fed)))
            self.fed += 1
        return self._collected()

    def speak(self, codes: int = 25, *, poisoned: bool = False) -> Said:
        """Let the speech head return `codes` codes for the waiting group of words."""
        turn = self.turn
        assert turn.stage is Stage.SPEAK
        job = turn.speech_job()
        if job is not None:
            job.codes, job.poisoned = [0] * codes, poisoned
            job.state.length += len(job.tokens) + 1 + codes
        turn.spoken(None if job is None else torch.zeros(codes * 960), time.monotonic())
        return self._collected()

    def finalize(self) -> Said:
        """Finalize the turn."""
        self.turn.queue.finalize(self.number)
        assert self.turn.wants_end
        self.turn.end_unit()
        self.turn.finalize()
        return self._collected()

    def answer(self, text: str, *, overrides: UnitOverrides | None = None) -> Said:
        """Run a whole turn without speech in which the model answers `text`."""
        self.hear()
        self.generate(overrides)
        for token in [*self.encode(text), END]:
            if self.turn.wants_decision:
                self.decide(token)
        return self.finalize()
