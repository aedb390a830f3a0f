"""Our modules, fed what the reference was fed, compute what the reference computed (tests/data/README.md)."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from inference_service.engine.batch.decoder import PackedDecoder
from inference_service.engine.batch.draw import TextSampler
from inference_service.engine.batch.noise import Noise
from inference_service.engine.batch.speech import penalise_repeats
from inference_service.interface.setups import DuplexSettings
from tests.inference_service.engine.support import golden
from tests.inference_service.engine.support.decisions import adjusted, decide, probabilities

HIDDEN_LIMIT = 5e-5


SETTINGS = DuplexSettings(text_repetition_penalty=1.05, length_penalty=1.1)
CASES = {case["name"]: case for case in golden.recording("decode_rules")["cases"]}
PLAIN = [name for name in CASES if not name.startswith(("listen_scale", "listen_top_k", "chunk_eos"))]


def sampler_for(case: dict[str, Any], *, quirks: bool = False) -> TextSampler:
    forbidden = torch.tensor(golden.recording("decode_rules")["forbidden_token_ids"])
    history = np.array(case["history"][-SETTINGS.text_repetition_window_size :], np.int32)
    special = golden.tokenizer().special
    return TextSampler(special, forbidden, Noise(0), history, reference_quirks=quirks)


def logits_of(name: str) -> Tensor:
    return golden.tensors("decode_rules")[f"{name}.logits"]


def rewarded(name: str) -> Tensor:
    """Ids whose negative scores the reference raised where it meant to lower them."""
    history = torch.from_numpy(sampler_for(CASES[name]).history).long().unique()
    negative: Tensor = history[logits_of(name)[history] < 0]
    return negative


@pytest.mark.parametrize("name", [name for name in PLAIN if CASES[name]["params"]["mode"] == "greedy"])
def test_scores_are_processed_as_recorded(name: str) -> None:
    processed = adjusted(logits_of(name), sampler_for(CASES[name]).draw(SETTINGS))
    expected = golden.tensors("decode_rules")[f"{name}.processed"].clone()
    differing = rewarded(name)
    assert torch.equal(processed[differing], torch.where(
        expected[differing].isinf(), expected[differing], logits_of(name)[differing] * 1.05
    ))  # fmt: skip
    expected[differing] = processed[differing]
    torch.testing.assert_close(processed, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", [name for name in PLAIN if not len(rewarded(name))])
def test_the_recorded_token_is_decided(name: str) -> None:
    case = CASES[name]
    sampler = sampler_for(case)
    settings = DuplexSettings(greedy=case["params"]["mode"] == "greedy", top_k=1)
    if case["params"]["mode"] == "greedy":
        assert decide(sampler, logits_of(name), settings) == case["result"]
        assert sampler.history[-1:].tolist() == case["history_appended"]
    else:
        draw = sampler.draw(SETTINGS)
        probs = probabilities(adjusted(logits_of(name), draw), draw)
        expected = golden.tensors("decode_rules")[f"{name}.final_probs"]
        torch.testing.assert_close(probs, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("name", CASES)
def test_decisions_are_the_recorded_ones_with_what_the_reference_does_wrong(name: str) -> None:
    case, stored = CASES[name], golden.tensors("decode_rules")
    params = case["params"]
    settings = DuplexSettings(
        greedy=params["mode"] == "greedy",
        top_k=1,
        listen_top_k=params["listen_top_k"],
        listen_prob_scale=params["listen_prob_scale"],
    )
    sampler = sampler_for(case, quirks=True)
    processed = adjusted(logits_of(name), sampler.draw(settings))

    assert decide(sampler, logits_of(name), settings) == case["result"]
    appended = sampler.history[len(case["history"]) :].tolist()
    assert appended == case["history_appended"] or len(case["history"]) > 512
    if f"{name}.final_probs" in stored:
        names = ("temperature", "top_k", "top_p")
        recorded = replace(settings, **{key: params[key] for key in names})
        probs = probabilities(processed, sampler.draw(recorded))
        torch.testing.assert_close(probs, stored[f"{name}.final_probs"], atol=1e-6, rtol=0)
    elif not name.startswith(
        ("listen_top_k", "chunk_eos")
    ):  # these two end before their scores are processed
        torch.testing.assert_close(processed, stored[f"{name}.processed"], atol=1e-6, rtol=0)


def test_listening_is_scaled_where_the_reference_scales_the_end_of_a_message() -> None:
    logits = logits_of("listen_scale_acts_on_im_end")
    special, half = golden.tokenizer().special, DuplexSettings(listen_prob_scale=0.5)
    case = CASES["listen_scale_acts_on_im_end"]
    ours, theirs = (adjusted(logits, sampler_for(case, quirks=quirks).draw(half)) for quirks in (False, True))
    plain = adjusted(logits, sampler_for(case).draw(DuplexSettings()))
    odds = ours.softmax(0)[special.listen] / plain.softmax(0)[special.listen]
    total = 1 - plain.softmax(0)[special.listen] / 2
    torch.testing.assert_close(odds * total, torch.tensor(0.5), atol=1e-6, rtol=0)
    assert theirs[special.listen] == plain[special.listen]
    assert theirs[special.im_end] == plain[special.im_end] * 0.5


def test_codes_said_before_become_less_likely_and_keys_are_moved_as_recorded() -> None:
    stored = golden.tensors("decode_rules")
    scores = stored["tts_rep.in"][None].clone()
    penalise_repeats(scores, stored["tts_rep.history"][None, -16:].long(), 1.05)
    torch.testing.assert_close(scores[0], stored["tts_rep.out"], atol=1e-6, rtol=0)
    move, stored = golden.recording("rope")["single"], golden.tensors("rope")
    decoder = PackedDecoder(golden.language_model().model, 1, 1)
    moved = decoder.rotate(stored["keys_f32"][0], move["new_start"] - move["old_start"])
    torch.testing.assert_close(moved, stored["out_f32"][0], atol=HIDDEN_LIMIT, rtol=0)


def test_keys_in_bfloat16_that_move_many_times_are_rounded_once() -> None:
    stored, many = golden.tensors("rope"), golden.recording("rope")["many"]
    decoder = PackedDecoder(golden.language_model().model, 1, 1)
    start = stored["many.start_bf16"][0]
    drops = 20
    exact = decoder.rotate(start, -drops * many["step"])

    def error(keys: Tensor) -> float:
        return float((keys.float() - exact).norm() / exact.norm())

    assert error(exact.bfloat16()) < 0.003
    # The reference turns what it has rounded, again and again.
    assert error(stored["many.bf16_after20"][0]) > 0.02
