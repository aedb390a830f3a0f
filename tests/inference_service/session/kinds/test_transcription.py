"""The duplex model writes down: what it says is what one pass over the whole utterance says."""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from inference_service.device.rows import Rows
from inference_service.engine.batch.decoder import Segment
from inference_service.engine.batch.draw import UNIFORMS, drawn_by
from inference_service.engine.batch.noise import Noise
from inference_service.engine.tick import Tick
from inference_service.families import antiphon_mini
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.interface.engine import (
    Done,
    End,
    Failure,
    Finalized,
    Finish,
    Prefilled,
    Ready,
    SessionFailed,
    UnitUsage,
)
from inference_service.interface.setups import (
    Sampling,
    StreamInput,
    TranscribeSetup,
    UnitInput,
    UnitOverrides,
    Window,
)
from inference_service.media.mel import MelStream
from inference_service.session.kinds.duplex_transcription import MOST_TOKENS, DuplexTranscription
from tests.inference_service.engine.support import tiny
from tests.inference_service.engine.support.decisions import chosen
from tests.inference_service.engine.support.dictation import SAMPLE_RATE, Sound, Writer, noise, run

CHATTY = Sampling(max_new_tokens=100_000, temperature=0.0, length_penalty=0.1)
"""Greedy, and a random model ends most seconds of itself."""
DRAWN = replace(CHATTY, temperature=1.0, top_p=1.0)
"""Drawn, so that what it says is not monotonous."""
WIDE = Window()
SECOND = 10


@pytest.fixture(scope="module")
def runtime() -> DuplexRuntime:
    return DuplexRuntime(antiphon_mini.components(*tiny.model()), 2)


def writer(runtime: DuplexRuntime, **given: object) -> Writer:
    return Writer(runtime, **{"sampling": CHATTY, **given})  # type: ignore[arg-type]


def prompt_tokens(runtime: DuplexRuntime) -> int:
    return len(runtime.tokenizer.encode_template(tiny.TRANSCRIPTION_PROMPT))


def in_one_pass(runtime: DuplexRuntime, sound: Sound, sampling: Sampling = CHATTY) -> list[list[int]]:
    """Return the tokens of each second by transformers' own forward over all before, uncached."""
    whole = np.pad(sound, (0, -len(sound) % SAMPLE_RATE + SAMPLE_RATE))
    model, _, _ = tiny.model()
    audio = model.apm.embed(model.apm.hear(torch.from_numpy(MelStream().feed(whole))[None]))[0]
    language = copy.deepcopy(model.llm)
    language.set_attn_implementation("eager")
    source = Noise(1)
    special, tokenizer = runtime.tokenizer.special, runtime.tokenizer
    written = [tokenizer.is_text(i) or i == special.chunk_eos for i in range(768)]
    forbidden = torch.tensor([i for i in range(768) if not written[i]])

    def decide(rows: Tensor) -> int:
        logits = language(inputs_embeds=rows[None], use_cache=False).logits[0, -1]
        token = chosen(logits, drawn_by(sampling, source, (), [special.chunk_eos], forbidden))
        source.use(UNIFORMS)
        assert token is not None
        return token

    def embed(ids: list[int]) -> Tensor:
        return runtime.language.embed(Rows.of_ids(ids))

    rows = embed(tokenizer.encode_template(tiny.TRANSCRIPTION_PROMPT))
    seconds = []
    for second in audio.split(SECOND):
        rows = torch.cat([rows, embed([special.unit]), second])
        decided: list[int] = []
        while special.chunk_eos not in decided and len(decided) < MOST_TOKENS:
            decided.append(decide(rows))
            if decided[-1] != special.chunk_eos and len(decided) < MOST_TOKENS:
                rows = torch.cat([rows, embed(decided[-1:])])
        rows = torch.cat([rows, embed([special.chunk_eos, special.unit_end])])
        seconds.append(decided)
    return seconds


def text_of(runtime: DuplexRuntime, seconds: list[list[int]]) -> list[int]:
    special = runtime.tokenizer.special
    return [token for second in seconds for token in second[: MOST_TOKENS - 1] if token != special.chunk_eos]


