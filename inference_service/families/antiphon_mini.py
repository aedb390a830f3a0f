"""The parts of `antiphon-mini` for the duplex runtime."""

import logging
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inference_service.device.side_stream import Arrival
from inference_service.device.transfer import upload
from inference_service.engine.batch.memory import bytes_per_row
from inference_service.engine.batch.pages import slot_rows
from inference_service.engine.runtime import Runtime
from inference_service.families.duplex_runtime import slot_capacity
from inference_service.families.memory.footprint import Footprint, stored
from inference_service.families.memory.working_memory import (
    DECODER_SHAPES,
    forward_bytes,
    kernel_bytes,
    mini_eye_bytes,
)
from inference_service.interface.engine import ModelInfo
from inference_service.interface.setups import (
    DuplexSettings,
    Mode,
    Sampling,
    Window,
    WindowMode,
)
from inference_service.media.image import decode_frame, squeeze
from inference_service.media.mel import HOP, SAMPLE_RATE, MelStream
from inference_service.media.memo import digest
from inference_service.models.audio_encoder import AudioEncoder, AudioState
from inference_service.models.config import ModelConfig
from inference_service.models.duplex import DuplexModel
from inference_service.models.errors import CheckpointError
from inference_service.models.tokenizer import Tokenizer
from inference_service.models.vocoder import Vocoder, VocoderState, filter_bytes
from inference_service.recogniser.decoder import GRAMMAR
from inference_service.recogniser.process import PACKAGE, RecogniserProcess, is_installed
from inference_service.recogniser.utterance import Utterances
from inference_service.session.kinds.components import (
    ChatRules,
    DuplexComponents,
    DuplexPrompt,
    Measure,
    Pcm,
    Sound,
    SpeechCodes,
    SpeechComponents,
    View,
)
from inference_service.session.kinds.duplex_kind import MOST_WORDS

logger = logging.getLogger(__name__)

SPEECH_CAPACITY = 512
"""Entries of speech context in a slot: about fifteen units of one turn."""
_SECONDS_AT_ONCE = 2
_SHAPES = DECODER_SHAPES + 6
"""Shapes of linear layers: those of the language model, which the speech head shares, and of other parts."""


def components(
    model: DuplexModel,
    tokenizer: Tokenizer,
    config: ModelConfig,
    recogniser: RecogniserProcess | None = None,
    *,
    reads_words: bool = False,
) -> DuplexComponents:
    """Return the parts for the runtime; without a `recogniser`, only the encoder takes sound.

    With `reads_words`, replayed units may have words from the recogniser of another worker.
    """
    second_tokens = SAMPLE_RATE // HOP // 2 // config.audio.pool
    special, size = tokenizer.special, config.language.vocab_size
    # A decision is text or a token of the unit loop; everything else would break the context's shape.
    decisions = special.decisions
    return DuplexComponents(
        info=model_info(
            config,
            chats=tokenizer.chat_template is not None,
            calls_tools=tokenizer.calls_tools,
            reads_words=reads_words or recogniser is not None,
        ),
        language=model.llm.model,
        embeddings=model.llm.model.embed_tokens,
        head=model.llm.lm_head,
        tokenizer=tokenizer,
        senses=MiniSenses(config.vision.image_size if config.vision else 0, second_tokens),
        ear=MiniEar(model.apm),
        unit_tokens=second_tokens,
        duplex_prompts=MiniPrompts(tokenizer, config),
        forbidden=tuple(i for i in range(size) if not tokenizer.is_text(i) and i not in decisions),
        chat=ChatRules(
            opens_with_space=True,
            ends=frozenset((special.im_end,)),
            forbidden=torch.tensor(
                [i for i in range(size) if not tokenizer.is_text(i) and i != special.im_end]
            ),
        ),
        eye=MiniEye(model) if config.vision else None,
        slice_tokens=config.vision.queries if config.vision else 0,
        turn_bound=config.turn_bound,
        speech=SpeechComponents(model.tts, MiniMouth(model.vocoder), SPEECH_CAPACITY),
        transcription_prompt=config.transcription_prompt,
        recogniser=partial(Utterances, recogniser) if recogniser is not None else None,
    )


