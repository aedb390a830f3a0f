"""The recogniser understands a voice made of a person's recordings, and tells what it does not understand."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from antiphon_training.domains.mini import MINI
from inference_service.recogniser import process as process_module
from inference_service.recogniser.decoder import Recognised, Recogniser
from inference_service.recogniser.process import RecogniserProcess
from inference_service.recogniser.utterance import FIT, LONGEST, Utterances
from tests.inference_service.recogniser.conftest import hanging, sentence

UNIT = 16_000
SUM = ("what", "is", "twelve", "minus", "five")


def pcm16(sound: NDArray[np.float32]) -> bytes:
    return (np.clip(sound, -1, 1) * 32767).astype("<i2").tobytes()


def heard_in_units(sound: NDArray[np.float32], ear: Utterances) -> list[str]:
    """Return what an ear tells of each second of sound."""
    whole = np.pad(sound, (0, -len(sound) % UNIT))
    told = []
    for at in range(0, len(whole), UNIT):
        utterance = ear.follow(whole[at : at + UNIT])
        told.append(ear.words(utterance) if utterance is not None else "")
    return told


def answer(recogniser: RecogniserProcess) -> Recognised:
    """Return the answer to a sum."""
    heard = recogniser.recognise(pcm16(sentence("sum")))
    assert heard is not None
    return heard


def test_shipped_grammar_is_that_of_the_domain(grammar: Path) -> None:
    assert grammar.read_text() == MINI.grammar()


def test_recogniser_distinguishes_sentences_inside_and_outside_grammar(grammar: Path) -> None:
    recogniser = Recogniser(grammar.read_text())
    inside, outside = (recogniser.recognise(pcm16(sentence(name))) for name in ("sum", "weather"))
    assert inside is not None
    assert (inside.words, inside.is_complete) == (SUM, True)
    assert inside.fit > FIT
    assert outside is None or outside.fit < FIT or not outside.is_complete
    assert recogniser.recognise(bytes(2 * UNIT)) is None


def test_a_beginning_is_no_complete_sentence(grammar: Path) -> None:
    sound = sentence("sum", tail_s=0)
    heard = Recogniser(grammar.read_text()).recognise(pcm16(sound[: round(0.55 * len(sound))]))
    assert heard is None or not heard.is_complete or heard.words != SUM


def test_a_word_without_pronunciation_is_refused() -> None:
    with pytest.raises(ValueError, match="has no xyzzyq"):
        Recogniser("#JSGF V1.0;\ngrammar words;\npublic <word> = hello | xyzzyq;\n")


def test_words_come_with_the_unit_in_which_the_sentence_ended(recogniser: RecogniserProcess) -> None:
    told = heard_in_units(sentence("sum", lead_s=1.2, tail_s=1.0), Utterances(recogniser))
    assert [words for words in told if words] == [" ".join(SUM)]
    spoken_s = len(sentence("sum", lead_s=0, tail_s=0)) / UNIT
    assert told.index(" ".join(SUM)) in (int(1.2 + spoken_s), int(1.2 + spoken_s) + 1)


@pytest.mark.parametrize("name", ["weather", "noise", "noisy sum"])
def test_out_of_grammar_speech_and_noise_yield_no_words(name: str, recogniser: RecogniserProcess) -> None:
    random = np.random.default_rng(1)
    noise = (random.standard_normal(4 * UNIT) * 0.05).astype(np.float32)
    sound = {"weather": sentence("weather", lead_s=1, tail_s=1), "noise": noise}.get(name)
    if sound is None:
        sound = noise.copy()
        spoken = sentence("sum")[: len(sound)]
        sound[: len(spoken)] += spoken
    assert not any(heard_in_units(sound, Utterances(recogniser)))


def test_endless_talk_costs_no_recognition_and_little_memory() -> None:
    class Counting:
        asked = 0

        def start(self) -> None:
            """Nothing is started."""

        def recognise(self, sound: bytes) -> Recognised | None:
            self.asked += 1
            return None

    counting = Counting()
    ear = Utterances(counting)
    talk = np.concatenate([sentence("weather", lead_s=0, tail_s=0)] * 20)
    for at in range(0, len(talk) - UNIT, UNIT):
        if (utterance := ear.follow(talk[at : at + UNIT])) is not None:
            ear.words(utterance)
        assert len(ear._sound) <= LONGEST + UNIT
    assert counting.asked <= len(talk) / UNIT / 2


def test_a_killed_process_costs_one_utterance_and_comes_back(
    recogniser: RecogniserProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "REST_S", 0.0)
    assert recogniser._process is not None
    os.kill(recogniser._process.pid, signal.SIGKILL)
    assert recogniser.recognise(pcm16(sentence("sum"))) is None
    assert answer(recogniser).words == SUM


def test_session_starts_recogniser_without_waiting_for_its_lock(grammar: Path) -> None:
    recogniser = RecogniserProcess(grammar)
    with recogniser._lock:  # as it is held while an answer is awaited
        Utterances(recogniser)
    assert recogniser._process is None
    Utterances(recogniser)
    assert recogniser._process is not None
    recogniser.close()


def test_a_late_answer_is_not_taken_for_that_to_the_next_utterance(
    recogniser: RecogniserProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = recogniser._process
    with hanging(recogniser), monkeypatch.context() as hurried:
        hurried.setattr(process_module, "ANSWER_S", 0.1)
        for _ in range(2):  # the second finds that it is not answered yet
            assert recogniser.recognise(pcm16(sentence("weather")[:UNIT])) is None
    assert answer(recogniser).words == SUM
    assert recogniser._process is process


def test_frozen_recogniser_process_is_killed(
    recogniser: RecogniserProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_module, "ANSWER_S", 0.3)
    frozen = recogniser._process
    assert frozen is not None
    os.kill(frozen.pid, signal.SIGSTOP)
    monkeypatch.setattr(process_module, "HUNG_S", 0.1)
    assert recogniser.recognise(pcm16(np.tile(sentence("sum"), 4))) is None
    assert frozen.poll() is not None
    assert recogniser.recognise(pcm16(sentence("sum"))) is None, "it rests after a failure"
