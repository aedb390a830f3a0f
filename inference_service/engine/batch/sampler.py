"""Sampling of the next tokens of all sessions in a tick.

On a device, work over the whole vocabulary is done in one pass after one upload. One download returns the
likeliest ids of every session, and the host draws among them. If the scores are on the host and the
vocabulary is small, the rows are sampled one by one, because the calls cost more than the work.
"""

from collections.abc import Callable, Sequence
from functools import cache
from itertools import groupby
from math import exp, isfinite

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inference_service.device.transfer import Array, download, upload
from inference_service.engine.batch.candidates import OPEN, POISONED, Candidates, SamplingOptions
from inference_service.engine.batch.draw import COLDEST, Draw
from inference_service.kernels.selection import usable

WIDTHS = (64, 1024)
"""Numbers of candidates to try in order, before all ids: no more than a draw needs."""
LARGE = 2**13
"""The size of a vocabulary above which the work costs more than the overhead of the calls."""
_SURE = 50.0
"""A lead in score that makes an id certain."""
_AT_ONCE = 2**21
"""Limit of scores turned into probabilities at once: a larger copy costs more than the work."""
Row = NDArray[np.float32]
_TEMPERATURE, _REPETITION, _LENGTH, _BIAS, _SCALE, _DIVIDES, _FIRST, _FAVOURED, _WITHIN = range(9)
_NUMBERS, _COLUMNS = 6, 9


def goes_by_rows(device: torch.device, vocabulary: int) -> bool:
    """Return whether `choose_by_rows` is faster, whatever the number of rows."""
    return device.type == "cpu" and vocabulary <= LARGE


def choose_together(scores: Tensor, draws: Sequence[Draw]) -> list[int | None]:
    """Return the next id of each session for float32 scores [n, vocabulary], which are modified.

    An id is None where the best score is not finite, or no id is allowed. Rows do not depend on each other.
    """
    table = DrawTable(draws)
    table.attach(*upload(scores.device, table.cells))
    return choose_beside(scores, draws, table)[0]


def choose_beside(
    scores: Tensor, draws: Sequence[Draw], table: "DrawTable", *others: Tensor
) -> tuple[list[int | None], list[Array]]:
    """Choose as `choose_together` does, and copy `others`, with four bytes a number, to the host in the same
    download.
    """
    if all(draw.is_plain for draw in draws):
        if scores.device.type == "cpu":  # torch takes ten times as long for it
            return choose_by_rows(scores, draws), [it.numpy() for it in others]
        values, ids = scores.max(1, keepdim=True)
        ids_here, values_here, *told = download(ids.to(torch.int32), values, *others)
        likeliest = Candidates(values_here, ids_here).first()
        return [None if token == POISONED else token for token in likeliest], told
    vocabulary = scores.shape[1]
    options = SamplingOptions.of(draws, vocabulary)
    chances = _first_chances(scores, draws, table)
    adjust(scores, draws, table)
    if options.are_greedy:
        values, ids = scores.max(1, keepdim=True)
    else:
        values, ids = scores.topk(min(WIDTHS[0], vocabulary), dim=1)
    shares = _shares(scores, ids, options, table) if vocabulary > WIDTHS[0] else None
    there = [it for it in (chances, shares) if it is not None]
    ids_here, values_here, *told = download(ids.to(torch.int32), values, *there, *others)
    share = None if shares is None else told[len(there) - 1][:, 0].astype(np.float64)
    chosen = Candidates(values_here, ids_here).draw(options, share)
    if chances is not None:
        for row, (draw, chance) in enumerate(zip(draws, told[0][:, 0].tolist(), strict=True)):
            if draw.first is not None and not chance <= draw.uniforms[0]:
                chosen[row] = draw.first if chance <= 1.0 else POISONED
    for width in (*WIDTHS[1:], vocabulary):
        rows = [row for row, token in enumerate(chosen) if token == OPEN]
        if rows:
            (at,) = upload(scores.device, np.array(rows))
            more = ranked(scores.index_select(0, at), min(width, vocabulary))
            found = more.draw(options.rows(rows), None if share is None else share[rows])
            for row, token in zip(rows, found, strict=True):
                chosen[row] = token
    return [None if token == POISONED else token for token in chosen], told[len(there) :]


