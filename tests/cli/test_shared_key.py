"""Keys that processes share: from a file or the environment, never from the command line itself."""

import argparse
from collections.abc import Callable
from pathlib import Path

import pytest

from antiphon_command.arguments.shared_key import (
    CLIENT_SECRET_KEY,
    WORKER_KEY,
    add_client_secret_key_option,
    add_worker_key_option,
)
from tests.cli.support.process import run_cli


def parse(add: Callable[[argparse.ArgumentParser], None], *arguments: str) -> dict[str, object]:
    parser = argparse.ArgumentParser()
    add(parser)
    return vars(parser.parse_args(arguments))


def test_worker_key_file_overrides_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add, option = add_worker_key_option, "--worker-key-file"
    (tmp_path / "key").write_bytes(b"from a file\n")

    assert parse(add) == {}
    assert parse(add, option, str(tmp_path / "key")) == {"worker_key": b"from a file"}
    monkeypatch.setenv(WORKER_KEY, "from the environment")
    assert parse(add) == {"worker_key": b"from the environment"}
    assert parse(add, option, str(tmp_path / "key")) == {"worker_key": b"from a file"}
    with pytest.raises(SystemExit):
        parse(add, option, str(tmp_path / "none"))


def test_client_secret_key_file_is_passed_on_as_a_path_for_reloads(monkeypatch: pytest.MonkeyPatch) -> None:
    add, option = add_client_secret_key_option, "--client-secret-key-file"

    assert parse(add) == {}
    assert parse(add, option, "key") == {"client_secret_key_file": Path("key")}
    monkeypatch.setenv(CLIENT_SECRET_KEY, "from the environment\n")
    assert parse(add) == {"client_secret_key": b"from the environment"}


def test_adapter_with_unusable_client_secret_key_does_not_start(tmp_path: Path) -> None:
    file = tmp_path / "secrets.key"
    file.write_text(f"{'k' * 32}\ntoo short\n")

    done = run_cli("adapter", "--worker", "unix:none", "--port", "0", "--client-secret-key-file", file)

    assert done.code == 2
    assert done.err.splitlines()[-1] == (
        f"Line 2 of {file} has 9 bytes: a key of client secrets must have at least 16. "
        "Make one with: openssl rand -hex 32"
    )
    assert "too short" not in done.err
