"""Any causal language model of transformers: what it says here is what its own `generate` says."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import MambaConfig, MambaForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3MLP

from inference_service.checkpoints import causal
from inference_service.device.rows import Rows
from inference_service.engine.batch.decoder import PackedDecoder, Segment
from inference_service.engine.batch.rope import require_independent
from inference_service.errors import ConfigurationError
from inference_service.families import table
from inference_service.families.causal_runtime import model_info
from inference_service.interface.setups import Mode, Sampling, UnitOverrides
from inference_service.models.errors import CheckpointError
from tests.inference_service.engine.support import streaming, tiny_causal
from tests.inference_service.engine.support.streaming import GREEDY, Player, Stage

CPU = torch.device("cpu")
KINDS: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "llama": {"num_key_value_heads": 4},
    "qwen3 that slides": {"use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    "mistral": {"sliding_window": 6},
}


@pytest.fixture(scope="module", params=KINDS)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("causal") / "tiny"
    return tiny_causal.save(target, request.param.split()[0], **KINDS[request.param])


@pytest.fixture(scope="module")
def generated(folder: Path) -> Any:
    return tiny_causal.continued(folder)


def prompts(count: int) -> list[list[int]]:
    """Sequences of all lengths."""
    source = random.Random(11)
    return [[source.randrange(256) for _ in range(source.randint(1, 40))] for _ in range(count)]


def test_in_a_crowd_it_says_what_generate_says(folder: Path, generated: Any) -> None:
    """Sessions come and go at random, their input in chunks of any size, and decode beside one another."""
    source = random.Random(5)
    stage = Stage(streaming.load(folder), slots=4, budget=16)
    waiting, said = prompts(10), 0
    running: list[tuple[Player, list[int], int]] = []
    while waiting or running:
        if waiting and len(running) < 4 and source.random() < 0.5:
            running.append(_begin(stage, waiting.pop(), source))
        for _ in range(source.randint(1, 6)):
            stage.step()
        for player, ids, number in list(running):
            if not player.stream.has_work and player.stream.queue.first is None:
                assert player.said(number).ids == generated(ids, 12)
                stage.leave(player)
                running.remove((player, ids, number))
                said += 1
    assert said == 10


def _begin(stage: Stage, ids: list[int], source: random.Random) -> tuple[Player, list[int], int]:
    """A session whose input comes in chunks; all but the last add one token, which is discarded."""
    player = stage.join(replace(GREEDY, max_new_tokens=12))
    cuts = sorted(source.sample(range(1, len(ids)), min(len(ids) - 1, source.randint(0, 3))))
    for begin, end in zip([0, *cuts], cuts, strict=False):
        player.send(ids[begin:end], overrides=streaming.most(1))
    return player, ids, player.send(ids[cuts[-1] if cuts else 0 :])


def test_a_chunk_s_own_seed_overrides_the_session_s_for_it_alone(folder: Path) -> None:
    checkpoint = streaming.load(folder)
    warm = Sampling(max_new_tokens=8, temperature=1.5, top_p=1.0, ignore_eos=True)
    said = []
    for seed in (1, 2):
        player = Stage(checkpoint).open(warm, seed=seed)
        said.append(player.unit([7, 8], overrides=UnitOverrides(seed=9)).ids)
    assert said[0] == said[1]


def test_model_info_without_chat_template_lists_tokens_mode_only(tmp_path: Path) -> None:
    info = model_info(streaming.load(tiny_causal.save(tmp_path / "small-talk")), 64)
    assert (info.name, info.context_limit, info.modes) == ("small-talk", 64, {Mode.CHAT, Mode.TOKENS})
    assert (info.input_sample_rate_hz, info.speaks, info.sees) == (0, False, False)
    assert info.vocabulary == len(tiny_causal.tokenizer()) + 5
    silent = streaming.load(tiny_causal.save(tmp_path / "tiny", chats=False))
    assert model_info(silent, 64).modes == {Mode.TOKENS}


def test_its_own_generation_config_is_the_default(tmp_path: Path) -> None:
    folder = tiny_causal.save(tmp_path / "tiny")
    (folder / "generation_config.json").write_text(
        '{"temperature": 0.6, "top_k": 20, "top_p": 9, "eos_token_id": [3, 4]}'
    )
    checkpoint = streaming.load(folder)
    assert checkpoint.ends == {3, 4}
    assert checkpoint.sampling == replace(Sampling(), temperature=0.6, top_k=20)


def test_a_context_beyond_the_models_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="context_limit must be at most the model's 256"):
        table.load(tiny_causal.save(tmp_path / "tiny"), CPU, 257)


@pytest.mark.parametrize(
    ("name", "message"),
    [("tokenizer.json", "has no tokenizer.json"), ("model.safetensors", "safetensors only")],
)
def test_a_folder_that_lacks_something_says_what(tmp_path: Path, name: str, message: str) -> None:
    folder = tiny_causal.save(tmp_path / "tiny")
    (folder / name).unlink()
    with pytest.raises(CheckpointError, match=message):
        causal.load(folder, CPU, torch.float32)


def test_a_model_without_keys_and_values_is_refused(tmp_path: Path) -> None:
    words = tiny_causal.tokenizer()
    config = MambaConfig(
        vocab_size=len(words), hidden_size=16, num_hidden_layers=2, state_size=4, max_position_embeddings=64
    )
    with torch.inference_mode(mode=False):
        MambaForCausalLM(config).save_pretrained(tmp_path)
    words.save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="'mamba' cannot be served"):
        table.load(tmp_path, CPU, 64)


LONGROPE = {
    "rope_type": "longrope", "rope_theta": 10_000.0, "original_max_position_embeddings": 64,
    "short_factor": [1.0] * 4, "long_factor": [1.5, 2.0, 4.0, 8.0], "factor": 4.0,
}  # fmt: skip
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0}


def moved(folder: Path, beside: int) -> float:
    """How far a session's hidden states move if one at position `beside` is in its batch."""
    model = causal.load(folder, CPU, torch.float32).model.get_decoder()
    rows = torch.randn(60, model.config.hidden_size, generator=torch.Generator().manual_seed(1))
    own, other = Segment(0, 0, 0, Rows.of(rows[:30])), Segment(1, 0, beside, Rows.of(rows[30:]))
    alone = PackedDecoder(model, 2, 30).forward([own])[0]
    return float((PackedDecoder(model, 2, 30).forward([own, other])[0] - alone).abs().max())