def choose_by_rows(scores: Tensor, draws: Sequence[Draw]) -> list[int | None]:
    """Choose as `choose_together` does, row by row, for scores on the host; one call each if compiled."""
    if not usable("draw"):
        return choose_in_numpy(scores, draws)
    choose = _compiled()
    return [
        choose(row, draw, None if draw.forbidden is None else draw.forbidden.numpy())
        for row, draw in zip(scores.numpy(), draws, strict=True)
    ]


@cache
def _compiled() -> Callable[..., int | None]:
    """Return the compiled draw, imported once: an import at each call would cost as much as its checks."""
    from inference_service.kernels import draw

    return draw.choose


def choose_in_numpy(scores: Tensor, draws: Sequence[Draw]) -> list[int | None]:
    """Choose as `choose_by_rows` does, with the same result, without compiled code."""
    return [_chosen(row, draw) for row, draw in zip(scores.numpy(), draws, strict=True)]


def _chosen(scores: Row, draw: Draw) -> int | None:
    """Return the next id of one session for its scores [vocabulary], which are modified."""
    if draw.first is not None:
        likeliest = scores.argmax()
        highest = scores[likeliest]
        if not isfinite(highest):
            return None
        if draw.uniforms[0] < _first_chance(scores, draw, draw.first, likeliest):
            return draw.first
    _adjust_row(scores, draw)
    likeliest = scores.argmax()
    if not isfinite(scores[likeliest]):
        return None
    if draw.is_greedy:
        return int(likeliest)
    best = np.sort(scores)[: -1 - min(draw.top_k, len(scores)) : -1]
    falling = best.astype(np.float64)
    mass = np.exp((falling - falling[0]) / draw.temperature).cumsum()
    kept = 1 + int(mass[:-1].searchsorted(draw.top_p * mass[-1]))
    at = min(int(mass.searchsorted(draw.uniforms[1] * mass[kept - 1], "right")), kept - 1)
    if at == 0:
        return int(likeliest)
    (equal,) = (scores == best[at]).nonzero()
    return int(equal[at - int((best[:at] > best[at]).sum())])


def _first_chance(scores: Row, draw: Draw, first: int, likeliest: np.intp) -> float:
    """Return the probability of the id that is tested first, or an upper bound where that settles
    the test.
    """
    if draw.is_greedy:
        return float(likeliest == first)
    most = exp(float(scores[first]) - float(scores[likeliest]))
    if most < draw.uniforms[0]:
        return most
    weights = np.exp(scores.astype(np.float64) - scores[likeliest])
    return float(weights[first] / weights.sum())


def _adjust_row(scores: Row, draw: Draw) -> None:
    """Adjust one row, as `adjust` does."""
    if draw.forbidden is not None:
        scores[draw.forbidden.numpy()] = -np.inf
    if draw.repetition_penalty != 1 and len(draw.recent):
        _penalise_row(scores, draw.recent, draw.repetition_penalty, divides=draw.divides)
    if draw.length_penalty != 1 and len(draw.ends):
        _penalise_row(scores, draw.ends, draw.length_penalty)
    favoured = draw.favoured
    if draw.bias or draw.scale != 1:
        with np.errstate(invalid="ignore"):
            scores[favoured] = scores[favoured] * np.float32(draw.scale) + np.float32(draw.bias)
    if draw.sure_within and (scores > scores[favoured]).sum() < draw.sure_within:
        scores[favoured] = scores.max() + np.float32(_SURE)
    if draw.allowed is not None:
        is_allowed = np.unpackbits(draw.allowed.view(np.uint8), count=len(scores), bitorder="little")
        scores[is_allowed == 0] = -np.inf


def _penalise_row(
    scores: Row, ids: Sequence[int] | NDArray[np.int32], penalty: float, *, divides: bool = False
) -> None:
    """Penalise one row, as `penalise` does."""
    at, by = np.asarray(ids), np.float32(penalty)
    old = scores[at]
    less = old / by
    if not divides:  # divide a positive score, multiply a negative one
        less = (np.minimum if penalty > 1 else np.maximum)(less, old * by)
    scores[at] = less


