"""The files of `deploy/` as data, and the PromQL in them."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import promql_parser
import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"


def read_yaml(name: str) -> Any:
    """A file of `deploy/`."""
    return yaml.safe_load((DEPLOY / name).read_text())


def alerts() -> list[dict[str, Any]]:
    """Every alert, in order."""
    return [rule for group in read_yaml("prometheus/alerts.yml")["groups"] for rule in group["rules"]]


def dashboard() -> dict[str, Any]:
    """The Grafana dashboard."""
    return dict(json.loads((DEPLOY / "grafana/antiphon.json").read_text()))


def panels() -> list[dict[str, Any]]:
    """Its panels, without the rows."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


@dataclass(frozen=True)
class Selector:
    """A series that an expression reads: name as in the scrape, and what its labels must be."""

    series: str
    matchers: tuple[tuple[str, str], ...]

    @property
    def metric(self) -> str:
        """The metric that it belongs to: of a histogram without `_bucket`, `_sum` or `_count`."""
        return metric_of(self.series)


def metric_of(series: str) -> str:
    """The metric of a series."""
    for suffix in ("_bucket", "_sum", "_count"):
        series = series.removesuffix(suffix)
    return series


@dataclass(frozen=True)
class Expression:
    """PromQL, and where it stands."""

    where: str
    text: str
    legend: str = ""

    def parse(self) -> promql_parser.Expr:
        """Raises ValueError."""
        return promql_parser.parse(self.text)

    def selectors(self) -> list[Selector]:
        """Return the series that the expression reads."""
        found: list[Selector] = []

        def visit(node: promql_parser.Expr) -> None:
            if isinstance(node, promql_parser.VectorSelector):
                matchers = tuple((matcher.name, matcher.value) for matcher in node.matchers.matchers)
                found.append(Selector(str(node.name), matchers))

        promql_parser.walk(self.parse(), visit)
        return found

    def groups(self) -> set[str]:
        """Labels that it sums by."""
        found: set[str] = set()

        def visit(node: promql_parser.Expr) -> None:
            if isinstance(node, promql_parser.AggregateExpr) and node.modifier is not None:
                found.update(node.modifier.labels)

        promql_parser.walk(self.parse(), visit)
        return found


def expressions() -> list[Expression]:
    """All of the alerts and of the dashboard; Grafana's own variable is given a value."""
    found = [Expression(f"alert {rule['alert']}", rule["expr"]) for rule in alerts()]
    for panel in panels():
        for target in panel["targets"]:
            text = target["expr"].replace("$__rate_interval", "1m")
            found.append(Expression(f"panel {panel['title']}", text, target["legendFormat"]))
    return found
