"""`antiphon demo`: a spoken question to a server that it starts, over the public WebSocket."""

import argparse
import asyncio
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from antiphon_command.arguments.parser import (
    Subcommands,
    add_command,
    examples,
    output_file,
)
from antiphon_command.commands.serve import tell
from antiphon_command.commands.worker import add_model_options, given_model_options
from antiphon_command.conversations.duplex import Answers, converse
from antiphon_command.output.failure import ExitCode, Failure, require_extra
from antiphon_command.output.terminal import Style
from antiphon_command.output.timeline import Timeline
from antiphon_command.processes.plan import Plan
from antiphon_command.processes.stack import Stack

_QUESTION: Final = Path(__file__).parents[1] / "question"
"""The folder of the question that is part of this package."""

_ANSWER: Final = Path("answer.wav")


@dataclass(frozen=True)
class Question:
    """A spoken question and its expected answer."""

    path: Path
    text: str
    expected_reply: str


def add_to(commands: Subcommands) -> None:
    """Add the subcommand."""
    command = add_command(
        commands,
        "demo",
        "serve the model, ask it a question, check its answer",
        examples("antiphon demo", "antiphon demo --out /tmp/answer.wav"),
        run,
    )
    command.add_argument(
        "--recordings",
        metavar="DIR",
        type=Path,
        default=_QUESTION,
        help="folder with manifest.json (default: a question that comes with antiphon)",
    )
    command.add_argument(
        "--out",
        metavar="FILE",
        type=output_file,
        default=_ANSWER,
        help=f"the answer as WAV (default {_ANSWER})",
    )
    add_model_options(command)


def run(arguments: argparse.Namespace) -> int:
    """Run the demo; fail unless the model's text contains the expected words."""
    require_extra("demo", "all")
    question = _demo_question(arguments.recordings)
    return asyncio.run(_demo(question, arguments))


async def _demo(question: Question, arguments: argparse.Namespace) -> int:
    style = Style()
    devices = [arguments.device] if "device" in arguments else []
    plan = Plan(given_model_options(arguments), ["--port", "0"], devices=devices)
    async with Stack(plan, tell) as stack:
        print("Starting a worker and an adapter.", flush=True)
        [[address]] = await stack.start()
        print(f'Ready. Asking: "{question.text}"\n', flush=True)
        timeline = Timeline(style)
        heard = Answers()
        await converse(address, None, question.path, None, timeline, heard)
        heard.write(arguments.out, timeline)
    print()
    return _judge(question, heard, style)


def _judge(question: Question, heard: Answers, style: Style) -> int:
    said = " ".join(heard.text.split())
    if _words(question.expected_reply) not in _words(said):
        heard_instead = f'"{said}"' if said else "nothing"
        verdict = f'FAIL: "{question.expected_reply}" was expected, {heard_instead} was heard.'
        print(style(verdict, "red"))
        return ExitCode.FAILED
    if not len(heard.samples):
        print(style(f'FAIL: "{said}" was written, but nothing was spoken.', "red"))
        return ExitCode.FAILED
    print(style(f'PASS: "{question.text}" was answered with "{said}".', "green"))
    return ExitCode.OK


def _words(text: str) -> str:
    """Return the lower-case words of a text, each between spaces, for a search of whole words."""
    return " " + " ".join(re.findall(r"\w+", text.casefold())) + " "


def _demo_question(folder: Path) -> Question:
    """Return the entry of the manifest that is marked for the demo."""
    manifest = folder / "manifest.json"
    remedy = "Leave out --recordings to ask the question that comes with antiphon."
    try:
        entries = json.loads(manifest.read_text(encoding="utf-8"))
        marked = next(entry for entry in entries if entry.get("demo"))
        return Question(folder / marked["file"], marked["text"], marked["expected_reply"])
    except FileNotFoundError:
        raise Failure(f"{manifest} does not exist. {remedy}", ExitCode.USAGE) from None
    except StopIteration:
        raise Failure(
            f'No recording in {manifest} is marked with "demo": true. {remedy}', ExitCode.USAGE
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise Failure(f"{manifest} is no list of recordings. {remedy}", ExitCode.USAGE) from None
