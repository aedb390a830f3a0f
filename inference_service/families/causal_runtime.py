"""The runtime of any causal language model in transformers: chats and token streams."""

import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from inference_service.checkpoints.causal import CausalCheckpoint
from inference_service.device.rows import Rows
from inference_service.engine.batch.decoder import PackedDecoder, Segment
from inference_service.engine.batch.memory import bytes_per_row
from inference_service.engine.batch.pages import slot_rows
from inference_service.engine.runtime import CPU_ROWS, Runtime
from inference_service.families.memory.footprint import Footprint
from inference_service.families.memory.working_memory import (
    DECODER_SHAPES,
    forward_bytes,
    kernel_bytes,
    token_bytes,
)
from inference_service.interface.engine import ModelInfo
from inference_service.interface.setups import (
    ChatSetup,
    DuplexSettings,
    Mode,
    TokensSetup,
    Window,
)
from inference_service.models.errors import CheckpointError
from inference_service.session.kinds.chat import ChatKind
from inference_service.session.kinds.prompt import Dialogue, call_grammar
from inference_service.session.kinds.tokens import TokensKind

_PROBE = 12
"""Tokens of the test input for a model."""
_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.05}
"""Largest difference between packed and plain scores, as a fraction of the largest score."""


class CausalRuntime(Runtime):
    """Loaded weights with their caches."""

    def __init__(self, loaded: CausalCheckpoint, context_limit: int, slots: int) -> None:
        embeddings = loaded.model.get_input_embeddings()
        language = PackedDecoder(loaded.model.get_decoder(), slots, context_limit, embeddings=embeddings)
        super().__init__(
            model_info(loaded, context_limit),
            language,
            loaded.model.get_output_embeddings(),
        )
        self.kinds[TokensSetup] = TokensKind(self, loaded.tokenizer, loaded.ends)
        if loaded.template is not None:
            nothing = torch.tensor([], dtype=torch.long)
            vocabulary = loaded.model.get_output_embeddings().weight.shape[0]
            dialogue = Dialogue(
                loaded.template,
                context_limit,
                loaded.ends,
                forbidden=nothing,
                grammar=call_grammar(loaded.template, vocabulary, loaded.ends),
            )
            self.kinds[ChatSetup] = ChatKind(self, dialogue)


def model_info(loaded: CausalCheckpoint, context_limit: int) -> ModelInfo:
    """Return the description of a model."""
    modes = {Mode.TOKENS} | ({Mode.CHAT} if loaded.template else set())
    return ModelInfo(
        name=loaded.name,
        context_limit=context_limit,
        input_sample_rate_hz=0,
        output_sample_rate_hz=0,
        unit_seconds=0.0,
        duplex_defaults=DuplexSettings(),
        window=Window(),
        modes=frozenset(modes),
        sampling_defaults=loaded.sampling,
        speaks=False,
        replays_turns=loaded.template is not None,
        vocabulary=loaded.model.get_input_embeddings().weight.shape[0],
        calls_tools=loaded.template is not None and loaded.template.calls is not None,
    )


# ------------------------------------------------------------------------------------ checks of a model


@torch.inference_mode()
def require_packable(loaded: CausalCheckpoint) -> None:
    """Check that the model scores tokens in pieces, beside another session, as it scores them alone.

    Its attention must use transformers' attention interface, and depend only on keys and values of equal
    size. Raises `CheckpointError`.
    """
    model = loaded.model
    _require_known_windows(loaded)
    ids = torch.arange(_PROBE, device=model.device) * 7919 % model.get_input_embeddings().weight.shape[0]
    try:
        plain = model(input_ids=ids[None], use_cache=False).logits[0].float()
        packed = _packed_scores(model, ids)
    except Exception as error:  # layers that do not support packed rows raise errors of any type
        if "mkldnn" in str(error).lower():
            raise _unservable(
                loaded, "its layers compute with weights that are packed for linear layers"
            ) from None
        raise _unservable(loaded, f"its layers do not run over packed rows ({error})") from None
    if plain.isnan().any():
        cause = "its layers compute with weights that are packed for linear layers, or its weights are broken"
        raise _unservable(loaded, f"its scores are NaN: {cause}")
    worst = float((plain - packed).abs().max())
    if not worst <= _TOLERANCE[model.dtype] * float(plain.abs().max()):
        raise _unservable(loaded, f"its scores of packed rows differ by up to {worst:.3g} from its own")


def _packed_scores(model: PreTrainedModel, ids: Tensor) -> Tensor:
    """Return scores [n, vocabulary] of ids fed to slot 1 in two pieces, beside other rows in slot 0."""
    decoder = PackedDecoder(model.get_decoder(), 2, len(ids), embeddings=model.get_input_embeddings())
    head: nn.Module = model.get_output_embeddings()
    rows = Rows.of_ids(ids.tolist())
    first = len(ids) // 2
    hidden = [
        decoder.forward([Segment(0, 0, 0, rows[2:5]), Segment(1, 0, 0, rows[:first])])[1],
        decoder.forward([Segment(0, 3, 3, rows[:1]), Segment(1, first, first, rows[first:])])[1],
    ]
    scores: Tensor = head(torch.cat(hidden))
    return scores.float()


def _require_known_windows(loaded: CausalCheckpoint) -> None:
    config = loaded.model.config.get_text_config(decoder=True)
    kinds = set(getattr(config, "layer_types", None) or ())
    unknown = sorted(kinds - {"full_attention", "sliding_attention"})
    if unknown:
        raise _unservable(loaded, f"it has layers of type {', '.join(unknown)}")
    slides = "sliding_attention" in kinds or (not kinds and getattr(config, "sliding_window", None))
    if slides and not loaded.model._supports_flash_attn:
        raise _unservable(loaded, "its layers do not pass their sliding window to the attention function")


def _unservable(loaded: CausalCheckpoint, reason: str) -> CheckpointError:
    return CheckpointError(f"A model of type {loaded.kind!r} cannot be served: {reason}.")


# ------------------------------------------------------------------------------------------------- memory


def causal_footprint(
    config: PretrainedConfig,
    dtype: torch.dtype,
    context_limit: int,
    device: torch.device,
    weights: dict[str, int] | None = None,
) -> Footprint:
    """Return the memory of a decoder's sessions, and of its `weights` if they are not loaded yet."""
    rows = CPU_ROWS if device.type == "cpu" else Runtime.budget
    return Footprint(
        weights or {},
        {"context": slot_rows(context_limit) * bytes_per_row(config, dtype)},
        {"kernels": kernel_bytes(DECODER_SHAPES, dtype, device)},
        working={"forward": forward_bytes(config, dtype, rows, context_limit, device)},
        together=token_bytes(config, dtype, slot_rows(context_limit), device),
        separate=device.type == "cuda",
    )
