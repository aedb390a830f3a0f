"""`antiphon key`: a key for a client, and the line that lets it in."""

from pathlib import Path

from tests.cli.support.process import run_cli, run_without
from ws_adapter.web.keys import Keys


def test_line_goes_to_the_file_and_the_key_to_the_screen(tmp_path: Path) -> None:
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


def test_two_keys_differ() -> None:
    assert run_cli("key", "alice").out != run_cli("key", "alice").out


def test_impossible_name() -> None:
    done = run_cli("key", "al:ice")

    assert done.code == 2
    assert done.err.startswith("'al:ice' is no name of a key.")


def test_missing_extra() -> None:
    done = run_without("msgspec", "key", "alice")

    assert done.code == 2
    assert "pip install 'antiphon[adapter]'" in done.err


def test_serve_finds_unusable_keys_before_it_loads_a_model(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("alice\n")

    done = run_cli("serve", "--port", "0", "--auth", "keys", "--keys", tmp_path / "keys")

    assert done.code == 2
    assert done.err == (
        f"Line 1 of {tmp_path / 'keys'} is no key: expected name:sha256, and perhaps :admin, :trusted or "
        ":admin,trusted. Make one with: antiphon key NAME\n"
    )


def test_keys_without_auth_are_an_error() -> None:
    done = run_cli("adapter", "--worker", "unix:none", "--keys", "keys")

    assert done.code == 2
    assert "Pass --auth keys and --keys FILE, or neither." in done.err
