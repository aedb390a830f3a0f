"""Streams through `Token2Wav.step`: their chunks, company, ends, and what they keep."""

import random
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from inference_service.models.token2wav import sizes
from inference_service.models.token2wav.config import LOOK_AHEAD, SILENT_TOKEN
from inference_service.models.token2wav.flow import VoicePrompt
from inference_service.models.token2wav.model import Token2Wav
from inference_service.models.token2wav.stream import StreamCodes, StreamState
from tests.inference_service.models.token2wav import recorded
from tests.inference_service.models.token2wav.recorded import WAVE_LIMIT
from tests.inference_service.models.token2wav.test_flow import far
from tests.support.long import seeds

VARIANTS = pytest.mark.parametrize("is_causal", [False, True], ids=["hift", "causal"])


def begin(model: Token2Wav, prompt: str = "a") -> StreamState:
    return model.initial_state(model.hear(recorded.prompt(prompt)))


def say(model: Token2Wav, state: StreamState, codes: list[int], *, ends_turn: bool = False) -> Tensor:
    (wave,) = model.step([StreamCodes(state, codes, ends_turn)])
    return wave


def codes_of(draw: random.Random, count: int = 25) -> list[int]:
    return [draw.randrange(6561) for _ in range(count)]


@pytest.mark.parametrize("name", ["stream_b", "stream_small", "causal_stream_b"])
def test_units_make_the_recorded_chunks_and_sound(name: str) -> None:
    data, stored = recorded.stream(name), recorded.tensors(name)
    model = recorded.model(is_causal=name.startswith("causal"), steps=data["n_timesteps"])
    state = begin(model, data["prompt"][-1])
    *calls, flush = data["calls"]
    assert flush["last_chunk"]
    waves = [stored[f"call{i}.wav"][0] for i in range(len(data["calls"]))]
    if name.startswith("causal"):
        waves[0] = waves[0][3840:]
    waves[-2:] = [torch.cat(waves[-2:])]

    for i, call in enumerate(calls):
        wave = say(model, state, call["tokens"][LOOK_AHEAD:], ends_turn=call is calls[-1])

        assert far(wave, waves[i]) < WAVE_LIMIT
    assert not state.has_begun


@VARIANTS
def test_a_unit_is_a_second_of_sound(is_causal: bool) -> None:
    model = recorded.model(is_causal=is_causal)
    state, draw = begin(model), random.Random(1)
    lengths = [len(say(model, state, codes_of(draw), ends_turn=i == 3)) for i in range(4)]
    assert lengths == [24000 - 3840, 24000, 24000, 24000 + 3840 + 2880]
    assert sum(lengths) == 960 * (100 + LOOK_AHEAD)


@VARIANTS
@pytest.mark.parametrize(
    ("said", "lengths", "pending"),
    [
        ([([1, 2, 3, 4], False), ([5], False)], [0, 960 * 5 - 3840], [3, 4, 5]),
        ([([1, 2], False), ([], True)], [0, 960 * 5], [SILENT_TOKEN] * LOOK_AHEAD),
        ([([], True)], [0], [SILENT_TOKEN] * LOOK_AHEAD),
        ([([7] * 70, False)], [960 * 70 - 3840], [7] * LOOK_AHEAD),
    ],
    ids=["too few wait", "short turn", "turn without a token", "many at once"],
)
def test_tokens_are_said_as_soon_as_there_are_enough_or_their_turn_ends(
    is_causal: bool, said: list[tuple[list[int], bool]], lengths: list[int], pending: list[int]
) -> None:
    model = recorded.model(is_causal=is_causal)
    state = begin(model)
    assert [len(say(model, state, codes, ends_turn=ends)) for codes, ends in said] == lengths
    assert state.pending == pending
    assert state.has_begun is not said[-1][1]


@pytest.mark.parametrize("code", [-1, 6561])
def test_token_out_of_range_changes_nothing(code: int) -> None:
    model = recorded.model()
    state, other = begin(model), begin(model, "b")
    with pytest.raises(ValueError, match=f"Speech tokens must be 0 to 6560, not {code}"):
        model.step([StreamCodes(other, [1] * 25), StreamCodes(state, [1, code])])
    assert not state.has_begun
    assert not other.has_begun


def test_prompt_of_contradicting_lengths_is_refused() -> None:
    good = recorded.prompt("b")
    with pytest.raises(ValueError, match=r"needs mel frames \[20, 80\], not \[19, 80\]"):
        recorded.model().hear(VoicePrompt(good.tokens, good.mel[:19], good.speaker))


@VARIANTS
@pytest.mark.parametrize("interrupted", [False, True])
@pytest.mark.sample("False-hift", "True-causal")
def test_next_turn_begins_as_the_first(is_causal: bool, interrupted: bool) -> None:
    model = recorded.model(is_causal=is_causal)
    state, draw = begin(model), random.Random(3)
    turn = [codes_of(draw) for _ in range(3)]

    def said() -> list[Tensor]:
        ends = [not interrupted and codes is turn[-1] for codes in turn]
        return [say(model, state, codes, ends_turn=end) for codes, end in zip(turn, ends, strict=True)]

    first = said()
    if interrupted:
        state.reset()
    again = said()

    assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))


