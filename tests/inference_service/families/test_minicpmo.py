"""MiniCPM-o as a worker runs it: loaded from its folder, with its voice, its memory and its refusals."""

import gc
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from inference_service.checkpoints import voices
from inference_service.engine.batch.noise import Noise
from inference_service.engine.batch.speech import SpeechJob, SpeechState
from inference_service.engine.engine import LiveEngine
from inference_service.engine.tick import Tick
from inference_service.errors import ConfigurationError
from inference_service.families import loading, minicpmo, minicpmo_voice, table
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.families.family import Build
from inference_service.families.memory import footprint
from inference_service.families.warmup import warm_up
from inference_service.interface.engine import (
    Done,
    End,
    Event,
    Finalized,
    Piece,
    Prefilled,
    Ready,
    SessionFailed,
)
from inference_service.interface.setups import (
    COMMON,
    MODELS_VOICE,
    DuplexSettings,
    DuplexSetup,
    Mode,
    Tenant,
    UnitInput,
    UnitOverrides,
    VoiceReference,
    Window,
    WindowMode,
)
from inference_service.kernels import selection
from inference_service.models.errors import CheckpointError
from inference_service.models.token2wav.config import LOOK_AHEAD
from inference_service.models.token2wav.estimator import Estimator
from inference_service.models.token2wav.model import DEFAULT_STEPS, Token2Wav
from inference_service.options import SpeechOptions, WorkerOptions
from inference_service.session.base.session import Stage
from inference_service.session.kinds.duplex import DuplexSession
from inference_service.session.kinds.speech_groups import SpeechGroups
from tests.inference_service.engine.support.left import is_clean
from tests.inference_service.engine.support.reference import picture, second
from tests.inference_service.engine.test_engine import Client, Slots
from tests.inference_service.engine.test_engine import Rig as EngineRig
from tests.inference_service.models.minicpmo import published, whole
from tests.support.patience import PATIENCE_S

CPU = torch.device("cpu")
SLOTS = 2


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return whole.write(tmp_path_factory.mktemp("models") / "MiniCPM-o-tiny")


@pytest.fixture(scope="module")
def build(folder: Path) -> Build:
    return table.load(folder, CPU, 512)


class Rig(EngineRig):
    """A running engine and the sessions opened in it."""

    def __init__(self, runtime: Any) -> None:
        self.runtime: DuplexRuntime = runtime
        self.engine = LiveEngine(runtime, SLOTS, self._deliver, print)
        self.slots = Slots(self.engine)

    def open(
        self,
        voice: VoiceReference = MODELS_VOICE,
        *,
        sees: bool = False,
        window: Window | None = None,
        tenant: Tenant = COMMON,
    ) -> Client:
        settings = replace(self.engine.info.duplex_defaults, greedy=True, force_listen_count=0)
        setup = DuplexSetup("", settings, window or Window(), seed=1, sees=sees, voice=voice, tenant=tenant)
        return self.slots.open(setup)


def talk(client: Client, units: int, first: int = 1) -> list[Event]:
    events: list[Event] = []
    for number in range(first, first + units):
        client.send(number, UnitInput(second(number)))
        events += client.until(Finalized, number)
    return events


@pytest.fixture
def rig(build: Build) -> Iterator[Rig]:
    made = Rig(build(SLOTS))
    yield made
    made.engine.stop()


def test_folder_is_served_in_all_its_modes(rig: Rig) -> None:
    info = rig.engine.info
    assert info.name == "MiniCPM-o-tiny"
    assert info.modes == {Mode.AUDIO, Mode.VIDEO, Mode.CHAT, Mode.TOKENS}
    assert (info.context_limit, info.output_sample_rate_hz) == (512, 24_000)
    assert info.windows == set(WindowMode)
    assert info.voice_ids == {"anna", "default"}
    assert info.clones_voices


