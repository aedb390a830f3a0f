"""The dashboard as Grafana needs it."""

import re

from tests.deploy.files import dashboard, expressions, panels

COLUMNS = 24
ROWS = [
    *("User experience", "Units", "Queue and slots", "Worker and device", "Transport", "Errors"),
    *("By instance", "Tenants"),
]


def test_rows_are_those_that_an_operator_asks_for_and_panels_lie_side_by_side() -> None:
    everything = dashboard()["panels"]
    assert [panel["title"] for panel in everything if panel["type"] == "row"] == ROWS
    assert len({panel["id"] for panel in everything}) == len(everything)
    assert len({panel["title"] for panel in panels()}) == len(panels())
    taken: dict[tuple[int, int], str] = {}
    for panel in everything:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= COLUMNS, panel["title"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]


def test_panels_ask_the_data_source_that_the_reader_chose_and_legends_name_labels_that_are_left() -> None:
    [variable] = dashboard()["templating"]["list"]
    chosen = {"type": variable["query"], "uid": f"${{{variable['name']}}}"}
    for panel in panels():
        assert panel["targets"], panel["title"]
        assert [target["datasource"] for target in panel["targets"]] == [chosen] * len(panel["targets"])
        assert len({target["refId"] for target in panel["targets"]}) == len(panel["targets"])
    for expression in expressions():
        groups = expression.groups()
        assert not groups or set(re.findall(r"{{(\w+)}}", expression.legend)) <= groups, expression.where
