"""Tests of `antiphon key`: a key for a client, and its line for the file of keys."""

from pathlib import Path

import pytest

from tests.cli.support.process import run_cli
from ws_adapter.access.keys import Keys


def test_key_prints_its_line_to_stdout_and_the_secret_to_stderr(tmp_path: Path) -> None:
    alice, operator = run_cli("key", "alice"), run_cli("key", "operator", "--admin")
    path = tmp_path / "keys"
    path.write_text(alice.out + operator.out)

    keys = Keys(path)
    for done, name, is_admin in ((alice, "alice", False), (operator, "operator", True)):
        assert done.code == 0
        assert done.err.startswith(f"The key of {name}, which is not shown again: ak_")
        secret = done.err.split()[-1]
        assert secret not in done.out
        found = keys.find(secret)
        assert found is not None
        assert (found.name, found.is_admin) == (name, is_admin)
    assert run_cli("key", "alice").out != alice.out


def test_serve_finds_unusable_keys_before_it_loads_a_model(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("alice\n")

    done = run_cli("serve", "--port", "0", "--auth", "keys", "--keys", tmp_path / "keys")

    assert done.code == 2
    assert done.err == (
        f"Line 1 of {tmp_path / 'keys'} is no key: expected name:sha256, and perhaps :admin, :trusted or "
        ":admin,trusted and fields such as expires=2030-01-31. Make one with: antiphon key NAME\n"
    )


def test_key_with_fields_gets_a_line_with_them() -> None:
    options = ("--expires", "2030-01-31", "--modes", "chat", "--models", "a,b", "--direct-slots", "2")
    done = run_cli("key", "alice", *options, "--connections", "3")

    assert done.code == 0
    words = done.out.strip().split(":", 2)[2]
    assert words == "expires=2030-01-31T00:00:00Z modes=chat models=a,b connections=3 direct_slots=2"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["al:ice"], "'al:ice' is no name of a key."),
        (["alice", "--expires", "2020-01-31"], "expires must be in the future, not 2020-01-31."),
        (["alice", "--expires", "tomorrow"], "expires must be a date such as 2030-01-31, or 2030-01-31T18:"),
        (["alice", "--modes", "singing"], "modes must be of audio, video, chat, transcription"),
        (["alice", "--connections", "none"], "connections must be a number from 1"),
    ],
    ids=["name", "past", "date", "modes", "number"],
)
def test_key_with_invalid_fields_is_refused(words: list[str], message: str) -> None:
    done = run_cli("key", *words)

    assert (done.code, done.out) == (2, "")
    assert message in done.err
