"""Conformance tests of every model family, run with tiny models and with a package's own model folder."""

import random
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from inference_service.device.rows import Rows
from inference_service.engine.batch.decoder import Segment
from inference_service.engine.runtime import Runtime
from inference_service.engine.tick import Tick
from inference_service.errors import ConfigurationError
from inference_service.families import table
from inference_service.families.family import DTYPE, Build
from inference_service.families.warmup import warm_up
from inference_service.interface.engine import Done, End, Piece, Prefilled
from inference_service.interface.setups import DuplexSetup, Mode, UnitInput, UnitOverrides, Window, WindowMode
from inference_service.options import DTYPES
from inference_service.session.base.session import Stage
from tests.inference_service.device.meter import Meter
from tests.inference_service.engine.support.guests import MAKERS, Guest, guests, noise, play
from tests.inference_service.engine.support.left import is_clean
from tests.inference_service.engine.support.talker import Talker
from tests.inference_service.families.conformance import subjects

CPU = torch.device("cpu")
SLOTS = 3
WINDOW = Window(WindowMode.BASIC, 200, 160)
CLOSE = 1e-4
"""Largest difference between samples of sound, full scale at 1."""


@pytest.fixture(scope="module", params=subjects.names())
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return subjects.write(request.param, tmp_path_factory.mktemp("family") / "tiny")


@pytest.fixture(scope="module")
def build(folder: Path) -> Build:
    return table.load(folder, CPU)


@pytest.fixture(scope="module")
def runtime(build: Build) -> Runtime:
    """A runtime with clean slots; whoever uses one leaves it clean."""
    return build(SLOTS)


def alone(runtime: Runtime, seed: int, count: int) -> list[Guest]:
    """Return the same crowd after each of it had the model to itself."""
    crowd = guests(runtime.info, seed, count)
    for guest in crowd:
        guest.passing = False
        play(runtime, [guest], random.Random(0), [0])
    return crowd


def require_same(guest: Guest, own: Guest) -> None:
    """Fail unless a guest was told what it is told alone."""
    assert guest.summary() == own.summary()
    np.testing.assert_allclose(guest.sound, own.sound, atol=CLOSE)


