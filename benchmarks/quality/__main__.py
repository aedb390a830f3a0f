"""Measures a checkpoint through a real gRPC worker: `python -m benchmarks.quality`.

Starts a worker, plays every session of `script.py` into it unit by unit with an empty config (the
public defaults), several sessions at a time, and prints the table. Exit code 1 if a bar is missed.
"""

import argparse
import asyncio
import json
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from tqdm import tqdm

from benchmarks.quality.player import Player, channel_to
from benchmarks.quality.report import BARS, Row, table
from benchmarks.quality.scoring import Score, Turn, add
from benchmarks.quality.script import SEED, Condition, Question, Script, scripts
from inference_service.training.listener import Listener

SESSIONS_AT_ONCE = 12


@contextmanager
def running_worker(model: str) -> Iterator[str]:
    """A worker process on a free loopback port; its address."""
    command = [sys.executable, "-m", "antiphon.cli", "worker", "--listen", "127.0.0.1:0"]
    command += ["--slots", str(SESSIONS_AT_ONCE), "--model", model, "--log-level", "warning"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("worker ready on "):
                    yield line.split()[-1]
                    break
            else:
                raise SystemExit("The worker did not start.")
        finally:
            process.terminate()


async def measure(target: str, condition: Condition, questions: int, judge_speech: bool) -> Score:
    """All sessions of one condition."""
    written = await asyncio.to_thread(scripts, condition, questions, SEED)
    score = Score()
    right: list[tuple[Question, Turn]] = []
    gate = asyncio.Semaphore(SESSIONS_AT_ONCE)
    bar = tqdm(total=sum(s.units for s in written), desc=str(condition), unit="unit", disable=None)

    async def one(index: int, script: Script) -> None:
        async with gate:
            turns = await Player(channel, script, SEED + index).play()
        bar.update(script.units)
        right.extend(add(score, script, turns))

    async with channel_to(target) as channel:
        await asyncio.gather(*(one(i, script) for i, script in enumerate(written)))
    bar.close()
    if judge_speech:
        judge(score, right)
    return score


def judge(score: Score, right: list[tuple[Question, Turn]]) -> None:
    """Counts the right replies whose sound an independent recogniser understands."""
    listener = Listener()
    for question, turn in tqdm(right, desc="listening", unit="reply", disable=None):
        tally = score.by_intent[question.exchange.intent]
        tally.spoken += 1
        heard = listener.hear(np.concatenate(turn.audio)) if turn.audio else ""
        tally.understood += heard == turn.text
        if heard != turn.text:
            score.misheard.append((turn.text, heard))


async def main() -> int:
    """Runs every condition and prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="antiphon-mini", help="name or folder of the checkpoint")
    parser.add_argument("--questions", type=int, default=420, help="questions of each condition")
    parser.add_argument("--conditions", nargs="*", type=Condition, default=list(Condition))
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--wrong", action="store_true", help="print every wrong answer")
    arguments = parser.parse_args()
    missing = [program for program in ("espeak-ng", "flite") if shutil.which(program) is None]
    if missing:
        print(f"Questions are spoken by {' and '.join(missing)}: apt-get install espeak-ng flite")
        return 2
    begin = time.monotonic()
    rows: list[Row] = []
    with running_worker(arguments.model) as target:
        for condition in arguments.conditions:
            spoken = condition in (Condition.PLAIN, Condition.VISION)
            score = await measure(target, condition, arguments.questions, spoken)
            rows.append(Row(condition, score))
            if arguments.wrong:
                for question, reply, said in score.wrong:
                    print(f"  {condition}: {question!r} -> {said!r}, not {reply!r}")
                for said, heard in score.misheard:
                    print(f"  {condition}: said {said!r}, understood {heard!r}")
    print(table(rows))
    machine = f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}"
    print(f"{datetime.now(UTC):%Y-%m-%d}, {machine}, {time.monotonic() - begin:.0f} s, seed {SEED}")
    if arguments.json:
        arguments.json.write_text(json.dumps([row.figures() for row in rows], indent=1) + "\n")
    missed = [text for row in rows for text in row.missed()]
    print("\n".join(missed) if missed else f"every bar is met ({', '.join(BARS)})")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
