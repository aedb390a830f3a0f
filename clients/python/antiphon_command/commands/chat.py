"""`antiphon chat`: one question, or a conversation in the terminal."""

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from antiphon.errors import AntiphonError
from antiphon.protocol.chat import GenerationConfig
from antiphon.protocol.messages import Clip, Part, Video
from antiphon_command.arguments.access import add_access_options
from antiphon_command.arguments.parser import (
    Subcommands,
    add_command,
    add_help_all,
    examples,
    non_negative_float,
    output_file,
    positive_float,
    positive_int,
)
from antiphon_command.conversations.chat import ChatOptions, Dialogue
from antiphon_command.conversations.picture import read_picture
from antiphon_command.output.failure import ExitCode, Failure, explain
from antiphon_command.output.terminal import Style

_ANSWER: Final = Path("answer.wav")
_GENERATION: Final = ("max_new_tokens", "temperature", "top_p", "length_penalty")


def add_to(commands: Subcommands) -> None:
    """Add the subcommand."""
    command = add_command(
        commands,
        "chat",
        "ask by text, picture, sound or video, once or in turns",
        examples("antiphon chat", 'antiphon chat --image photo.jpg "What do you see?"'),
        run,
        "[PROMPT]",
    )
    add = command.add_argument
    add(
        "prompt",
        metavar="PROMPT",
        nargs="?",
        default=None,
        help="the question; - or a pipe: standard input",
    )
    add("--image", metavar="FILE", action="append", default=[], help="JPEG, PNG or WebP; may be repeated")
    add(
        "--audio",
        metavar="FILE",
        action="append",
        default=[],
        help="WAV, FLAC; repeatable, needs no PROMPT",
    )
    add("--video", metavar="FILE", action="append", default=[], help="MP4, MOV, WebM or MKV, with its sound")
    add("--system", metavar="TEXT", default=None, help="instructions (default: the model's)")
    add("--speak", action="store_true", default=False, help="write the answer as speech, too, to --out")
    add(
        "--out",
        metavar="FILE",
        type=output_file,
        default=None,
        help=f"the spoken answer, a 24 kHz WAV file (default {_ANSWER})",
    )
    add("--no-stream", action="store_true", default=False, help="print the answer when it is complete")
    add("--json", action="store_true", default=False, help="print each event as a line of JSON")
    add_access_options(command)
    add_help_all(command)
    add = command.add_argument_group("sampling of the answer").add_argument
    add("--max-new-tokens", metavar="N", type=positive_int, help="longest answer (default 512)")
    add(
        "--temperature",
        metavar="T",
        type=non_negative_float,
        help="0: always the likeliest token (default 0.7)",
    )
    add("--top-p", metavar="P", type=positive_float, help="up to 1 (default 0.8)")
    add("--length-penalty", metavar="F", type=positive_float, help="above 1: longer answers (default 1)")
    add("--thinking", action="store_true", default=False, help="let the model think first, if it can")


def run(arguments: argparse.Namespace) -> int:
    """Ask one question, or read questions from the terminal until Ctrl-D."""
    if arguments.out is not None and not arguments.speak:
        raise Failure("--out is for the spoken answer. Add --speak.", ExitCode.USAGE)
    options = ChatOptions(
        generation=_generation(arguments),
        streaming=not arguments.no_stream,
        enable_thinking=arguments.thinking,
        answer=(arguments.out or _ANSWER) if arguments.speak else None,
        json=arguments.json,
    )
    attached: list[Part] = [read_picture(path) for path in arguments.image]
    attached += [Clip.read(path) for path in arguments.audio]
    attached += [Video.read(path) for path in arguments.video]
    dialogue = Dialogue(arguments.url, arguments.api_key, arguments.system, options)
    if arguments.prompt is None and not _needs_no_prompt(arguments) and sys.stdin and sys.stdin.isatty():
        if arguments.json:
            raise Failure("--json is for one question. Add a PROMPT.", ExitCode.USAGE)
        _converse(dialogue, attached)
    else:
        dialogue.ask([*attached, *_question(arguments)])
    return ExitCode.OK


def _generation(arguments: argparse.Namespace) -> GenerationConfig:
    given = GenerationConfig()
    for name in _GENERATION:
        if name in arguments:
            given[name] = getattr(arguments, name)
    return given


def _needs_no_prompt(arguments: argparse.Namespace) -> bool:
    return bool(arguments.audio or arguments.video)


def _question(arguments: argparse.Namespace) -> Sequence[str]:
    """Return the text of the question; none is needed with a recording or a video."""
    if arguments.prompt is None and _needs_no_prompt(arguments):
        return []
    text: str = arguments.prompt
    if arguments.prompt in (None, "-"):
        text = sys.stdin.buffer.read().decode(errors="replace") if sys.stdin else ""
    if not text.strip():
        raise Failure("There is no question. Write one as PROMPT, or pipe it in.", ExitCode.USAGE)
    return [text.strip()]


def _converse(dialogue: Dialogue, attached: Sequence[Part]) -> None:
    """Read questions until Ctrl-D, or Ctrl-C outside an answer. Attachments go with the first question."""
    with contextlib.suppress(ImportError):
        import readline  # noqa: F401  with it, input() edits lines and keeps a history
    print("Ctrl-C stops an answer, Ctrl-D ends the chat.", file=sys.stderr)
    first = True
    while True:
        try:
            text = input("> ").strip()
        except (EOFError, KeyboardInterrupt):
            print(file=sys.stderr)
            return
        if not text:
            continue
        try:
            dialogue.ask([*attached, text])
        except KeyboardInterrupt:
            print("(stopped; not part of the chat)", file=sys.stderr)
            continue
        except (AntiphonError, Failure) as error:
            if first:
                raise
            print(Style(sys.stderr)(str(explain(error)), "red"), file=sys.stderr)
            continue
        first, attached = False, []
