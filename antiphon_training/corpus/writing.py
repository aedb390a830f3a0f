"""Training rows: token ids with placeholders, the targets among them, and the audio and pictures."""

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
    """One training sequence: ids (-1 for audio, -2 for pictures), next tokens, sounds and pictures.

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
        """Append ids that the model decides; they are training targets if `taught`."""
        for token in ids:
            self.labels[-1] = token if taught else IGNORED
            self.add([token])

    def hear(self, frames: int) -> None:
        """Append the placeholders for the embeddings of `frames` mel frames."""
        self.add([AUDIO_SLOT] * (frames // FRAMES_PER_SLOT))

    def look(self, picture: Pixels) -> None:
        """Append a picture, and the placeholders for its embeddings."""
        self.add([PICTURE_SLOT] * VISION.queries)
        self.pictures.append(picture)


class Writer:
    """A writer of conversations as training rows."""

    def __init__(self, tokenizer: Tokenizer, rng: random.Random, prompts: Sequence[str] = PROMPTS) -> None:
        self._tokenizer = tokenizer
        self._rng = rng
        self._prompts = prompts
        self._ids: dict[str, list[int]] = {}
        self.listen = self.encode(LISTEN)[0]

    def encode(self, token: str) -> list[int]:
        """Return the ids of a planned token: a special token, or a word with its leading space."""
        if token not in self._ids:
            encode = self._tokenizer.encode_template if token.startswith("<") else self._tokenizer.encode
            self._ids[token] = encode(token)
        return self._ids[token]

    def template(self, text: str) -> list[int]:
        """Return the ids of trusted text, in which special tokens are recognised."""
        return self._tokenizer.encode_template(text)

    def plain(self, text: str) -> list[int]:
        """Return the ids of text, in which special tokens are plain text."""
        return self._tokenizer.encode(text)

    def _prompt(self) -> list[int]:
        prompt = self._rng.choice(self._prompts)
        return [*self.template(PROMPT_PREFIX), *self.plain(prompt), *self.template(PROMPT_SUFFIX)]

    def _decisions(self, row: Row, tokens: list[str], taught: bool) -> None:
        row.decide([token for planned in tokens for token in self.encode(planned)], taught)

    def _open(self, row: Row, pictures: list[Pixels]) -> None:
        """Append the start of a unit: `<unit>` and its pictures."""
        row.add(self.encode("<unit>"))
        for picture in pictures:
            row.add(self.encode("<image>"))
            row.look(picture)
            row.add(self.encode("</image>"))

    def conversation(self, conversation: Conversation) -> Row:
        """Return the row of a whole spoken session."""
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
        """Return a row with several questions as text instead of sound, which is a cheap way to learn facts.

        `pictures` has the pictures of each question.
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
