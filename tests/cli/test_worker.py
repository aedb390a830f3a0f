"""Tests of `antiphon worker`: its options, and its garbage collection."""

import gc
from typing import Any

import pytest

import inference_service.app
from antiphon_command.output import failure
from tests.cli.support.process import run_here


def test_loaded_objects_are_excluded_from_garbage_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[Any] = []

    async def serve(options: object, *, on_ready: Any, reread: object) -> int:
        loaded.extend([[it] for it in range(1000)])
        on_ready("unix:/somewhere")
        return 0

    monkeypatch.setattr(inference_service.app, "serve", serve)
    try:
        outcome = run_here("worker")
        looked_through = {id(it) for it in gc.get_objects()}
    finally:
        gc.unfreeze()
    assert outcome.code == 0
    assert "worker ready on unix:/somewhere" in outcome.out
    assert not looked_through.intersection(map(id, loaded))


def test_loaded_objects_delay_no_full_garbage_collection() -> None:
    """By itself Python looks through everything once a quarter of what was loaded has come since."""
    loaded, threshold = [[it] for it in range(600_000)], gc.get_threshold()
    gc.set_threshold(700, 10, 10)  # Python's own
    try:
        inference_service.app.freeze_loaded_objects()
        before = gc.get_stats()[2]["collections"]
        made = [[it] for it in range(120_000)]
        assert gc.get_stats()[2]["collections"] > before
    finally:
        gc.set_threshold(*threshold)
        gc.unfreeze()
    assert len(loaded) > 4 * len(made)


def test_missing_vllm_is_reported_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    find = failure.find_spec
    monkeypatch.setattr(failure, "find_spec", lambda name: None if name == "vllm" else find(name))
    outcome = run_here("worker", "--engine", "vllm")
    assert outcome.code == 2
    remedy = "pip install 'antiphon[vllm]'"
    assert outcome.err == f"`antiphon worker --engine vllm` needs vLLM. Install with: {remedy}\n"


def test_max_model_len_is_another_name_of_the_context_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    async def serve(options: Any, **_: Any) -> int:
        seen.append(options)
        return 0

    monkeypatch.setattr(inference_service.app, "serve", serve)
    assert run_here("worker", "--max-model-len", "99").code == 0
    assert [it.context_limit for it in seen] == [99]