def ranked(scores: Tensor, width: int) -> Candidates:
    """Return the `width` likeliest ids of each row of scores [n, vocabulary]; NaN counts as the likeliest."""
    if width < scores.shape[1] or scores.device.type != "cpu":
        values, ids = scores.topk(width, dim=1)
        ids_here, values_here = download(ids.to(torch.int32), values)
        return Candidates(values_here, ids_here)
    here = scores.numpy()
    falling = -here
    falling[np.isnan(falling)] = -np.inf
    order = falling.argsort(axis=1)  # torch takes six times as long for it
    return Candidates(np.take_along_axis(here, order, axis=1), order.astype(np.int32))


class DrawTable:
    """The numbers and ids of all rows, each number [n, 1]; readable after `attach`."""

    def __init__(self, draws: Sequence[Draw]) -> None:
        recent = [draw.recent if draw.repetition_penalty != 1 else () for draw in draws]
        ends = [draw.ends if draw.length_penalty != 1 else () for draw in draws]
        begin = _COLUMNS + max(map(len, recent))
        cells = np.zeros((len(draws), begin + max(map(len, ends))), np.int32)
        cells[:, :_NUMBERS].view(np.float32)[:] = [
            (
                d.temperature,
                d.repetition_penalty if len(repeated) else 1.0,
                d.length_penalty if len(ending) else 1.0,
                d.bias,
                d.scale,
                d.divides,
            )
            for d, repeated, ending in zip(draws, recent, ends, strict=True)
        ]
        cells[:, _NUMBERS:_COLUMNS] = [(d.first or 0, d.favoured, d.sure_within) for d in draws]
        for row, repeated, ending in zip(cells, recent, ends, strict=True):
            _fill(row[_COLUMNS:begin], repeated)
            _fill(row[begin:], ending)
        self.cells = cells
        """The cells to upload."""
        self._begin = begin - _NUMBERS

    def attach(self, cells: Tensor) -> None:
        """Set the uploaded cells, int32 on the device, from which the columns are read."""
        self._numbers = cells[:, :_NUMBERS].view(torch.float32)
        self._ids = cells[:, _NUMBERS:].long()

    def number(self, column: int) -> Tensor:
        """Return a column of numbers, float32."""
        return self._numbers[:, column : column + 1]

    def id(self, column: int) -> Tensor:
        """Return a column of ids, int64."""
        return self._ids[:, column - _NUMBERS : column - _NUMBERS + 1]

    @property
    def recent(self) -> Tensor:
        """Return recent ids, int64 [n, k]."""
        return self._ids[:, _COLUMNS - _NUMBERS : self._begin]

    @property
    def ends(self) -> Tensor:
        """Return ids that end an answer, int64 [n, k]."""
        return self._ids[:, self._begin :]


def _fill(cells: NDArray[np.int32], ids: Sequence[int] | NDArray[np.int32]) -> None:
    """Write ids into a row; fill the rest with a repeated id, which changes nothing."""
    if len(ids):
        cells[: len(ids)], cells[len(ids) :] = ids, ids[0]


def adjust(scores: Tensor, draws: Sequence[Draw], table: DrawTable) -> None:
    """Apply all rules but temperature, top-k and top-p to scores [n, vocabulary] in place."""
    at = 0
    for _, group in groupby(draws, key=lambda draw: id(draw.forbidden)):
        rows = list(group)
        forbidden = rows[0].forbidden
        if forbidden is not None and len(forbidden):
            scores[at : at + len(rows)].index_fill_(1, forbidden, -torch.inf)
        at += len(rows)
    if table.recent.shape[1]:
        divides = table.number(_DIVIDES) if any(draw.divides for draw in draws) else None
        penalise(scores, table.recent, table.number(_REPETITION), divides)
    if table.ends.shape[1]:
        penalise(scores, table.ends, table.number(_LENGTH))
    if any(draw.bias or draw.scale != 1 for draw in draws):
        favoured = table.id(_FAVOURED)
        moved = scores.gather(1, favoured) * table.number(_SCALE) + table.number(_BIAS)
        scores.scatter_(1, favoured, moved)
    if any(draw.sure_within for draw in draws):
        _make_sure(scores, table)
    if any(draw.allowed is not None for draw in draws):
        _keep_allowed(scores, draws)


