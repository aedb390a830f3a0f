"""Conversations with Moshi and PersonaPlex: token for token what their reference says, frame after frame."""

import gc
import tracemalloc
from collections import deque
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import MoshiForConditionalGeneration

from inference_service.checkpoints.moshi.folder import MoshiCheckpoint, load
from inference_service.families.moshi import kind, monologue, rewind, runtime
from inference_service.families.moshi.framing import Framing, Resampler
from inference_service.families.moshi.prompt import PromptBuilder
from inference_service.families.moshi.runtime import MoshiRuntime
from inference_service.interface.engine import End, Prefilled, Ready, Rewound, SessionFailed
from inference_service.interface.setups import UnitFormat
from inference_service.models.token2wav.features import resampled
from tests.inference_service.engine.support import tiny_moshi
from tests.inference_service.engine.support.moshi_caller import GREEDY, SAMPLES, Caller, sound
from tests.inference_service.engine.support.tiny_moshi import CODES, SIZE, TEXTS, WINDOW
from tests.support.long import long

CPU = torch.device("cpu")
PAD = 3


@pytest.fixture(scope="module")
def moshi(tmp_path_factory: pytest.TempPathFactory) -> MoshiCheckpoint:
    return load(tiny_moshi.save(tmp_path_factory.mktemp("moshi") / "saved"), CPU, torch.float32)


@pytest.fixture(scope="module")
def personaplex(tmp_path_factory: pytest.TempPathFactory) -> MoshiCheckpoint:
    folder = tmp_path_factory.mktemp("personaplex") / "published"
    return load(tiny_moshi.publish(folder, personaplex=True), CPU, torch.float32)


class Reference:
    """`LMGen` of Kyutai and NVIDIA over transformers' modules, without caches: greedy, one conversation.

    `tokens` are [1 + 2 codes, time]; a stream's later codes are written one step late, and what was provided
    is never drawn. Step n computes position n and draws position n + 1.
    """

    def __init__(self, network: MoshiForConditionalGeneration) -> None:
        self.network = network
        self.tokens = torch.full((1 + 2 * CODES, 400), -2)
        self.provided = torch.zeros_like(self.tokens, dtype=torch.bool)
        self.made: list[Tensor] = []
        """Embeddings of the positions that are given as such."""
        self.offset = 0
        self.write(0, TEXTS, [SIZE] * CODES, [SIZE] * CODES, late=False)
        self.provide([*range(2, 1 + CODES), *range(2 + CODES, 1 + 2 * CODES)], 1, [SIZE] * (2 * CODES - 2))

    def provide(self, rows: list[int], position: int, values: Sequence[int]) -> None:
        self.tokens[rows, position] = torch.tensor(values)
        self.provided[rows, position] = True

    def write(
        self, at: int, text: int, said: Sequence[int], heard: Sequence[int], *, late: bool = True
    ) -> None:
        """A frame whose tokens are all given."""
        self.provide([0, 1, 1 + CODES], at, [text, said[0], heard[0]])
        rows = [*range(2, 1 + CODES), *range(2 + CODES, 1 + 2 * CODES)]
        self.provide(rows, at + late, [*said[1:], *heard[1:]])

    def hear(self, at: int, heard: Tensor) -> None:
        self.provide([1 + CODES], at, heard[:1].tolist())
        self.provide([*range(2 + CODES, 1 + 2 * CODES)], at + 1, heard[1:].tolist())

    def step(self) -> None:
        """Draw what position `offset` + 1 was not given, from all positions to `offset`."""
        end = self.offset + 1
        begin = len(self.made)
        tokens = self.tokens[:, begin:end]
        assert (tokens >= 0).all(), "a token that nobody gave or drew"
        rows = self.network.decoder.model.embed_tokens(tokens[0])
        for codebook, table in enumerate(self.network.embed_tokens):
            rows = rows + table(tokens[1 + codebook])
        rows = torch.cat([*self.made, rows])
        hidden = self.network.decoder.model(inputs_embeds=rows[None]).last_hidden_state[0, -1]
        self.offset = end
        text = int(self.network.decoder.lm_head(hidden).argmax())
        if not self.provided[0, end]:
            self.tokens[0, end] = text
        before = int(self.tokens[0, end])
        drawn = [before]
        for code in range(CODES):
            scores = self.network.depth_decoder(
                input_ids=torch.tensor([drawn]),
                last_hidden_state=hidden[None, None],
                attention_mask=torch.ones(1, len(drawn), dtype=torch.bool),
            ).logits[0, -1]
            own = 1 + code
            if not self.provided[own, end]:
                self.tokens[own, end] = int(scores.argmax())
            drawn.append(int(self.tokens[own, end]))

    def frame(self, position: int) -> Tensor:
        """The codes that the model says at a moment, [codes]."""
        return torch.cat([self.tokens[1:2, position], self.tokens[2 : 1 + CODES, position + 1]])


