"""MiniCPM-o: language model, ear, eye and speech head in one module, without sessions."""

import torch
from torch import nn
from transformers import Qwen3ForCausalLM

from inference_service.models.minicpmo.audio import Ear, Projection, WhisperEncoder
from inference_service.models.minicpmo.config import MiniCPMOConfig
from inference_service.models.minicpmo.vision import Eye, Resampler, SiglipEncoder
from inference_service.models.speech_head import SpeechHead


class MiniCPMO(nn.Module):
    """The model; its submodules have the published parameter names. Without speech there is no `tts`."""

    def __init__(self, config: MiniCPMOConfig, *, speech: bool = True) -> None:
        super().__init__()
        self.config = config
        hidden = config.language.hidden_size
        self.llm = Qwen3ForCausalLM(config.language)
        self.vpm = SiglipEncoder(config.vision)
        self.resampler = Resampler(config.vision, hidden)
        self.apm = WhisperEncoder(config.audio)
        self.audio_projection_layer = Projection(config.audio.width, hidden)
        self.tts = SpeechHead(config.speech, hidden, config.text_tokens) if speech else None
        self.ear = Ear(config.audio, self.apm, self.audio_projection_layer)
        self.eye = Eye(config.vision, self.vpm, self.resampler)

    @classmethod
    def hollow(cls, config: MiniCPMOConfig, *, speech: bool) -> "MiniCPMO":
        """Return a model whose parameters have no memory yet, and must be assigned."""
        with torch.device("meta"):
            model = cls(config, speech=speech)
        backbones = [model.llm.model] if model.tts is None else [model.llm.model, model.tts.model]
        for backbone in backbones:  # no checkpoint has the rotary table, which is computed
            backbone.rotary_emb = type(backbone.rotary_emb)(backbone.config)
        return model
