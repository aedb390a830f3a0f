"""The tokenizer of a domain: bytes, the words of the domain as single tokens, special tokens."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from antiphon_training.domains.domain import Domain

SPECIAL = [
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>", "</image>", "<slice>", "</slice>", "<unit>",
    "</unit>", "<|audio_start|>", "<|audio_end|>", "<|audio_bos|>", "<|tts_bos|>", "<|tts_eos|>",
    "<|tts_pad|>", "<|listen|>", "<|speak|>", "<|turn_eos|>", "<|chunk_eos|>", "<|chunk_tts_eos|>",
]  # fmt: skip
MOST_TOKENS = 4096
"""The largest vocabulary; a domain with more words has some of them split into several tokens."""


def build(domain: Domain, out: Path) -> None:
    """Write `tokenizer.json` and `tokenizer_config.json` into `out`."""
    vocabulary = [*domain.words(), "system", "You are a helpful assistant.", "Answer briefly."]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=MOST_TOKENS,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=1,
        show_progress=False,
    )
    tokenizer.train_from_iterator(vocabulary, trainer)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    (out / "tokenizer_config.json").write_text(
        '{\n "tokenizer_class": "PreTrainedTokenizerFast",\n "eos_token": "<|im_end|>"\n}\n'
    )
