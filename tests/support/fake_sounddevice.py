"""A fake of the module `sounddevice`: a test supplies its input and reads its output."""

from collections.abc import Callable
from typing import Any

import numpy as np


class PortAudioError(Exception):
    """As sounddevice raises it."""


class Stream:
    def __init__(self, devices: "Devices", **settings: Any) -> None:
        self.devices = devices
        self.settings = settings
        self.is_running = False
        self.is_closed = False

    def start(self) -> None:
        if self.devices.refuses_start:
            raise PortAudioError("Error starting stream: Device unavailable [PaErrorCode -9985]")
        self.is_running = True

    def close(self) -> None:
        """As PortAudio, which tells the end of a running stream, too."""
        was_running, self.is_running = self.is_running, False
        self.is_closed = True
        if was_running:
            self.settings["finished_callback"]()

    def stop_by_itself(self) -> None:
        self.is_running = False
        self.settings["finished_callback"]()


class Devices:
    """A replacement of the module: `monkeypatch.setitem(sys.modules, "sounddevice", Devices(...))`."""

    PortAudioError = PortAudioError

    def __init__(self, rate_hz: int | None = None) -> None:
        self.rate_hz = rate_hz
        """The one rate that the devices have; None: any."""
        self.inputs: list[Stream] = []
        self.outputs: list[Stream] = []
        self.missing: tuple[str, ...] = ()
        """Sides without a device: `input`, `output`."""
        self.refuses_start = False
        self.on_input: Callable[[Stream], None] = lambda stream: None
        self.on_output: Callable[[Stream], None] = lambda stream: None

    def query_devices(self, device: int | str | None, kind: str) -> dict[str, Any]:
        if kind in self.missing:
            raise PortAudioError(f"Error querying device {device or -1}")
        if isinstance(device, str):
            raise ValueError(f"No {kind} device matching {device!r}")
        return {"name": "fake", "default_samplerate": float(self.rate_hz or 44_100)}

    def check_input_settings(self, *, samplerate: float, **settings: Any) -> None:
        if self.rate_hz not in (None, samplerate):
            raise PortAudioError("Invalid sample rate [PaErrorCode -9997]")

    check_output_settings = check_input_settings

    def InputStream(self, **settings: Any) -> Stream:
        self.inputs.append(Stream(self, **settings))
        self.on_input(self.inputs[-1])
        return self.inputs[-1]

    def OutputStream(self, **settings: Any) -> Stream:
        self.outputs.append(Stream(self, **settings))
        self.on_output(self.outputs[-1])
        return self.outputs[-1]

    def record(self, samples: np.ndarray) -> None:
        """The microphone hears this, in whole blocks and what is left."""
        record(self.inputs[-1], samples)

    def played(self, frames: int) -> np.ndarray:
        return played(self.outputs[-1], frames)


def record(stream: Stream, samples: np.ndarray) -> None:
    """Call the callback of an input; PortAudio uses its array again."""
    size = stream.settings["blocksize"]
    shared = np.zeros((size, 1), np.float32)
    for start in range(0, len(samples), size):
        block = samples[start : start + size]
        shared[: len(block), 0] = block
        stream.settings["callback"](shared[: len(block)], len(block), None, None)
        shared[:] = np.nan


def played(stream: Stream, frames: int) -> np.ndarray:
    out = np.full((frames, 1), np.nan, np.float32)
    stream.settings["callback"](out, frames, None, None)
    return out[:, 0]
