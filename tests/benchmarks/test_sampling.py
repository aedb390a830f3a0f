"""Tests of the sampling benchmark: both samplers agree, and its tables have a line for each figure."""

import torch

from benchmarks.sampling import report
from benchmarks.sampling.costs import SPREAD, codes, decisions, steps
from benchmarks.sampling.one_by_one import SequentialSampler
from inference_service.engine.batch.draw import TextSampler
from inference_service.engine.batch.noise import Noise
from inference_service.engine.batch.sampler import choose_by_rows
from inference_service.interface.setups import DuplexSettings
from tests.inference_service.engine.support import golden, tiny

GREEDY = DuplexSettings(greedy=True)


def test_one_by_one_and_in_one_pass_the_likeliest_are_the_same() -> None:
    special = golden.tokenizer().special
    forbidden = torch.tensor([special.chunk_eos, 9])
    scores = torch.randn(8, 768, generator=torch.Generator().manual_seed(1)) * SPREAD
    alone = SequentialSampler(1, [3, 4, 4], special.chunk_eos, special.turn_eos, special.listen, forbidden)
    sampler = TextSampler(special, forbidden, Noise(1))
    for token in alone.history:
        sampler.decided(token, GREEDY)
    theirs = [alone.duplex(row, GREEDY) for row in scores]
    assert choose_by_rows(scores, [sampler.draw(GREEDY)] * 8) == theirs


@torch.inference_mode()
def test_report_tables_list_every_draw_and_step() -> None:
    head = tiny.model()[0].tts
    assert head is not None
    rows = [*decisions(50, 2, 1), codes(head, 2, 1)]
    told = report.tables(rows, steps(head, 1, 1), [])
    assert all(f"| {kind} |" in told for kind in ("duplex", "duplex, greedy", "chat", "speech code"))
    assert all(f"| {at_once} | 1 |" in told for at_once in (1, 5, 25))