def penalise(scores: Tensor, ids: Tensor, penalty: Tensor, divides: Tensor | None = None) -> None:
    """Penalise ids [n, k] in scores [n, vocabulary] in place; a repeated id counts once.

    Positive scores are divided by `penalty` [n, 1 or k], the others multiplied, except in rows with
    `divides`.
    """
    old = scores.gather(1, ids)
    is_divided = old > 0 if divides is None else (old > 0) | (divides > 0)
    scores.scatter_(1, ids, torch.where(is_divided, old / penalty, old * penalty))


def _make_sure(scores: Tensor, table: DrawTable) -> None:
    favoured = table.id(_FAVOURED)
    own = scores.gather(1, favoured)
    is_sure = (scores > own).sum(1, keepdim=True) < table.id(_WITHIN)
    scores.scatter_(1, favoured, torch.where(is_sure, scores.amax(1, keepdim=True) + _SURE, own))


def _keep_allowed(scores: Tensor, draws: Sequence[Draw]) -> None:
    rows = [row for row, draw in enumerate(draws) if draw.allowed is not None]
    words = np.stack([draw.allowed for draw in draws if draw.allowed is not None])
    at, words_there = upload(scores.device, np.array(rows), words)
    bits = torch.arange(32, dtype=torch.int32, device=scores.device)
    is_allowed = (words_there[:, :, None] >> bits & 1).flatten(1)[:, : scores.shape[1]]
    scores.index_copy_(0, at, scores.index_select(0, at).masked_fill_(is_allowed == 0, -torch.inf))


def _first_chances(scores: Tensor, draws: Sequence[Draw], table: DrawTable) -> Tensor | None:
    """Return the probability [n, 1] of the id that is tested first; 1 or 0 in a greedy row."""
    first, greedy = table.id(_FIRST), [draw.is_greedy for draw in draws if draw.first is not None]

    def chance(rows: slice) -> Tensor:
        if not any(greedy):
            return scores[rows].softmax(1).gather(1, first[rows])
        highest, at = scores[rows].max(1, keepdim=True)
        is_best = (at == first[rows]) + 0 * highest  # NaN where the best score is not finite
        if all(greedy):
            return is_best
        drawn = scores[rows].softmax(1).gather(1, first[rows])
        return torch.where(table.number(_TEMPERATURE)[rows] < COLDEST, is_best, drawn)

    return _in_parts(scores, [draw.first is not None for draw in draws], chance)


def _shares(scores: Tensor, ids: Tensor, options: SamplingOptions, table: DrawTable) -> Tensor | None:
    """Return the probability [n, 1] of the likeliest id among all ids, in rows that keep all."""

    def share(rows: slice) -> Tensor:
        return (scores[rows] / table.number(_TEMPERATURE)[rows]).softmax(1).gather(1, ids[rows, :1])

    return _in_parts(scores, options.keeps_all.tolist(), share)


def _in_parts(scores: Tensor, needed: list[bool], compute: Callable[[slice], Tensor]) -> Tensor | None:
    """Compute values [n, 1] from the first to the last row that needs one, a few rows at a time."""
    if True not in needed:
        return None
    begin, end, step = needed.index(True), len(needed) - needed[::-1].index(True), _AT_ONCE // scores.shape[1]
    starts = range(begin, end, max(1, step))
    parts = [compute(slice(start, min(end, start + starts.step))) for start in starts]
    if len(parts) == 1 and end - begin == len(needed):
        return parts[0]
    nothing = [scores.new_full((rows, 1), torch.nan) for rows in (begin, len(needed) - end)]
    return torch.cat([nothing[0], *parts, nothing[1]])
