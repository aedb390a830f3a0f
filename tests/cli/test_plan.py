"""The plan of the processes of `antiphon serve`."""

import argparse

import pytest

from antiphon_command.commands import serve
from antiphon_command.commands.worker import given_model_options
from antiphon_command.processes.plan import Plan


@pytest.mark.parametrize(
    ("shared", "reloads"),
    [
        ((), False),
        (("--dispatcher-password-file", "password"), False),
        (("--dispatcher-ca", "ca.pem"), True),
        (("--dispatcher-cert", "c.pem", "--dispatcher-cert-key", "c.key"), True),
    ],
)
def test_workers_reload_only_with_certificates(shared: tuple[str, ...], reloads: bool) -> None:
    """SIGHUP ends a worker that has no file to read again."""
    assert Plan([], [], shared=shared).workers_reload is reloads


def test_serve_passes_engine_options_to_workers() -> None:
    program = argparse.ArgumentParser()
    serve.add_to(program.add_subparsers())  # type: ignore[arg-type]
    words = "serve --engine vllm --tensor-parallel-size 2 --max-model-len 512 --dtype float32"
    given = given_model_options(program.parse_args(words.split()))
    assert dict(zip(given[::2], given[1::2], strict=True)) == {
        "--engine": "vllm",
        "--tensor-parallel-size": "2",
        "--context-limit": "512",
        "--dtype": "float32",
    }
