"""Dashboard, alerts and code mean the same by a name."""

import re
from enum import StrEnum

import pytest

from antiphon_service import semconv
from antiphon_service.semconv import METRICS, SERVICE_ADAPTER, SERVICE_WORKER
from tests.deploy.conftest import Scrape
from tests.deploy.files import ROOT, Expression, expressions, metric_of

BY_NAME = {metric.name: metric for metric in METRICS}
OF_PROMETHEUS = {"job", "instance"}
"""Labels that a scrape adds."""

EXEMPT: dict[str, str] = {
    "antiphon_dispatcher_up": "only of a shared queue, which what is scraped here has not",
}
"""Metrics that no panel and no alert shows, each with the reason."""

CODE = "\n".join(
    file.read_text()
    for package in ("ws_adapter", "inference_service", "antiphon_service", "clients/python/antiphon")
    for file in sorted((ROOT / package).rglob("*.py"))
)


def is_histogram(name: str) -> bool:
    return bool(BY_NAME[name].buckets)


@pytest.mark.parametrize("expression", expressions(), ids=lambda expression: expression.where)
def test_expression_reads_metrics_and_labels_that_are_declared(expression: Expression) -> None:
    joined = {label for each in expression.selectors() for label in BY_NAME[each.metric].labels}
    for selector in expression.selectors():
        metric = BY_NAME[selector.metric]
        assert (selector.series != selector.metric) == is_histogram(metric.name), selector.series
        known = {*metric.labels, *OF_PROMETHEUS, "le"}
        assert {label for label, _ in selector.matchers} <= known
        if "group_left" in expression.text:
            known |= joined
        assert expression.groups() <= known
        assert set(re.findall(r"{{(\w+)}}", expression.legend)) <= known


@pytest.mark.parametrize("expression", expressions(), ids=lambda expression: expression.where)
def test_expression_reads_series_and_values_that_exist(expression: Expression, live: Scrape) -> None:
    for selector in expression.selectors():
        assert selector.series in live.series()
        jobs = [value for label, value in selector.matchers if label == "job"] or list(live.jobs)
        told = [family.name for job in jobs for family in live.jobs[job]]
        assert any(metric_of(selector.series) in (name, f"{name}_total") for name in told)
        for label, wanted in selector.matchers:
            if label == "job":
                assert wanted in (SERVICE_ADAPTER, SERVICE_WORKER)
                continue
            for value in wanted.split("|"):
                assert value in live.values(selector.series, label), (selector.series, label)


def test_every_metric_is_shown_or_exempt() -> None:
    shown = {selector.metric for expression in expressions() for selector in expression.selectors()}
    assert {metric.name for metric in METRICS} - shown == EXEMPT.keys()


def test_live_metrics_are_declared_with_their_labels_and_buckets(live: Scrape) -> None:
    for family in live.families():
        for sample in family.samples:
            if sample.name.startswith("antiphon_"):
                metric = BY_NAME[metric_of(sample.name)]
                assert sample.labels.keys() - {"le"} == set(metric.labels), sample.name
    for metric in METRICS:
        if metric.buckets:
            bounds = {float(bound) for bound in live.values(f"{metric.name}_bucket", "le")}
            assert bounds == {*metric.buckets, float("inf")}, metric.name


def test_values_of_labels_are_words_of_the_code(live: Scrape) -> None:
    free = {"le", "worker", "version", "model", "device"}
    samples = [sample for family in live.families() for sample in family.samples]
    found = {
        value: (sample.name, label)
        for sample in samples
        for label, value in sample.labels.items()
        if sample.name.startswith("antiphon_") and label not in free
    }
    for value, where in found.items():
        assert re.search(rf"\b{re.escape(value)}\b", CODE), (*where, value)


ENUMERATIONS = [
    it
    for name, it in vars(semconv).items()
    if isinstance(it, type) and issubclass(it, StrEnum) and name not in ("StrEnum", "Reason")
]


@pytest.mark.parametrize("enumeration", ENUMERATIONS, ids=lambda enumeration: enumeration.__name__)
def test_every_declared_value_of_a_label_is_used(enumeration: type[StrEnum]) -> None:
    name = enumeration.__name__
    in_full = re.search(rf"\bin {name}\b", CODE)
    unused = [value for value in enumeration if f"{name}.{value.name}" not in CODE]
    assert in_full or unused == []
