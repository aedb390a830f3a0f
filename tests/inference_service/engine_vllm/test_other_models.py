"""Greedy tokens of another architecture than that of the contract, by every engine."""

from pathlib import Path

import pytest

from inference_service.api.engine import Ready
from tests.inference_service.engine.support import tiny_causal
from tests.inference_service.engine_vllm.support import engines
from tests.inference_service.engine_vllm.support.engines import MISSING, NAMES
from tests.support.long import long


@pytest.mark.parametrize("name", [pytest.param(it, marks=long) if it == "vllm" else it for it in NAMES])
def test_llama_says_what_generate_says(name: str, tmp_path: Path) -> None:
    if not engines.is_here(name):
        pytest.skip(MISSING)
    folder = engines.save(tmp_path / "llama", "llama")
    greedy = tiny_causal.continued(folder, ends=False)
    rig = engines.start(name, folder)
    try:
        talker = rig.stream()
        talker.until(Ready)
        first = talker.chunk([5, 17, 42], max_new_tokens=8)
        second = talker.chunk([71, 99], max_new_tokens=8)
        talker.close()
    finally:
        rig.engine.stop()
    assert first.ids == greedy([5, 17, 42], 8)
    assert second.ids == greedy([5, 17, 42, *first.ids[:-1], 71, 99], 8)
