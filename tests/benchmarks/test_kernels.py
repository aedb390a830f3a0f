"""The benchmark of parts of the networks: what it measures, and its section of the page."""

from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks.adapter import document
from benchmarks.kernels import decoder, linear, sound, timing
from inference_service.kernels.packed_linear import PackedLinear, pack_linears, supports


@pytest.fixture(autouse=True)
def one_call_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "CALLS_S", 0.0)


def test_calls_take_turns_and_the_first_does_not_count() -> None:
    called: list[str] = []
    times = timing.medians([lambda: called.append("a"), lambda: called.append("b")], 3)
    assert called == ["a", "b"] + ["a", "b"] + 3 * ["a", "b"]  # once, once for the count, and the rounds
    assert all(0 <= time < 1 for time in times)


@pytest.mark.skipif(not supports(torch.float32), reason="this torch has no packed weights")
def test_packed_and_plain_linears_compute_same() -> None:
    plain, packed = linear.layers(torch.float32), pack_linears(linear.layers(torch.float32))
    assert len(plain) == linear.LAYERS * len(linear.SHAPES)
    for usual, ours in zip(plain, packed, strict=True):
        rows = torch.randn(3, usual.in_features)
        assert isinstance(ours, PackedLinear)
        torch.testing.assert_close(ours(rows), usual(rows), atol=1e-5, rtol=0)


@pytest.mark.long
def test_the_page_has_a_section_of_kernels_once_they_are_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(document, "DOCUMENT", tmp_path / "performance.md")
    monkeypatch.setattr(document, "KERNELS", tmp_path)
    document.write()
    without = (tmp_path / "performance.md").read_text()

    monkeypatch.setattr(decoder, "larger", partial(decoder.larger, layers=1))
    monkeypatch.setattr(decoder, "CONTEXT", 8)
    monkeypatch.setattr(linear, "LAYERS", 1)
    reports = [it.measure(is_short=True) for it in (linear, decoder, sound)]
    for report in reports:
        report.write(is_short=True, folder=tmp_path)
    document.write()

    text = (tmp_path / "performance.md").read_text()
    assert text.startswith(without)
    assert "## Linear layers" not in without
    for name in ("float32, 1", "bfloat16, 64", "ear, 1", "ear, 64", "vocoder, 16", "float32, 16 x 12"):
        assert f"| {name} |" in text
