"""Keys that processes share: from a file or the environment, never from the command line itself."""

import argparse
from pathlib import Path

import pytest

from antiphon.cli.arguments.shared_key import (
    ADMIN_KEY,
    CLIENT_SECRET_KEY,
    WORKER_KEY,
    add_admin_key_option,
    add_client_secret_key_option,
    add_worker_key_option,
)

OPTIONS = [
    (add_admin_key_option, "--admin-key-file", "admin_key", ADMIN_KEY),
    (add_worker_key_option, "--worker-key-file", "worker_key", WORKER_KEY),
    (add_client_secret_key_option, "--client-secret-key-file", "client_secret_key", CLIENT_SECRET_KEY),
]


@pytest.mark.parametrize(("add", "option", "name", "variable"), OPTIONS)
def test_a_file_goes_before_the_environment(
    add: object, option: str, name: str, variable: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def parse(*arguments: str) -> dict[str, bytes]:
        parser = argparse.ArgumentParser()
        add(parser)  # type: ignore[operator]
        return vars(parser.parse_args(arguments))

    (tmp_path / "key").write_bytes(b"from a file\n")

    assert parse() == {}
    assert parse(option, str(tmp_path / "key")) == {name: b"from a file"}
    monkeypatch.setenv(variable, "from the environment")
    assert parse() == {name: b"from the environment"}
    assert parse(option, str(tmp_path / "key")) == {name: b"from a file"}
    with pytest.raises(SystemExit):
        parse(option, str(tmp_path / "none"))
