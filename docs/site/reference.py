"""Reference pages that are generated from the code: commands, metrics, errors."""

import argparse
import os
from collections.abc import Iterable
from importlib import import_module
from pkgutil import walk_packages

import antiphon_command.commands as commands_package
from antiphon.contract import Reason
from antiphon_command.arguments.parser import Command, FullHelp, parser
from antiphon_service import semconv
from antiphon_service.semconv import Metric
from ws_adapter.protocol.wire.errors import VERDICTS, CloseCode, ErrorCode


def commands() -> str:
    """Return a page with the help of every command, with all options."""
    os.environ["COLUMNS"] = "100"
    lines = ["# Command line", "", "This page has the full help of every command, as `--help-all` prints it."]
    for name, command in _parsers().items():
        command.formatter_class = FullHelp
        lines += ["", f"## antiphon {name}", "", "```text", command.format_help().strip(), "```"]
    return "\n".join(lines) + "\n"


def _parsers() -> dict[str, argparse.ArgumentParser]:
    program = parser("", "")
    commands = program.add_subparsers(parser_class=Command, prog="antiphon")
    for module in walk_packages(commands_package.__path__, f"{commands_package.__name__}."):
        if not module.ispkg:
            import_module(module.name).add_to(commands)
    return dict(commands.choices)


def metrics() -> str:
    """Return a page with every metric of adapter and worker."""
    found = [it for it in vars(semconv).values() if isinstance(it, Metric)]
    rows = [
        (f"`{it.name}`", it.unit or "", ", ".join(f"`{label}`" for label in it.labels), it.meaning)
        for it in sorted(found)
    ]
    text = "This page lists every metric of adapter and worker, with its unit in UCUM and its labels."
    return f"# Metrics\n\n{text}\n\n" + _table(("name", "unit", "labels", "meaning"), rows)


def errors() -> str:
    """Return a page with the error codes of the public protocols, the close codes and the gRPC reasons."""
    codes = [(f"`{code}`", "server" if code.is_servers else "client") for code in ErrorCode]
    closes = [(str(int(code)), code.name.lower()) for code in CloseCode]
    reasons = []
    for reason in Reason:
        verdict = VERDICTS[reason]
        code = f"`{verdict.code}`" if verdict.code is not None else ""
        closed = f"`{verdict.closed}`" if verdict.closed is not None else ""
        close = str(int(verdict.close)) if verdict.close is not None else ""
        reasons.append((f"`{reason}`", code, closed, close, verdict.message))
    return "\n".join(
        (
            "# Errors",
            "",
            "This page lists every error that clients of the adapter and callers of the worker can get. "
            "What each dialect sends is in [the adapter](../adapter.md), which status carries a reason "
            "in [the worker](../worker.md).",
            "",
            "## Codes of the public protocols",
            "",
            _table(("code", "whose fault"), codes),
            "## WebSocket close codes",
            "",
            _table(("close code", "name"), closes),
            "## Reasons of gRPC, and what the public sees of them",
            "",
            _table(("reason", "`error.code`", "`session.closed` reason", "close code", "message"), reasons),
        )
    )


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)
