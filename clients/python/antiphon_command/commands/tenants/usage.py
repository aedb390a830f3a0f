"""`antiphon usage`: sums of the usage log by day, key and model."""

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from antiphon_command.arguments.parser import Subcommands, add_command, examples
from antiphon_command.output.failure import ExitCode, Failure, require_extra

_TITLES: Final = ("day", "key", "model", "sessions", "seconds", "input tokens", "output tokens")
_TEXTS: Final = 3
"""The number of text columns, which are left-aligned."""


@dataclass
class _Sum:
    sessions: int = 0
    seconds: float = 0.0
    input_tokens: int = 0
    output_tokens: int = 0


def add_to(commands: Subcommands) -> None:
    """Add the subcommand."""
    command = add_command(
        commands,
        "usage",
        "sum up a usage log by day, key and model",
        examples("antiphon usage usage.jsonl", "antiphon usage usage.jsonl usage.jsonl.1 --json"),
        run,
        "FILE",
    )
    command.add_argument(
        "files", type=Path, nargs="+", metavar="FILE", help="files of an adapter's --usage-log"
    )
    command.add_argument("--json", action="store_true", default=False, help="print each row as a JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print a table; report the number of unreadable lines on standard error."""
    require_extra("usage", "adapter")
    sums: dict[tuple[str, str, str], _Sum] = defaultdict(_Sum)
    unreadable = sum(_add(file, sums) for file in arguments.files)
    rows = sorted(sums.items())
    if arguments.json:
        for (day, key, model), total in rows:
            names = {"day": day, "key": key or None, "model": model or None}
            print(json.dumps({**names, **vars(total), "seconds": round(total.seconds, 3)}))
    else:
        _print_table(
            (
                *(day, key or "-", model or "-", str(total.sessions), f"{total.seconds:.1f}"),
                *(str(total.input_tokens), str(total.output_tokens)),
            )
            for (day, key, model), total in rows
        )
    if unreadable:
        print(f"Unreadable lines, which are left out: {unreadable}", file=sys.stderr)
    return ExitCode.OK


def _add(file: Path, sums: dict[tuple[str, str, str], _Sum]) -> int:
    """Add the lines of a file; return the number of unreadable ones."""
    import msgspec

    from ws_adapter.usage.line import decode

    unreadable = 0
    try:
        with file.open("rb") as lines:
            for text in lines:
                if not text.strip():
                    continue
                try:
                    line = decode(text)
                except msgspec.MsgspecError:
                    unreadable += 1
                    continue
                total = sums[line.at[:10], line.key or "", line.model or ""]
                total.sessions += 1
                total.seconds += line.seconds
                total.input_tokens += line.input_tokens
                total.output_tokens += line.output_tokens
    except OSError as error:
        raise Failure(f"Cannot read {file}: {error.strerror}.", ExitCode.USAGE) from None
    return unreadable


def _print_table(rows: Iterable[tuple[str, ...]]) -> None:
    table = [_TITLES, *rows]
    widths = [max(len(row[column]) for row in table) for column in range(len(_TITLES))]
    for row in table:
        cells = [
            cell.ljust(width) if column < _TEXTS else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())
