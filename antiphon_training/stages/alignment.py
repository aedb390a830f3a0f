"""Forced alignment: the end of each word of a spoken sentence, found with the trained audio encoder.

The stage `ear` trains the encoder with a character head, but does not keep the head. This stage trains a new
head on the frozen encoder. The best path through the characters of each sentence gives the word ends.
"""

import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import nn
from tqdm import tqdm

from antiphon_training.corpus.augment import Augmenter
from antiphon_training.corpus.spoken import Utterance, load
from antiphon_training.stages.ear import (
    SpellingEar,
    batches,
    spelled,
    spelling_loss,
)
from antiphon_training.stages.precision import mixed
from antiphon_training.stages.rounds import Bar
from inference_service.media.mel import BANDS, log_mel

_BATCH = 64
_QUIET = -3.0
_FRAMES_PER_STATE = 2
_LEAD = 10
"""Frames of silence before each sentence."""
_TRAIL = 30
"""Frames of silence after each sentence."""


def best_path(log_probs: NDArray[np.float32], targets: list[int]) -> NDArray[np.int64]:
    """Return the last step of each target on the most likely path through CTC scores [steps, classes].

    Raises ValueError if the targets do not fit into the steps.
    """
    states = np.zeros(2 * len(targets) + 1, np.int64)
    states[1::2] = targets
    steps, count = len(log_probs), len(states)
    skips = np.zeros(count, bool)
    skips[3::2] = states[3::2] != states[1:-2:2]
    score = np.full(count, -np.inf, np.float32)
    score[:2] = log_probs[0, states[:2]]
    back = np.zeros((steps, count), np.int8)
    for step in range(1, steps):
        choices = np.full((3, count), -np.inf, np.float32)
        choices[0] = score
        choices[1, 1:] = score[:-1]
        choices[2, 2:] = np.where(skips[2:], score[:-2], -np.inf)
        back[step] = choices.argmax(0)
        score = choices.max(0) + log_probs[step, states]
    at = count - 1 if score[-1] >= score[-2] else count - 2
    if not np.isfinite(score[at]):
        raise ValueError(f"{len(targets)} characters do not fit into {steps} steps")
    ends = np.full(count, -1, np.int64)
    for step in range(steps - 1, -1, -1):
        ends[at] = max(ends[at], step)
        at -= back[step, at]
    return ends[1::2]


def word_ends(sentence: str, character_ends: NDArray[np.int64]) -> list[int]:
    """Return the step in which the last character of each word ends."""
    ends, at = [], -1
    for word in sentence.split():
        at += len(word)
        ends.append(int(character_ends[at]))
        at += 1
    return ends


def spelling_head(ear: Path, corpus: list[Utterance], seconds: float) -> SpellingEar:
    """Train a character head on the frozen audio encoder `ear` for `seconds` of wall time; return both."""
    torch.manual_seed(0)
    model = SpellingEar()
    model.encoder.load_state_dict(torch.load(ear, weights_only=True))
    model.encoder.requires_grad_(False)
    optimizer = torch.optim.AdamW(model.spell.parameters(), lr=1e-2, betas=(0.9, 0.98))
    augmenter = Augmenter(8)
    bar = Bar("spelling", seconds)
    start, step, average = time.monotonic(), 0, 0.0
    while (elapsed := time.monotonic() - start) < seconds:
        for mel, lengths, targets in batches(corpus, augmenter, min(96, len(corpus))):
            for settings in optimizer.param_groups:
                settings["lr"] = 1e-2 * (1 - elapsed / seconds * 0.95)
            loss = spelling_loss(model, mel, lengths, targets)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.spell.parameters(), 1.0)
            optimizer.step()
            step += 1
            average = loss.item() if step == 1 else 0.95 * average + 0.05 * loss.item()
        bar.note(step, elapsed, f"loss {average:.3f}")
    bar.close()
    return model


@torch.no_grad()
def align(model: SpellingEar, corpus: list[Utterance]) -> list[list[int]]:
    """Return the end of each word of each utterance, in frames from the start of the utterance."""
    order = sorted(range(len(corpus)), key=lambda i: len(corpus[i].power))
    result: list[list[int]] = [[]] * len(corpus)
    for begin in tqdm(range(0, len(order), _BATCH), desc="alignment", unit_scale=_BATCH, disable=None):
        chosen = order[begin : begin + _BATCH]
        frames = _LEAD + len(corpus[chosen[-1]].power) + _TRAIL
        mel = np.full((len(chosen), frames + frames % 2, BANDS), _QUIET, np.float32)
        for row, i in zip(mel, chosen, strict=True):
            row[_LEAD : _LEAD + len(corpus[i].power)] = log_mel(corpus[i].power)
        with mixed():
            scores = model(torch.from_numpy(mel))
        log_probs = F.log_softmax(scores.float(), -1).numpy()
        for row, i in zip(log_probs, chosen, strict=True):
            length = len(corpus[i].power)
            steps = (_LEAD + length + _TRAIL) // _FRAMES_PER_STATE
            sentence = corpus[i].exchange.question
            ends = word_ends(sentence, best_path(row[:steps], spelled(sentence)))
            result[i] = [min(length, max(1, (end + 1) * _FRAMES_PER_STATE - _LEAD)) for end in ends]
    return result


def build(corpus_paths: list[Path], ear: Path, out: Path, seconds: float) -> None:
    """Write the word ends of all utterances of the corpora, one after another, to `out` (.npz)."""
    torch.set_num_threads(1)
    corpus = [utterance for path in corpus_paths for utterance in load(path)]
    ends = align(spelling_head(ear, corpus, seconds), corpus)
    np.savez(out, count=np.array([len(e) for e in ends]), end=np.concatenate(ends))


def load_ends(path: Path) -> list[list[int]]:
    """Load the word ends written by `build`, in frames from the start of each utterance."""
    data = np.load(path)
    return [part.tolist() for part in np.split(data["end"], np.cumsum(data["count"])[:-1])]