def test_longrope_model_requires_context_limit_below_switch(
    tmp_path: Path,
) -> None:
    folder = tiny_causal.save(tmp_path / "tiny", "llama", rope_parameters=LONGROPE)
    assert moved(folder, beside=200) > 0.1
    with pytest.raises(CheckpointError, match=r"'longrope' depends on .* Pass --context-limit 64\."):
        table.load(folder, CPU)
    assert table.load(folder, CPU, 64)(1).info.context_limit == 64
    assert moved(folder, beside=34) < 1e-4


@pytest.mark.parametrize(("furthest", "is_served"), [(255, True), (256, False), (5000, False)])
def test_dynamic_positions_stand_still_within_the_models_own_length(
    tmp_path: Path, furthest: int, is_served: bool
) -> None:
    folder = tiny_causal.save(tmp_path / "tiny", "llama", rope_parameters=DYNAMIC)
    model = causal.load(folder, CPU, torch.float32).model.get_decoder()
    if is_served:
        require_independent(model, furthest)
        assert moved(folder, beside=furthest - 29) < 1e-4
    else:
        with pytest.raises(CheckpointError, match="rope type 'dynamic'"):
            require_independent(model, furthest)
        assert moved(folder, beside=furthest) > 1e-4


def test_model_with_attention_softcapping_is_refused(tmp_path: Path) -> None:
    folder = tiny_causal.save(tmp_path / "tiny", "gemma2", attn_logit_softcapping=50.0)
    with pytest.raises(CheckpointError, match=r"'gemma2' cannot be served.*softcap"):
        table.load(folder, CPU, 64)


def test_model_that_computes_with_packed_weights_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forward(self: Qwen3MLP, x: torch.Tensor) -> torch.Tensor:
        weight = self.down_proj.weight * 2
        return torch.nn.functional.linear(self.act_fn(self.gate_proj(x)) * self.up_proj(x), weight)

    monkeypatch.setattr(Qwen3MLP, "forward", forward)
    with pytest.raises(CheckpointError, match="compute with weights that are packed"):
        table.load(tiny_causal.save(tmp_path / "tiny"), CPU)


def test_a_mixture_of_experts_is_served(tmp_path: Path) -> None:
    experts: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    folder = tiny_causal.save(tmp_path / "tiny", "qwen3_moe", **experts)
    player = Stage(streaming.load(folder)).open(GREEDY)
    assert player.unit([1, 2, 3]).ids == tiny_causal.continued(folder)([1, 2, 3], 4)


def test_model_with_different_packed_scores_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with one whose attention adds something of its own that the packed one does not know."""
    folder = tiny_causal.save(tmp_path / "tiny")
    module = "inference_service.families.causal_runtime"
    monkeypatch.setattr(
        f"{module}._packed_scores", lambda model, ids: model(input_ids=ids[None]).logits[0] + 1
    )
    with pytest.raises(CheckpointError, match="its scores of packed rows differ"):
        table.load(folder, CPU)
