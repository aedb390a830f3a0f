"""The first trained stage: the audio encoder learns to spell speech (CTC on characters)."""

import random
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from antiphon_training.corpus.augment import Augmenter
from antiphon_training.corpus.recipe import AUDIO, LANGUAGE
from antiphon_training.corpus.spoken import Utterance, load
from antiphon_training.stages.precision import mixed
from antiphon_training.stages.rounds import Bar, save
from inference_service.media.mel import log_mel
from inference_service.models.audio_encoder import AudioEncoder

_CHARACTERS = " abcdefghijklmnopqrstuvwxyz'"
_PAD = -3.0
_BUCKET = 48


def spelled(text: str) -> list[int]:
    """Return the character classes of a sentence; class 0 is the CTC blank."""
    return [_CHARACTERS.index(c) + 1 for c in text]


class SpellingEar(nn.Module):
    """The audio encoder with a character head, which the checkpoint does not contain."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = AudioEncoder(AUDIO, LANGUAGE.hidden_size)
        self.spell = nn.Linear(AUDIO.hidden, len(_CHARACTERS) + 1)

    def forward(self, mel: Tensor) -> Tensor:
        scores: Tensor = self.spell(self.encoder.hear(mel))
        return scores


def batches(
    corpus: list[Utterance], augmenter: Augmenter, size: int
) -> list[tuple[Tensor, Tensor, list[list[int]]]]:
    """Return three batches of similar lengths: padded log-mel, lengths in frames, targets."""
    items = []
    for utterance in augmenter.rng.sample(corpus, size):
        speech = augmenter.speech(utterance.power)
        before, after = augmenter.rng.randint(0, 20), augmenter.rng.randint(8, 40)
        power = augmenter.noise(before + len(speech) + after, float(speech.mean()))
        power[before : before + len(speech)] += speech
        items.append((log_mel(power), spelled(utterance.exchange.question)))
    items.sort(key=lambda item: len(item[0]))
    third = size // 3
    result = []
    for group in (items[:third], items[third : 2 * third], items[2 * third :]):
        frames = -(-max(len(mel) for mel, _ in group) // _BUCKET) * _BUCKET
        padded = np.full((len(group), frames, group[0][0].shape[1]), _PAD, np.float32)
        for row, (mel, _) in zip(padded, group, strict=True):
            row[: len(mel)] = mel
        lengths = torch.tensor([len(mel) for mel, _ in group])
        result.append((torch.from_numpy(padded), lengths, [target for _, target in group]))
    augmenter.rng.shuffle(result)
    return result


def spelling_loss(model: SpellingEar, mel: Tensor, lengths: Tensor, targets: list[list[int]]) -> Tensor:
    """Return the CTC loss of one batch."""
    with mixed():
        logits = model(mel)
    log_probs = F.log_softmax(logits.float(), -1).transpose(0, 1)
    flat = torch.tensor([c for target in targets for c in target])
    return F.ctc_loss(
        log_probs, flat, lengths // 2, torch.tensor([len(t) for t in targets]), zero_infinity=True
    )


def train(
    corpus_path: Path, out: Path, seconds: float, resume: bool = False, batch: int = 96, peak: float = 2e-3
) -> None:
    """Train for `seconds` of wall time; write the encoder's weights to `out`. `resume` reads them first."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    corpus = load(corpus_path)
    model = SpellingEar()
    if resume:
        model.encoder.load_state_dict(torch.load(out, weights_only=True))
    bar = Bar("ear", seconds)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak, weight_decay=0.01, betas=(0.9, 0.98))
    augmenter = Augmenter(1)
    random.seed(0)
    start, step, average, preparing = time.monotonic(), 0, 0.0, 0.0
    while (elapsed := time.monotonic() - start) < seconds:
        before = time.monotonic()
        group = batches(corpus, augmenter, min(batch, len(corpus)))
        preparing += time.monotonic() - before
        for mel, lengths, targets in group:
            for settings in optimizer.param_groups:
                settings["lr"] = peak * min(1, step / 100 + 0.02) * (1 - elapsed / seconds * 0.9)
            loss = spelling_loss(model, mel, lengths, targets)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            step += 1
            average = loss.item() if step == 1 else 0.98 * average + 0.02 * loss.item()
        bar.move(elapsed)
        if step % 60 == 0:
            bar.note(step, elapsed, f"loss {average:.3f}  data {preparing / (elapsed + 1e-9):.2f}")
            save(model.encoder.state_dict(), out)
    bar.close()
    save(model.encoder.state_dict(), out)