class Speaker:
    """A stream of random turns in units of random lengths, run among others and again alone."""

    def __init__(self, model: Token2Wav, prompt: str, draw: random.Random) -> None:
        self._model = model
        self._prompt = prompt
        self.state = begin(model, prompt)
        self._units: list[tuple[list[int], bool]] = []
        for _ in range(2):
            units = draw.randrange(1, 5)
            for unit in range(units):
                ends = unit == units - 1
                edge = unit == 0 or ends
                self._units.append((codes_of(draw, draw.randrange(26) if edge else 25), ends))
        self.said: list[Tensor] = []

    def next_job(self) -> StreamCodes | None:
        """Return the codes of the next unit; None after the last."""
        if len(self.said) == len(self._units):
            return None
        codes, ends_turn = self._units[len(self.said)]
        return StreamCodes(self.state, codes, ends_turn)

    def alone(self) -> list[Tensor]:
        """Return the waves of all units without other streams."""
        state = begin(self._model, self._prompt)
        return [say(self._model, state, codes, ends_turn=ends) for codes, ends in self._units]


@VARIANTS
@pytest.mark.parametrize("seed", seeds(0, 1))
@pytest.mark.sample("0-*")
def test_streams_that_join_and_leave_do_not_hear_of_each_other(is_causal: bool, seed: int) -> None:
    model = recorded.model(is_causal=is_causal)
    draw = random.Random(seed)
    speakers = [Speaker(model, draw.choice("ab"), draw) for _ in range(6)]
    here: list[Speaker] = []
    away = list(speakers)
    shared = 0

    while away or here:
        for _ in range(draw.randrange(4)):
            if away:
                here.append(away.pop())
        draw.shuffle(here)
        speaking = [(it, job) for it in here if draw.random() < 0.8 and (job := it.next_job())]
        shared += len(speaking) > 1
        waves = model.step([job for _, job in speaking])
        for (speaker, _), wave in zip(speaking, waves, strict=True):
            speaker.said.append(wave)
        here = [it for it in here if it.next_job()]

    assert shared
    for speaker in speakers:
        for ours, alone in zip(speaker.said, speaker.alone(), strict=True):
            assert len(ours) == len(alone)
            if len(ours):
                assert far(ours, alone) < WAVE_LIMIT


def test_streams_of_one_shape_share_a_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    model = recorded.model()
    voice = model.hear(recorded.prompt("b"))
    states = [model.initial_state(voice) for _ in range(5)]
    draw, batches = random.Random(5), []
    advance = model.flow.advance

    def counted(tokens: Tensor, *rest: object, **named: object) -> object:
        batches.append(len(tokens))
        return advance(tokens, *rest, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(model.flow, "advance", counted)
    for _ in range(3):
        model.step([StreamCodes(state, codes_of(draw)) for state in states])
    model.step([StreamCodes(state, codes_of(draw), ends_turn=i < 2) for i, state in enumerate(states)])

    assert batches == [5, 5, 5, 5, 2]


@VARIANTS
@pytest.mark.parametrize("prompt", ["a", "b"])
@pytest.mark.parametrize("cache_dtype", [torch.float32, torch.bfloat16])
@pytest.mark.sample("*-a-hift")
def test_a_stream_keeps_as_much_as_was_said_before(
    is_causal: bool, prompt: str, cache_dtype: torch.dtype
) -> None:
    model = recorded.model(is_causal=is_causal, cache_dtype=cache_dtype, reference_quirks=False)
    state, draw = begin(model, prompt), random.Random(6)
    frames = len(recorded.prompt(prompt).mel)
    options = {"steps": 5, "dtype": torch.float32, "cache_dtype": cache_dtype}
    assert state.voice.nbytes == sizes.voice_bytes(model.config, frames, **options)
    kept = []
    for _ in range(12):
        say(model, state, codes_of(draw))
        kept.append((state.nbytes, state.flow.shape, state.vocoder.shape))
    assert kept[2:] == kept[2:3] * 10
    assert all(one[0] <= two[0] for one, two in pairwise(kept))
    assert kept[-1][0] == sizes.stream_bytes(model.config, frames, **options)


def test_streams_of_a_voice_share_it_and_keep_nothing_else_between_turns() -> None:
    model = recorded.model()
    voice = model.hear(recorded.prompt("a"))
    streams = [model.initial_state(voice) for _ in range(2)]
    before = [tensor.clone() for tensor in voice.flow.tensors]
    model.step([StreamCodes(one, [1 + i] * 25, ends_turn=True) for i, one in enumerate(streams)])
    assert all(torch.equal(now, then) for now, then in zip(voice.flow.tensors, before, strict=True))
    assert [one.nbytes for one in streams] == [0, 0]
    assert voice.nbytes > 0


def test_caches_of_half_size_change_little() -> None:
    exact, small = recorded.model(), recorded.model(cache_dtype=torch.bfloat16)
    codes = torch.tensor([codes_of(random.Random(7), 28)])
    mels = []
    for model in (exact, small):
        mel, _ = model.flow.advance(codes, [begin(model).flow], is_last=False)
        mels.append(mel)
    assert 1e-6 < far(*mels) < 0.1 * float(mels[0].std())


def test_flow_in_half_precision_keeps_the_length_and_its_dtype() -> None:
    config = recorded.model().config
    model = Token2Wav(config, dtype=torch.bfloat16).eval()
    model.load_state_dict(recorded.model().state_dict())
    state = begin(model)
    wave = say(model, state, [1] * 25)
    assert (wave.dtype, len(wave)) == (torch.float32, 20160)
    assert {it.dtype for it in state.flow.tensors} == {torch.bfloat16}
    assert model.flow.noise.dtype == torch.float32
