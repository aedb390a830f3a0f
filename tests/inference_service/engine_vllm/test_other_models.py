"""Another architecture than that of the contract, what tenants share, and two processes for one model."""

from pathlib import Path
from typing import Any

import pytest

from inference_service.interface.setups import StreamInput, Tenant, UnitOverrides
from tests.inference_service.engine.support import tiny_causal
from tests.inference_service.engine_vllm.support import engines
from tests.support.long import long

CONTEXT = 300
"""More than two blocks of vLLM's cache on a CPU."""
ANSWER = 200
CACHED = 520
"""Tokens of a context that the cache below holds once, and not for every session at a time."""
BLOCKS = 8
"""Blocks of the cache, of 128 tokens each."""


@pytest.mark.parametrize("name", engines.ALL)
def test_llama_says_what_generate_says_and_tenants_share_no_prefix(name: str, tmp_path: Path) -> None:
    folder = engines.save(tmp_path / "llama", "llama", max_position_embeddings=512)
    greedy = tiny_causal.continued(folder, ends=False)
    context = [(7 * i) % 250 for i in range(CONTEXT)]
    expected = greedy(context, 6)
    with engines.serving(name, folder, 400) as rig:
        cached = []
        for salt in (b"one", b"one", b"two"):
            talker = rig.stream(tenant=Tenant(salt))
            first = talker.chunk(context, max_new_tokens=6)
            second = talker.chunk([71, 99], max_new_tokens=6)
            talker.close()
            assert first.ids == expected
            assert second.ids == greedy([*context, *expected[:-1], 71, 99], 6)
            cached.append((first.done.usage.cached_tokens, second.done.usage.cached_tokens))
    if name == "vllm":
        (alone, after), (again, _), (stranger, _) = cached
        assert (alone, stranger) == (0, 0)
        assert min(after, again) >= CONTEXT // 2


@long
def test_two_tensor_parallel_processes_say_what_generate_says(folder: Path, greedy: Any) -> None:
    with engines.serving("vllm", folder, tensor_parallel_size=2) as rig:
        assert rig.engine.info.engine.tensor_parallel_size == 2
        talker = rig.stream()
        assert talker.chunk([5, 17, 42], max_new_tokens=8).ids == greedy([5, 17, 42], 8)
        talker.close()


@long
def test_sessions_beyond_the_cache_say_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM preempts a request for another one, and computes it again."""
    folder = engines.save(tmp_path / "qwen3", max_position_embeddings=1024)
    greedy = tiny_causal.continued(folder, ends=False)
    engines.limit_cache(monkeypatch, BLOCKS)
    with engines.serving("vllm", folder, CACHED) as rig:
        assert rig.engine.occupancy().kv_capacity_tokens == BLOCKS * 128
        talkers = [rig.stream(slot) for slot in range(engines.SLOTS)]
        prompts = [[(7 * i + slot) % 250 for i in range(CONTEXT)] for slot in range(engines.SLOTS)]
        units = [
            talker.send(StreamInput(tuple(prompt)), UnitOverrides(max_new_tokens=ANSWER))
            for talker, prompt in zip(talkers, prompts, strict=True)
        ]
        for talker, unit, prompt in zip(talkers, units, prompts, strict=True):
            assert talker.finish(unit).ids == greedy(prompt, ANSWER)
            talker.close()
