"""The joint stages: the language model learns turn-taking, answers, pictures, chats and transcription."""

import random
import time
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import Qwen3ForCausalLM

from antiphon_training.corpus.augment import Augmenter
from antiphon_training.corpus.camera import Camera
from antiphon_training.corpus.composition import Composer
from antiphon_training.corpus.pictures import PictureSet
from antiphon_training.corpus.recipe import (
    AUDIO,
    LANGUAGE,
    VISION,
    language,
)
from antiphon_training.corpus.spoken import Utterance, load
from antiphon_training.corpus.transcription import DictationComposer, dictation_row
from antiphon_training.corpus.writing import (
    AUDIO_SLOT,
    FRAMES_PER_SLOT,
    IGNORED,
    PICTURE_SLOT,
    Row,
    Writer,
)
from antiphon_training.domains.domain import Domain, Split
from antiphon_training.stages import chat
from antiphon_training.stages.alignment import load_ends
from antiphon_training.stages.precision import mixed
from antiphon_training.stages.rounds import Bar, save
from inference_service.media.mel import BANDS
from inference_service.models.audio_encoder import AudioEncoder
from inference_service.models.tokenizer import Tokenizer
from inference_service.models.vision_encoder import Resampler, VisionEncoder

_DICTATED_UNITS = (5, 8, 13, 20, 40)
_LISTEN_WEIGHT = 0.5
_GROUPS = 6
"""The number of groups of rows of similar length in a batch; each is one forward, with little padding."""