def recogniser(folder: Path) -> RecogniserProcess | None:
    """Return the recogniser of a checkpoint; None without a grammar, or if `PACKAGE` is not installed."""
    grammar = folder / GRAMMAR
    if not grammar.exists():
        return None
    if not is_installed():
        logger.warning(
            "recogniser missing: %s is not installed, and the audio encoder alone understands few speakers. "
            "Install it: pip install %s",
            PACKAGE,
            PACKAGE,
        )
        return None
    return RecogniserProcess(grammar)


def footprint(folder: Path, config: ModelConfig) -> Footprint:
    """Return the memory of the checkpoint in `folder`, in float32, without the small states of ear and
    vocoder.
    """
    queries = config.vision.queries if config.vision else None
    rows = slot_capacity(config.context_limit, queries)
    session = {
        "context": slot_rows(rows) * bytes_per_row(config.language, torch.float32),
        "speech head": slot_rows(SPEECH_CAPACITY) * bytes_per_row(config.speech.backbone, torch.float32),
    }
    number, cpu = torch.float32, torch.device("cpu")
    working = {
        "forward": forward_bytes(config.language, number, Runtime.budget, rows, cpu),
        "speech": forward_bytes(config.speech.backbone, number, SPEECH_CAPACITY, SPEECH_CAPACITY, cpu),
    }
    if config.vision is not None:
        working["pictures"] = mini_eye_bytes(config.vision)
    shared = {
        "kernels": kernel_bytes(_SHAPES, number, cpu),
        "vocoder": filter_bytes(config.vocoder),
    }
    return Footprint(stored(folder, number), session, shared, working)


