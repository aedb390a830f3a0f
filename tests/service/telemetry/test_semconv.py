"""Names of spans, attributes and metrics are written in `antiphon_service.semconv` and nowhere else."""

import ast
import re
from pathlib import Path

import pytest

from antiphon_service import semconv

ROOT = Path(__file__).parents[3]
PACKAGES = ("clients/python", "antiphon_service", "ws_adapter", "inference_service")
TELEMETRY = re.compile(
    r"(gen_ai|rpc|http\.request|http\.response|url)\..+"
    r"|antiphon_\w+_(total|seconds|bytes|tokens|info)"
    r"|antiphon\.(?!v1|contract|families).+"
)
"""Pattern of names of attributes and metrics."""


def declared(prefix: str) -> set[str]:
    return {value for name, value in vars(semconv).items() if name.startswith(prefix)}


def literals(source: str) -> set[str]:
    """The texts in `source` that are neither docstrings nor parts of a longer text."""
    tree = ast.parse(source)
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts | docs
    }


def strays(source: str) -> set[str]:
    """Names of telemetry that `source` spells out."""
    names = declared("ATTR_") | {metric.name for metric in semconv.METRICS}
    return {text for text in literals(source) if text in names or TELEMETRY.fullmatch(text)}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_name_is_written_elsewhere(package: str) -> None:
    for file in sorted((ROOT / package).rglob("*.py")):
        if file.name != "semconv.py" and not file.name.endswith(("_pb2.py", "_pb2_grpc.py")):
            assert strays(file.read_text()) == set(), file


def test_stray_names_are_seen_and_each_name_means_one_thing() -> None:
    assert strays('span.set_attribute("gen_ai.request.model", 1)') == {"gen_ai.request.model"}
    assert strays('"""antiphon.unit"""\nx = f"antiphon_{y}"\nimport antiphon.v1') == set()
    assert strays('meter.create_counter("antiphon_units_total")') == {"antiphon_units_total"}
    for prefix in ("ATTR_", "SPAN_", "EVENT_"):
        names = [value for name, value in vars(semconv).items() if name.startswith(prefix)]
        assert len(names) == len(set(names)) > 0, prefix


def test_labels_are_never_ids_of_sessions_or_people() -> None:
    assert {label for metric in semconv.METRICS for label in metric.labels} <= {
        *("mode", "dialect", "end", "reason", "pool", "outcome", "state", "action", "hop", "direction"),
        *("phase", "preparation", "worker", "method", "code", "side", "version", "model", "device"),
        *("work", "tenant", "revision"),
    }