class JointModel(nn.Module):
    """Audio encoder, vision encoder and language model, under their names in the checkpoint."""

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.llm = Qwen3ForCausalLM(language(tokens))
        self.apm = AudioEncoder(AUDIO, LANGUAGE.hidden_size)
        self.vpm = VisionEncoder(VISION)
        self.resampler = Resampler(VISION, LANGUAGE.hidden_size)

    def hidden(self, rows: list[Row], ear_learns: bool) -> tuple[Tensor, Tensor]:
        """Return final hidden states [rows, length, hidden] and labels [rows, length] of a padded batch."""
        length = -(-max(len(row.ids) for row in rows) // 32) * 32
        ids = torch.zeros(len(rows), length, dtype=torch.long)
        labels = torch.full((len(rows), length), IGNORED)
        for i, row in enumerate(rows):
            ids[i, : len(row.ids)] = torch.tensor(row.ids)
            labels[i, : len(row.labels)] = torch.tensor(row.labels)
        embeds = self.llm.model.embed_tokens(ids.clamp(min=0))
        sounds = [sound for row in rows for sound in row.sounds]
        if sounds:
            audio = torch.cat(self._heard(sounds, ear_learns))
            embeds = embeds.masked_scatter((ids == AUDIO_SLOT)[..., None], audio.to(embeds.dtype))
        shown = [picture for row in rows for picture in row.pictures]
        if shown:
            seen = self.resampler(self.vpm(torch.from_numpy(np.stack(shown)))).flatten(0, 1)
            embeds = embeds.masked_scatter((ids == PICTURE_SLOT)[..., None], seen.to(embeds.dtype))
        return self.llm.model(inputs_embeds=embeds, use_cache=False).last_hidden_state, labels

    def _heard(self, sounds: list[np.ndarray], ear_learns: bool) -> list[Tensor]:
        """Return the embeddings of each sound; sounds of similar length share a forward."""
        order = sorted(range(len(sounds)), key=lambda i: len(sounds[i]))
        embedded: dict[int, Tensor] = {}
        while order:
            shortest = len(sounds[order[0]])
            group = [i for i in order if len(sounds[i]) <= 1.5 * shortest]
            order = order[len(group) :]
            frames = -(-len(sounds[group[-1]]) // FRAMES_PER_SLOT) * FRAMES_PER_SLOT
            mel = torch.full((len(group), frames, BANDS), -3.0)
            for row, i in zip(mel, group, strict=True):
                row[: len(sounds[i])] = torch.from_numpy(sounds[i])
            with torch.set_grad_enabled(ear_learns):
                states = self.apm.hear(mel)
            for slots, i in zip(self.apm.embed(states), group, strict=True):
                embedded[i] = slots[: len(sounds[i]) // FRAMES_PER_SLOT]
        return [embedded[i] for i in range(len(sounds))]


def loss_of(
    model: JointModel, rows: list[Row], ear_learns: bool, listen: int, smoothing: float
) -> tuple[Tensor, float]:
    """Return the weighted cross entropy over all targets, and the accuracy on targets other than `listen`."""
    rows = sorted(rows, key=lambda row: len(row.ids))
    cuts = [len(rows) * i // _GROUPS for i in range(_GROUPS + 1)]
    decisions, targets = [], []
    with mixed():
        for group in (rows[a:b] for a, b in pairwise(cuts) if a < b):
            hidden, labels = model.hidden(group, ear_learns)
            decisions.append(hidden[labels != IGNORED])
            targets.append(labels[labels != IGNORED])
        logits = model.llm.lm_head(torch.cat(decisions)).float()
    target = torch.cat(targets)
    loss = F.cross_entropy(logits, target, reduction="none", label_smoothing=smoothing)
    weight = torch.where(target == listen, _LISTEN_WEIGHT, 1.0)
    right = (logits.argmax(-1) == target)[target != listen].float().mean()
    return (loss * weight).sum() / weight.sum(), float(right)


@dataclass(frozen=True)
class Lesson:
    """The composition of the batches of a stage."""

    units: tuple[int, ...] = (8, 12, 18, 26, 36)
    """The lengths of spoken sessions in units; a batch has one of them."""
    written: int = 6
    """The number of rows of written questions in a batch, in addition to the spoken sessions."""
    questions: int = 12
    """The number of questions in a row of written questions."""
    about_pictures: float = 0.0
    """The share of written questions about a picture, in rows with pictures."""
    unfilmed: float = 1.0
    """The share of rows and sessions without a camera."""
    spoken: float = 1.0
    """The number of spoken sessions, as a share of a batch's usual number."""
    chats: int = 0
    """The number of chats in a batch."""
    dictated_units: int = 0
    """The units (seconds of audio) for transcription in a batch."""


HEARING_LESSON = Lesson()
LOOKING_LESSON = Lesson(units=(8,), written=14, questions=5, about_pictures=0.6, unfilmed=0.1)
SEEING_LESSON = Lesson(about_pictures=0.4, unfilmed=0.4)
TURNS_LESSON = Lesson(about_pictures=0.4, unfilmed=0.45, written=4, spoken=0.35, chats=7, dictated_units=52)


def question_row(domain: Domain, rng: random.Random, writer: Writer, camera: Camera, lesson: Lesson) -> Row:
    """Return a row of written questions, some of them about the camera's pictures."""
    exchanges = []
    about_pictures = lesson.about_pictures * (1.0 if camera.films else 0.1)
    for i in range(lesson.questions):
        camera.advance(i + 1)
        if domain.looking and rng.random() < about_pictures:
            exchange = domain.draw(rng, Split.TRAIN, domain.looking)
            exchanges.append(replace(exchange, reply=camera.seen.reply))
        else:
            exchanges.append(domain.written(rng))
    return writer.text(exchanges, camera.units)


class BatchMaker:
    """A maker of the batches of a stage; the same seed makes the same batches."""

    def __init__(
        self, domain: Domain, corpus: list[Utterance], album: PictureSet | None, ends: list[list[int]] | None,
        tokenizer: Tokenizer, lesson: Lesson, seed: int,
    ) -> None:  # fmt: skip
        self._a = Augmenter(seed)
        self._domain = domain
        self._lesson = lesson
        self._album = album
        self._composer = Composer(domain, corpus, self._a, album, lesson.unfilmed)
        self._chats = chat.ChatComposer(domain, corpus, album, self._a)
        self._dictations = DictationComposer(domain, corpus, ends, self._a) if ends else None
        self.writer = Writer(tokenizer, self._a.rng, domain.prompts)

    def batch(self, size: int) -> list[Row]:
        """Return the rows of one step.

        The spoken sessions have about as many units in all as `size` sessions of 18 units.
        """
        rng, lesson, writer = self._a.rng, self._lesson, self.writer
        units = rng.choice(lesson.units)
        sessions = max(round(4 * lesson.spoken), round(size * 18 * lesson.spoken) // units)
        rows = [writer.conversation(self._composer.conversation(units)) for _ in range(sessions)]
        for _ in range(lesson.written):
            camera = Camera(self._a.noise_rng, self._album, lesson.unfilmed)
            rows.append(question_row(self._domain, rng, writer, camera, lesson))
        rows += [chat.chat_row(writer, self._chats.talk()) for _ in range(lesson.chats)]
        if self._dictations:
            length = rng.choice(_DICTATED_UNITS)
            for _ in range(lesson.dictated_units // length):
                rows.append(dictation_row(writer, self._dictations.dictation(length)))
        return rows


def train(
    domain: Domain,
    corpus_path: Path, tokenizer_path: Path, ear: Path, out: Path, seconds: float, resume: bool = False,
    frozen_share: float = 0.4, peak: float = 2e-3, batch: int = 12, seed: int = 2, smoothing: float = 0.02,
    questions: Path | None = None, pictures: Path | None = None, word_ends: Path | None = None,
    lesson: Lesson = HEARING_LESSON, eye_learns: bool = True,
) -> None:  # fmt: skip
    """Train for `seconds` of wall time and write the model's weights to `out`; `resume` reads them first.

    The audio encoder is frozen for `frozen_share` of the time. With `pictures`, sessions have cameras.
    `questions` is a further corpus, of questions about pictures. `word_ends` has the word ends of both
    corpora, for transcription sessions.
    """
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    tokenizer = Tokenizer.load(tokenizer_path)
    model = JointModel(tokenizer.size)
    if resume:
        model.load_state_dict(torch.load(out, weights_only=True))
    else:
        model.apm.load_state_dict(torch.load(ear, weights_only=True))
    model.vpm.requires_grad_(eye_learns)
    model.resampler.requires_grad_(eye_learns)
    batches = BatchMaker(
        domain,
        load(corpus_path) + (load(questions) if questions else []),
        PictureSet(pictures) if pictures else None,
        load_ends(word_ends) if word_ends else None,
        tokenizer,
        lesson,
        seed,
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, weight_decay=0.02, betas=(0.9, 0.98))
    bar = Bar("joint", seconds)
    start, step, loss_average, right_average, preparing = time.monotonic(), 0, 0.0, 0.0, 0.0
    while (elapsed := time.monotonic() - start) < seconds:
        before = time.monotonic()
        rows = batches.batch(batch)
        preparing += time.monotonic() - before
        share = elapsed / seconds
        ear_learns = share >= frozen_share
        for settings in optimizer.param_groups:
            settings["lr"] = (
                peak * min(1, step / 100 + 0.02) * (1 - share * 0.95) * (0.6 if ear_learns else 1)
            )
        loss, right = loss_of(model, rows, ear_learns, batches.writer.listen, smoothing)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        loss_average = loss.item() if step == 1 else 0.97 * loss_average + 0.03 * loss.item()
        right_average = right if step == 1 else 0.97 * right_average + 0.03 * right
        bar.move(elapsed)
        if step % 20 == 0:
            bar.note(
                step,
                elapsed,
                f"loss {loss_average:.3f}  spoken tokens right {right_average:.3f}"
                f"  data {preparing / (elapsed + 1e-9):.2f}",
            )
        if step % 100 == 0:
            save(model.state_dict(), out)
    bar.close()
    save(model.state_dict(), out)
