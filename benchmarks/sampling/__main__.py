"""Cost of sampling a token and a speech code: `python -m benchmarks.sampling [--short]`.

The benchmark compares sampling for all sessions in one pass with one session after another, in turn. It
prints tables; without `--short` it also writes them to `results/` and into `docs/models.md`.
"""

import argparse
import sys

import torch

from benchmarks.sampling import report
from benchmarks.sampling.costs import Row, codes, decisions, steps
from benchmarks.sampling.trade import trades
from inference_service.checkpoints.folder import load_duplex
from inference_service.checkpoints.location import find

SESSIONS = (1, 16, 64)
LARGE = 151_700
"""The vocabulary of MiniCPM-o 4.5."""


def main() -> int:
    """Measure, print, and write without `--short`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--short", action="store_true", help="fewer rounds; writes no results")
    short = parser.parse_args().short
    torch.set_num_threads(1)
    with torch.inference_mode():
        model, _, config = load_duplex(find("antiphon-mini"), torch.device("cpu"))
        rows: list[Row] = []
        for vocabulary, rounds in ((config.language.vocab_size, 40), (LARGE, 5)):
            for sessions in SESSIONS:
                rows += decisions(vocabulary, sessions, 2 if short else rounds)
        assert model.tts is not None
        rows += [codes(model.tts, sessions, 2 if short else 40) for sessions in SESSIONS]
        spoken = [s for sessions in SESSIONS for s in steps(model.tts, sessions, 1 if short else 5)]
        crowd = trades(*((4, 2, 1) if short else (10, 6, 3)))
    print(report.tables(rows, spoken, crowd))
    if not short:
        report.write(rows, spoken, crowd)
    return 0


if __name__ == "__main__":
    sys.exit(main())
