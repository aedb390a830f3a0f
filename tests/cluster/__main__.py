"""Redis, two adapters, two workers and twenty talkers: `python -m tests.cluster` (`make cluster`).

The shipped checkpoint hears recorded questions, while a worker, an adapter and Redis are killed and a worker
and an adapter are replaced; `--rounds` adds faults by chance, among them processes that stand still. Ends
with 1 if a conversation is lost that was on neither of those killed, if a slot or a ticket is left, or if a
slot was granted twice.
"""

import argparse
import asyncio
import sys
import tempfile
from collections import Counter
from pathlib import Path

from tests.cluster.nodes import Cluster
from tests.cluster.talkers import Talkers
from tests.cluster.trial import Trial

RECORDINGS = Path(__file__).parents[2] / "clients/recordings"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--talkers", type=int, default=20)
    parser.add_argument("--slots", type=int, default=3, help="of each worker")
    parser.add_argument("--units", type=int, default=6, help="of a conversation")
    parser.add_argument("--rounds", type=int, default=0, help="of faults that --seed draws, after those")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cluster-") as folder:
        cluster = Cluster(Path(folder), given.slots)
        try:
            cluster.start()
            talkers = Talkers(cluster, sorted(RECORDINGS.glob("*.wav")), given.units)
            trial = Trial(cluster, talkers)
            asyncio.run(trial.run(given.talkers, given.rounds, given.seed))
        finally:
            cluster.close()
    return verdict(trial)


def verdict(trial: Trial) -> int:
    print(f"{'':40} {'talking':>8} {'lost':>5} {'allowed':>8} {'served again':>13}")
    for phase in trial.phases:
        print(
            f"{phase.name:40} {phase.under_way:8} {len(phase.lost):5} {phase.allowed:8} "
            f"{phase.served_again_s:11.1f} s{'' if phase.is_good else '   LOST'}"
        )
    done = trial.talkers.conversations
    reasons = Counter(one.lost for one in done if one.lost)
    print(f"{len(done)} conversations, {len(trial.talkers.refused)} times turned away and come again")
    print(f"lost, and told why: {dict(reasons)}")
    for fault in trial.faults:
        print(f"FAULT: {fault}")
    is_good = not trial.faults and all(phase.is_good for phase in trial.phases)
    print("PASS: nobody else was lost, nothing is left" if is_good else "FAIL")
    return 0 if is_good else 1


if __name__ == "__main__":
    sys.exit(main())
