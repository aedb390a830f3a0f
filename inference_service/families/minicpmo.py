"""The parts of MiniCPM-o for the duplex runtime."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inference_service.checkpoints.minicpmo import MiniCPMOCheckpoint
from inference_service.device.transfer import upload
from inference_service.engine.batch.pages import slot_rows
from inference_service.engine.runtime import Runtime
from inference_service.errors import ConfigurationError
from inference_service.families.duplex_runtime import slot_capacity
from inference_service.families.memory.footprint import Footprint
from inference_service.families.memory.working_memory import (
    DECODER_SHAPES,
    ear_bytes,
    eye_bytes,
    forward_bytes,
    kernel_bytes,
    layer_bytes,
    token_bytes,
)
from inference_service.families.minicpmo_voice import VoiceMemory
from inference_service.interface.engine import ModelInfo
from inference_service.interface.setups import (
    MAX_SLICES,
    DuplexSettings,
    Mode,
    TextPurpose,
    Window,
    WindowMode,
)
from inference_service.media.image import MAX_PIXELS, decode_picture, picture_size
from inference_service.media.mel import SAMPLE_RATE
from inference_service.media.memo import digest
from inference_service.models.errors import CheckpointError
from inference_service.models.minicpmo.audio import AudioState, Ear
from inference_service.models.minicpmo.config import AudioConfig, MiniCPMOConfig, VisionConfig
from inference_service.models.minicpmo.mel import HOP, LONGEST, SHORTEST, StreamingMel, clip_mels
from inference_service.models.minicpmo.sizes import sizes
from inference_service.models.minicpmo.slices import cut, slice_image
from inference_service.models.token2wav.config import RATE_HZ
from inference_service.models.tokenizer import Tokenizer
from inference_service.session.kinds.components import (
    ChatRules,
    DuplexComponents,
    DuplexPrompt,
    Interject,
    Measure,
    Pcm,
    Sound,
    SpeechComponents,
    View,
)

UNIT_TOKENS = 10
"""Embeddings of one second of sound."""
SPEECH_CAPACITY = 1024
"""Entries of speech context in a slot: about thirty units of one turn."""
CONTEXT_LIMIT = 8192
"""Tokens of a conversation, as in the reference server."""
_FRAME_DETAIL = 4
"""Limit of a video frame's pixels, as a multiple of those of its slices. Frames are scaled twice; with more
pixels than the slices have, they stay sharp.
"""
_SHAPES = 2 * DECODER_SHAPES + 20
"""Shapes of linear layers: of both decoders, and of ear, eye and vocoder."""
_SYSTEM_PROMPT = "Streaming Omni Conversation."
"""The system prompt of a session without one."""
_CHAT_ENDS = ("<|im_end|>", "<|endoftext|>", "<|tts_eos|>")


def components(
    loaded: MiniCPMOCheckpoint,
    speech: SpeechComponents | None,
    *,
    context_limit: int = CONTEXT_LIMIT,
    reference_quirks: bool = False,
) -> DuplexComponents:
    """Return the parts for the runtime. Raises `CheckpointError` for a tokenizer that lacks
    required tokens.
    """
    model, tokenizer, config = loaded.model, loaded.tokenizer, loaded.config
    special = tokenizer.special
    forbidden = sorted({*loaded.bad_token_ids, special.tts_pad, special.chunk_eos})
    return DuplexComponents(
        info=ModelInfo(
            name=loaded.name,
            context_limit=context_limit,
            input_sample_rate_hz=SAMPLE_RATE,
            output_sample_rate_hz=RATE_HZ if speech else 0,
            unit_seconds=1.0,
            duplex_defaults=DuplexSettings(generate_audio=speech is not None),
            window=Window(),
            modes=frozenset({Mode.AUDIO, Mode.VIDEO, Mode.CHAT, Mode.TOKENS}),
            sees=True,
            max_slices=MAX_SLICES,
            speaks=speech is not None,
            vocabulary=config.language.vocab_size,
            windows=frozenset(WindowMode),
            hears_voices=True,
            clones_voices=speech is not None and speech.can_clone,
            voice_ids=speech.ids if speech else frozenset(),
            text_purposes=frozenset((TextPurpose.INSTRUCTIONS, TextPurpose.THINKING, TextPurpose.COMMENTARY)),
            calls_tools=tokenizer.calls_tools,
            speech_codes=config.speech.codes,
            codes_per_unit=config.speech.codes_per_second,
            replays_units=True,
            replays_turns=True,
        ),
        language=model.llm.model,
        embeddings=model.llm.model.embed_tokens,
        head=model.llm.lm_head,
        tokenizer=tokenizer,
        senses=MiniCPMOSenses(config.audio, config.vision, model.ear),
        ear=MiniCPMOEar(model.ear),
        unit_tokens=UNIT_TOKENS,
        duplex_prompts=MiniCPMOPrompts(tokenizer),
        interject=interject_as_system(tokenizer),
        forbidden=tuple(forbidden),
        chat=ChatRules(
            ends=frozenset(_token(tokenizer, text) for text in _CHAT_ENDS),
            numbers_pictures=config.vision.use_image_id,
            hearing_opens_speech=True,
            omni_joint="",
            interleaves_videos=True,
        ),
        eye=model.eye,
        slice_tokens=config.vision.queries,
        detail_marks=(_token(tokenizer, "<slice>"), _token(tokenizer, "</slice>")),
        speech=speech,
        reference_quirks=reference_quirks,
    )


def limit(config: MiniCPMOConfig, context_limit: int | None) -> int:
    """Return the limit of tokens. Raises `ConfigurationError` for more than the model supports."""
    most = int(config.language.max_position_embeddings)
    if context_limit is not None and context_limit > most:
        raise ConfigurationError(f"context_limit must be at most the model's {most}, not {context_limit}.")
    return context_limit or min(CONTEXT_LIMIT, most)


def footprint(
    config: MiniCPMOConfig,
    dtype: torch.dtype,
    context_limit: int,
    voice: VoiceMemory | None,
    device: torch.device,
) -> Footprint:
    """Return the memory of the model, with or without its voice."""
    entries = slot_capacity(context_limit, config.vision.queries)
    own = sizes(
        config,
        dtype,
        context_entries=slot_rows(entries),
        speech_entries=slot_rows(SPEECH_CAPACITY),
        speech=voice is not None,
    )
    working = {
        "forward": forward_bytes(config.language, dtype, Runtime.budget, entries, device),
        "ear": ear_bytes(config.audio, dtype, device),
        "pictures": eye_bytes(config.vision, dtype, device),
    }
    kernels = kernel_bytes(_SHAPES, dtype, device)
    tokens = token_bytes(config.language, dtype, slot_rows(entries), device)
    separate = device.type == "cuda"
    shared = {"kernels": kernels}
    if separate:
        shared["regions"] = layer_bytes(config.language, dtype, Runtime.budget)
    if voice is None:
        return Footprint(own.weights, own.session, shared, working, together=tokens, separate=separate)
    if separate:
        shared["regions"] += layer_bytes(config.speech.backbone, dtype, Runtime.budget) + voice.captured
    speech = forward_bytes(config.speech.backbone, dtype, SPEECH_CAPACITY, SPEECH_CAPACITY, device)
    return Footprint(
        own.weights | {"vocoder": voice.weights},
        own.session | voice.session,
        shared | {"default voice": voice.default_voice},
        working | {"speech": speech},
        {"vocoder": voice.step},
        tokens,
        separate,
    )


def _token(tokenizer: Tokenizer, text: str) -> int:
    ids = tokenizer.encode_template(text)
    if len(ids) != 1:
        raise CheckpointError(f"tokenizer.json lacks {text}, which MiniCPM-o needs.")
    return ids[0]


class MiniCPMOSenses:
    """Turns seconds of sound into log-mel [80, 104], and cuts pictures into slices."""

    def __init__(self, audio: AudioConfig, vision: VisionConfig, ear: Ear) -> None:
        self._audio = audio
        self._vision = vision
        self._ear = ear

    def hearing(self) -> StreamingMel:
        return StreamingMel(self._audio.bands)

    def measure(self, data: bytes, *, field: str, max_slices: int | None) -> Measure:
        size = picture_size(data, field=field)
        columns, rows = cut(size, self._most(max_slices), self._vision.resolution).grid or (0, 0)
        return Measure(1 + columns * rows, columns)

    def look(self, data: bytes, *, field: str, max_slices: int | None) -> View:
        picture, most = decode_picture(data, field=field), self._most(max_slices)
        slices, grid = slice_image(picture, most, self._vision.resolution)
        return View(tuple(slices), grid[0] if grid else 0, digest(data, str(most)))

    def frame_pixels(self, max_slices: int) -> int:
        return min(MAX_PIXELS, _FRAME_DETAIL * max_slices * self._vision.resolution**2)

    def measure_frame(self, size: tuple[int, int], max_slices: int) -> Measure:
        columns, rows = cut(size, max_slices, self._vision.resolution).grid or (0, 0)
        return Measure(1 + columns * rows, columns)

    def look_at(self, pixels: NDArray[np.uint8], max_slices: int) -> View:
        slices, grid = slice_image(pixels, max_slices, self._vision.resolution)
        return View(
            tuple(slices), grid[0] if grid else 0, digest(pixels.tobytes(), str((pixels.shape, max_slices)))
        )

    def _most(self, max_slices: int | None) -> int:
        return self._vision.max_slices if max_slices is None else max_slices

    def clip_tokens(self, samples: int) -> int:
        lengths = [min(LONGEST, samples - begin) for begin in range(0, samples, LONGEST)]
        return sum(self._ear.clip_tokens(-(-max(length, SHORTEST) // HOP)) for length in lengths)

    def sounds(self, pcm: Pcm) -> Iterator[Sound]:
        """Yield the sounds of a clip in independent pieces of at most 30 s."""
        for mel in clip_mels(pcm, self._audio.bands):
            yield Sound(torch.from_numpy(mel), mel.shape[1] * HOP / SAMPLE_RATE, begins=True)


class MiniCPMOEar:
    """The Whisper encoder: it encodes streams with a state, and clips without one."""

    def __init__(self, ear: Ear) -> None:
        self._ear = ear

    def initial_state(self) -> AudioState:
        return self._ear.initial_state()

    def encode(self, heard: list[Tensor], states: list[AudioState]) -> tuple[list[Tensor], list[AudioState]]:
        return self._ear.encode(heard, states)

    def capture(self, streams: int) -> None:
        self._ear.capture(streams)

    def listen(self, sound: Sound, state: None) -> tuple[Tensor, None]:
        device = self._ear.encoder.conv1.weight.device
        return self._ear.encode_clips([upload(device, sound.features.numpy())])[0], None


def interject_as_system(tokenizer: Tokenizer) -> Interject:
    """Return a function that writes a text between two units as a system message, like the prompt."""
    begin, end = tokenizer.special.im_start, tokenizer.special.im_end
    return lambda text: [begin, *tokenizer.encode(f"system\n{text.text}"), end]


class MiniCPMOPrompts:
    """Makes prompts of the system prompt and then the reference voice."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._begin, self._end = tokenizer.special.im_start, tokenizer.special.im_end
        self._audio = [_token(tokenizer, text) for text in ("<|audio_start|>", "<|audio_end|>")]

    def prompt(self, system_prompt: str, *, hears_voice: bool) -> DuplexPrompt:
        text = f"system\n{system_prompt or _SYSTEM_PROMPT}"
        if not hears_voice:
            return DuplexPrompt([self._begin, *self._tokenizer.encode(text)], [self._end])
        begin, end = self._audio
        return DuplexPrompt([self._begin, *self._tokenizer.encode(text + "\n"), begin], [end, self._end])
