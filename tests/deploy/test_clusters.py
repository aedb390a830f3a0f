"""Tests of cluster deployments: Kubernetes objects and systemd units, against the real parsers."""

import argparse
from pathlib import Path
from typing import Any

import pytest

from antiphon_command.arguments.parser import given_options
from antiphon_command.commands import adapter, worker
from inference_service.options import WorkerOptions
from tests.deploy import objects, units
from ws_adapter.options import AdapterOptions
from ws_adapter.process.errors import ConfigurationError

GRACE_S = 660
KEY = "k" * 32
KINDS = ("kubernetes", "systemd")
NAMES = ("adapter", "worker")


def command_of(kind: str, name: str, folder: Path, proxies: str = "10.4.7.2") -> list[str]:
    """Return the words that start it, with `folder` in place of /etc/antiphon and of the credentials."""
    if kind == "kubernetes":
        variables = {"POD_IP": "10.1.2.3", "TRUSTED_PROXIES": proxies}
        words = objects.command_of(f"antiphon-{name}", variables)
    else:
        variables = {"TRUSTED_PROXIES": proxies, "CREDENTIALS_DIRECTORY": "/etc/antiphon/credentials"}
        words = units.command_of(units.unit_path(name), "0", variables)
    return [word.replace("/etc/antiphon", str(folder)) for word in words]


def options_of(words: list[str]) -> Any:
    """Return the options that a command line means, as the command reads them; raises if they cannot work."""
    program = argparse.ArgumentParser()
    commands = program.add_subparsers()
    for command in (adapter, worker):
        command.add_to(commands)  # type: ignore[arg-type]
    kind = {"adapter": AdapterOptions, "worker": WorkerOptions}[words[1]]
    return given_options(kind, program.parse_args(words[1:]))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The keys that are read when options are parsed, where Kubernetes and where systemd puts them."""
    for file in ("adapter/worker.key", "adapter/client-secret.key", "worker/worker.key"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text(KEY)
    (tmp_path / "credentials").mkdir()
    for name in ("worker-key", "client-secret-key", "redis-password"):
        (tmp_path / "credentials" / name).write_text(KEY)
    for variable in ("ANTIPHON_WORKER_KEY", "ANTIPHON_CLIENT_SECRET_KEY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("ANTIPHON_DISPATCHER", "rediss://antiphon-user@redis.internal:6379")
    return tmp_path


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", KINDS)
def test_options_exist_and_secure_every_connection(kind: str, name: str, folder: Path) -> None:
    options = options_of(command_of(kind, name, folder))

    assert options.dispatcher.startswith("rediss://antiphon-")
    assert ":" not in options.dispatcher.partition("@")[0].removeprefix("rediss:"), "no password in the URL"
    assert options.worker_key == KEY.encode()
    assert options.dispatcher_password_file is not None
    assert None not in (options.dispatcher_ca, options.dispatcher_cert, options.dispatcher_cert_key)
    if name == "adapter":
        assert None not in (options.worker_ca, options.worker_cert, options.worker_cert_key)
        assert options.worker_name == "antiphon-worker"
        assert options.auth == "keys"
        assert options.client_secret_key_file is not None
        assert options.client_secret_key_file.read_text().strip() == KEY
        assert options.trusted_proxies == ("10.4.7.2",)
    else:
        assert None not in (options.tls_cert, options.tls_key, options.tls_client_ca)
        assert not options.insecure_grpc
        assert options.advertise is not None


@pytest.mark.parametrize("kind", KINDS)
def test_adapter_refuses_to_start_until_the_proxies_are_named(kind: str, folder: Path) -> None:
    """Attack: with 10.0.0.0/8, as these files had it, any pod poses as any client."""
    shipped = objects.of_kind("ConfigMap")["antiphon"]["data"]["trusted-proxies"]
    unset = shipped if kind == "kubernetes" else ""
    with pytest.raises(ConfigurationError, match="trusted_proxies"):
        options_of(command_of(kind, "adapter", folder, unset))


@pytest.mark.parametrize("name", NAMES)
def test_container_and_unit_drain_before_they_are_killed_and_name_their_ports(
    name: str, folder: Path
) -> None:
    app, settings = f"antiphon-{name}", units.directives(units.unit_path(name))
    options = options_of(command_of("kubernetes", name, folder))
    ports = {port["name"]: port["containerPort"] for port in objects.container(app)["ports"]}
    assert ports["administration"] == options.admin_port
    assert 600 < options.drain_timeout_s < objects.pod(app)["terminationGracePeriodSeconds"] == GRACE_S
    if name == "adapter":
        assert ports["clients"] == options.port
    else:
        assert options.listen.endswith(f":{ports['grpc']}")
        assert options.advertise == f"10.1.2.3:{ports['grpc']}"

    options = options_of(command_of("systemd", name, folder))
    assert 600 < options.drain_timeout_s < int(settings["TimeoutStopSec"][0])
    assert settings["RestartPreventExitStatus"] == ["2"]
    assert settings["ExecReload"] == ["/bin/kill -HUP $MAINPID"]
    assert options.is_reloadable
