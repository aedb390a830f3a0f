"""How often the host waits for the device in a tick, whatever the number of sessions."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from inference_service.engine.tick import Tick
from inference_service.families import antiphon_mini
from inference_service.families.duplex_runtime import DuplexRuntime
from inference_service.interface.engine import Done
from inference_service.interface.setups import DuplexSettings, DuplexSetup, UnitInput, UnitOverrides, Window
from tests.inference_service.device.meter import Meter
from tests.inference_service.engine.support import tiny
from tests.inference_service.engine.support.guests import Guest


def crowd(count: int, *, alike: bool = False) -> tuple[DuplexRuntime, list[Guest]]:
    """Start conversations whose first units wait; those that are `alike` say the same at the same time."""
    runtime = DuplexRuntime(antiphon_mini.components(*tiny.model()), count)
    guests = []
    for slot in range(count):
        seed = 0 if alike else slot
        rng = np.random.default_rng(seed)
        units = [
            (UnitInput((0.1 * rng.standard_normal(16_000)).astype(np.float32)), UnitOverrides())
            for _ in range(3)
        ]
        settings = DuplexSettings(force_listen_count=0, listen_prob_scale=0.0)
        guest = Guest(DuplexSetup("Be brief.", settings, Window(), seed), units)
        guest.enter(runtime, slot)
        guests.append(guest)
    sessions = [guest.session for guest in guests if guest.session]
    tick = Tick(runtime)
    while tick.has_work(sessions):
        tick.run(sessions)
    return runtime, guests


def ticks(runtime: DuplexRuntime, guests: list[Guest], meter: Meter) -> list[tuple[int, int, dict[str, int]]]:
    """Copies up and down and what else is waited for, of each tick till the units of all are over."""
    sessions = [guest.session for guest in guests if guest.session]
    tick, found = Tick(runtime), []
    assert runtime.components.speech is not None
    mouth = runtime.components.speech.mouth
    mouth.say = _aside(mouth.say, meter)  # type: ignore[method-assign]
    for guest in guests:
        guest.send()
    with meter:
        while tick.has_work(sessions):
            before, meter.others = (meter.uploads, meter.downloads), type(meter.others)()
            tick.run(sessions)
            found.append((meter.uploads - before[0], meter.downloads - before[1], dict(meter.others)))
    for guest in guests:
        guest.listen()
    return found


def _aside(say: Callable[..., object], meter: Meter) -> Callable[..., object]:
    """This vocoder is on the CPU wherever the model is."""

    def said(*given: object) -> object:
        with meter.aside():
            return say(*given)

    return said


@pytest.mark.parametrize("count", [1, 6])
def test_a_tick_waits_for_the_device_once_for_tokens_and_once_for_speech(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime, guests = crowd(count)
    speaker = runtime.speaker
    assert speaker is not None
    speaker.at_once, runtime.by_rows = 5, False  # as on a GPU
    asked: list[int] = []
    choose = runtime.choose

    def chosen(hidden: list[torch.Tensor], draws: list[object]) -> list[int | None]:
        asked.append(len(draws))
        return choose(hidden, draws)  # type: ignore[arg-type]

    monkeypatch.setattr(runtime, "choose", chosen)
    found = ticks(runtime, guests, Meter(monkeypatch))

    said = [event for guest in guests for event in guest.told if isinstance(event, Done)]
    assert len(said) == count
    assert sum(event.usage.output_text_tokens for event in said) > count, "else nobody spoke"
    assert sum(asked) > count
    for uploads, downloads, others in found:
        assert downloads <= 2, "one for the language model, one for the speech head"
        assert others == {}
        assert uploads <= 1 + 1 + 2 * count + 6, "ear, language model; speech: what it begins with, its steps"
    thinking = [(up, down) for up, down, _ in found]
    assert (1, 1) in thinking, "a token alone takes one copy up and one down"


def _moved() -> None:
    """As a line of the package would move it."""
    code = compile("torch.zeros(1).to('cpu')", "<moved>", "exec")
    exec(code, {"torch": torch, "__name__": "inference_service.engine.somewhere"})


@pytest.mark.parametrize(
    "stops",
    [
        lambda: torch.zeros(1).item(),
        lambda: torch.zeros(2).tolist(),
        lambda: bool(torch.zeros(1)),
        lambda: float(torch.zeros(1)),
        lambda: torch.zeros(2)[torch.tensor([True, False])],
        lambda: torch.zeros(2).nonzero(),
        lambda: torch.tensor([1, 2]),
        lambda: torch.zeros(2).cpu(),
        lambda: torch.zeros(2).equal(torch.zeros(2)),
        _moved,
    ],
)
def test_meter_records_host_blocking_operations(
    stops: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    with Meter(monkeypatch) as meter:
        stops()
    assert meter.others
