"""Tests of a model's memory needs, known from its configuration before any byte is loaded."""

from pathlib import Path

import pytest
import torch

from benchmarks.gpu_crowd.model import full
from inference_service.checkpoints.minicpmo import MiniCPMOCheckpoint
from inference_service.engine.batch.decoder import PackedDecoder
from inference_service.engine.batch.pages import slot_rows
from inference_service.families import minicpmo, minicpmo_voice
from inference_service.models.minicpmo.sizes import sizes
from inference_service.models.token2wav.config import Token2WavConfig
from inference_service.options import SpeechOptions


def test_weights_are_those_that_are_loaded_and_half_in_bfloat16(loaded: MiniCPMOCheckpoint) -> None:
    whole, half = (
        sizes(loaded.config, dtype, context_entries=300, speech_entries=70)
        for dtype in (torch.float32, torch.bfloat16)
    )
    model = loaded.model
    parts = {
        "language model": [model.llm],
        "eye": [model.vpm, model.resampler],
        "ear": [model.apm, model.audio_projection_layer],
        "speech head": [model.tts],
    }
    assert whole.weights == {
        part: sum(it.nbytes for module in modules for it in module.parameters())
        for part, modules in parts.items()
    }
    assert {part: 2 * size for part, size in half.weights.items()} == whole.weights
    assert {kind: 2 * size for kind, size in half.session.items()} == whole.session

    silent = sizes(loaded.config, torch.float32, context_entries=1, speech_entries=1, speech=False)
    assert "speech head" not in {*silent.weights, *silent.session}


def test_session_state_is_that_which_is_allocated(loaded: MiniCPMOCheckpoint) -> None:
    found = sizes(
        loaded.config, torch.float32, context_entries=slot_rows(300), speech_entries=slot_rows(70)
    ).session
    model = loaded.model
    caches = {
        "context": PackedDecoder(model.llm.model, 1, 300).cache,
        "speech head": PackedDecoder(model.tts.model, 1, 70).cache,
    }
    taken = {name: cache.nbytes for name, cache in caches.items()}
    assert found == taken | {"ear": model.ear.initial_state().nbytes}


@pytest.mark.parametrize(
    "row", ["24 GiB | 0 | 0 | 2", "48 GiB | 8 | 12 | 20", "80 GiB | 23 | 30 | 44", "139 GiB | 51 | 64 | 88"]
)
@pytest.mark.sample("24 GiB*", "80 GiB*")
def test_the_sessions_that_the_documentation_promises_fit(row: str) -> None:
    for page in ("models.md", "gpu.md"):
        assert f"| {row} |" in (Path(__file__).parents[4] / "docs" / page).read_text()
    memory, *promised = row.replace(" GiB", "").split(" | ")
    config = full().config
    fit = []
    for options in (SpeechOptions(), SpeechOptions(vocoder_dtype="bfloat16"), None):
        voice = options and minicpmo_voice.voice_memory(
            Token2WavConfig(), options, minicpmo_voice.LONGEST_FRAMES, can_clone=True
        )
        told = minicpmo.footprint(config, torch.bfloat16, 8192, voice, torch.device("cuda"))
        fit.append(told.slots_within(int(memory) * 2**30 - sum(told.weights.values())))
    assert fit == [int(sessions) for sessions in promised]
