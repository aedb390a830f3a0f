"""The services of `deploy/compose` hang together, and run with what its script makes."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from antiphon_service.semconv import SERVICE_ADAPTER, SERVICE_WORKER
from tests.deploy import objects
from tests.deploy.files import DEPLOY, ROOT, read_yaml
from tests.support.patience import PATIENCE_S

COMPOSE = DEPLOY / "compose"
OURS = ("antiphon-adapter", "antiphon-worker")


def services() -> dict[str, dict[str, Any]]:
    """Return the services by their names."""
    return dict(read_yaml("compose/compose.yaml")["services"])


def command_of(service: str) -> list[str]:
    """Return the words that start the adapter or the worker, each value as a word of its own."""
    words = [part for word in services()[service]["command"] for part in word.split("=", 1)]
    return ["antiphon", service.removeprefix("antiphon-"), *words]


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder that the script has filled."""
    folder = tmp_path_factory.mktemp("compose") / "secrets"
    for _ in range(2):  # the second time it keeps what is there
        done = subprocess.run(
            [COMPOSE / "prepare.sh", folder],
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env=os.environ | {"ANTIPHON": str(Path(sys.executable).with_name("antiphon"))},
        )
        assert done.returncode == 0, done.stderr
    return folder


def mounts(service: str) -> dict[str, Path]:
    """Return path in the container -> path of this machine, relative to the folder of compose.yaml."""
    found = {}
    for volume in services()[service].get("volumes", ()):
        source, target, *_ = volume.split(":")
        if source.startswith("."):
            found[target] = Path(source)
    return found


def test_script_makes_secrets_once_and_closes_their_folder(secrets: Path) -> None:
    clients = (secrets / "adapter/clients").read_text().splitlines()
    assert [line.partition(":")[0] for line in clients] == ["alice", "prometheus"]
    assert re.fullmatch(r"ak_\S+\n", (secrets / "alice.key").read_text())
    assert "docker compose -f deploy/compose/compose.yaml up" in (ROOT / "docs/operations.md").read_text()
    assert (secrets / "adapter/worker.key").read_text() == (secrets / "worker/worker.key").read_text()
    assert "PASSWORD_SHA256" not in (secrets / "redis/users.acl").read_text()
    assert secrets.stat().st_mode & 0o777 == 0o700
    for name in ("authorities/workers.key", "authorities/redis.key"):
        assert (secrets / "tls" / name).stat().st_mode & 0o777 == 0o600


def test_files_that_services_name_are_made_or_shipped(secrets: Path) -> None:
    named = {
        service: set(re.findall(r"/etc/[\w./-]+", " ".join(map(str, found.get("command", ())))))
        for service, found in services().items()
    }
    redis = (DEPLOY / "redis/redis.conf").read_text()
    named["antiphon-redis"] |= set(re.findall(r"^[a-z-]+ (/etc/antiphon\S+)", redis, re.MULTILINE))
    [job, *_] = read_yaml("compose/prometheus.yml")["scrape_configs"]
    named["prometheus"].add(job["authorization"]["credentials_file"])
    for service, paths in named.items():
        for path in paths:
            found = mounts(service).items()
            [(target, source)] = [it for it in found if path == it[0] or path.startswith(f"{it[0]}/")]
            inside = path.removeprefix(target).lstrip("/")
            is_secret = source.parts[0] == "secrets"
            place = secrets / source.relative_to("secrets") if is_secret else COMPOSE / source
            assert (place / inside if inside else place).is_file(), (service, path)


@pytest.mark.parametrize("service", OURS)
def test_options_are_those_of_kubernetes_and_the_grace_period_outlasts_the_drain(service: str) -> None:
    words = command_of(service)
    variables = {"POD_IP": service, "TRUSTED_PROXIES": "172.30.8.1"}
    assert words == objects.command_of(service, variables)
    grace = services()[service]["stop_grace_period"]
    assert float(grace.removesuffix("s")) >= float(words[words.index("--drain-timeout-s") + 1]) + 10


def test_services_are_confined_and_reached_from_this_machine_alone() -> None:
    for name, service in services().items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert not {"privileged", "network_mode", "pid", "devices"} & service.keys()
        for port in service.get("ports", ()):
            assert port.startswith("127.0.0.1:")
    networks = yaml.safe_load((COMPOSE / "compose.yaml").read_text())["networks"]
    assert networks["inner"]["internal"] is True
    [subnet] = networks["outer"]["ipam"]["config"]
    words = command_of("antiphon-adapter")
    assert words[words.index("--trusted-proxies") + 1] == subnet["gateway"]


def test_prometheus_scrapes_the_jobs_of_the_alerts() -> None:
    jobs = {each["job_name"]: each for each in read_yaml("compose/prometheus.yml")["scrape_configs"]}
    shipped = {each["job_name"] for each in read_yaml("prometheus/prometheus.yml")["scrape_configs"]}
    assert jobs.keys() == shipped == {SERVICE_ADAPTER, SERVICE_WORKER}
    for name, job in jobs.items():
        words = command_of(name)
        [target] = job["static_configs"][0]["targets"]
        assert target == f"{name}:{words[words.index('--admin-port') + 1]}"


def test_grafana_gets_the_shipped_dashboard() -> None:
    [provider] = read_yaml("compose/grafana/dashboards.yml")["providers"]
    [source] = read_yaml("compose/grafana/sources.yml")["datasources"]
    mounted = mounts("grafana")[f"{provider['options']['path']}/antiphon.json"]
    assert mounted == Path("../grafana/antiphon.json")
    assert source["url"] == "http://prometheus:9090"