def test_vocoder_is_asked_for_before_anything_is_loaded_and_not_needed_without_speech(tmp_path: Path) -> None:
    silent = SpeechOptions(no_speech=True)
    published.write(tmp_path / "tiny")
    info = table.load(tmp_path / "tiny", CPU, speech=silent)(1).info
    assert not info.speaks
    assert not info.duplex_defaults.generate_audio
    assert info.output_sample_rate_hz == 0
    with pytest.raises(ConfigurationError, match="at most the model's 40960, not 50000"):
        table.load(tmp_path / "tiny", CPU, 50_000, speech=silent)
    (tmp_path / "tiny/model-00001-of-00003.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"antiphon convert-vocoder .*or pass --no-speech"):
        table.load(tmp_path / "tiny", CPU)


def test_context_too_small_for_a_conversation_is_served_all_the_same(folder: Path) -> None:
    runtime = table.load(folder, CPU, 64, speech=SpeechOptions(no_speech=True))(1)
    warm_up(runtime)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_worker_in_half_precision_warms_up_then_sees_and_speaks(folder: Path, dtype: str) -> None:
    options = WorkerOptions(
        model=str(folder), slots=SLOTS, context_limit=512, dtype=dtype, kernels=selection.selected()
    )
    engine = loading.load_engine(options, Rig._deliver, print)
    settings = replace(engine.info.duplex_defaults, greedy=True, force_listen_count=0)
    assert isinstance(engine, LiveEngine)
    client = Slots(engine).open(DuplexSetup("", settings, Window(), seed=1, sees=True))
    events: list[Event] = []
    for number in range(1, 4):
        client.send(number, UnitInput(second(number), (picture("b"),)))
        events += client.until(Finalized, number)
    engine.stop()

    assert all(event.failure is None for event in events if isinstance(event, Done))
    spoken = [event.audio for event in events if isinstance(event, Piece) and event.audio is not None]
    assert sum(map(len, spoken)) > 24_000
    assert all(np.isfinite(audio).all() for audio in spoken)


def test_session_that_has_gone_leaves_nothing_behind(rig: Rig) -> None:
    client = rig.open(VoiceReference(spoken=whole.voice(3)))
    client.until(Ready)
    (session,) = rig.engine._sessions.values()
    state = session.__dict__
    held = [weakref.ref(it) for it in (state["ear"], state["mouth"])]
    del state, session
    talk(client, 3)
    client.close()
    assert is_clean(rig.runtime.language.cache)
    rig.open().until(Ready)  # whatever the engine thread still held of the tick before
    gc.collect()
    assert [it() for it in held] == [None] * 2


def test_no_more_voices_outlive_their_sessions_than_there_are_slots(rig: Rig) -> None:
    held = []
    for seed in range(3, 4 + SLOTS):
        client = rig.open(VoiceReference(spoken=whole.voice(seed)))
        client.until(Ready)
        (session,) = rig.engine._sessions.values()
        held.append(weakref.ref(session.__dict__["mouth"].voice))
        del session
        client.close()
    rig.open().until(Ready)
    gc.collect()
    assert [it() is None for it in held] == [True] + [False] * SLOTS


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> dict[str, int]:
    """How often each thing that a voice or a prompt costs was done."""
    done: dict[str, int] = {}

    def count(where: Any, name: str) -> None:
        does = getattr(where, name)

        def counted(*given: Any, **named: Any) -> Any:
            done[name] = done.get(name, 0) + 1
            return does(*given, **named)

        monkeypatch.setattr(where, name, counted)

    count(minicpmo.MiniCPMOSenses, "sounds")
    count(minicpmo.MiniCPMOEar, "listen")
    count(minicpmo.MiniCPMOPrompts, "prompt")
    count(voices.VoiceReader, "_prompt")
    count(Token2Wav, "hearing")
    return done


def test_new_voice_is_heard_in_portions_while_units_of_others_wait(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each tick does one portion of one opening; else many callers with new voices stop everybody's units."""
    runtime, steps = build(3), list[int]()
    settings = DuplexSettings(greedy=True, force_listen_count=0)

    def open_at(slot: int, voice: VoiceReference) -> Any:
        session = runtime.open("", slot, DuplexSetup("", settings, Window(), seed=1, voice=voice), print)
        session.preprocessor.begin()
        session.stage = Stage.OPENING
        return session

    first = open_at(0, MODELS_VOICE)
    tick = Tick(runtime)
    while first.stage is Stage.OPENING or first.to_feed is not None:
        tick.run([first])
    newcomers = [open_at(slot, VoiceReference(spoken=whole.voice(30 + slot))) for slot in (1, 2)]
    estimate = Estimator.forward

    def counted(*given: Any) -> Any:
        steps[-1] += 1
        return estimate(*given)

    monkeypatch.setattr(Estimator, "forward", counted)
    monkeypatch.setattr("inference_service.engine.tick.is_urgent", lambda due, now: due is not None)
    monkeypatch.setattr(DuplexSession, "due", property(lambda session: 1e9 if session is first else None))
    started = []
    while any(session.stage is Stage.OPENING for session in newcomers):
        steps.append(0)
        tick.run([first, *newcomers])
        started.append(sum(session.stage is not Stage.OPENING for session in newcomers))

    assert sum(steps) == 2 * DEFAULT_STEPS
    assert max(steps) == 1, "one step of the flow a tick"
    assert max(b - a for a, b in zip([0, *started], started, strict=False)) == 1
    assert all(session.mouth is not None for session in newcomers)


@pytest.mark.parametrize("differs", ["sample", "tenant"])
def test_voice_and_prompt_are_computed_once_but_again_for_one_sample_or_another_tenant(
    build: Build, work: dict[str, int], differs: str
) -> None:
    """Else the time to begin would tell who has used the same recording or prompt."""
    rig, mine = Rig(build(SLOTS)), whole.voice(23 if differs == "sample" else 24)
    theirs = mine.copy()
    theirs[-1] += 0.25
    one = mine, Tenant(b"1" * 32)
    work.clear()
    for pcm, tenant in (one, (theirs, one[1]) if differs == "sample" else (mine, Tenant(b"2" * 32)), one):
        client = rig.open(VoiceReference(heard=pcm), tenant=tenant)
        client.until(Ready)
        client.close()
    rig.engine.stop()
    assert work == dict.fromkeys(("sounds", "listen", "_prompt", "hearing"), 2) | {
        "prompt": 1 if differs == "sample" else 2
    }


def test_slots_that_do_not_fit_are_refused_with_the_sum(
    folder: Path, monkeypatch: pytest.MonkeyPatch, build: Build
) -> None:
    told = table.footprint(folder, CPU, 512)
    monkeypatch.setattr(footprint, "free_bytes", lambda device: told.states(3))
    build(3)
    with pytest.raises(ConfigurationError) as refused:
        build(4)
    text = str(refused.value)
    assert text.startswith(f"4 slots need {footprint.gib(told.states(4))}: ")
    assert all(kind in text for kind in told.session)
    assert "Pass --slots 3 or less" in text


def test_language_model_hears_the_default_voice_or_the_sessions_own(rig: Rig) -> None:
    seconds = (1.5, 3.0)
    default, own = (
        rig.open(voice).until(Ready)[-1]
        for voice in (MODELS_VOICE, VoiceReference(whole.voice(1, seconds[1])))
    )
    assert isinstance(default, Ready)
    assert isinstance(own, Ready)
    rows = [rig.runtime.components.senses.clip_tokens(round(s * whole.RATE)) for s in seconds]
    assert own.prompt_tokens - default.prompt_tokens == rows[1] - rows[0]


def test_missing_parts_of_a_voice_are_the_models_own(rig: Rig) -> None:
    components, pcm = rig.runtime.components, whole.voice(1)
    assert components.speech is not None
    default = components.speech.default
    assert components.reference(MODELS_VOICE) is default
    assert components.reference(VoiceReference(spoken=pcm)).heard is default.heard
    heard = components.reference(VoiceReference(heard=pcm))
    assert heard.heard is pcm
    registry = components.speech.prompts
    assert registry is not None
    assert torch.equal(registry.prompt(heard).mel, registry.prompt(VoiceReference(spoken=pcm)).mel)


def test_recording_of_the_operator_is_the_default_voice(folder: Path, tmp_path: Path) -> None:
    whole.write_wav(tmp_path / "me.wav", whole.voice(4, 2.0))
    options = SpeechOptions(voice=tmp_path / "me.wav")
    runtime = table.load(folder, CPU, 512, speech=options)(1)
    assert isinstance(runtime, DuplexRuntime)
    assert runtime.components.speech is not None
    default = runtime.components.speech.default
    assert default.heard is not None
    np.testing.assert_allclose(default.heard, whole.voice(4, 2.0), atol=1e-4)


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [("none.wav", None, "Cannot read"), ("text.wav", b"words", "Cannot use"), ("hush.wav", None, "silent")],
)
def test_recording_that_is_no_voice_is_refused(
    folder: Path, tmp_path: Path, name: str, content: bytes | None, problem: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    elif problem == "silent":
        whole.write_wav(tmp_path / name, np.zeros(32_000, np.float32))
    with pytest.raises(ConfigurationError, match=problem):
        table.load(folder, CPU, 512, speech=SpeechOptions(voice=tmp_path / name))


def test_without_onnxruntime_registered_voices_remain(
    folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def missing(*_: object, **__: object) -> None:
        raise CheckpointError("Install with: pip install 'antiphon[minicpmo]'")

    monkeypatch.setattr(voices, "_session", missing)
    info = table.load(folder, CPU, 512)(1).info

    assert not info.clones_voices
    assert info.voice_ids == {"anna", "default"}
    whole.write_wav(tmp_path / "me.wav", whole.voice(4))
    with pytest.raises(CheckpointError, match="antiphon\\[minicpmo\\]"):
        table.load(folder, CPU, 512, speech=SpeechOptions(voice=tmp_path / "me.wav"))


def test_silent_recording_fails_its_session_alone(rig: Rig) -> None:
    well, ill = rig.open(), rig.open(VoiceReference(spoken=np.zeros(32_000, np.float32)))
    *_, failed = ill.until(SessionFailed)
    assert isinstance(failed, SessionFailed)
    assert (failed.reason, failed.field) == ("CONFIG_INVALID", "voice")
    assert "silent" in failed.message
    assert any(isinstance(event, Done) for event in talk(well, 1))


def test_session_that_leaves_while_its_voice_is_read_gives_its_slot_back(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, read = threading.Event(), threading.Event()

    def slow(self: object, reference: VoiceReference, salt: bytes) -> None:
        reading.set()
        assert read.wait(timeout=PATIENCE_S)

    monkeypatch.setattr(minicpmo_voice.VoiceRegistry, "prompt", slow)
    client = rig.open(VoiceReference(spoken=whole.voice(1)))
    assert reading.wait(timeout=PATIENCE_S)
    client.close()
    read.set()
    monkeypatch.undo()

    others = [rig.open() for _ in range(SLOTS)]
    assert [type(other.until(Ready)[-1]) for other in others] == [Ready] * SLOTS
    assert client.told.empty()


def test_pictures_with_too_many_slices_fail_their_unit_and_no_other(folder: Path) -> None:
    rig = Rig(table.load(folder, CPU, 256)(SLOTS))
    client = rig.open(sees=True)
    client.until(Ready)
    client.session.prefill(1, UnitInput(second(0), (picture("b"),) * 4, 9))
    client.session.prefill(2, UnitInput(second(1), (picture("b"),), 4))
    for number in (1, 2):
        client.session.generate(number, False, UnitOverrides())
        client.session.finalize(number)
    events = client.until(Finalized, 2)
    rig.engine.stop()

    heard = [event for event in events if isinstance(event, Prefilled)]
    assert heard[0].failure is not None
    assert (heard[0].failure.reason, heard[0].failure.field) == ("INPUT_TOO_LONG", "duplex.frames")
    assert "max_slice_nums" in heard[0].failure.message
    assert heard[1].vision_slices == 4
    assert next(event.end for event in events if isinstance(event, Done)) is End.FAILED


def test_conversation_with_a_window_that_remembers_goes_on_for_ever(folder: Path) -> None:
    build = table.load(folder, CPU, 1024, speech=SpeechOptions(no_speech=True))
    rig = Rig(build(SLOTS))
    window = Window(WindowMode.CONTEXT, 600, 560, max_units=5, remembered_tokens=20)
    client = rig.open(window=window)
    closed = [event for event in talk(client, 30) if isinstance(event, Finalized)]
    (session,) = rig.engine._sessions.values()
    memory = session.context.memory
    rig.engine.stop()
    assert max(event.context_tokens for event in closed) <= 600
    assert sum(event.dropped_units for event in closed) == 25
    assert memory is not None
    assert len(memory.ids) == 20


def test_spoken_sound_is_what_the_vocoder_owes(rig: Rig) -> None:
    client = rig.open()
    client.until(Ready)
    (session,) = rig.engine._sessions.values()
    owed = {True: 0, False: 0}
    for event in talk(client, 10):
        if isinstance(event, Piece) and event.audio is not None:
            assert np.isfinite(event.audio).all()
            owed[True] += len(event.audio)
        if isinstance(event, Done):
            owed[False] += 960 * event.usage.output_audio_tokens
            if event.end is End.TURN:  # the silence that it began with has been heard as well
                owed[False] += 960 * LOOK_AHEAD
    pending = session.__dict__["mouth"]

    # The held-back audio is at most the fade and look-ahead of an open turn, and a few codes.
    assert 0 <= owed[False] - owed[True] <= 3840 + 960 * (len(pending.pending) + 3)


def test_chinese_is_said_a_few_characters_at_a_time() -> None:
    voice = SpeechGroups(SpeechState(0, Noise(0)), 714, torch.zeros(1, 4), 0.8)
    for token, character in enumerate("今天天气很好我们出去吧"):
        voice.add(token, character, torch.zeros(4))
    voice.end(torch.zeros(4))
    said: list[SpeechJob] = []
    while voice.next():
        assert voice.job is not None
        said.append(voice.job)
    assert [len(job.tokens) for job in said] == [4, 4, 3 + 1]
    assert [job.ends_turn for job in said] == [False, False, True]
