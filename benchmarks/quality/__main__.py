"""Evaluation of a checkpoint through a gRPC worker: `python -m benchmarks.quality`.

The command starts a worker and sends it the full-duplex sessions of `script.py`, the chats of `chat.py` and
the utterances of `dictation.py`, with the default config, one session at a time. It prints the tables. The
exit code is 1 if a goal is missed, and 2 if a program for the synthetic voices is missing.
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

from antiphon_training.corpus.listener import Listener
from antiphon_training.domains.domain import Exchange
from benchmarks.quality import chat, dictation, people
from benchmarks.quality.chat import ChatCondition
from benchmarks.quality.dictation import DictationCondition, Written
from benchmarks.quality.player import Player
from benchmarks.quality.report import GOALS, ChatRow, DictationRow, Measured, Row, tables
from benchmarks.quality.scoring import Score, Turn, add
from benchmarks.quality.script import SEED, Condition, Script, scripts
from benchmarks.quality.session import channel_to

SESSIONS_AT_ONCE = 1
"""More sessions would wait for the recogniser, because they run faster than real time."""
_SPOKEN = (Condition.PLAIN, Condition.VISION, ChatCondition.TEXT)
"""The conditions in which the audio of the answers is also judged."""
AnyCondition = Condition | ChatCondition | DictationCondition
CONDITIONS: tuple[AnyCondition, ...] = (*Condition, *ChatCondition, *DictationCondition)


@contextmanager
def running_worker(model: str) -> Iterator[str]:
    """Run a worker process on a free loopback port; yield its address."""
    command = [sys.executable, "-m", "antiphon_command", "worker", "--listen", "127.0.0.1:0"]
    # Late answers count too, so admission control is off.
    command += [
        "--slots",
        str(SESSIONS_AT_ONCE),
        "--no-admission",
        "--model",
        model,
        "--log-level",
        "warning",
    ]
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


async def measure(target: str, condition: AnyCondition, questions: int) -> Measured:
    """Measure all sessions of one condition."""
    match condition:
        case Condition():
            return Row(condition, await measure_spoken(target, condition, questions))
        case ChatCondition():
            return ChatRow(condition, await measure_chat(target, condition, questions))
        case DictationCondition():
            return DictationRow(condition, await measure_dictation(target, condition, questions))


async def measure_spoken(target: str, condition: Condition, questions: int) -> Score:
    """Measure full-duplex sessions."""
    written = await asyncio.to_thread(scripts, condition, questions, SEED)
    score = Score()
    right: list[tuple[Exchange, Turn]] = []
    gate = asyncio.Semaphore(SESSIONS_AT_ONCE)
    bar = tqdm(total=sum(s.units for s in written), desc=str(condition), unit="unit", disable=None)

    async def one(index: int, script: Script) -> None:
        async with gate:
            turns = await Player(channel, script, SEED + index).play()
        bar.update(script.units)
        right.extend((question.exchange, turn) for question, turn in add(score, script, turns))

    async with channel_to(target) as channel:
        await asyncio.gather(*(one(i, script) for i, script in enumerate(written)))
    bar.close()
    if condition in _SPOKEN:
        judge(score, right)
    return score


async def measure_chat(target: str, condition: ChatCondition, questions: int) -> Score:
    """Measure chats."""
    talks = await asyncio.to_thread(chat.talks, condition, questions, SEED)
    score = Score()
    right: list[tuple[Exchange, Turn]] = []
    speaks = condition in _SPOKEN
    gate = asyncio.Semaphore(SESSIONS_AT_ONCE)
    bar = tqdm(total=len(talks), desc=str(condition), unit="talk", disable=None)

    async def one(index: int, talk: chat.Talk) -> None:
        async with gate:
            answered = await chat.converse(channel, talk, SEED + index, speaks)
        bar.update()
        right.extend(chat.add(score, answered))

    async with channel_to(target) as channel:
        await asyncio.gather(*(one(i, talk) for i, talk in enumerate(talks)))
    bar.close()
    if speaks:
        judge(score, right)
    return score


async def measure_dictation(target: str, condition: DictationCondition, utterances: int) -> Written:
    """Measure transcription sessions."""
    sessions = await asyncio.to_thread(dictation.sessions, condition, utterances, SEED)
    written = Written()
    gate = asyncio.Semaphore(SESSIONS_AT_ONCE)
    bar = tqdm(total=len(sessions), desc=str(condition), unit="session", disable=None)

    async def one(index: int, session: list[dictation.Utterance]) -> None:
        async with gate:
            texts = await dictation.dictate(channel, session, SEED + index)
        bar.update()
        for utterance, text in zip(session, texts, strict=True):
            written.add(utterance, text)

    async with channel_to(target) as channel:
        await asyncio.gather(*(one(i, session) for i, session in enumerate(sessions)))
    bar.close()
    return written


def judge(score: Score, right: list[tuple[Exchange, Turn]]) -> None:
    """Count the right replies whose audio an independent recogniser transcribes exactly."""
    listener = Listener()
    for exchange, turn in tqdm(right, desc="listening", unit="reply", disable=None):
        tally = score.by_intent[exchange.intent]
        tally.spoken += 1
        heard = listener.hear(np.concatenate(turn.audio)) if turn.audio else ""
        tally.understood += heard == turn.text
        if heard != turn.text:
            score.misheard.append((turn.text, heard))


async def main() -> int:
    """Run every condition and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", default="antiphon-mini", help="name or folder of the checkpoint")
    parser.add_argument(
        "--questions", type=int, default=420, help="questions or utterances of each condition"
    )
    parser.add_argument("--conditions", nargs="*", choices=[str(c) for c in CONDITIONS], help="default: all")
    parser.add_argument(
        "--json", type=Path, help="write the figures into this file; keep its rows of other conditions"
    )
    parser.add_argument("--wrong", action="store_true", help="print every wrong answer")
    arguments = parser.parse_args()
    missing = [program for program in ("espeak-ng", "flite") if shutil.which(program) is None]
    if missing:
        print(f"The synthetic voices need {' and '.join(missing)}: apt-get install espeak-ng flite")
        return 2
    begin = time.monotonic()
    rows: list[Measured] = []
    with running_worker(arguments.model) as target:
        for condition in CONDITIONS:
            if arguments.conditions and str(condition) not in arguments.conditions:
                continue
            if condition is Condition.PEOPLE and not people.is_installed():
                print(f"{condition}: skipped, its recordings are missing: apt-get install {people.PACKAGE}")
                continue
            row = await measure(target, condition, arguments.questions)
            rows.append(row)
            if arguments.wrong:
                print_wrong(row)
    print(tables(rows))
    machine = f"{platform.machine()}, {platform.system()}, Python {platform.python_version()}"
    print(f"{datetime.now(UTC):%Y-%m-%d}, {machine}, {time.monotonic() - begin:.0f} s, seed {SEED}")
    if arguments.json:
        put(arguments.json, rows)
    missed = [text for row in rows for text in row.missed()]
    print("\n".join(missed) if missed else f"every goal is met ({', '.join(GOALS)})")
    return 1 if missed else 0


def print_wrong(row: Measured) -> None:
    """Print every wrong answer of a condition."""
    match row:
        case Row() | ChatRow():
            for question, reply, said in row.score.wrong:
                print(f"  {row.name}: {question!r} -> {said!r}, not {reply!r}")
            for said, heard in row.score.misheard:
                print(f"  {row.name}: said {said!r}, understood {heard!r}")
        case DictationRow():
            for words, text in row.written.wrong:
                print(f"  {row.name}: {words!r} written as {text!r}")


def put(path: Path, rows: list[Measured]) -> None:
    """Write figures into a JSON file; replace those of the same conditions."""
    old = json.loads(path.read_text()) if path.exists() else []
    figures = {row["condition"]: row for row in old} | {row.name: row.figures() for row in rows}
    ordered = [figures[str(condition)] for condition in CONDITIONS if str(condition) in figures]
    path.write_text(json.dumps(ordered, indent=1) + "\n")


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
