"""What runs many adapters and workers: Kubernetes' objects and systemd's units, against the real parsers."""

import argparse
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from antiphon.cli.arguments.parser import given_options
from antiphon.cli.commands import adapter, worker
from antiphon.redis import LIBRARY, prefix
from antiphon.semconv import METRICS
from inference_service.options import WorkerOptions
from tests.deploy.files import DEPLOY, Expression
from tests.support.redis_server import INSTALLED, MISSING, RedisServer
from ws_adapter.options import AdapterOptions

GRACE_S = 660
KEY = "k" * 32


def objects() -> list[dict[str, Any]]:
    return [
        each
        for file in sorted((DEPLOY / "kubernetes").glob("*.yaml"))
        for each in yaml.safe_load_all(file.read_text())
    ]


def found(kind: str, name: str) -> dict[str, Any]:
    [one] = [each for each in objects() if (each["kind"], each["metadata"]["name"]) == (kind, name)]
    return one


def pod(name: str) -> dict[str, Any]:
    return dict(found("Deployment", name)["spec"]["template"]["spec"])


def parsed(
    words: list[str], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> argparse.Namespace:
    """As the command itself reads it. Ends the process, as it would, where it would not start."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    program = argparse.ArgumentParser()
    commands = program.add_subparsers()
    for command in (adapter, worker):
        command.add_to(commands)  # type: ignore[arg-type]
    return program.parse_args(words[1:])


def check(words: list[str], environment: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """The options that a command line means; raises if they cannot work."""
    kind = {"adapter": AdapterOptions, "worker": WorkerOptions}[words[1]]
    return given_options(kind, parsed(words, environment, monkeypatch))


def container_options(name: str, monkeypatch: pytest.MonkeyPatch) -> tuple[dict[str, Any], Any]:
    [container] = pod(f"antiphon-{name}")["containers"]
    environment = {each["name"]: KEY for each in container["env"]} | {
        "ANTIPHON_DISPATCHER": found("Secret", "antiphon")["stringData"]["dispatcher"]
    }
    words = [word.replace("$(POD_IP)", "10.1.2.3") for word in (*container["command"], *container["args"])]
    return container, check(words, environment, monkeypatch)


@pytest.mark.parametrize("name", ["adapter", "worker"])
def test_container_starts_with_options_that_exist_and_drains_within_its_grace(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    container, options = container_options(name, monkeypatch)

    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert ports["administration"] == options.admin_port
    assert options.dispatcher.startswith("redis://")
    assert options.worker_key == KEY.encode()
    assert 600 < options.drain_timeout_s < pod(f"antiphon-{name}")["terminationGracePeriodSeconds"] == GRACE_S
    if name == "adapter":
        assert ports["clients"] == options.port
        mounts = {mount["name"]: Path(mount["mountPath"]) for mount in container["volumeMounts"]}
        [volume] = pod("antiphon-adapter")["volumes"]
        assert options.keys in {mounts["keys"] / item["path"] for item in volume["secret"]["items"]}
    else:
        assert options.listen.endswith(f":{ports['grpc']}")
        assert options.advertise == f"10.1.2.3:{ports['grpc']}"


def test_secrets_that_are_asked_for_are_there() -> None:
    known = set(found("Secret", "antiphon")["stringData"])
    asked = set()
    for name in ("antiphon-adapter", "antiphon-worker", "antiphon-redis"):
        for container in pod(name)["containers"]:
            references = [each.get("valueFrom", {}).get("secretKeyRef") for each in container.get("env", ())]
            asked |= {reference["key"] for reference in references if reference}
        for volume in pod(name).get("volumes", ()):
            asked |= {item["key"] for item in volume["secret"]["items"]}
    assert asked == known


def test_policies_budgets_and_services_name_pods_and_ports_that_there_are() -> None:
    labels, ports = {}, {}
    for one in objects():
        if one["kind"] == "Deployment":
            template = one["spec"]["template"]
            app = template["metadata"]["labels"]["app"]
            assert one["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
            labels[one["metadata"]["name"]] = app
            ports[app] = {port["name"] for each in template["spec"]["containers"] for port in each["ports"]}
    for one in objects():
        spec = one.get("spec", {})
        match one["kind"]:
            case "NetworkPolicy":
                named = {port["port"] for rule in spec["ingress"] for port in rule["ports"]}
                assert named <= ports[spec["podSelector"]["matchLabels"]["app"]]
            case "PodDisruptionBudget":
                assert spec["selector"]["matchLabels"]["app"] in ports
            case "Service":
                assert {port["targetPort"] for port in spec["ports"]} <= ports[spec["selector"]["app"]]
            case "ScaledObject":
                assert spec["scaleTargetRef"]["name"] in labels
    [host] = {found("Secret", "antiphon")["stringData"]["dispatcher"].rpartition("@")[2].partition(":")[0]}
    assert found("Service", host)


def test_scaling_asks_for_series_that_there_are() -> None:
    for trigger in found("ScaledObject", "antiphon-worker")["spec"]["triggers"]:
        expression = Expression("scaling.yaml", trigger["metadata"]["query"])
        assert expression.selectors()
        for selector in expression.selectors():
            assert selector.metric in {metric.name for metric in METRICS}


@pytest.mark.parametrize("name", ["adapter", "worker"])
def test_unit_starts_with_options_that_exist(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    text = (DEPLOY / f"systemd/antiphon-{name}@.service").read_text()
    settings = dict(line.split("=", 1) for line in text.splitlines() if "=" in line and line[0] not in "#[")
    environment = {"ANTIPHON_DISPATCHER": "unix:///run/redis/redis.sock", "ANTIPHON_WORKER_KEY": KEY}

    options = check(shlex.split(settings["ExecStart"].replace("%i", "0")), environment, monkeypatch)

    assert 600 < options.drain_timeout_s < int(settings["TimeoutStopSec"])
    assert settings["RestartPreventExitStatus"] == "2"


@pytest.mark.skipif(INSTALLED is None, reason=MISSING)
def test_user_of_redis_may_call_the_functions_and_nothing_else(tmp_path: Path) -> None:
    from redis import Redis
    from redis.exceptions import NoPermissionError

    acl = tmp_path / "users.acl"
    acl.write_text(found("Secret", "antiphon")["stringData"]["users.acl"])
    server = RedisServer(tmp_path, f"aclfile {acl}")
    server.start()
    library = (Path(__file__).parents[2] / "ws_adapter/dispatch/functions.lua").read_text()
    try:
        with Redis(
            unix_socket_path=str(server.socket),
            username="antiphon",
            password="PASSWORD",
            decode_responses=True,
        ) as user:
            assert user.function_load(library, replace=True) == LIBRARY
            assert user.execute_command("FCALL", f"{LIBRARY}_stats", 1, prefix("pool")).startswith("{")
            assert user.publish(f"{prefix('pool')}a:x", "wake") == 0
            for forbidden in (("FLUSHALL",), ("CONFIG", "GET", "*"), ("SET", "other", "1"), ("KEYS", "*")):
                with pytest.raises(NoPermissionError):
                    user.execute_command(*forbidden)
    finally:
        server.stop()
