"""The Kubernetes objects hang together and ask for no right that they do not need."""

import re
from typing import Any

import pytest

from tests.deploy.files import DEPLOY
from tests.deploy.objects import APPS, command_of, container, objects, of_kind, pod, projected
from tests.deploy.schemas import problems

RESTRICTED = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def labels_of(app: str) -> dict[str, str]:
    return dict(of_kind("Deployment")[app]["spec"]["template"]["metadata"]["labels"])


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    """Whether a label selector of the forms used here selects a pod with these labels."""
    for each in selector.get("matchExpressions", ()):
        assert each["operator"] == "In"
        if labels.get(each["key"]) not in each["values"]:
            return False
    return all(labels.get(name) == value for name, value in selector.get("matchLabels", {}).items())


def policies_of(app: str, direction: str) -> list[dict[str, Any]]:
    """Return the specifications of the policies that govern the pods of `app` in a direction."""
    specs, labels = [each["spec"] for each in of_kind("NetworkPolicy").values()], labels_of(app)
    return [it for it in specs if selects(it["podSelector"], labels) and direction in it["policyTypes"]]


def test_objects_are_valid_and_the_namespace_refuses_pods_with_more_rights() -> None:
    assert [problem for each in objects() for problem in problems(each)] == []
    [namespace] = of_kind("Namespace").values()
    assert namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "restricted"


@pytest.mark.parametrize("app", APPS)
def test_pod_has_no_right_that_it_does_not_need(app: str) -> None:
    spec = pod(app)
    context = spec["securityContext"]

    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert not {"hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"} & spec.keys()
    assert context["runAsNonRoot"] is True
    assert context["runAsUser"] == context["runAsGroup"] == context["fsGroup"] > 0
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    for each in [*spec["containers"], *spec.get("initContainers", ())]:
        assert each["securityContext"] == RESTRICTED
        assert {"cpu", "memory", "ephemeral-storage"} <= each["resources"]["requests"].keys()
        assert {"memory", "ephemeral-storage"} <= each["resources"]["limits"].keys()
        assert not any("hostPort" in port for port in each["ports"])
    for volume in spec["volumes"]:
        assert volume.keys() & {"projected", "emptyDir"}
        assert "sizeLimit" in volume.get("emptyDir", {"sizeLimit": ""})
        assert volume.get("projected", {"defaultMode": 0o440})["defaultMode"] == 0o440


@pytest.mark.parametrize("app", APPS)
def test_every_pod_has_one_disruption_budget_and_one_policy_in_each_direction(app: str) -> None:
    assert of_kind("Deployment")[app]["spec"]["selector"]["matchLabels"] == labels_of(app)
    budgets = [each["spec"] for each in of_kind("PodDisruptionBudget").values()]
    [budget] = [spec for spec in budgets if selects(spec["selector"], labels_of(app))]
    assert budget["maxUnavailable"] == 1
    [ingress], [egress] = policies_of(app, "Ingress"), policies_of(app, "Egress")
    named = {port["name"] for port in container(app)["ports"]}
    for rule in ingress["ingress"]:
        assert rule["from"], "nobody is let in from everywhere"
        assert {port["port"] for port in rule["ports"]} <= named
    for rule in egress["egress"]:
        assert rule["to"], "nothing goes everywhere"
        assert rule["ports"]


COMMON = {"kube-dns": {53}, "opentelemetry-collector": {4318}, "antiphon-redis": {6379}}
EGRESS = {
    "antiphon-adapter": {**COMMON, "antiphon-adapter": {8010}, "antiphon-worker": {50051}},
    "antiphon-worker": COMMON,
    "antiphon-redis": {},
}


@pytest.mark.parametrize("app", APPS)
def test_pod_reaches_dns_redis_workers_and_the_collector_alone(app: str) -> None:
    [spec] = policies_of(app, "Egress")
    found: dict[str, set[int]] = {}
    for rule in spec["egress"]:
        for peer in rule["to"]:
            assert "ipBlock" not in peer
            [name] = peer["podSelector"]["matchLabels"].values()
            is_ours = name in APPS
            assert is_ours != ("namespaceSelector" in peer)
            found.setdefault(name, set()).update(port["port"] for port in rule["ports"])

    assert found == EGRESS[app]
    for name in found.keys() & set(APPS):
        assert found[name] <= {port["containerPort"] for port in container(name)["ports"]}
        # The target's ingress policy must admit this egress.
        [other] = policies_of(name, "Ingress")
        peers = [peer for rule in other["ingress"] for peer in rule["from"] if "podSelector" in peer]
        assert any(selects(peer["podSelector"], labels_of(app)) for peer in peers)


