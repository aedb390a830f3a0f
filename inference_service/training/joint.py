"""The joint stages: the language model learns when to listen, when to speak, what to say, and to look."""

import random
import time
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Qwen3ForCausalLM

from inference_service.media.mel import BANDS
from inference_service.models.audio_encoder import AudioEncoder
from inference_service.models.tokenizer import Tokenizer
from inference_service.models.vision_encoder import Resampler, VisionEncoder
from inference_service.training.augment import Augmenter
from inference_service.training.camera import Camera, Pixels
from inference_service.training.composition import FRAMES, LISTEN, Composer, Conversation, reply_plans
from inference_service.training.corpus import load
from inference_service.training.domain import Exchange, Intent, Split, draw
from inference_service.training.pictures import Album
from inference_service.training.recipe import AUDIO, LANGUAGE, PROMPT_PREFIX, PROMPT_SUFFIX, VISION

_AUDIO = -1
_PICTURE = -2
_IGNORED = -100
_PER_UNIT = FRAMES // (2 * AUDIO.pool)
_LISTEN_WEIGHT = 0.5
_GROUPS = 3
"""Rows of similar length are run together, so that little is spent on padding."""
PROMPTS = (
    "You are a helpful assistant.", "Answer briefly.", "", "You are a friendly voice assistant.",
    "Be brief and clear.", "You help people with numbers.", "Speak with the user.",
    "Today is a good day. Answer in one sentence.",
)  # fmt: skip


@dataclass
class Row:
    """One training sequence: ids (-1 for audio, -2 for pictures), next tokens, what is heard and seen."""

    ids: list[int]
    labels: list[int]
    mel: np.ndarray | None = None
    pictures: list[Pixels] = field(default_factory=list)

    def add(self, ids: list[int]) -> None:
        """Appends ids that the model does not decide."""
        self.ids += ids
        self.labels += [_IGNORED] * len(ids)


class Writer:
    """Writes conversations as token sequences."""

    def __init__(self, tokenizer: Tokenizer, rng: random.Random) -> None:
        self._tokenizer = tokenizer
        self._rng = rng
        self._ids: dict[str, list[int]] = {}
        self.listen = self._one(LISTEN)

    def _one(self, token: str) -> int:
        return self.encode(token)[0]

    def encode(self, token: str) -> list[int]:
        """Ids of one planned token: a special token by its name or a word with its leading space."""
        if token not in self._ids:
            encode = self._tokenizer.encode_template if token.startswith("<") else self._tokenizer.encode
            self._ids[token] = encode(token)
        return self._ids[token]

    def _prompt(self) -> list[int]:
        prompt = self._rng.choice(PROMPTS)
        return [
            *self._tokenizer.encode_template(PROMPT_PREFIX),
            *self._tokenizer.encode(prompt),
            *self._tokenizer.encode_template(PROMPT_SUFFIX),
        ]

    def _decisions(self, row: Row, tokens: list[str], taught: bool) -> None:
        decided = [token for planned in tokens for token in self.encode(planned)]
        for token in decided:
            row.labels[-1] = token if taught else _IGNORED
            row.ids.append(token)
            row.labels.append(_IGNORED)

    def _open(self, row: Row, pictures: list[Pixels]) -> None:
        """The start of a unit: `<unit>` and its pictures."""
        row.add([self._one("<unit>")])
        for picture in pictures:
            row.add([self._one("<image>"), *[_PICTURE] * VISION.queries, self._one("</image>")])
            row.pictures.append(picture)

    def conversation(self, conversation: Conversation) -> Row:
        """The sequence of a whole spoken session."""
        prompt = self._prompt()
        row = Row(prompt, [_IGNORED] * len(prompt), conversation.mel)
        for plan in conversation.units:
            self._open(row, plan.pictures)
            row.add([_AUDIO] * _PER_UNIT)
            self._decisions(row, plan.tokens, plan.taught)
            row.add([self._one("</unit>")])
        return row

    def text(self, exchanges: list[Exchange], pictures: list[list[Pixels]] | None = None) -> Row:
        """Questions in writing instead of sound, several in one sequence: the cheap way to learn facts.

        `pictures` are shown with each question.
        """
        prompt = self._prompt()
        row = Row(prompt, [_IGNORED] * len(prompt))
        for i, exchange in enumerate(exchanges):
            self._open(row, pictures[i] if pictures else [])
            row.add(self._tokenizer.encode(exchange.question))
            for j, plan in enumerate(reply_plans(exchange.reply)):
                if j:
                    self._open(row, [])
                self._decisions(row, plan.tokens, True)
                row.add([self._one("</unit>")])
        return row


