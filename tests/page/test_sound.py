"""The page's sound by the sample: its resampler, and the ring that the answers are played from."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.page.browser import Watched
from tests.page.conftest import needs_chromium

pytestmark = needs_chromium

BLOCK = 128
RATE = 48_000

RESAMPLE = """async ({ from, to, tone, seconds, block }) => {
  const { Resampler } = await import("/page/resampler.js");
  const resampler = new Resampler(from, to);
  const turn = (2 * Math.PI * tone) / from;
  const input = Float32Array.from({ length: from * seconds }, (_, i) => 0.5 * Math.sin(turn * i));
  const output = [];
  for (let i = 0; i < input.length; i += block) output.push(...resampler.push(input.subarray(i, i + block)));
  return output;
}"""
"""A tone of half the full amplitude, in blocks as a worklet is given them."""

PLAY = """async ({ rate, block, steps }) => {
  globalThis.sampleRate = rate;
  globalThis.AudioWorkletProcessor = class { port = { postMessage: (told) => (globalThis.told = told) } };
  globalThis.registerProcessor = (name, made) => (globalThis.Playback = made);
  await import("/page/playback.worklet.js");
  const playback = new Playback();
  return steps.map(({ data, blocks }) => {
    if (data?.seconds) data.samples = new Float32Array(24000 * data.seconds).fill(data.level);
    if (data) playback.port.onmessage({ data });
    const heard = [];
    for (let i = 0; i < blocks; i++) {
      const out = new Float32Array(block);
      playback.process([], [[out]]);
      heard.push(...out);
    }
    return { heard, told: globalThis.told };
  });
}"""
"""The worklet as it is served, with a clock that the test turns block by block."""


def resampled(page: Watched, tone: int, rate: int, seconds: int) -> NDArray[np.float64]:
    given = {"from": rate, "to": 16_000, "tone": tone, "seconds": seconds, "block": BLOCK}
    return np.array(page.page.evaluate(RESAMPLE, given))


@pytest.mark.parametrize("rate", [44_100, 48_000])
@pytest.mark.sample("48000")
def test_resampler_keeps_a_tone_counts_exactly_and_lets_nothing_fold_into_speech(
    page: Watched, rate: int
) -> None:
    out = resampled(page, 1000, rate, seconds=10)
    assert len(out) == 160_000
    settled = out[1000:-1000]
    turns = 2 * np.pi * 1000 * np.arange(len(settled)) / 16_000
    basis = np.stack([np.sin(turns), np.cos(turns)], axis=1)
    found = np.linalg.lstsq(basis, settled, rcond=None)[0]
    assert np.hypot(*found) == pytest.approx(0.5, rel=0.001)
    assert np.abs(settled - basis @ found).max() < 0.0005, "nothing but the tone, at its own frequency"
    assert np.abs(resampled(page, 10_000, rate, seconds=1)[200:]).max() < 0.5e-3


def say(seconds: float, level: float = 0.5) -> dict[str, Any]:
    return {"data": {"seconds": seconds, "level": level}, "blocks": 0}


def tell(**data: Any) -> dict[str, Any]:
    return {"data": data, "blocks": 0}


def wait(seconds: float) -> dict[str, Any]:
    return {"blocks": round(seconds * RATE / BLOCK)}


def play(page: Watched, *steps: dict[str, Any]) -> tuple[list[NDArray[np.float64]], list[dict[str, Any]]]:
    """Return the samples heard in each step, and the worklet's last report by its end."""
    done = page.page.evaluate(PLAY, {"rate": RATE, "block": BLOCK, "steps": steps})
    return [np.array(step["heard"]) for step in done], [step.get("told") for step in done]


def seconds_heard(*parts: NDArray[np.float64]) -> float:
    return sum(int(np.count_nonzero(np.abs(part) > 0.2)) for part in parts) / RATE


@pytest.mark.parametrize("start_s", [0.16, 0.4])
def test_start_buffer_delays_first_sound_by_its_setting(page: Watched, start_s: float) -> None:
    fed = [step for _ in range(10) for step in (say(0.08), wait(0.08))]
    heard, _ = play(page, tell(startS=start_s), *fed)
    first = int(np.argmax(np.abs(np.concatenate(heard)) > 0.2)) / RATE
    # The buffer is full with the part that is said 0.08 s before it would have been played.
    assert first == pytest.approx(start_s - 0.08, abs=0.003)


def test_gap_within_an_answer_is_counted_and_filled_again(page: Watched) -> None:
    steps = (say(0.3), wait(0.5), say(0.1), wait(0.1), say(0.2), wait(0.1), tell(ended=True), wait(0.5))
    heard, told = play(page, *steps)
    assert (told[1]["underruns"], told[1]["isPlaying"]) == (1, False)
    assert seconds_heard(heard[1]) == pytest.approx(0.3, abs=0.002)
    assert seconds_heard(heard[3]) == 0, "the start buffer is filled anew"
    assert seconds_heard(*heard[4:]) == pytest.approx(0.3, abs=0.002)
    assert (told[-1]["underruns"], told[-1]["hasEnded"]) == (1, True), "the end of a turn is no gap"


def test_interruption_silences_at_once_and_keeps_nothing_for_the_next_answer(page: Watched) -> None:
    first = (say(2.0), wait(0.5), tell(flush=True), wait(0.5))
    heard, told = play(page, *first, say(0.3, level=-0.5), tell(ended=True), wait(1.0))
    assert seconds_heard(heard[1]) == pytest.approx(0.5, abs=0.005)
    assert not heard[3].any()
    assert told[2] == told[3]
    assert (told[2]["isPlaying"], told[2]["heldS"]) == (False, 0)
    assert heard[-1].max() < 0.1
    assert seconds_heard(heard[-1]) == pytest.approx(0.3, abs=0.002)


def test_end_of_a_short_answer_does_not_wait_for_the_start_buffer(page: Watched) -> None:
    heard, told = play(page, say(0.1), wait(0.5), tell(ended=True), wait(0.5))
    assert seconds_heard(heard[1]) == 0
    assert seconds_heard(heard[3]) == pytest.approx(0.1, abs=0.002)
    assert told[3]["underruns"] == 0


def test_more_than_a_minute_of_answer_is_not_kept(page: Watched) -> None:
    _, told = play(page, say(61), wait(0.2))
    assert told[1]["lost"] == RATE
