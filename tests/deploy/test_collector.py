"""The configurations of collector and Prometheus hang together."""

from typing import Any

from antiphon_service.semconv import SERVICE_ADAPTER, SERVICE_WORKER
from tests.deploy.files import DEPLOY, ROOT, read_yaml

PARTS = ("receivers", "processors", "exporters")


def collector() -> dict[str, Any]:
    return dict(read_yaml("otel/collector.yml"))


def test_collector_uses_all_that_is_configured_bounds_its_memory_and_lets_no_content_pass() -> None:
    config = collector()
    http = {"endpoint": "localhost:4318"}
    assert config["receivers"] == {"otlp": {"protocols": {"http": http}}}, "on this machine alone"
    [action] = config["processors"]["attributes/no_content"]["actions"]
    assert action == {"pattern": r"^antiphon\.content\.", "action": "delete"}
    pipelines = config["service"]["pipelines"].values()
    for part in PARTS:
        assert {name for pipeline in pipelines for name in pipeline[part]} == set(config[part]), part
    assert config["service"]["extensions"] == list(config["extensions"])
    for pipeline in pipelines:
        assert pipeline["processors"][0] == "memory_limiter"
        assert "attributes/no_content" in pipeline["processors"]
        assert pipeline["processors"][-1] == "batch"


def test_prometheus_scrapes_both_services_and_reads_the_alerts() -> None:
    config = read_yaml("prometheus/prometheus.yml")
    targets = {job["job_name"]: job["static_configs"][0]["targets"] for job in config["scrape_configs"]}
    assert targets == {SERVICE_ADAPTER: ["localhost:9464"], SERVICE_WORKER: ["localhost:9465"]}
    assert [(DEPLOY / "prometheus" / name).is_file() for name in config["rule_files"]] == [True]


WHOLE = ("images", "compose", "kubernetes")
"""Folders of one purpose: the documents name them, or folders in them, instead of each file."""


def test_documents_name_every_file() -> None:
    text = (ROOT / "docs/operations.md").read_text() + (ROOT / "docs/observability.md").read_text()
    for file in (it.relative_to(DEPLOY) for it in DEPLOY.rglob("*") if it.is_file()):
        folders = [it for it in file.parents if it.parts and it.parts[0] in WHOLE]
        assert any(f"deploy/{it}" in text for it in (file, *folders)), file