def test_services_name_what_there_is_and_probes_ask_ports_that_answer_without_a_certificate() -> None:
    ports = {app: {port["name"] for port in container(app)["ports"]} for app in APPS}
    for service in of_kind("Service").values():
        spec = service["spec"]
        assert {port["targetPort"] for port in spec["ports"]} <= ports[spec["selector"]["app"]]
    for app in ("antiphon-adapter", "antiphon-worker"):
        words = command_of(app, {})
        host = words[words.index("--dispatcher") + 1].partition("@")[2].partition(":")[0]
        assert host in of_kind("Service")
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            if probe in container(app):
                assert container(app)[probe]["httpGet"]["port"] in ("clients", "administration")


@pytest.mark.parametrize("app", APPS)
def test_files_of_a_pod_come_from_secrets_that_there_are_and_are_those_that_options_name(app: str) -> None:
    issued = {each["spec"]["secretName"] for each in of_kind("Certificate").values()}
    secrets, maps = of_kind("Secret"), of_kind("ConfigMap")
    for path, (name, key) in projected(app).items():
        if name in issued:
            assert key in ("ca.crt", "tls.crt", "tls.key"), path
        else:
            known = {**secrets.get(name, {}).get("stringData", {}), **maps.get(name, {}).get("data", {})}
            assert key in known, path
    if app != "antiphon-redis":
        assert {word for word in command_of(app, {}) if word.startswith("/etc/antiphon")} == projected(
            app
        ).keys()


def test_every_secret_is_used_and_none_opens_anything() -> None:
    used = {where for app in APPS for where in projected(app).values()}
    for name, secret in of_kind("Secret").items():
        for key, value in secret["stringData"].items():
            assert (name, key) in used
            assert value == "" or value.startswith("#") or "PASSWORD_SHA256" in value


def test_redis_gets_the_shipped_files_and_those_that_its_configuration_names() -> None:
    text, users = (DEPLOY / "redis/redis.conf").read_text(), (DEPLOY / "redis/users.acl").read_text()
    assert of_kind("ConfigMap")["antiphon-redis"]["data"]["redis.conf"] == text
    assert of_kind("Secret")["antiphon-redis"]["stringData"]["users.acl"] == users
    named = set(re.findall(r"^[a-z-]+ (/etc/antiphon\S+)", text, re.MULTILINE))
    assert {*named, *container("antiphon-redis")["args"]} == projected("antiphon-redis").keys()


AUTHORITIES = {"antiphon-workers", "antiphon-redis", "antiphon-peers"}
LEAVES = {
    "antiphon-worker-tls-workers": ("antiphon-workers", "server auth", "antiphon-worker"),
    "antiphon-adapter-tls-workers": ("antiphon-workers", "client auth", "antiphon-adapter"),
    "antiphon-adapter-tls-peers": ("antiphon-peers", "server auth, client auth", "antiphon-adapter"),
    "antiphon-redis-tls": ("antiphon-redis", "server auth", "antiphon-redis"),
    "antiphon-worker-tls-redis": ("antiphon-redis", "client auth", "antiphon-worker"),
    "antiphon-adapter-tls-redis": ("antiphon-redis", "client auth", "antiphon-adapter"),
}


def test_certificates_have_one_role_each_by_the_authority_of_that_role() -> None:
    certificates, issuers = of_kind("Certificate"), of_kind("Issuer")
    found = {}
    for name, each in certificates.items():
        spec = each["spec"]
        assert spec["issuerRef"]["name"] in issuers
        if spec.get("isCA"):
            assert spec["usages"] == ["cert sign", "crl sign"]
        else:
            role = ", ".join(spec["usages"][1:])
            [host] = spec["dnsNames"]
            assert spec["secretName"] == name
            found[name] = (spec["issuerRef"]["name"], role, host)
    assert found == LEAVES
    keys = {each["spec"]["secretName"] for each in certificates.values() if each["spec"].get("isCA")}
    assert {issuers[name]["spec"]["ca"]["secretName"] for name in AUTHORITIES} <= keys
    for app in APPS:
        assert not keys & {name for name, _ in projected(app).values()}, "private keys are in no pod"
