"""The voice of MiniCPM-o: its converted vocoder, and its default voice."""

import hashlib
from collections import OrderedDict
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from weakref import WeakValueDictionary

import torch

from antiphon.audio.wav import decode_wav, is_wav, read_header
from antiphon.contract import Reason
from antiphon.errors import AudioError
from inference_service.checkpoints import vocoder, voices
from inference_service.checkpoints.voices import DEFAULT_VOICE, LONGEST_S, VoiceReader
from inference_service.device.side_stream import Arrival, SideStream
from inference_service.errors import ConfigurationError, UnitRefused
from inference_service.interface.setups import VoiceReference
from inference_service.media.mel import SAMPLE_RATE
from inference_service.models.errors import CheckpointError, VoiceError
from inference_service.models.speech_head import SpeechHead
from inference_service.models.token2wav.config import (
    FRAMES_PER_TOKEN,
    GENERATED_FRAMES,
    RATE_HZ,
    TOKENS_PER_SECOND,
    Token2WavConfig,
)
from inference_service.models.token2wav.features import resampled
from inference_service.models.token2wav.flow import VoicePrompt, drained, next_portion
from inference_service.models.token2wav.model import DEFAULT_STEPS, Token2Wav
from inference_service.models.token2wav.seconds import BATCHES, COPIES
from inference_service.models.token2wav.sizes import stream_bytes, voice_bytes, weight_bytes
from inference_service.models.token2wav.stream import StreamCodes, StreamState, VoiceCache
from inference_service.options import SpeechOptions
from inference_service.session.kinds.components import Pcm, SpeechCodes, SpeechComponents

FOLDER = "vocoder"
"""The folder of the converted vocoder within the model's folder."""
PUBLISHED_VOICE = Path("assets") / "HT_ref_audio.wav"
"""The reference voice that is published with the model."""
LONGEST_HEARD_S = 30.0
LONGEST_FRAMES = round(LONGEST_S * TOKENS_PER_SECOND) * FRAMES_PER_TOKEN
"""Mel frames of the longest voice."""


@dataclass(frozen=True)
class VoiceMemory:
    """Bytes of a voice: weights of the vocoder, state of each session, shared default voice, and a step."""

    weights: int
    session: dict[str, int]
    default_voice: int
    step: int
    """Bytes of each stream in a step: new caches beside the old, and the arrays of HiFT."""
    captured: int = 0
    """Memory of captured seconds, if there are any."""


def load(
    model: Path, head: SpeechHead, capacity: int, device: torch.device, options: SpeechOptions
) -> tuple[SpeechComponents, VoiceMemory]:
    """Return the voice of the checkpoint in `model`, on `device`, and the memory it takes.

    Raises `CheckpointError` if there is no vocoder or it has no voice, `ConfigurationError` if
    `options.voice` cannot be used.
    """
    folder = options.vocoder or model / FOLDER
    require_folder(folder, model)
    dtype = getattr(torch, options.vocoder_dtype or "float32")
    token2wav = vocoder.load(folder, device, steps=options.vocoder_steps or DEFAULT_STEPS, dtype=dtype)
    known = token2wav.config.encoder.vocabulary
    if head.config.codes > known:
        raise CheckpointError(
            f"The speech head of {model} has {head.config.codes} codes; the vocoder in {folder} has only "
            f"{known}. Take both from one checkpoint."
        )
    registered = voices.load_voices(folder, token2wav.config)
    reader = _reader(folder, token2wav.config, required=options.voice is not None)
    registry = VoiceRegistry(registered, reader)
    default = _default(model, options)
    try:
        own = registry.prompt(default)
    except UnitRefused as refused:
        raise ConfigurationError(f"{options.voice}: {refused.failure.message}") from None
    if own is None:
        raise CheckpointError(
            f"{folder} has no default voice. Pass --voice WAV, or convert the vocoder again with --voice WAV."
        )
    speaks = SpeechComponents(
        head,
        Token2WavMouth(token2wav, own),
        capacity,
        prompts=registry,
        default=default,
        ids=frozenset(registered),
        can_clone=reader is not None,
    )
    return speaks, voice_memory(token2wav.config, options, len(own.mel), can_clone=reader is not None)


def require_folder(folder: Path, model: Path) -> None:
    """Raise `CheckpointError` if there is no converted vocoder, or if its files do not fit together."""
    if not (folder / vocoder.CONFIG).is_file():
        raise CheckpointError(
            f"There is no converted vocoder in {folder}. Make it once with: antiphon convert-vocoder "
            f"{model / 'assets' / 'token2wav'} {model / FOLDER}; or pass --no-speech."
        )
    vocoder.require_fitting(folder)


def _reader(folder: Path, config: Token2WavConfig, *, required: bool) -> VoiceReader | None:
    """Return the reader of recorded voices; None if onnxruntime or its files are missing, unless it is
    required.
    """
    try:
        return VoiceReader(folder, config)
    except CheckpointError:
        if required:
            raise
        return None


def _default(model: Path, options: SpeechOptions) -> VoiceReference:
    if options.voice is not None:
        pcm = recording(options.voice)
        return VoiceReference(pcm, pcm)
    published = model / PUBLISHED_VOICE
    heard = recording(published) if published.is_file() else None
    return VoiceReference(heard, voice_id=DEFAULT_VOICE)


