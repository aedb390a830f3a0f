"""Prompts of chats: a checkpoint's own chat template, in which a caller's text can only ever be text."""

import re
from collections.abc import Sequence
from enum import Enum, auto
from pathlib import Path

from jinja2 import TemplateError
from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer
from transformers import PreTrainedTokenizerFast

from inference_service.models.errors import CheckpointError

_OPEN, _CLOSE = "\ufdd0", "\ufdd1"
"""Round the number of what stands in a prompt but is no text of it; Unicode has no characters here."""
_SLOT = re.compile(f"{_OPEN}([0-9]+){_CLOSE}")
_PLAIN_TALK = [("user", "a"), ("assistant", "b"), ("user", "c")]


class Media(Enum):
    """A part of a message that is no text."""

    PICTURE = auto()
    CLIP = auto()


Part = str | Media
Message = tuple[str, Sequence[Part]]
"""A role and parts."""


class TemplateRefused(ValueError):
    """The template does not take these messages; the text says why."""


class ChatTemplate:
    """The chat template of a tokenizer, and how its prompts become ids.

    The text of messages is encoded together with the template's words round it, as the tokenizer itself would
    do, unless it spells a control token: then it is encoded by itself, as plain text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self._fast: FastTokenizer = tokenizer.backend_tokenizer
        added = self._fast.get_added_tokens_decoder()
        try:
            written = self._encode(self._rendered(_PLAIN_TALK, add_generation_prompt=False))
        except TemplateRefused as refused:
            raise CheckpointError(f"The chat template cannot be used: {refused}.") from None
        self._special = {token for token, it in added.items() if it.special}
        self._control = self._special | (added.keys() & set(written))
        self._plain = FastTokenizer.from_str(self._fast.to_str())
        # Whatever marks a role is special here, also where the checkpoint forgot to say so.
        self._plain.add_special_tokens(
            [AddedToken(added[token].content, special=True) for token in sorted(self._control)]
        )
        self._plain.encode_special_tokens = True
        self._longest = max(map(len, self._fast.get_vocab()))

    @classmethod
    def load(cls, folder: Path) -> "ChatTemplate | None":
        """The template of a checkpoint, from either of the usual files; None if it has none."""
        try:
            tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)
        except Exception as error:  # the library raises no narrower type
            raise CheckpointError(f"The tokenizer of {folder} cannot be read: {error}") from None
        return cls(tokenizer) if tokenizer.chat_template else None

    def least_tokens(self, text: str) -> int:
        """How many ids `text` has at least: known without encoding it."""
        return -(-len(text) // self._longest)

    def token(self, text: str) -> int | None:
        """The id of a token by its text; None if there is none."""
        token: int | None = self._fast.token_to_id(text)
        return token

    def is_text(self, token: int) -> bool:
        """Whether a token shows in the text, unlike a special one."""
        return token not in self._special

    def encode(self, text: str) -> list[int]:
        """Ids of text that is known to be harmless."""
        return self._encode(text)

    def decode(self, ids: list[int]) -> str:
        """Text of ids; special tokens leave no trace."""
        return str(self._fast.decode(ids, skip_special_tokens=True))

    def prompt(
        self,
        messages: Sequence[Message],
        *,
        enable_thinking: bool = False,
        use_tts_template: bool = False,
        joint: str = "\n",
    ) -> list[list[int] | Media]:
        """The prompt up to where the answer begins: ids, and the places of media.

        The parts of a message are joined by `joint`. Raises `TemplateRefused` for messages that the template
        does not take or does not place as they came.
        """
        slots: list[list[int] | Media] = []
        contents = [
            (role, joint.join(self._filled(part, slots) for part in parts)) for role, parts in messages
        ]
        rendered = self._rendered(
            contents,
            add_generation_prompt=True,
            enable_thinking=enable_thinking,
            use_tts_template=use_tts_template,
        )
        pieces = _SLOT.split(rendered)
        if [int(number) for number in pieces[1::2]] != list(range(len(slots))):
            raise TemplateRefused("it does not show each part of them once and in order")
        prompt: list[list[int] | Media] = []
        for i, piece in enumerate(pieces):
            if i % 2:
                prompt.append(slots[i // 2])
            elif piece:
                prompt.append(self._encode(piece))
        return prompt

    def _rendered(self, contents: Sequence[tuple[str, str]], **flags: bool) -> str:
        conversation = [{"role": role, "content": content} for role, content in contents]
        try:
            return str(self._tokenizer.apply_chat_template(conversation, tokenize=False, **flags))
        except TemplateError as error:
            raise TemplateRefused(str(error) or type(error).__name__) from None

    def _filled(self, part: Part, slots: list[list[int] | Media]) -> str:
        """What stands for a part in the rendered text; what is no harmless text goes to `slots`."""
        if isinstance(part, str):
            if _OPEN not in part and self._control.isdisjoint(self._encode(part)):
                return part
            slots.append(list(self._plain.encode(part, add_special_tokens=False).ids))
        else:
            slots.append(part)
        return f"{_OPEN}{len(slots) - 1}{_CLOSE}"

    def _encode(self, text: str) -> list[int]:
        return list(self._fast.encode(text, add_special_tokens=False).ids)
