"""The commands show their help, usage and version."""

import argparse
import dataclasses
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

import antiphon
from antiphon_command.command import main
from antiphon_command.commands import adapter, worker
from tests.cli.support.process import run_cli
from tests.support.patience import PATIENCE_S
from ws_adapter.options import AdapterOptions

COMMANDS = [
    "serve", "talk", "chat", "transcribe", "demo", "probe", "bench", "worker", "adapter", "key",
    "config", "convert-vocoder", "check-config", "train", "share-keys", "usage",
]  # fmt: skip
SCREEN_LINES, SCREEN_COLUMNS = 25, 80


@pytest.mark.parametrize("command", [[], *([name] for name in COMMANDS)], ids=lambda words: " ".join(words))
def test_help_fits_a_screen_and_ends_with_two_examples(command: list[str]) -> None:
    done = run_cli(*command, "--help")

    lines = done.out.splitlines()
    assert done.code == 0
    assert len(lines) <= SCREEN_LINES
    assert max(map(len, lines)) <= SCREEN_COLUMNS
    assert lines[-3] == "examples:"
    assert all("antiphon " in line for line in lines[-2:])
    assert all(name in done.out for name in (COMMANDS if not command else []))


def test_help_all_shows_sampling_options_of_chat_and_devices_of_talk() -> None:
    words = (("chat", "--help"), ("chat", "--help-all"), ("talk", "--help-all"))
    usual, chat, talk = (run_cli(*each) for each in words)

    for option in ("--max-new-tokens", "--temperature", "--top-p", "--length-penalty", "--thinking"):
        assert option not in usual.out
        assert f"  {option}" in chat.out
    for option in ("--microphone DEVICE", "--speaker DEVICE"):
        assert f"  {option}" in talk.out


@pytest.mark.parametrize("name", ["serve", "worker"])
def test_help_all_shows_the_options_of_models(name: str) -> None:
    everything = run_cli(name, "--help-all").out

    vocoder = ("--vocoder", "--vocoder-steps", "--vocoder-dtype")
    for option in ("--kernels", "--no-speech", *vocoder, "--voice", "--admin-port"):
        assert f"  {option} " in everything


def test_help_all_shows_every_option_of_the_adapter() -> None:
    usual, everything = run_cli("adapter", "--help"), run_cli("adapter", "--help-all")

    assert everything.code == 0
    assert max(map(len, everything.out.splitlines())) <= SCREEN_COLUMNS
    assert everything.out.splitlines()[-3] == "examples:"
    for field in dataclasses.fields(AdapterOptions):
        option = "--worker" if field.name == "workers" else f"--{field.name.replace('_', '-')}"
        assert f"  {option}" in everything.out, option
    for option in re.findall(r"^  (--\S+)", usual.out, re.MULTILINE):
        assert f"  {option}" in everything.out


def test_version_prints_package_protocol_and_python_also_by_the_installed_script() -> None:
    script = Path(sys.executable).with_name("antiphon")
    installed = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=PATIENCE_S)
    done = run_cli("--version")

    expected = f"antiphon {antiphon.__version__}, protocol antiphon.v1, Python {platform.python_version()}"
    assert (done.code, done.out.strip()) == (0, expected)
    assert installed.stdout == done.out


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["sing"],
        ["talk", "a.wav", "b.wav"],
        ["serve", "--prot", "1"],
        ["serve", "--port", "eighty"],
        ["serve", "--port", "70000"],
        ["worker", "--slots", "0"],
        ["worker", "--drain-timeout-s", "-1"],
        ["talk", "a.wav", "--session-timeout", "nan"],
        ["talk", "a.wav", "--key-file", "/none"],
        ["transcribe"],
        ["transcribe", "a.wav", "b.wav"],
        ["chat", "one", "two"],
        ["chat", "Prime?", "--max-new-tokens", "0"],
        ["chat", "Prime?", "--speak", "--out", "/none/answer.wav"],
    ],
    ids=" ".join,
)
def test_wrong_usage_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)

    assert ended.value.code == 2
    assert "usage: antiphon" in capsys.readouterr().err


def service_arguments(command: object) -> argparse.Namespace:
    """The argument names of a command that starts a service, and what its help says about each."""
    program = argparse.ArgumentParser()
    command.add_to(program.add_subparsers())  # type: ignore[attr-defined]
    [choices] = [action.choices for action in program._actions if isinstance(action.choices, dict)]
    [parser] = choices.values()
    return argparse.Namespace(
        **{a.dest: a.help for a in parser._actions if a.dest not in ("help", "debug", "log_level", "config")}
    )


@pytest.mark.parametrize(
    ("command", "module", "options"),
    [
        (worker, "inference_service.options", "WorkerOptions"),
        (adapter, "ws_adapter.options", "AdapterOptions"),
    ],
    ids=["worker", "adapter"],
)
def test_arguments_are_the_options_of_the_service(command: object, module: str, options: str) -> None:
    kind = getattr(pytest.importorskip(module), options)
    arguments = vars(service_arguments(command))

    assert arguments.keys() <= {field.name for field in dataclasses.fields(kind)}
    for field in dataclasses.fields(kind):
        if field.name in arguments and field.default not in (None, False, (), dataclasses.MISSING):
            shown = f"{field.default:g}" if isinstance(field.default, float) else str(field.default)
            assert f"default {shown}" in arguments[field.name], field.name


def test_model_options_are_passed_to_worker() -> None:
    arguments = argparse.Namespace(
        model="m", slots=2, kernels="off", no_speech=True, vocoder=Path("v"), vocoder_steps=3
    )

    assert worker.given_model_options(arguments) == [
        *("--model", "m", "--slots", "2", "--kernels", "off", "--no-speech"),
        *("--vocoder", "v", "--vocoder-steps", "3"),
    ]