@pytest.mark.parametrize("by_rows", [True, False], ids=["as on a CPU", "as on a GPU"])
@pytest.mark.sample("*as on a CPU")
def test_session_in_crowd_answers_as_when_alone(
    runtime: Runtime, by_rows: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    crowd = guests(runtime.info, 1, 6)
    with monkeypatch.context() as patched:
        patched.setattr(runtime, "by_rows", by_rows)
        play(runtime, list(crowd), random.Random(1), list(range(SLOTS)))
    assert all(is_clean(decoder.cache) for decoder in runtime.decoders), "something is left of them"
    for guest, own in zip(crowd, alone(runtime, 1, 6), strict=True):
        if not guest.passing:
            require_same(guest, own)
    assert any(isinstance(event, Piece) for guest in crowd for event in guest.told), "nobody said anything"


def test_poisoned_session_fails_alone_and_its_slot_is_clean(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of one session become NaN, as those of a defective kernel would."""
    think, sick = runtime.think, 1

    def poisoned(segment: Segment) -> Segment:
        width = runtime.language.embed_ids(torch.zeros(1, dtype=torch.long)).shape[1]
        bad = Rows.of(torch.full((len(segment.rows), width), torch.nan))
        return replace(segment, rows=bad) if segment.slot == sick else segment

    crowd = guests(runtime.info, 2, SLOTS)
    for guest in crowd:
        guest.passing = False
    for slot, guest in enumerate(crowd):
        guest.enter(runtime, slot)
    tick = Tick(runtime)
    tick.run([guest.session for guest in crowd if guest.session])  # prompts are read
    with monkeypatch.context() as patched:
        patched.setattr(runtime, "think", lambda segments: think([*map(poisoned, segments)]))
        for _ in range(10_000):
            for guest in crowd:
                if guest.has_more:
                    guest.send()
            tick.run([guest.session for guest in crowd if guest.session])
            for guest in crowd:
                guest.listen()
            if all(guest.is_over for slot, guest in enumerate(crowd) if slot != sick):
                break
    for slot in range(SLOTS):
        runtime.clear(slot)

    own = alone(runtime, 2, SLOTS)
    for slot in range(SLOTS):
        if slot != sick:
            require_same(crowd[slot], own[slot])
    session = crowd[sick].session
    failed = [event for event in crowd[sick].told if isinstance(event, Done | Prefilled) and event.failure]
    assert failed or (session is not None and session.stage is Stage.FAILED)
    assert all(is_clean(decoder.cache) for decoder in runtime.decoders)


@pytest.mark.sample("MiniCPM-o", "Moshi")
def test_conversation_with_a_window_goes_on_in_bounded_memory(runtime: Runtime) -> None:
    info = runtime.info
    rng = random.Random(4)
    slides = WINDOW.mode in info.windows
    count = 40 if slides else info.context_limit + 20
    shortest = min((info.unit_format, *info.other_formats), key=lambda it: it.seconds)
    second = shortest.samples / 16_000
    units = [(UnitInput(noise(rng, second)), UnitOverrides()) for _ in range(count)]
    window = WINDOW if slides else info.window
    setup = DuplexSetup("Be brief.", info.duplex_defaults, window, 4, format=shortest)
    guest = Guest(setup, [*units])
    if Mode.AUDIO not in info.modes:
        with pytest.raises(TypeError, match="takes no DuplexSetup"):
            guest.enter(runtime, 0)
        return
    play(runtime, [guest], rng, [0])

    held = [event.context_tokens for event in guest.told if isinstance(event, Done)]
    assert len(held) == len(units)
    assert max(held) <= info.context_limit
    if slides:
        assert any(later < before for before, later in pairwise(held)), "it never slid"
    else:
        assert held[-1] == info.context_limit, "a context that rolls is full in the end"


def test_conversation_taken_back_goes_on_as_if_it_had_been_silent(runtime: Runtime) -> None:
    if Mode.AUDIO not in runtime.info.modes:
        return
    talks = {"prompt": "Be brief.", "listen_prob_scale": 0.0}
    back, silent = (Talker(slot, where=runtime, **talks) for slot in (0, 1))
    back.unit(force_listen=True)
    silent.unit(force_listen=True)
    for _ in range(3):
        back.unit()
        silent.unit(force_listen=True)
    assert any(end in (End.CHUNK, End.TURN) for end in back.ends), "it said nothing that could be taken back"

    assert back.rewind(1).failure is None
    after, expected = back.after(), silent.after()
    for talker in (back, silent):
        talker.leave()

    assert torch.allclose(after, expected, atol=CLOSE)


def test_ticks_wait_for_the_device_where_it_is_counted_alone(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Downloads and uploads go through `device.transfer`; any other copy would stop a GPU unseen."""
    monkeypatch.setattr(runtime, "by_rows", False)
    for decoder in runtime.decoders:
        monkeypatch.setattr(decoder, "_layers", None)  # the kernels, which only a CPU has
    rng = random.Random(5)
    make = next(make for mode, make in MAKERS.items() if mode in runtime.info.modes)
    guest = make(rng, replace(runtime.info, sees=False))
    guest.enter(runtime, 0)
    assert guest.session is not None
    tick, meter = Tick(runtime), Meter(monkeypatch)
    guest.send()
    with meter:
        while tick.has_work([guest.session]):
            tick.run([guest.session])
    runtime.clear(0)

    assert dict(meter.others) == {}


def test_footprint_holds_what_sessions_have(folder: Path, build: Build, runtime: Runtime) -> None:
    held = sum(decoder.cache.nbytes for decoder in runtime.decoders)
    if build.footprint is None:
        with pytest.raises(ConfigurationError):
            table.footprint(folder, CPU)
        return
    told = table.footprint(folder, CPU)
    assert told.session == build.footprint.session
    assert held <= told.states(SLOTS)
    assert sum(told.weights.values()) > 0


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.sample("*-bfloat16")
def test_numbers_are_taken_or_refused(folder: Path, dtype: str) -> None:
    family = table.family_of(folder)
    if DTYPE not in family.takes:
        with pytest.raises(ConfigurationError, match=r"^dtype is for .*; leave it out for this model\.$"):
            table.load(folder, CPU, dtype=dtype)
        return
    made = table.load(folder, CPU, dtype=dtype)(1)
    assert made.language.cache.keys.dtype is getattr(torch, dtype)
    warm_up(made)
