"""Alerts that an operator can act on: each parses, says how long, and leads to what to do."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

from tests.deploy.files import ROOT, Expression, alerts, dashboard
from tests.support.patience import PATIENCE_S

EXPECTED = {
    "DeadlineMisses": "5m",
    "FirstAudioSlow": "10m",
    "QueueGrowing": "10m",
    "NoWorkers": "1m",
    "SlotLeak": "2m",
    "KvNearlyFull": "10m",
    "ErrorRate": "10m",
    "AdapterDegraded": "2m",
}
"""Every alert, and how long its condition has to last."""

SCENARIOS = Path(__file__).with_name("alerts.yml")
OPERATIONS = (ROOT / "docs/operations.md").read_text()


def anchors(text: str) -> list[str]:
    """Return the link anchors of the headings of a Markdown text."""
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return [re.sub(r"[^a-z0-9 -]", "", heading.lower()).replace(" ", "-") for heading in headings]


def test_every_alert_is_there_waits_as_long_as_it_should_and_has_a_runbook_and_a_scenario() -> None:
    assert {rule["alert"]: rule["for"] for rule in alerts()} == EXPECTED
    runbooks = OPERATIONS.partition("## Alerts")[2].partition("\n## ")[0]
    assert re.findall(r"^### (\w+)$", runbooks, re.MULTILINE) == list(EXPECTED)
    tests = yaml.safe_load(SCENARIOS.read_text())["tests"]
    cases = [case for test in tests for case in test["alert_rule_test"]]
    assert {case["alertname"] for case in cases if case["exp_alerts"]} == EXPECTED.keys()


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: rule["alert"])
def test_alert_has_summary_severity_and_runbook_link(rule: dict[str, dict[str, str]]) -> None:
    file, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    assert rule["annotations"]["summary"]
    assert rule["labels"]["severity"] in {"page", "ticket"}
    assert file == "docs/operations.md"
    assert anchor == str(rule["alert"]).lower()
    assert anchors(OPERATIONS).count(anchor) == 1


def test_parser_rejects_invalid_expressions() -> None:
    for text in ("rate(x)", "sum by le (x)", "histogram_quantile(x)", "nothing(x)", "x > "):
        with pytest.raises(ValueError):
            Expression("", text).parse()


def test_runbooks_name_panels_of_the_dashboard() -> None:
    runbooks = OPERATIONS.partition("## Alerts")[2].partition("\n## ")[0]
    named = set(re.findall(r"\*([A-Z][^*]*)\*", runbooks.replace("**", "")))
    assert len(named) > 5
    assert named <= {panel["title"] for panel in dashboard()["panels"]}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed (Debian: prometheus)")
def test_prometheus_raises_alerts_as_the_scenarios_say() -> None:
    command = ["promtool", "test", "rules", str(SCENARIOS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
