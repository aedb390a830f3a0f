"""Families that packages bring by an entry point."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from inference_service.errors import ConfigurationError
from inference_service.families import table
from inference_service.families.table import FAMILIES
from inference_service.options import SpeechOptions
from tests.inference_service.engine.support import tiny_causal

CPU = torch.device("cpu")

FAMILY = """\
from inference_service.families.family import Family
from inference_service.families.shipped import CAUSAL

FAMILY = Family(
    "Brought",
    lambda config: config.get("architectures") == ["Brought"],
    CAUSAL.load,
    CAUSAL.footprint,
)
"""


@pytest.fixture(autouse=True)
def _others_forget() -> Iterator[None]:
    table.families.cache_clear()
    yield
    table.families.cache_clear()


def install(folder: Path, source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install a package with one module and an entry point, as pip would."""
    told = folder / "brought-1.0.dist-info"
    told.mkdir(parents=True)
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: brought\nVersion: 1.0\n")
    (told / "entry_points.txt").write_text(f"[{FAMILIES}]\nbrought = brought_family:FAMILY\n")
    (folder / "brought_family.py").write_text(source)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(__import__("sys").modules, "brought_family", raising=False)


def brought(folder: Path) -> Path:
    """Write a folder of the family `Brought`."""
    path = tiny_causal.save(folder) / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": ["Brought"]}))
    return folder


def test_family_of_a_package_gets_its_folders_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "site", FAMILY, monkeypatch)
    folder, other = brought(tmp_path / "brought"), tiny_causal.save(tmp_path / "other")
    assert table.family_of(folder).name == "Brought"
    assert table.family_of(other).name == "causal language models"
    assert table.load(folder, CPU, 64)(1).info.context_limit == 64
    assert table.footprint(folder, CPU, 64).session["context"] > 0


def test_option_of_other_families_is_refused_for_that_of_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "site", FAMILY, monkeypatch)
    folder = brought(tmp_path / "brought")
    families = "MiniCPM-o and for Moshi and for causal language models"
    problem = rf"^dtype is for {families}; leave it out for this model\.$"
    with pytest.raises(ConfigurationError, match=problem):
        table.load(folder, CPU, dtype="bfloat16")
    with pytest.raises(ConfigurationError, match=r"^no_speech, .* and voice are for MiniCPM-o; leave"):
        table.load(folder, CPU, speech=SpeechOptions(no_speech=True))
    with pytest.raises(
        ConfigurationError, match=r"^ear is for antiphon-mini; leave it out for this model\.$"
    ):
        table.load(folder, CPU, ear="fast")


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("raise RuntimeError('no library')", r"^Cannot load the family 'brought' .*no library"),
        ("FAMILY = 7", "^The entry point 'brought' of antiphon.families names .*, which is no Family"),
    ],
    ids=["module that fails", "no family"],
)
def test_package_that_brings_no_family_is_named(
    tmp_path: Path, source: str, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "site", source, monkeypatch)
    with pytest.raises(ConfigurationError, match=problem):
        table.load(tiny_causal.save(tmp_path / "other"), CPU)