class JointModel(nn.Module):
    """Ear, eye and language model under the names they have in the checkpoint."""

    def __init__(self) -> None:
        super().__init__()
        self.llm = Qwen3ForCausalLM(LANGUAGE)
        self.apm = AudioEncoder(AUDIO, LANGUAGE.hidden_size)
        self.vpm = VisionEncoder(VISION)
        self.resampler = Resampler(VISION, LANGUAGE.hidden_size)

    def hidden(self, rows: list[Row], ear_learns: bool) -> tuple[Tensor, Tensor]:
        """Final hidden states [rows, length, hidden] and labels [rows, length] of a padded batch."""
        length = -(-max(len(row.ids) for row in rows) // 32) * 32
        ids = torch.zeros(len(rows), length, dtype=torch.long)
        labels = torch.full((len(rows), length), _IGNORED)
        for i, row in enumerate(rows):
            ids[i, : len(row.ids)] = torch.tensor(row.ids)
            labels[i, : len(row.labels)] = torch.tensor(row.labels)
        embeds = self.llm.model.embed_tokens(ids.clamp(min=0))
        heard = [row.mel for row in rows if row.mel is not None]
        if heard:
            frames = -(-max(len(mel) for mel in heard) // (2 * FRAMES)) * 2 * FRAMES
            mel = torch.full((len(heard), frames, BANDS), -3.0)
            for i, sound in enumerate(heard):
                mel[i, : len(sound)] = torch.from_numpy(sound)
            with torch.set_grad_enabled(ear_learns):
                states = self.apm.hear(mel)
            embedded = self.apm.embed(states)
            counts = [len(sound) // (2 * AUDIO.pool) for sound in heard]
            audio = torch.cat([embedded[i, :count] for i, count in enumerate(counts)])
            embeds = embeds.masked_scatter((ids == _AUDIO)[..., None], audio.to(embeds.dtype))
        shown = [picture for row in rows for picture in row.pictures]
        if shown:
            seen = self.resampler(self.vpm(torch.from_numpy(np.stack(shown)))).flatten(0, 1)
            embeds = embeds.masked_scatter((ids == _PICTURE)[..., None], seen.to(embeds.dtype))
        return self.llm.model(inputs_embeds=embeds, use_cache=False).last_hidden_state, labels


def loss_of(
    model: JointModel, rows: list[Row], ear_learns: bool, listen: int, smoothing: float
) -> tuple[Tensor, float]:
    """Weighted cross entropy over all taught decisions, and the share of right ones while speaking."""
    rows = sorted(rows, key=lambda row: len(row.ids))
    cuts = [len(rows) * i // _GROUPS for i in range(_GROUPS + 1)]
    decisions, targets = [], []
    with torch.autocast("cpu", torch.bfloat16):
        for group in (rows[a:b] for a, b in pairwise(cuts) if a < b):
            hidden, labels = model.hidden(group, ear_learns)
            decisions.append(hidden[labels != _IGNORED])
            targets.append(labels[labels != _IGNORED])
        logits = model.llm.lm_head(torch.cat(decisions)).float()
    target = torch.cat(targets)
    loss = F.cross_entropy(logits, target, reduction="none", label_smoothing=smoothing)
    weight = torch.where(target == listen, _LISTEN_WEIGHT, 1.0)
    right = (logits.argmax(-1) == target)[target != listen].float().mean()
    return (loss * weight).sum() / weight.sum(), float(right)


@dataclass(frozen=True)
class Lesson:
    """What the batches of a round are made of."""

    units: tuple[int, ...] = (8, 12, 18, 26, 36)
    """Lengths of spoken sessions, one of them for each batch."""
    written: int = 6
    """Sequences of written questions in a batch, beside the spoken sessions."""
    questions: int = 12
    """Questions in such a sequence."""
    about_pictures: float = 0.0
    """Share of written questions that are about a picture, where there is one."""
    unfilmed: float = 1.0
    """Share of sequences and sessions without a camera."""


HEARING_LESSON = Lesson()
LOOKING_LESSON = Lesson(units=(8,), written=14, questions=5, about_pictures=0.6, unfilmed=0.1)
SEEING_LESSON = Lesson(about_pictures=0.4, unfilmed=0.4)


def written(rng: random.Random, writer: Writer, camera: Camera, lesson: Lesson) -> Row:
    """A sequence of written questions; some are about the pictures shown, or missing."""
    exchanges = []
    about_pictures = lesson.about_pictures * (1.0 if camera.films else 0.1)
    for i in range(lesson.questions):
        camera.advance(i + 1)
        if rng.random() < about_pictures:
            exchange = draw(rng, Split.TRAIN, Intent.VISION)
            exchanges.append(replace(exchange, reply=camera.seen.reply))
        else:
            exchanges.append(draw(rng, Split.TRAIN, Intent.ARITHMETIC if rng.random() < 0.6 else None))
    return writer.text(exchanges, camera.units)


def train(
    corpus_path: Path, tokenizer_path: Path, ear: Path, out: Path, seconds: float, resume: bool = False,
    frozen_share: float = 0.4, peak: float = 2e-3, batch: int = 12, seed: int = 2, smoothing: float = 0.02,
    questions: Path | None = None, pictures: Path | None = None, lesson: Lesson = HEARING_LESSON,
) -> None:  # fmt: skip
    """Trains for `seconds` of wall time: first with the ear held still, then everything together.

    With `pictures`, sessions have cameras; `questions` is a further corpus, of sentences about pictures.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    tokenizer = Tokenizer.load(tokenizer_path)
    model = JointModel()
    if resume:
        model.load_state_dict(torch.load(out, weights_only=True))
    else:
        model.apm.load_state_dict(torch.load(ear, weights_only=True))
    augmenter = Augmenter(seed)
    corpus = load(corpus_path) + (load(questions) if questions else [])
    album = Album(pictures) if pictures else None
    composer = Composer(corpus, augmenter, album, lesson.unfilmed)
    writer = Writer(tokenizer, augmenter.rng)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, weight_decay=0.02, betas=(0.9, 0.98))
    start, step, loss_average, right_average, preparing = time.monotonic(), 0, 0.0, 0.0, 0.0
    while (elapsed := time.monotonic() - start) < seconds:
        before = time.monotonic()
        units = augmenter.rng.choice(lesson.units)
        size = max(4, batch * 18 // units)
        rows = [writer.conversation(composer.conversation(units)) for _ in range(size)]
        for _ in range(lesson.written):
            camera = Camera(augmenter.noise_rng, album, lesson.unfilmed)
            rows.append(written(augmenter.rng, writer, camera, lesson))
        preparing += time.monotonic() - before
        share = elapsed / seconds
        ear_learns = share >= frozen_share
        for settings in optimizer.param_groups:
            settings["lr"] = (
                peak * min(1, step / 100 + 0.02) * (1 - share * 0.95) * (0.6 if ear_learns else 1)
            )
        loss, right = loss_of(model, rows, ear_learns, writer.listen, smoothing)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        loss_average = loss.item() if step == 1 else 0.97 * loss_average + 0.03 * loss.item()
        right_average = right if step == 1 else 0.97 * right_average + 0.03 * right
        if step % 20 == 0:
            print(
                f"joint {step:6d} {elapsed:6.0f} s  loss {loss_average:.3f}"
                f"  spoken tokens right {right_average:.3f}  data {preparing / (elapsed + 1e-9):.2f}",
                flush=True,
            )
        if step % 100 == 0:
            torch.save(model.state_dict(), out)
    torch.save(model.state_dict(), out)
