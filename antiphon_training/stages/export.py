"""The last stage: export of the trained parts as one checkpoint folder in the Hugging Face layout."""

import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from antiphon_training.corpus.recipe import (
    AUDIO,
    CONTEXT_LIMIT,
    DUPLEX_DEFAULTS,
    LANGUAGE,
    PROMPT_PREFIX,
    PROMPT_SUFFIX,
    SPEECH,
    TRANSCRIPTION_PROMPT,
    VISION,
    VOCODER,
    WINDOW_HIGH,
    WINDOW_LOW,
    turn_bound,
)
from antiphon_training.domains.domain import Domain
from antiphon_training.stages import chat
from inference_service.recogniser.decoder import GRAMMAR, Recogniser


def config(domain: Domain, vocabulary: int) -> dict[str, Any]:
    """Return the checkpoint's `config.json`."""
    backbone = SPEECH.backbone
    config = {
        "architectures": ["DuplexModel"],
        "model_type": "antiphon_duplex",
        "name": domain.name,
        "vocab_size": vocabulary,
        "hidden_size": LANGUAGE.hidden_size,
        "intermediate_size": LANGUAGE.intermediate_size,
        "num_hidden_layers": LANGUAGE.num_hidden_layers,
        "num_attention_heads": LANGUAGE.num_attention_heads,
        "num_key_value_heads": LANGUAGE.num_key_value_heads,
        "head_dim": LANGUAGE.head_dim,
        "max_position_embeddings": LANGUAGE.max_position_embeddings,
        "rope_theta": LANGUAGE.rope_parameters["rope_theta"],
        "rms_norm_eps": LANGUAGE.rms_norm_eps,
        "hidden_act": LANGUAGE.hidden_act,
        "attention_bias": LANGUAGE.attention_bias,
        "tie_word_embeddings": LANGUAGE.tie_word_embeddings,
        "audio_config": asdict(AUDIO),
        "tts_config": {
            "hidden_size": backbone.hidden_size,
            "intermediate_size": backbone.intermediate_size,
            "num_hidden_layers": backbone.num_hidden_layers,
            "num_attention_heads": backbone.num_attention_heads,
            "num_key_value_heads": backbone.num_key_value_heads,
            "max_position_embeddings": backbone.max_position_embeddings,
            "num_audio_tokens": SPEECH.codes + 1,
            "codes_per_second": SPEECH.codes_per_second,
            "audio_bos_token_id": SPEECH.audio_bos_token_id,
            "repetition_penalty": SPEECH.repetition_penalty,
            "repetition_window": SPEECH.repetition_window,
            "top_k": SPEECH.top_k,
        },
        "vocoder_config": asdict(VOCODER),
        "duplex": {
            "prompt_prefix": PROMPT_PREFIX,
            "prompt_suffix": PROMPT_SUFFIX,
            "context_limit": CONTEXT_LIMIT,
            "window_high": WINDOW_HIGH,
            "window_low": WINDOW_LOW,
            "turn_bound": asdict(turn_bound(domain)),
            "defaults": DUPLEX_DEFAULTS,
        },
        "transcription": {"prompt": TRANSCRIPTION_PROMPT},
    }
    return config | ({"vision_config": asdict(VISION)} if domain.looking else {})


def export(domain: Domain, joint: Path, speech: Path, codec: Path, tokenizer: Path, out: Path) -> None:
    """Write config, tokenizer and weights (bfloat16, the codebook float32) into `out`."""
    tensors = {k: v for k, v in torch.load(joint, weights_only=True).items() if k != "llm.lm_head.weight"}
    if not domain.looking:
        tensors = {k: v for k, v in tensors.items() if not k.startswith(("vpm.", "resampler."))}
    tensors |= {f"tts.{k}": v for k, v in torch.load(speech, weights_only=True).items()}
    tensors["vocoder.codebook"] = torch.load(codec, weights_only=True)["codebook"]
    vocabulary = len(tensors["llm.model.embed_tokens.weight"])
    out.mkdir(parents=True, exist_ok=True)
    # Pitch needs more precision than the three digits of bfloat16, so the codebook stays in float32.
    stored = {k: v.float() if k == "vocoder.codebook" else v.to(torch.bfloat16) for k, v in tensors.items()}
    save_file({k: v.contiguous() for k, v in stored.items()}, out / "model.safetensors")
    (out / "model.safetensors").chmod(0o644)
    (out / "config.json").write_text(json.dumps(config(domain, vocabulary), indent=1) + "\n")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (tokenizer / name).resolve() != (out / name).resolve():
            shutil.copy(tokenizer / name, out / name)
    (out / "chat_template.jinja").write_text(chat.template(with_tools=domain.tool is not None))
    _write_grammar(domain.grammar(), out / GRAMMAR)
    size = (out / "model.safetensors").stat().st_size / 1e6
    print(f"{out}: {sum(v.numel() for v in tensors.values()) / 1e6:.2f} M parameters, {size:.1f} MB")


def _write_grammar(grammar: str, path: Path) -> None:
    """Write the recogniser's grammar; skip it with a message if a word has no known pronunciation."""
    path.unlink(missing_ok=True)
    try:
        Recogniser(grammar)
    except ValueError as error:
        print(f"{error} The model is exported without a speech recogniser.")
        return
    path.write_text(grammar)
