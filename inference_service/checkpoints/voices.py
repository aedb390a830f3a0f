"""Conversion of recordings to voice prompts, with the checkpoint's ONNX files."""

import hashlib
import threading
from collections import OrderedDict
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from inference_service.models.errors import CheckpointError, VoiceError
from inference_service.models.token2wav.config import (
    FRAMES_PER_TOKEN,
    MELS,
    RATE_HZ,
    TOKENS_PER_SECOND,
    Token2WavConfig,
)
from inference_service.models.token2wav.features import (
    HEARD_HZ,
    prompt_mel,
    resampled,
    speaker_fbank,
    tokenizer_mel,
)
from inference_service.models.token2wav.flow import VoicePrompt

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

TOKENIZER, SPEAKER_ENCODER = "speech_tokenizer_v2_25hz.onnx", "campplus.onnx"
DEFAULT_VOICE = "default"
LONGEST_S = 10.0
"""Seconds of a recording that are used, unless the operator sets another length; the published package allows
17 s.
"""
SHORTEST_S = 1.0
RATES_HZ = (16_000, 22_050, 24_000, 32_000, 44_100, 48_000)

_FOLDER = "voices"
_SILENCE = 1e-3
_CACHED_VOICES = 16
_THREADS = 4
_INSTALL = "Install with: pip install 'antiphon[minicpmo]'"


class VoiceReader:
    """Turns recordings into voice prompts, and caches the latest. Any thread may use it."""

    def __init__(self, folder: Path, config: Token2WavConfig, longest_s: float = LONGEST_S) -> None:
        """Open the ONNX files; `folder` is that of a converted vocoder.

        Raises `CheckpointError` if onnxruntime or one of the ONNX files is missing.
        """
        self._config = config
        self._longest_s = longest_s
        self._tokenizer = _session(folder / TOKENIZER, inputs=2)
        self._speaker_encoder = _session(folder / SPEAKER_ENCODER, inputs=1)
        self._known: OrderedDict[bytes, VoicePrompt] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, pcm: NDArray[np.float32], rate_hz: int = HEARD_HZ, salt: bytes = b"") -> VoicePrompt:
        """Return the voice of a mono recording, float32 [samples] in [-1, 1].

        Only its first `longest_s` seconds are used. The result is cached for callers with the same `salt`.
        Raises `VoiceError`, which says what to give instead.
        """
        pcm = self._checked(pcm, rate_hz)
        key = hashlib.sha256(salt + pcm.tobytes() + rate_hz.to_bytes(4, "little")).digest()
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        prompt = replace(self._prompt(pcm, rate_hz), salt=salt)
        with self._lock:
            self._known[key] = prompt
            while len(self._known) > _CACHED_VOICES:
                self._known.popitem(last=False)
        return prompt

    def _checked(self, pcm: NDArray[np.float32], rate_hz: int) -> NDArray[np.float32]:
        if rate_hz not in RATES_HZ:
            rates = ", ".join(map(str, RATES_HZ))
            raise VoiceError(f"A voice's recording needs one of the rates {rates} Hz; it has {rate_hz}.")
        seconds = len(pcm) / rate_hz
        if seconds < SHORTEST_S:
            raise VoiceError(f"A voice needs a recording of {SHORTEST_S:g} s or more, not {seconds:.2f} s.")
        pcm = np.ascontiguousarray(pcm[: round(self._longest_s * rate_hz)], np.float32)
        peak = float(np.abs(pcm).max())
        if not np.isfinite(peak):
            raise VoiceError("A voice's recording must be finite; it holds NaN or infinity.")
        if peak < _SILENCE:
            raise VoiceError("A voice's recording is silent. Give one with speech.")
        return pcm

    def _prompt(self, pcm: NDArray[np.float32], rate_hz: int) -> VoicePrompt:
        sound = torch.from_numpy(pcm)
        heard = resampled(sound, rate_hz, HEARD_HZ).numpy()
        tokens = torch.from_numpy(self._tokens(heard)).long()
        mel = prompt_mel(resampled(sound, rate_hz, RATE_HZ))
        frames = FRAMES_PER_TOKEN * len(tokens)
        mel = mel[torch.arange(frames).clamp(max=len(mel) - 1)]
        return VoicePrompt(tokens, mel, torch.from_numpy(self._speaker(heard)))

    def _tokens(self, heard: NDArray[np.float32]) -> NDArray[Any]:
        mel = tokenizer_mel(heard)
        tokens = _run(self._tokenizer, TOKENIZER, mel[None], np.array([mel.shape[1]], np.int32))
        tokens = tokens[: round(self._longest_s * TOKENS_PER_SECOND)]
        if not _are_tokens(tokens, self._config):
            raise CheckpointError(
                f"{TOKENIZER} does not give tokens below {self._config.encoder.vocabulary}: "
                "take all files from one vocoder."
            )
        return tokens

    def _speaker(self, heard: NDArray[np.float32]) -> NDArray[np.float32]:
        speaker = _run(self._speaker_encoder, SPEAKER_ENCODER, speaker_fbank(heard)[None]).astype(np.float32)
        if speaker.shape != (self._config.speaker,):
            raise CheckpointError(
                f"{SPEAKER_ENCODER} gives {len(speaker)} numbers and not {self._config.speaker}: "
                "take all files from one vocoder."
            )
        return speaker


