"""Training sequences: token ids, the decisions of the model among them, and its audio and pictures."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from antiphon_training.corpus.camera import Pixels
from antiphon_training.corpus.composition import LISTEN, Conversation, reply_plans
from antiphon_training.corpus.recipe import (
    AUDIO,
    PROMPT_PREFIX,
    PROMPT_SUFFIX,
    VISION,
)
from antiphon_training.domains.domain import PROMPTS, Exchange
from inference_service.models.tokenizer import Tokenizer

AUDIO_SLOT = -1
PICTURE_SLOT = -2
IGNORED = -100
FRAMES_PER_SLOT = 2 * AUDIO.pool


@dataclass
class Row:
    """One training sequence: ids (-1 for audio, -2 for pictures), next tokens, what is heard and seen.

    Each sound is log-mel [frames, 80] of a stream of its own.
    """

    ids: list[int] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    sounds: list[NDArray[np.float32]] = field(default_factory=list)
    pictures: list[Pixels] = field(default_factory=list)

    def add(self, ids: list[int]) -> None:
        """Append ids that the model does not decide."""
        self.ids += ids
        self.labels += [IGNORED] * len(ids)

    def decide(self, ids: list[int], taught: bool = True) -> None:
        """Append ids that the model decides, as a lesson if they are `taught`."""
        for token in ids:
            self.labels[-1] = token if taught else IGNORED
            self.add([token])

    def hear(self, frames: int) -> None:
        """Append the places of the embeddings of so many frames of sound."""
        self.add([AUDIO_SLOT] * (frames // FRAMES_PER_SLOT))

    def look(self, picture: Pixels) -> None:
        """Append the places of the embeddings of a picture."""
        self.add([PICTURE_SLOT] * VISION.queries)
        self.pictures.append(picture)


class Writer:
    """A writer of conversations as token sequences."""

    def __init__(self, tokenizer: Tokenizer, rng: random.Random, prompts: Sequence[str] = PROMPTS) -> None:
        self._tokenizer = tokenizer
        self._rng = rng
        self._prompts = prompts
        self._ids: dict[str, list[int]] = {}
        self.listen = self.encode(LISTEN)[0]

    def encode(self, token: str) -> list[int]:
        """Return ids of one planned token: a special token by its name or a word with its leading space."""
        if token not in self._ids:
            encode = self._tokenizer.encode_template if token.startswith("<") else self._tokenizer.encode
            self._ids[token] = encode(token)
        return self._ids[token]

    def template(self, text: str) -> list[int]:
        """Return ids of trusted text in which special tokens mean themselves."""
        return self._tokenizer.encode_template(text)

    def plain(self, text: str) -> list[int]:
        """Return ids of text in which nothing is special."""
        return self._tokenizer.encode(text)

    def _prompt(self) -> list[int]:
        prompt = self._rng.choice(self._prompts)
        return [*self.template(PROMPT_PREFIX), *self.plain(prompt), *self.template(PROMPT_SUFFIX)]

    def _decisions(self, row: Row, tokens: list[str], taught: bool) -> None:
        row.decide([token for planned in tokens for token in self.encode(planned)], taught)

    def _open(self, row: Row, pictures: list[Pixels]) -> None:
        """Write the start of a unit: `<unit>` and its pictures."""
        row.add(self.encode("<unit>"))
        for picture in pictures:
            row.add(self.encode("<image>"))
            row.look(picture)
            row.add(self.encode("</image>"))

    def conversation(self, conversation: Conversation) -> Row:
        """Return the sequence of a whole spoken session."""
        row = Row(sounds=[conversation.mel])
        row.add(self._prompt())
        for plan in conversation.units:
            self._open(row, plan.pictures)
            row.hear(len(conversation.mel) // len(conversation.units))
            row.add(self.plain(plan.words))
            self._decisions(row, plan.tokens, plan.taught)
            row.add(self.encode("</unit>"))
        return row

    def text(self, exchanges: list[Exchange], pictures: list[list[Pixels]] | None = None) -> Row:
        """Write questions in text instead of sound, several in one sequence: the cheap way to learn facts.

        `pictures` are shown with each question.
        """
        row = Row()
        row.add(self._prompt())
        for i, exchange in enumerate(exchanges):
            self._open(row, pictures[i] if pictures else [])
            row.add(self.plain(exchange.question))
            for j, plan in enumerate(reply_plans(exchange.reply)):
                if j:
                    self._open(row, [])
                self._decisions(row, plan.tokens, True)
                row.add(self.encode("</unit>"))
        return row