def played(reference: Reference, pcm: Tensor) -> Tensor:
    """Hear `pcm` frame after frame; return the sound of the answers."""
    heard = reference.network.audio_encoder.encode(pcm[None, None], num_quantizers=CODES).audio_codes[0]
    begin = reference.offset
    for frame in heard.T:
        reference.hear(reference.offset, frame)
        reference.step()
    codes = torch.stack([reference.frame(at) for at in range(begin, reference.offset)], dim=1)
    answer: Tensor = reference.network.audio_encoder.decode(codes[None]).audio_values[0, 0]
    return answer


def said_text(checkpoint: MoshiCheckpoint, reference: Reference, begin: int) -> str:
    return checkpoint.tokenizer.decode(reference.tokens[0, begin + 1 : reference.offset + 1].tolist())


@pytest.fixture
def talkative(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn never ends, so that all sound is given out."""
    monkeypatch.setattr(monologue, "HOLD", 10_000)


@pytest.mark.usefixtures("talkative")
def test_moshi_says_token_for_token_what_the_reference_says(moshi: MoshiCheckpoint) -> None:
    where, pcm = MoshiRuntime(moshi, 2), sound(25)
    caller = Caller(where)
    caller.say(pcm)
    reference = Reference(tiny_moshi.network())
    reference.step()  # nothing is heard yet
    answer = played(reference, pcm)
    silent = len(answer) - len(caller.audio)
    assert caller.text == said_text(moshi, reference, 1)
    assert silent < len(answer)
    assert silent % SAMPLES == 0, "frames before the first word have no sound"
    assert torch.allclose(caller.audio, answer[silent:], atol=1e-3)


@pytest.mark.usefixtures("talkative")
def test_personaplex_reads_voice_and_role_as_the_reference_does(personaplex: MoshiCheckpoint) -> None:
    where, pcm = MoshiRuntime(personaplex, 2), sound(20, 2)
    caller = Caller(where, prompt="you are no tree", voice_id="natm1")
    caller.say(pcm)

    voice = personaplex.voices["natm1"]
    reference = Reference(tiny_moshi.network())
    count = len(voice.rows)
    reference.made = [row[None] for row in voice.rows]
    reference.tokens[:, : count + 2] = 0
    rows = list(range(1 + 2 * CODES))
    reference.provide(rows, count, voice.last)
    reference.provide(rows, count + 1, voice.late)
    at, model = count + 1, personaplex.model
    role = personaplex.tokenizer.encode("<system> you are no tree <system>")
    for text in [*[PAD] * 6, *role, *[PAD] * 6]:
        reference.write(at, text, model.silence, model.sine)
        at += 1
    reference.offset = at - 1
    reference.step()
    answer = played(reference, pcm)
    silent = len(answer) - len(caller.audio)
    ready = next(event for event in caller.told if isinstance(event, Ready))
    assert ready.prompt_tokens == at
    assert caller.text == said_text(personaplex, reference, at)
    assert PromptBuilder(personaplex, 0.08).voice("") == "natf0"
    assert torch.allclose(caller.audio, answer[silent:], atol=1e-3)


def test_role_that_fills_the_window_is_refused(personaplex: MoshiCheckpoint) -> None:
    caller = Caller(MoshiRuntime(personaplex, 1), prompt="x" * WINDOW)
    assert isinstance(caller.refusal, SessionFailed)
    assert caller.refusal.field == "system_prompt"
    assert "leave room for frames" in caller.refusal.message


def test_long_unit_is_heard_frame_by_frame(moshi: MoshiCheckpoint) -> None:
    where, pcm = MoshiRuntime(moshi, 2), sound(13)
    single, grouped = Caller(where, 0), Caller(where, 1, units=UnitFormat(13 * 0.08, 24_000))
    single.say(pcm)
    grouped.send(pcm)
    grouped.work()
    assert grouped.text == single.text
    assert torch.allclose(grouped.audio, single.audio, atol=1e-4)
    assert len([event for event in grouped.told if isinstance(event, Prefilled)]) == 1


@long
def test_window_rolls_on_as_if_memory_had_no_end(
    moshi: MoshiCheckpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    pcm = sound(WINDOW + 50, 4)
    wide = Caller(MoshiRuntime(moshi, 1))
    wide.say(pcm)
    with monkeypatch.context() as patched:
        patched.setattr(runtime, "SLACK", 16)
        patched.setattr(runtime, "MOST", 4)
        patched.setattr(kind, "MOST", 4)
        narrow = Caller(MoshiRuntime(moshi, 1))
        narrow.say(pcm)

    assert narrow.session.context.dropped > 0
    assert narrow.session.ear.dropped > 0
    assert wide.session.context.dropped == 0
    assert narrow.text == wide.text
    assert torch.allclose(narrow.audio, wide.audio, atol=1e-4)


@long
def test_conversation_beyond_its_window_takes_no_more_memory(moshi: MoshiCheckpoint) -> None:
    """The window has 96 frames, and the newest 125 can be taken back."""
    caller = Caller(MoshiRuntime(moshi, 1))
    pcm = sound(1)

    def say(frames: int) -> int:
        for _ in range(frames):
            caller.say(pcm)
            caller.told.clear()
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = say(max(WINDOW, rewind.MOST) + 10)
        after = say(40)
    finally:
        tracemalloc.stop()
    caller.leave()

    assert caller.session.rolling.position > WINDOW + rewind.MOST // 2
    assert after - before < 40 * 256, "a frame leaves nothing behind"


@pytest.mark.long
def test_forced_listening_is_silent_and_ends_a_turn(moshi: MoshiCheckpoint) -> None:
    caller = Caller(MoshiRuntime(moshi, 1), settings=replace(GREEDY, listen_prob_scale=0.0))
    caller.say(sound(3))
    before = len(caller.audio)
    caller.say(sound(2), force_listen=True)
    assert caller.ends == [End.CHUNK] * 3 + [End.LISTEN] * 2
    assert len(caller.audio) == before == 3 * SAMPLES


def test_turn_ends_a_second_after_its_last_word(moshi: MoshiCheckpoint) -> None:
    caller = Caller(MoshiRuntime(moshi, 1), settings=replace(GREEDY, listen_prob_scale=0.0))
    caller.say(sound(1))
    caller.session.setup = replace(caller.session.setup, duplex=replace(GREEDY, listen_prob_scale=1e30))
    caller.say(sound(monologue.HOLD + 1))
    assert caller.ends == [*[End.CHUNK] * monologue.HOLD, End.TURN, End.LISTEN]


def test_cancelled_unit_is_heard_and_not_answered(moshi: MoshiCheckpoint) -> None:
    caller = Caller(MoshiRuntime(moshi, 1))
    caller.say(sound(2))
    before = len(caller.audio)
    caller.session.queue.cancel(3)
    caller.say(sound(1))
    assert caller.ends[-1] is End.CANCELLED
    assert len(caller.audio) == before


def test_conversation_rewound_while_a_frame_waits_goes_on_as_one_that_was_silent(
    moshi: MoshiCheckpoint,
) -> None:
    where, settings = MoshiRuntime(moshi, 2), replace(GREEDY, listen_prob_scale=0.0)
    back, silent = Caller(where, 0, settings=settings), Caller(where, 1, settings=settings)
    pcm = sound(14)
    for caller in (back, silent):
        caller.say(pcm[: 3 * SAMPLES])
    back.say(pcm[3 * SAMPLES : 6 * SAMPLES])
    silent.session.queue.rewind(3, None)  # what is about to be said is taken back as well
    silent.work()
    silent.say(pcm[3 * SAMPLES : 6 * SAMPLES], force_listen=True)
    back.send(pcm[6 * SAMPLES : 7 * SAMPLES], decide=False)
    back.work()
    back.session.queue.rewind(3, None)
    back.work()
    back.decide()
    back.work()
    silent.say(pcm[6 * SAMPLES : 7 * SAMPLES])
    texts = len(back.text), len(silent.text)
    for caller in (back, silent):
        caller.say(pcm[7 * SAMPLES :])

    (answer,) = (event for event in back.told if isinstance(event, Rewound))
    assert (answer.failure, answer.units) == (None, 3)
    assert back.text[texts[0] :] == silent.text[texts[1] :] != ""
    assert torch.allclose(back.session.last_hidden, silent.session.last_hidden, atol=1e-4)


def test_rewind_within_a_unit_keeps_the_frames_that_were_heard(moshi: MoshiCheckpoint) -> None:
    settings, units = replace(GREEDY, listen_prob_scale=0.0), UnitFormat(5 * 0.08, 24_000)
    caller = Caller(MoshiRuntime(moshi, 1), settings=settings, units=units)
    caller.send(sound(5))
    caller.work()
    position = caller.session.rolling.position
    caller.session.queue.rewind(1, 2 * SAMPLES + 1)
    caller.work()
    assert caller.session.rolling.position == position
    assert [it.sent for it in caller.session.history._frames] == [SAMPLES] * 3 + [0] * 2


def test_rewind_too_far_back_is_refused(moshi: MoshiCheckpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    caller = Caller(MoshiRuntime(moshi, 1))
    monkeypatch.setattr(rewind, "MOST", 3)
    caller.session.history = rewind.History(deque(maxlen=3))
    caller.say(sound(6))
    caller.session.queue.rewind(1, None)
    caller.work()
    (answer,) = (event for event in caller.told if isinstance(event, Rewound))
    assert answer.failure is not None
    assert "lies more than 3 frames back" in answer.failure.message


def test_units_of_a_second_at_another_rate_are_the_frames_of_their_sound(moshi: MoshiCheckpoint) -> None:
    pcm, units = sound(25), UnitFormat(1.0, 16_000)
    resampled_late = Resampler(16_000, 24_000).late * 3 // 2
    coarse = resampled(pcm, 24_000, 16_000)
    framing = Framing(units, SAMPLES, 24_000)
    counts, frames = list[int](), list[Tensor]()
    for second in coarse.split(16_000):
        cut = framing.feed(second.numpy())
        counts.append(len(cut))
        frames += cut

    assert counts == [12, 13]
    whole, want = torch.cat(frames), resampled(coarse, 16_000, 24_000)
    end = len(want) - 50  # what comes behind the end is not known yet
    assert torch.allclose(whole[resampled_late + 10 : end], want[10 : end - resampled_late], atol=1e-4)


def test_short_unit_is_filled_up_with_silence(moshi: MoshiCheckpoint) -> None:
    where = MoshiRuntime(moshi, 2)
    short, whole = Caller(where, 0), Caller(where, 1)
    pcm = sound(1)
    short.say(pcm[:100])
    whole.say(torch.cat([pcm[:100], torch.zeros(SAMPLES - 100)]))
    assert torch.allclose(short.session.last_hidden, whole.session.last_hidden, atol=1e-4)