@pytest.mark.parametrize("sampling", [CHATTY, DRAWN])
@pytest.mark.parametrize("longest", [3000, 16_000, 50_000])
def test_chunks_say_what_one_pass_says(runtime: DuplexRuntime, longest: int, sampling: Sampling) -> None:
    sound = noise(longest, 2.3)
    expected = in_one_pass(runtime, sound, sampling)
    wrote = writer(runtime, sampling=sampling).write(sound, longest, longest)
    assert wrote.token_ids == text_of(runtime, expected)
    assert wrote.text == runtime.tokenizer.decode(wrote.token_ids)
    assert sum(done.usage.output_text_tokens for done in wrote.of(Done)) == sum(map(len, expected))


def test_chunk_that_completes_no_second_is_kept_for_the_next(runtime: DuplexRuntime) -> None:
    one = writer(runtime)
    first, second = one.send(noise(1, 0.6), begins=True), one.send(noise(2, 0.6))
    one.run()
    assert (one.done(first).end, one.done(first).finish) == (End.CHUNK, None)
    assert one.done(first).usage == UnitUsage()
    assert one.done(second).usage.input_audio_tokens == SECOND


def test_first_step_counts_the_prompt_and_each_decision_is_counted(runtime: DuplexRuntime) -> None:
    sound, one = noise(3, 1.0), writer(runtime)
    unit = one.send(sound, begins=True)
    one.run()
    (ready,), (prefilled,), done = one.of(Ready), one.of(Prefilled, unit), one.done(unit)
    assert ready.prompt_tokens == prompt_tokens(runtime)
    assert prefilled.usage.input_text_tokens == prompt_tokens(runtime) + 1
    assert prefilled.usage.input_audio_tokens == SECOND
    assert done.usage.output_text_tokens == len(in_one_pass(runtime, sound)[0])
    assert done.finish is Finish.EOS


def test_end_fills_up_the_second_and_adds_one_of_silence(runtime: DuplexRuntime) -> None:
    one = writer(runtime)
    one.send(noise(4, 1.3), begins=True)
    last = one.send(ends=True)
    one.run()
    assert one.done(last).end is End.TURN
    assert one.done(last).usage.input_audio_tokens == 2 * SECOND


def test_tokens_of_a_unit_wait_for_its_order(runtime: DuplexRuntime) -> None:
    one = writer(runtime)
    unit = one.send(noise(1, 1.0), begins=True, generate=False)
    one.run()
    assert one.of(Prefilled)
    assert not one.of(Done)
    one.session.queue.generate(unit, False, UnitOverrides())
    one.run()
    assert one.done(unit).end is End.CHUNK


def test_most_tokens_of_a_unit_hold_for_all_its_seconds(runtime: DuplexRuntime) -> None:
    one = writer(runtime, sampling=replace(CHATTY, max_new_tokens=2, length_penalty=1.0))
    unit = one.send(noise(1, 3.0), begins=True)
    one.run()
    done = one.done(unit)
    assert (done.end, done.finish, done.usage.output_text_tokens) == (End.CHUNK, Finish.LENGTH, 2)
    assert done.usage.input_audio_tokens == 3 * SECOND
    assert len(one.token_ids) == 2


def test_stop_token_ends_the_words_of_its_unit_only(runtime: DuplexRuntime) -> None:
    sound = noise(1, 3.0)
    words = text_of(runtime, in_one_pass(runtime, sound))
    one = writer(runtime)
    unit = one.send(sound, begins=True, overrides=UnitOverrides(stop_token_ids=(words[0],)))
    after = one.send(noise(2, 1.0))
    one.run()
    assert (one.done(unit).finish, one.done(unit).usage.output_text_tokens) == (Finish.STOP, 1)
    assert one.done(after).finish is Finish.EOS


def test_nan_audio_fails_only_its_unit(runtime: DuplexRuntime) -> None:
    sound = noise(6, 2.5)
    alone = writer(runtime).write(sound).token_ids
    one, other = writer(runtime), writer(runtime, slot=1)
    one.send(noise(1, 1.0), begins=True)
    bad = one.send(np.full(SAMPLE_RATE, np.nan, np.float32))
    after = one.send(noise(2, 1.0))
    other.send(sound, begins=True)
    other.send(ends=True)
    run(runtime, [one, other])

    assert one.done(bad).end is End.FAILED
    assert one.done(bad).failure == Failure(
        "INFERENCE_FAILED", "The model gave no usable numbers for this unit.", retryable=True
    )
    assert (one.done(after).end, one.done(after).failure) == (End.CHUNK, None)
    assert other.token_ids == alone