class MiniSenses:
    """Turns seconds of sound into log-mel [100, 80], and a picture into one slice, `side` pixels wide."""

    def __init__(self, side: int, second_tokens: int) -> None:
        """Create the senses; with a `side` of 0 the model has no vision."""
        self._side = side
        self._second_tokens = second_tokens

    def hearing(self) -> MelStream:
        return MelStream()

    def measure(self, data: bytes, *, field: str, max_slices: int | None) -> Measure:
        return Measure()

    def look(self, data: bytes, *, field: str, max_slices: int | None) -> View:
        if not self._side:
            raise ValueError("This model has no vision encoder.")
        return View((torch.from_numpy(decode_frame(data, field=field, side=self._side)),), name=digest(data))

    def frame_pixels(self, max_slices: int) -> int:
        return (4 * self._side) ** 2

    def measure_frame(self, size: tuple[int, int], max_slices: int) -> Measure:
        return Measure()

    def look_at(self, pixels: NDArray[np.uint8], max_slices: int) -> View:
        seen = squeeze(pixels, self._side)
        return View((torch.from_numpy(seen),), name=digest(seen.tobytes()))

    def clip_tokens(self, samples: int) -> int:
        return -(-samples // SAMPLE_RATE) * self._second_tokens

    def sounds(self, pcm: Pcm) -> Iterator[Sound]:
        """Yield the sounds of a clip, which is padded with silence to whole seconds."""
        pcm = np.pad(pcm, (0, -len(pcm) % SAMPLE_RATE))
        stream, size = MelStream(), SAMPLE_RATE * _SECONDS_AT_ONCE
        for at in range(0, len(pcm), size):
            piece = pcm[at : at + size]
            yield Sound(torch.from_numpy(stream.feed(piece)), len(piece) / SAMPLE_RATE, begins=at == 0)


class MiniEye:
    """The vision encoder; a batch of pictures is uploaded in one copy."""

    def __init__(self, model: DuplexModel) -> None:
        self._model = model

    def see(self, slices: list[Tensor]) -> list[Tensor]:
        device = self._model.llm.lm_head.weight.device
        return self._model.see(upload(device, *(picture.numpy() for picture in slices))) if slices else []


class MiniEar:
    """The audio encoder; it encodes a clip like a stream."""

    def __init__(self, encoder: AudioEncoder) -> None:
        self._encoder = encoder
        self._device = encoder.conv1.weight.device
        self.initial_state = encoder.initial_state
        self.encode = encoder.encode

    def listen(self, sound: Sound, state: AudioState) -> tuple[Tensor, AudioState]:
        before = self.initial_state() if sound.begins else state
        ((heard,), (after,)) = self._encoder.encode(upload(self._device, sound.features.numpy()), [before])
        return heard, after

    def capture(self, streams: int) -> None:
        """Capture nothing: the few layers are called directly."""


class MiniMouth:
    """The vocoder; it has one voice."""

    def __init__(self, vocoder: Vocoder) -> None:
        self._vocoder = vocoder

    def initial_state(self, voice: None, seed: int) -> VocoderState:
        return self._vocoder.initial_state(seed)

    def prepare(self, voice: None) -> Iterator[None]:
        return iter(())

    def say(self, chunks: list[SpeechCodes]) -> list[Arrival]:
        said = self._vocoder.decode([list(chunk.codes) for chunk in chunks], [c.state for c in chunks])
        return list(map(Arrival, said))

    def capture(self) -> None:
        """Capture nothing: the vocoder is on the CPU."""


class MiniPrompts:
    """Makes prompts of the system prompt, between a prefix and a suffix from the checkpoint."""

    def __init__(self, tokenizer: Tokenizer, config: ModelConfig) -> None:
        self._tokenizer = tokenizer
        self._prefix = tokenizer.encode_template(config.prompt_prefix)
        self._suffix = tokenizer.encode_template(config.prompt_suffix)

    def prompt(self, system_prompt: str, *, hears_voice: bool) -> DuplexPrompt:
        return DuplexPrompt([*self._prefix, *self._tokenizer.encode(system_prompt), *self._suffix], [])


def _modes(config: ModelConfig, chats: bool) -> frozenset[Mode]:
    has = {
        Mode.AUDIO: True,
        Mode.TOKENS: True,
        Mode.VIDEO: config.vision,
        Mode.CHAT: chats,
        Mode.TRANSCRIBE: config.transcription_prompt,
    }
    return frozenset(mode for mode, reason in has.items() if reason)


def model_info(
    config: ModelConfig, *, chats: bool = False, calls_tools: bool = False, reads_words: bool = False
) -> ModelInfo:
    """Return the description of a model.

    `chats` states that it has a chat template, `calls_tools` that the template takes tools, and
    `reads_words` that units may have words from a recogniser. Raises `CheckpointError` for invalid defaults.
    """
    try:
        defaults = DuplexSettings(**config.duplex_defaults)
    except TypeError as error:
        raise CheckpointError(f"config.json has unknown duplex defaults: {error}.") from None
    return ModelInfo(
        name=config.name,
        context_limit=config.context_limit,
        input_sample_rate_hz=SAMPLE_RATE,
        output_sample_rate_hz=config.vocoder.sample_rate_hz,
        unit_seconds=1.0,
        duplex_defaults=defaults,
        sampling_defaults=Sampling(temperature=defaults.temperature, top_p=defaults.top_p),
        window=Window(WindowMode.BASIC, config.window_high, config.window_low),
        modes=_modes(config, chats),
        sees=config.vision is not None,
        max_slices=int(config.vision is not None),
        vocabulary=config.language.vocab_size,
        calls_tools=calls_tools,
        speech_codes=config.speech.codes,
        codes_per_unit=config.speech.codes_per_second,
        words_per_unit=MOST_WORDS if reads_words else 0,
        replays_units=True,
        replays_turns=True,
    )
