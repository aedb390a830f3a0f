"""Utterances, cancels and refusals in transcriptions, by the duplex model and by Voxtral Realtime."""

from dataclasses import dataclass

import pytest
import torch

from inference_service.checkpoints import voxtral
from inference_service.engine.runtime import Runtime
from inference_service.engine.tick import Tick
from inference_service.families import antiphon_mini
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.families.voxtral_runtime import VoxtralRuntime
from inference_service.interface.engine import End, Failure, Finalized, Finish, UnitUsage
from inference_service.interface.setups import Sampling
from tests.inference_service.engine.support import tiny, tiny_voxtral
from tests.inference_service.engine.support.dictation import Writer, noise

CHATTY = Sampling(max_new_tokens=100_000, temperature=0.0, length_penalty=0.1)
WARM = Sampling(max_new_tokens=100_000, temperature=1.5, top_p=1.0)


@dataclass(frozen=True)
class Model:
    runtime: Runtime
    begun: int
    """Tokens of the sound of an utterance's first two seconds, as far as they are complete."""
    later: int
    """Tokens of two seconds within an utterance."""

    def writer(self, sampling: Sampling = CHATTY, seed: int = 1) -> Writer:
        return Writer(self.runtime, 0, sampling, seed)


@pytest.fixture(scope="module", params=["duplex", "Voxtral"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    if request.param == "duplex":
        return Model(DuplexRuntime(antiphon_mini.components(*tiny.model()), 1), 20, 20)
    folder = tiny_voxtral.save(tmp_path_factory.mktemp("voxtral"))
    runtime = VoxtralRuntime(voxtral.load(folder, torch.device("cpu")), 1)
    return Model(runtime, tiny_voxtral.LEFT_PAD + 24, 25)


@pytest.mark.parametrize("says_so", [True, False])
@pytest.mark.parametrize("has_ended", [True, False])
def test_next_utterance_starts_clean(model: Model, says_so: bool, has_ended: bool) -> None:
    sound = noise(6, 2.5)
    alone = model.writer().write(sound).token_ids
    one = model.writer()
    one.send(noise(7, 3.1), begins=True)
    if has_ended:
        one.send(ends=True)
    one.run().events.clear()
    one.send(sound, begins=says_so or not has_ended)
    last = one.send(ends=True)
    one.run()
    assert one.token_ids == alone
    assert (one.done(last).end, one.done(last).finish) == (End.TURN, Finish.EOS)


def test_utterance_without_sound_ends_without_the_model(model: Model) -> None:
    one = model.writer()
    unit = one.send(begins=True, ends=True)
    one.run()
    assert (one.done(unit).end, one.done(unit).usage, one.text) == (End.TURN, UnitUsage(), "")


def test_draws_repeat_with_the_seed(model: Model) -> None:
    sound = noise(2, 4.0)
    first, again, other = (model.writer(WARM, seed).write(sound).token_ids for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_cancelled_unit_is_heard_without_a_word(model: Model) -> None:
    one = model.writer()
    one.send(noise(1, 1.0), begins=True)
    unit = one.send(noise(2, 2.0))
    one.session.queue.cancel(unit)
    after = one.send(noise(3, 2.0))
    one.run()
    assert (one.done(unit).end, one.done(unit).usage.output_text_tokens) == (End.CANCELLED, 0)
    assert one.done(unit).usage.input_audio_tokens == model.later
    assert one.done(after).end is End.CHUNK
    assert one.done(after).usage.output_text_tokens > 0


def test_cancel_stops_at_the_next_decision(model: Model) -> None:
    one = model.writer(Sampling(max_new_tokens=100_000, temperature=0.0))
    unit = one.send(noise(1, 2.0), begins=True)
    tick = Tick(model.runtime)
    while len(one.token_ids) < 3:
        tick.run([one.session])
        one.collect()
    said = one.token_ids
    one.session.queue.cancel(unit)
    one.run()
    assert one.done(unit).end is End.CANCELLED
    assert one.token_ids == said
    assert one.done(unit).usage.input_audio_tokens == model.begun


def test_refused_units_are_answered_and_the_utterance_goes_on(model: Model) -> None:
    wrong, silent = (
        Failure("PARAMS_INVALID", "no such thing", "sampling.top_p"),
        Failure("AUDIO_INVALID", "no sound"),
    )
    one = model.writer()
    heard = one.send(noise(1, 1.0), begins=True)
    unreadable = one.send(failure=silent)
    rejected = one.send(noise(2, 1.0), rejection=wrong)
    one.run()
    after = one.send(noise(3, 1.0))
    one.run()
    assert one.done(unreadable).failure == silent
    assert (one.done(rejected).end, one.done(rejected).failure) == (End.FAILED, wrong)
    assert one.of(Finalized, unreadable)[0].context_tokens == one.done(heard).context_tokens
    assert one.done(after).end is End.CHUNK