def recording(path: Path) -> Pcm:
    """Return the samples of a mono WAV file at 16 kHz of at most 30 s. Raises `ConfigurationError`."""
    try:
        raw = path.read_bytes()
        header = read_header(raw) if is_wav(raw) else None
        rate_hz = header[0].rate_hz if header else SAMPLE_RATE
        pcm = torch.from_numpy(decode_wav(raw, path, rate_hz))
    except OSError as error:
        raise ConfigurationError(f"Cannot read {path}: {error.strerror}.") from None
    except AudioError as error:
        raise ConfigurationError(f"Cannot use {path} as a voice: {error}") from None
    return resampled(pcm, rate_hz, SAMPLE_RATE).numpy()[: round(LONGEST_HEARD_S * SAMPLE_RATE)]


class Token2WavMouth:
    """The mouth of token2wav; sessions with the same voice share the cache of that voice.

    There is memory for one voice of each session. Caches of the latest voices stay while there is room.
    """

    def __init__(self, model: Token2Wav, default: VoicePrompt) -> None:
        self._model = model
        self._side = SideStream(next(model.parameters()).device)
        self._default = default
        self._own: VoiceCache | None = None
        self._heard: WeakValueDictionary[bytes, VoiceCache] = WeakValueDictionary()
        self._last: OrderedDict[bytes, VoiceCache] = OrderedDict()
        self.room = 1
        """From this number of cached voices on, besides the model's own, unused voices are dropped."""

    def initial_state(self, voice: VoicePrompt | None, seed: int) -> StreamState:
        return self._model.initial_state(drained(self._cache(voice)))

    def prepare(self, voice: VoicePrompt | None) -> Iterator[None]:
        yield from self._cache(voice)

    def _cache(self, voice: VoicePrompt | None) -> Generator[None, None, VoiceCache]:
        """Return the cache of a voice; it is computed in portions unless it is cached already."""
        if voice is None or voice is self._default:
            self._own = self._own or (yield from self._hear(self._default))
            return self._own
        parts = (voice.tokens, voice.mel, voice.speaker)
        key = hashlib.sha256(voice.salt + b"".join(it.numpy().tobytes() for it in parts)).digest()
        if key not in self._heard:
            while self._last and len(self._heard) >= self.room:
                self._last.popitem(last=False)
        heard = self._heard.get(key) or (yield from self._hear(voice))
        self._heard[key] = self._last[key] = heard
        self._last.move_to_end(key)
        return heard

    def _hear(self, voice: VoicePrompt) -> Generator[None, None, VoiceCache]:
        """Compute the cache of a voice on the side stream, which keeps the memory of each portion."""
        portions = self._model.hearing(voice)
        while True:
            cache = self._side.call(lambda: next_portion(portions))
            if cache is not None:
                return cache
            yield

    def say(self, chunks: list[SpeechCodes]) -> list[Arrival]:
        jobs = [StreamCodes(chunk.state, list(chunk.codes), ends_turn=chunk.is_last) for chunk in chunks]
        return self._side.send(lambda: self._model.step(jobs))

    def capture(self) -> None:
        """Capture whole seconds in the model's own voice; voices of sessions are not captured."""
        voice = drained(self._cache(None))
        self._side.call(lambda: self._model.capture(voice))


class VoiceRegistry:
    """Registered voices by id, and voices of recordings where onnxruntime can read them."""

    def __init__(self, registered: Mapping[str, VoicePrompt], reader: VoiceReader | None) -> None:
        self._registered = registered
        self._reader = reader

    def prompt(self, reference: VoiceReference, salt: bytes = b"") -> VoicePrompt | None:
        if reference.voice_id:
            return self._registered.get(reference.voice_id)
        pcm = reference.heard if reference.spoken is None else reference.spoken
        if pcm is None or self._reader is None:
            return None
        try:
            return self._reader.read(pcm, SAMPLE_RATE, salt)
        except VoiceError as error:
            raise UnitRefused(Reason.CONFIG_INVALID, str(error), "voice") from None


def voice_memory(
    config: Token2WavConfig, options: SpeechOptions, default_frames: int, *, can_clone: bool
) -> VoiceMemory:
    """Return the memory of a vocoder whose own voice takes `default_frames`; with `can_clone`, sessions may
    bring voices.
    """
    dtype: torch.dtype = getattr(torch, options.vocoder_dtype or "float32")
    steps = options.vocoder_steps or DEFAULT_STEPS
    voice = partial(voice_bytes, config, steps=steps, dtype=dtype, cache_dtype=dtype)
    longest = LONGEST_FRAMES if can_clone else 0
    stream = stream_bytes(config, max(default_frames, longest), steps=steps, dtype=dtype, cache_dtype=dtype)
    session = {"vocoder": stream} | ({"voice": voice(longest)} if can_clone else {})
    step = stream * 3 // 2 + RATE_HZ * config.vocoder.channels * torch.float32.itemsize
    captured = COPIES * max(BATCHES) * voice(default_frames + GENERATED_FRAMES)
    return VoiceMemory(weight_bytes(config, dtype), session, voice(default_frames), step, captured)


def planned(model: Path, options: SpeechOptions) -> VoiceMemory:
    """Return the memory of the vocoder in `model` without loading it.

    Without a vocoder in `model`, it is the memory of the published one.
    """
    folder = options.vocoder or model / FOLDER
    can_clone = find_spec("onnxruntime") is not None
    if (folder / vocoder.CONFIG).is_file():
        can_clone &= all((folder / name).is_file() for name in (voices.TOKENIZER, voices.SPEAKER_ENCODER))
    if not (folder / vocoder.CONFIG).is_file():
        return voice_memory(Token2WavConfig(), options, LONGEST_FRAMES, can_clone=can_clone)
    config = vocoder.read_vocoder_config(folder)
    own = voices.load_voices(folder, config).get(DEFAULT_VOICE) if options.voice is None else None
    return voice_memory(config, options, LONGEST_FRAMES if own is None else len(own.mel), can_clone=can_clone)