def test_second_that_fails_leaves_no_trace(runtime: DuplexRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    one, clean = writer(runtime), writer(runtime, slot=1)
    sounds = [noise(i, 1.0) for i in range(3)]
    for each in (one, clean):
        each.send(sounds[0], begins=True)
        each.run()  # alone: in one batch a processor may round the second row otherwise

    think = runtime.think

    def fail_second_forward(segments: list[Segment]) -> list[Tensor | None]:
        return [None if s.slot == 0 else h for s, h in zip(segments, think(segments), strict=True)]

    one.send(sounds[1])
    tick = Tick(runtime)
    tick.run([one.session])
    monkeypatch.setattr(runtime, "think", fail_second_forward)
    one.run()
    monkeypatch.undo()

    assert one.of(Done)[-1].end is End.FAILED
    first, second = one.session, clean.session
    assert isinstance(first, DuplexTranscription)
    assert isinstance(second, DuplexTranscription)
    assert (first.context.tokens, first.context.pending) == (second.context.tokens, second.context.pending)
    assert all(torch.equal(a, b) for a, b in zip(first.ear, second.ear, strict=True))


def test_content_of_another_mode_is_refused(runtime: DuplexRuntime) -> None:
    preprocessor = writer(runtime).session.preprocessor
    for content in (UnitInput(noise(1, 1.0)), StreamInput("words"), StreamInput((1, 2))):
        with pytest.raises(TypeError):
            preprocessor.prepare(content)


def test_long_utterance_keeps_to_its_window(runtime: DuplexRuntime) -> None:
    one = writer(runtime)
    window = runtime.info.window
    one.send(begins=True)
    sizes = []
    for index in range(20):
        one.send(noise(index, 2.0))
        one.run()
        sizes.append(one.of(Finalized)[-1].context_tokens)
    session = one.session
    assert isinstance(session, DuplexTranscription)
    assert max(sizes) <= window.high_tokens + session.longest_second
    assert sum(event.dropped_units for event in one.of(Finalized)) > 10
    assert session.context.prompt == prompt_tokens(runtime)


def test_unit_longer_than_the_window_slides_while_it_is_heard(runtime: DuplexRuntime) -> None:
    one = writer(runtime)
    unit = one.send(noise(1, 30.0), begins=True)
    one.run()
    assert one.done(unit).end is End.CHUNK
    assert one.done(unit).usage.input_audio_tokens == 30 * SECOND
    assert one.of(Finalized)[0].dropped_units > 0
    assert one.of(Finalized)[0].context_tokens <= runtime.info.window.high_tokens


def test_without_a_window_the_context_fills_up_in_order(runtime: DuplexRuntime) -> None:
    one = writer(runtime)
    one.session.context.window = WIDE
    one.send(begins=True)
    while not one.of(Done) or one.of(Done)[-1].end is End.CHUNK:
        one.send(noise(one.units, 3.0))
        one.run()
    full = one.of(Done)[-1]
    assert full.end is End.CONTEXT_FULL
    assert full.context_tokens <= runtime.info.context_limit
    last = one.send(noise(1, 1.0))
    one.run()
    assert one.done(last).end is End.CONTEXT_FULL
    assert one.of(Prefilled, last)[0].failure is not None


def test_context_too_small_for_a_transcription_is_refused() -> None:
    model, tokenizer, config = tiny.model()
    small = replace(config, context_limit=120, window_high=120, window_low=90)
    runtime = DuplexRuntime(antiphon_mini.components(model, tokenizer, small), 1)
    session = runtime.open("small", 0, TranscribeSetup(CHATTY, 1), lambda event: None)
    refusal = runtime.start(session)
    assert isinstance(refusal, SessionFailed)
    assert refusal.reason == "CONFIG_INVALID"
