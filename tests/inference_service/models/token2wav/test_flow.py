"""Speech tokens to mel frames, as recorded from the published flow: README of the recordings, "Rules"."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from inference_service.models.token2wav.flow import FlowState
from inference_service.models.token2wav.model import Token2Wav
from tests.inference_service.models.token2wav import recorded
from tests.inference_service.models.token2wav.recorded import CACHE_LIMIT, MEL_LIMIT, STREAMS

ALL = {**STREAMS, "causal_stream_b": "b"}


def made(name: str) -> Token2Wav:
    return recorded.model(
        is_causal=name.startswith("causal"), steps=recorded.stream(name)["n_timesteps"], reference_quirks=True
    )


def far(ours: Tensor, theirs: Tensor) -> float:
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max())


def check_caches(state: FlowState, stored: dict[str, Tensor], where: str) -> set[str]:
    """Compares what was stored, and returns its names; of the first blocks, what is ever read."""
    found = set()
    first_blocks = len(state.encoder.first)
    for name, ours in recorded.published_caches(state).items():
        key = f"{where}.{name.partition('.')[0]}"
        if key not in stored:
            continue
        theirs = stored[key]
        if name.endswith(".first"):
            theirs = theirs[:first_blocks, :, :, : ours.shape[3]]
        elif name.endswith(".second"):
            theirs = theirs[first_blocks:]
        assert far(ours, theirs) < CACHE_LIMIT, (where, name)
        found.add(key)
    return found


@pytest.mark.parametrize("name", ALL)
def test_stream_as_recorded(name: str) -> None:
    model, stored = made(name), recorded.tensors(name)
    state = model.hear(recorded.prompt(ALL[name])).flow
    compared = check_caches(state, stored, "base.flow")
    for i, call in enumerate(recorded.stream(name)["calls"]):
        tokens = torch.tensor([call["tokens"]])
        mel, (state,) = model.flow.advance(tokens, [state], is_last=call["last_chunk"])
        assert far(mel.mT, stored[f"call{i}.mel"]) < MEL_LIMIT, i
        compared |= check_caches(state, stored, f"call{i}.after.flow")
        if "att_len_after" in call:
            assert state.frames == call["att_len_after"]
            check_digests(state, call["digest"])
    assert compared == {name for name in stored if ".flow." in name}


def check_digests(state: FlowState, digests: dict[str, Any]) -> None:
    """Sums of every cache tensor, also of those that were not stored."""
    for name, ours in recorded.published_caches(state).items():
        if name.startswith("conformer_att"):
            continue  # the published one holds entries that nothing reads
        digest = digests[f"flow.{name}"]
        assert list(ours.shape) == digest["shape"], name
        assert float(ours.double().abs().sum()) == pytest.approx(digest["abs_sum"], rel=1e-5), name
        assert float(ours.double().sum()) == pytest.approx(digest["sum"], abs=1e-5 * digest["abs_sum"]), name


@pytest.mark.parametrize("steps", [5, 10])
def test_whole_utterance_as_recorded(steps: int) -> None:
    stored = recorded.tensors("nonstream")
    model = recorded.model(steps=steps)
    mel = model.flow.whole(recorded.prompt("a"), stored["tokens"].long())
    assert far(mel.T, stored[f"n{steps}.mel"][0]) < MEL_LIMIT


def watch(module: nn.Module, name: str, seen: dict[str, list[Any]], part: Callable[[Any, Any], Any]) -> None:
    module.register_forward_hook(lambda _, given, out: seen.setdefault(name, []).append(part(given, out)))
