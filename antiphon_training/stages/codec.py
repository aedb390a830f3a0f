"""The codebook of the model's voice, by k-means over patches of 40 ms.

Most replies have slots, such as numbers, so most codes would be for them. Replies without slots are few, but
are said as often. So the least used codes are moved to the patches of these replies that no code fits well.
"""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from antiphon_training.corpus.acoustics import silence
from antiphon_training.corpus.answers import SpokenReply, load
from antiphon_training.corpus.recipe import VOCODER
from antiphon_training.domains.domain import Domain

_PITCH_WEIGHT = 8.0
_VOICING_WEIGHT = 2.0
_QUIET = -11.0
_ITERATIONS = 25
_STANDING_WEIGHT = 12.0
"""The weight of a patch of a reply without slots, relative to other patches."""
_MOVED = 192
"""The largest number of codes that are moved."""
_WORST_SHARE = 0.6
"""The share of patches of replies without slots to which codes are moved."""
_FEW = 0.5
"""Codes are moved only if the share of patches of replies without slots is below this."""


def scaled(frames: Tensor) -> Tensor:
    """Return frames [..., bands + 2] in the codebook's metric.

    The metric gives little weight to quiet bands, and more to pitch and voicing.
    """
    bands = VOCODER.bands
    return torch.cat(
        [
            frames[..., :bands].clamp(min=_QUIET),
            frames[..., bands : bands + 1] * _PITCH_WEIGHT,
            frames[..., bands + 1 :] * _VOICING_WEIGHT,
        ],
        -1,
    )


def patches(frames: np.ndarray) -> Tensor:
    """Return patches [frames / 4, 4 * features] in the metric of the codebook."""
    return scaled(torch.from_numpy(frames)).reshape(len(frames) // VOCODER.frames_per_code, -1)


def nearest(points: Tensor, centres: Tensor) -> Tensor:
    """Return the index of the nearest centre for each point."""
    return torch.cat([torch.cdist(part, centres).argmin(1) for part in points.split(8192)])


def k_means(points: Tensor, count: int, seed: int) -> Tensor:
    """Return `count` centres by Lloyd's algorithm; an empty cluster is moved to a random point."""
    generator = torch.Generator().manual_seed(seed)
    centres = points[torch.randperm(len(points), generator=generator)[:count]].clone()
    for _ in range(_ITERATIONS):
        label = nearest(points, centres)
        sums = torch.zeros_like(centres).index_add_(0, label, points)
        sizes = torch.bincount(label, minlength=count)
        centres = sums / sizes.clamp(min=1)[:, None]
        empty = sizes == 0
        if empty.any():
            centres[empty] = points[torch.randint(len(points), (int(empty.sum()),), generator=generator)]
    return centres


def standing(domain: Domain, corpus: list[SpokenReply]) -> Tensor:
    """Return a bool mask [patches] of the patches that belong to replies without slots."""
    known = set(domain.standing_replies())
    counts = [sum(map(len, reply.frames)) // VOCODER.frames_per_code for reply in corpus]
    return torch.tensor([reply.text in known for reply in corpus]).repeat_interleave(torch.tensor(counts))


def move_idle(points: Tensor, wanted: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    """Move the least used centres to the `wanted` points that are farthest from their centres.

    Returns the new centres and the indices of the moved ones.
    """
    label = nearest(points, centres)
    weight = torch.where(wanted, _STANDING_WEIGHT, 1.0)
    lacking, theirs = points[wanted], centres[label[wanted]]
    worst = (lacking - theirs).square().sum(1).argsort(descending=True)
    lacking = lacking[worst[: int(len(worst) * _WORST_SHARE)]]
    moved = torch.bincount(label, weight, minlength=len(centres)).argsort()[: min(_MOVED, len(lacking))]
    centres = centres.clone()
    centres[moved] = k_means(lacking, len(moved), seed=1)
    return centres, moved


def encode(corpus: list[SpokenReply], centres: Tensor) -> list[list[list[int]]]:
    """Return the codes of each unit of each reply."""
    flat = torch.cat([patches(unit) for reply in corpus for unit in reply.frames])
    codes = iter(nearest(flat, centres).tolist())
    size = VOCODER.frames_per_code
    return [[[next(codes) for _ in range(len(unit) // size)] for unit in reply.frames] for reply in corpus]


def codebook(corpus: list[SpokenReply], codes: list[list[list[int]]]) -> Tensor:
    """Return the mean acoustic frames of each code, [codes, frames_per_code, bands + 2].

    An unused code is silence.
    """
    frames = np.concatenate([unit for reply in corpus for unit in reply.frames])
    points = torch.from_numpy(frames).reshape(-1, VOCODER.frames_per_code, VOCODER.bands + 2)
    labels = torch.tensor([code for units in codes for unit in units for code in unit])
    sums = torch.zeros(VOCODER.codes, *points.shape[1:]).index_add_(0, labels, points)
    counts = torch.bincount(labels, minlength=VOCODER.codes)
    means = sums / counts.clamp(min=1)[:, None, None]
    pitch = float(frames[:, VOCODER.bands].mean())
    means[counts == 0] = torch.from_numpy(silence(VOCODER.frames_per_code, VOCODER.bands, pitch))
    return means


def make(domain: Domain, corpus_path: Path, out: Path) -> None:
    """Write the vocoder's codebook and the codes of the corpus to `out`."""
    torch.set_num_threads(1)
    corpus = load(corpus_path)
    points = torch.cat([patches(unit) for reply in corpus for unit in reply.frames])
    # A small domain may have fewer patches than codes; then each patch has its own code.
    centres = k_means(points, min(VOCODER.codes, len(points)), seed=0)
    wanted = standing(domain, corpus)
    if len(points) > VOCODER.codes and wanted.float().mean() < _FEW:
        centres, _ = move_idle(points, wanted, centres)
    codes = encode(corpus, centres)
    error = (points - centres[nearest(points, centres)]).abs().mean()
    print(f"codec: {len(points)} patches, {len(centres)} codes, mean error {error:.3f}", flush=True)
    torch.save({"codes": codes, "codebook": codebook(corpus, codes)}, out)
