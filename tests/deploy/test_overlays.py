"""Every overlay is built by kustomize, valid, and held to the rules of the base."""

import argparse
import copy
import shutil
import subprocess
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from antiphon_command.arguments.parser import given_options
from antiphon_command.commands import worker as worker_command
from antiphon_service.semconv import METRICS, SERVICE_ADAPTER, SERVICE_WORKER
from inference_service.options import WorkerOptions
from tests.cli.support.process import run_cli
from tests.deploy.files import DEPLOY, ROOT, Expression
from tests.deploy.objects import objects
from tests.deploy.schemas import problems
from tests.deploy.test_kubernetes import RESTRICTED, selects
from tests.support.patience import PATIENCE_S
from ws_adapter.dispatch.revisions import read_weights
from ws_adapter.protocol.wire.limits import Limits
from ws_adapter.resume.buffer import MOST_KEPT_BYTES
from ws_adapter.shared_journal.link import MOST_UNANSWERED

KUBECTL = shutil.which("kubectl")

OVERLAYS = ("canary", "dev", "gpu", "production", "ray")
SCALED = ("canary", "gpu", "production")
Object = dict[str, Any]

pytestmark = pytest.mark.skipif(KUBECTL is None, reason="kubectl is not installed")


@cache
def built(folder: str) -> list[Object]:
    """Return what `kubectl apply -k deploy/kubernetes/FOLDER` would create."""
    words = [KUBECTL or "kubectl", "kustomize", str(DEPLOY / "kubernetes" / folder)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def overlay(name: str, *kinds: str) -> list[Object]:
    return [each for each in built(f"overlays/{name}") if each["kind"] in kinds or not kinds]


def named(overlay_name: str, kind: str, name: str) -> Object:
    [found] = [each for each in overlay(overlay_name, kind) if each["metadata"]["name"] == name]
    return found


def container_of(deployment: Object) -> Object:
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    return dict(container)


def labels_of(deployment: Object) -> dict[str, str]:
    return dict(deployment["spec"]["template"]["metadata"]["labels"])


def names(found: list[Object]) -> list[tuple[str, str]]:
    return sorted((each["kind"], each["metadata"]["name"]) for each in found)


def pods(name: str) -> list[Object]:
    return [each["spec"]["template"] for each in overlay(name, "Deployment", "Job")]


def test_base_is_what_kustomize_builds_and_the_documentation_says_how_to_apply_overlays() -> None:
    assert names(built("base")) == names(objects())
    text = (ROOT / "docs/operations.md").read_text()
    for name in OVERLAYS:
        assert f"deploy/kubernetes/overlays/{name}" in text


@pytest.mark.parametrize("name", OVERLAYS)
def test_overlay_keeps_all_objects_in_one_namespace_and_is_valid_by_the_schemas(name: str) -> None:
    assert set(names(objects())) <= set(names(overlay(name)))
    assert len(set(names(overlay(name)))) == len(overlay(name))
    for each in overlay(name):
        assert each["kind"] == "Namespace" or each["metadata"]["namespace"] == "antiphon"
        assert [*problems(each)] == []


def test_schemas_find_a_field_that_a_kind_does_not_have() -> None:
    for each in overlay("gpu"):
        wrong = copy.deepcopy(each)
        wrong.get("spec", wrong)["replica"] = 1
        assert any("replica" in problem for problem in problems(wrong)), each["kind"]
    [deployment, *_] = overlay("dev", "Deployment")
    wrong = copy.deepcopy(deployment)
    wrong["spec"]["template"]["spec"]["containers"][0]["ports"][0]["containerPort"] = "http"
    [problem] = problems(wrong)
    assert "containerPort" in problem


@pytest.mark.parametrize("name", OVERLAYS)
def test_pods_of_an_overlay_are_confined_and_have_policies(name: str) -> None:
    policies = [each["spec"] for each in overlay(name, "NetworkPolicy")]
    for template in pods(name):
        spec, labels = template["spec"], template["metadata"]["labels"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for each in [*spec["containers"], *spec.get("initContainers", ())]:
            assert each["securityContext"] == RESTRICTED
            assert {"memory", "ephemeral-storage"} <= each["resources"]["limits"].keys()
        governing = [each for each in policies if selects(each["podSelector"], labels)]
        assert len(governing) == 1 + (labels.get("ray") == "head")
        assert all(each["policyTypes"] == ["Ingress", "Egress"] for each in governing)


def option(words: list[str], name: str) -> float:
    [value] = [word.partition("=")[2] for word in words if word.startswith(f"{name}=")]
    return float(value)


@pytest.mark.parametrize("name", OVERLAYS)
def test_deployments_select_their_own_pods_with_one_budget_and_outlast_their_sessions(name: str) -> None:
    deployments = overlay(name, "Deployment")
    budgets = [each["spec"]["selector"] for each in overlay(name, "PodDisruptionBudget")]
    for each in deployments:
        selector, spec = each["spec"]["selector"], each["spec"]["template"]["spec"]
        assert [other for other in deployments if selects(selector, labels_of(other))] == [each]
        assert len([budget for budget in budgets if selects(budget, labels_of(each))]) == 1
        for constraint in spec.get("topologySpreadConstraints", ()):
            assert constraint["labelSelector"] == selector
        if each["metadata"]["name"] not in ("antiphon-redis", "antiphon-ray-llm"):
            drain = option(spec["containers"][0]["args"], "--drain-timeout-s")
            assert spec["terminationGracePeriodSeconds"] >= drain + 10
            assert drain > Limits.session_limit_s


@pytest.mark.parametrize("name", SCALED)
def test_scaling_reads_metrics_of_pools_that_there_are(name: str) -> None:
    deployments = {each["metadata"]["name"]: each for each in overlay(name, "Deployment")}
    known = {metric.name for metric in METRICS}
    pools = set()
    for scaled in overlay(name, "ScaledObject"):
        target = deployments[scaled["spec"]["scaleTargetRef"]["name"]]
        assert "replicas" not in target["spec"]
        for trigger in scaled["spec"]["triggers"]:
            if trigger["type"] == "cpu":
                assert "cpu" in container_of(target)["resources"]["requests"]
                continue
            expression = Expression("scaling.yaml", trigger["metadata"]["query"])
            assert expression.selectors()
            for selector in expression.selectors():
                assert selector.metric in known
                assert ("job", SERVICE_WORKER) in selector.matchers
                pools |= {value for label, value in selector.matchers if label == "pool"}
            assert labels_of(target)["pool"] in pools
    labels = [labels_of(each) for each in deployments.values()]
    assert pools == {each["pool"] for each in labels if "pool" in each}


@pytest.mark.parametrize("name", SCALED)
def test_monitors_scrape_the_administration_ports_as_the_jobs_of_the_alerts(name: str) -> None:
    jobs = set()
    for monitor in overlay(name, "ServiceMonitor"):
        spec = monitor["spec"]
        services = overlay(name, "Service")
        [service] = [it for it in services if selects(spec["selector"], it["metadata"].get("labels", {}))]
        jobs.add(service["metadata"]["labels"][spec["jobLabel"]])
        [endpoint], [port] = spec["endpoints"], service["spec"]["ports"]
        assert endpoint["port"] == port["name"]
        chosen = {"matchLabels": service["spec"]["selector"]}
        [one, *_] = [each for each in overlay(name, "Deployment") if selects(chosen, labels_of(each))]
        assert {"name": port["targetPort"], "containerPort": port["port"]} in container_of(one)["ports"]
    assert jobs == {SERVICE_ADAPTER, SERVICE_WORKER}


def test_ray_nodes_join_head_and_provide_gpus_of_worker() -> None:
    head, nodes = (named("ray", "Deployment", f"antiphon-{name}-llm") for name in ("worker", "ray"))
    worker, node = container_of(head), container_of(nodes)
    service = named("ray", "Service", "antiphon-ray-llm")

    assert selects({"matchLabels": service["spec"]["selector"]}, labels_of(head))
    [port] = service["spec"]["ports"]
    assert f"--address={service['metadata']['name']}:{port['port']} " in node["args"][0]
    assert f"--port={port['port']} " in worker["command"][2]
    gpus = [each["resources"]["limits"]["nvidia.com/gpu"] for each in (worker, node)]
    tensor, pipeline = (f"--{name}-parallel-size" for name in ("tensor", "pipeline"))
    told = option(worker["args"], tensor) * option(worker["args"], pipeline)
    [variable] = [each["value"] for each in worker["env"] if each["name"] == "GPUS"]
    used = gpus[0] * head["spec"]["replicas"] + gpus[1] * nodes["spec"]["replicas"]
    assert used == told == float(variable)
    assert {worker["image"], node["image"]} == {"antiphon-worker-vllm:0.1.0"}


def test_ray_worker_has_options_that_the_command_takes() -> None:
    words = container_of(named("ray", "Deployment", "antiphon-worker-llm"))["args"]
    program = argparse.ArgumentParser()
    worker_command.add_to(program.add_subparsers())  # type: ignore[arg-type]
    given = [word.replace("$(POD_IP)", "10.0.0.1") for word in words if "-file=" not in word]
    options = given_options(WorkerOptions, program.parse_args(["worker", *given]))
    assert (options.engine, options.distributed_executor_backend) == ("vllm", "ray")


def test_gpu_workers_wait_for_the_weights_that_a_job_fetches() -> None:
    [claim], [job] = overlay("gpu", "PersistentVolumeClaim"), overlay("gpu", "Job")
    pool = named("gpu", "Deployment", "antiphon-worker-minicpmo")
    spec, fetching = pool["spec"]["template"]["spec"], job["spec"]["template"]["spec"]

    for each in (spec, fetching):
        [volume] = [volume for volume in each["volumes"] if volume["name"] == "weights"]
        assert volume["persistentVolumeClaim"]["claimName"] == claim["metadata"]["name"]
    [init] = spec["initContainers"]
    assert init["command"][-1].removeprefix("/weights/") in fetching["containers"][0]["args"][0]
    [worker] = spec["containers"]
    assert "--device=cuda" in worker["args"]
    assert "--model=/weights/minicpmo" in worker["args"]
    assert worker["image"].startswith("antiphon-worker-cuda:")
    assert worker["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert {"name": "weights", "mountPath": "/weights", "readOnly": True} in worker["volumeMounts"]


def test_canary_is_another_revision_of_the_pool_with_a_weight_that_adapters_read(tmp_path: Path) -> None:
    found = overlay("canary", "Deployment")
    deployments = {each["metadata"]["name"]: each["spec"]["template"] for each in found}
    stable, canary = (deployments[f"antiphon-worker{suffix}"] for suffix in ("", "-canary"))
    labels = stable["metadata"]["labels"]
    assert canary["metadata"]["labels"] == {**labels, "revision": "canary"}
    words = {name: deployments[name]["spec"]["containers"][0]["args"] for name in deployments}
    assert words["antiphon-worker-canary"] == [*words["antiphon-worker"], "--revision=canary"]

    settings = named("canary", "ConfigMap", "antiphon-settings")
    adapter = deployments["antiphon-adapter"]["spec"]
    [volume] = [each for each in adapter["volumes"] if each["name"] == "settings"]
    assert volume["configMap"]["name"] == "antiphon-settings"
    [mount] = [each for each in adapter["containers"][0]["volumeMounts"] if each["name"] == "settings"]
    assert f"--config={mount['mountPath']}/antiphon.toml" in adapter["containers"][0]["args"]
    file = tmp_path / "antiphon.toml"
    file.write_text(settings["data"]["antiphon.toml"])
    entries = tomllib.loads(file.read_text())["adapter"]["revisions"]
    assert read_weights(entries)["antiphon-mini"].of == {"stable": 95, "canary": 5}
    assert run_cli("config", "check", file).code == 0


def test_redis_of_production_has_room_for_the_journals_of_all_adapters() -> None:
    redis, adapter = (
        container_of(named("production", "Deployment", f"antiphon-{name}")) for name in ("redis", "adapter")
    )
    most = named("production", "ScaledObject", "antiphon-adapter")["spec"]["maxReplicaCount"]
    each_mib = option(adapter["args"], "--journal-mib") + (MOST_KEPT_BYTES + MOST_UNANSWERED) / 2**20
    room = float(redis["args"][redis["args"].index("--maxmemory") + 1].removesuffix("mb"))
    assert room >= (most + 1) * each_mib + 128, "the queue needs some too"
    assert float(redis["resources"]["limits"]["memory"].removesuffix("Gi")) * 1024 > room
    assert "--journal=redis" in adapter["args"]
