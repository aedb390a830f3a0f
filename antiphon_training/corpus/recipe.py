"""The sizes and default settings of the models that the recipe trains."""

from copy import copy

from transformers import LlamaConfig, Qwen3Config

from antiphon_training.domains.domain import Domain
from inference_service.models.config import AudioConfig, SpeechConfig, TurnBound, VisionConfig, VocoderConfig
from inference_service.models.pacing import chunks

PROMPT_PREFIX = "<|im_start|>system\n"
PROMPT_SUFFIX = "<|im_end|>"
TRANSCRIPTION_PROMPT = "<|im_start|>system\nTranscribe.<|im_end|>"
LANGUAGE = Qwen3Config(
    vocab_size=0,
    hidden_size=256,
    intermediate_size=640,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=64,
    max_position_embeddings=16_384,
    rms_norm_eps=1e-6,
    tie_word_embeddings=True,
    rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
)
"""The language model, without the size of its vocabulary; `language` adds that."""
AUDIO = AudioConfig(hidden=192, blocks=9, kernel=13, expansion=2, pool=5)
VISION = VisionConfig(image_size=64, hidden=128, queries=4)
SPEECH = SpeechConfig(
    codes=1024,
    codes_per_second=25,
    audio_bos_token_id=11,
    repetition_penalty=1.0,
    repetition_window=16,
    top_k=25,
    backbone=LlamaConfig(
        vocab_size=1,
        bos_token_id=None,
        eos_token_id=None,
        hidden_size=256,
        intermediate_size=640,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=4096,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
    ),
)
VOCODER = VocoderConfig(codes=1024, sample_rate_hz=24_000, frames_per_code=4, bands=64)

CONTEXT_LIMIT = 2048
WINDOW_HIGH = 512
WINDOW_LOW = 384
REST = 4
"""The units of listening after a turn that the turn bound ended."""
DUPLEX_DEFAULTS = {
    "force_listen_count": 3,
    "max_new_speak_tokens_per_chunk": 20,
    "temperature": 0.3,
    "top_k": 20,
    "top_p": 0.8,
    "text_repetition_penalty": 1.05,
    "text_repetition_window_size": 512,
    "length_penalty": 1.1,
    "listen_prob_scale": 1.0,
    "tts_temperature": 0.3,
}
"""The settings of a session with an empty `config`: low temperatures suit a model this small."""


def language(tokens: int) -> Qwen3Config:
    """Return the language model's config for a tokenizer of `tokens` tokens."""
    config = copy(LANGUAGE)
    config.vocab_size = -(-tokens // 32) * 32
    return config


def turn_bound(domain: Domain) -> TurnBound:
    """Return the bound of a turn: one unit more than the longest answer.

    Without it the model may not end a turn while a user talks over it all the time.
    """
    return TurnBound(units=1 + max(len(chunks(reply)) for reply in domain.replies()), rest=REST)
