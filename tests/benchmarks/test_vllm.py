"""This engine's side of the comparison with vLLM, as a process; the other side needs a package of its own."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import Qwen3ForCausalLM

from benchmarks.vllm.__main__ import Player, playing, save
from benchmarks.vllm.scene import ANSWER, PROMPT, STREAMS, ids, percentile
from tests.support.long import long


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("qwen3")
    save(made)
    return made


@pytest.fixture(scope="module")
def player(folder: Path) -> Iterator[Player]:
    with playing(Path(sys.executable), "ours", folder, "float32") as made:
        yield made


@pytest.mark.long
def test_callers_receive_tokens_of_bare_model(player: Player, folder: Path) -> None:
    found = player.play(scene="chat", callers=2, seed=3)
    assert [len(said) for said in found.said] == [ANSWER, ANSWER]
    assert found.tokens_per_s > 0
    model = Qwen3ForCausalLM.from_pretrained(folder)
    prompt = torch.tensor([ids(PROMPT, 3000)])
    expected = model.generate(prompt, max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0)
    assert found.said[0][:8] == expected[0, PROMPT:].tolist()


@long
def test_every_chunk_of_every_stream_is_answered_once(player: Player) -> None:
    found = player.play(scene="stream", seconds=2)
    assert len(found.latencies_ms) == 2 * STREAMS
    assert all(latency > 0 for latency in found.latencies_ms)


def test_percentiles_are_values_that_came() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert percentile([5.0], 0.01) == 5.0