def _session(path: Path, inputs: int) -> "InferenceSession":
    try:
        import onnxruntime
    except ImportError:
        raise CheckpointError(f"Voices are read from recordings by onnxruntime. {_INSTALL}") from None
    if not path.is_file():
        raise CheckpointError(f"{path.parent} has no {path.name}. Convert the vocoder again.")
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = _THREADS
    try:
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own errors have no common base
        raise CheckpointError(f"{path} is no ONNX file that onnxruntime can run: {error}") from None
    if len(session.get_inputs()) != inputs:
        raise CheckpointError(f"{path} takes {len(session.get_inputs())} inputs and not {inputs}.")
    return session


def _run(session: "InferenceSession", name: str, *inputs: NDArray[Any]) -> NDArray[Any]:
    """Return the first output, flattened."""
    names = [it.name for it in session.get_inputs()]
    try:
        outputs = session.run(None, dict(zip(names, inputs, strict=True)))
    except Exception as error:  # as in `_session`
        raise CheckpointError(f"{name} does not accept the inputs of its kind: {error}") from None
    return np.asarray(outputs[0]).reshape(-1)


def _are_tokens(tokens: NDArray[Any], config: Token2WavConfig) -> bool:
    return len(tokens) > 0 and tokens.min() >= 0 and bool(tokens.max() < config.encoder.vocabulary)


def save_voice(folder: Path, name: str, prompt: VoicePrompt) -> None:
    """Register a voice under the id `name` in a converted vocoder's folder."""
    (folder / _FOLDER).mkdir(exist_ok=True)
    tensors = {"tokens": prompt.tokens, "mel": prompt.mel.contiguous(), "speaker": prompt.speaker}
    save_file(tensors, folder / _FOLDER / f"{name}.safetensors")


def load_voices(folder: Path, config: Token2WavConfig) -> dict[str, VoicePrompt]:
    """Load the registered voices by id; `DEFAULT_VOICE` is one of them if it was converted.

    Needs no onnxruntime. Raises `CheckpointError` naming the file at fault.
    """
    return {path.stem: _voice(path, config) for path in sorted((folder / _FOLDER).glob("*.safetensors"))}


def _voice(path: Path, config: Token2WavConfig) -> VoicePrompt:
    try:
        tensors = load_file(path)
        prompt = VoicePrompt(tensors["tokens"], tensors["mel"], tensors["speaker"])
    except (KeyError, OSError, SafetensorError):
        raise CheckpointError(f"{path} is no voice. Convert the vocoder again.") from None
    sizes = (prompt.mel.shape, prompt.speaker.shape)
    fits = sizes == ((FRAMES_PER_TOKEN * len(prompt.tokens), MELS), (config.speaker,))
    if not fits or not _are_tokens(prompt.tokens.numpy(), config):
        raise CheckpointError(f"{path} is a voice of another vocoder. Convert this one again.")
    return prompt
