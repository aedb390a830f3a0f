"""Prompts of chats from a checkpoint's chat template, in which a caller's text can never become control
tokens.
"""

import re
from collections.abc import Sequence
from enum import Enum, auto
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import TemplateError
from tokenizers import AddedToken
from tokenizers import Tokenizer as FastTokenizer
from transformers import PreTrainedTokenizerFast

from inference_service.interface.setups import Tool, ToolCall
from inference_service.models.errors import CheckpointError
from inference_service.tools import syntax
from inference_service.tools.reader import END_THINK, THINK

_OPEN, _CLOSE, _FREE = "\ufdd0", "\ufdd1", "\ufdd2"
"""Delimiters round the number of a placeholder. In a rendered prompt, a placeholder stands for a part that is
not plain text. Unicode assigns no characters to the delimiters.

A placeholder with `_FREE` may occur anywhere, any number of times.
"""
_PLACEHOLDER = re.compile(f"{_OPEN}(?:([0-9]+)|{_FREE}([0-9]+)){_CLOSE}")
_PLAIN_TALK = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"},
    {"role": "user", "content": "c"},
]
PART_JOINT = "\n"
"""Default text between the parts of a message."""
_WORD = "mezzanine"
"""A probe text that no template writes by itself."""
_LAST = 8
"""Ids at the end of a prompt that are searched for the opening of a thought."""


class Media(Enum):
    """A part of a message that is not text."""

    PICTURE = auto()
    CLIP = auto()
    VIDEO = auto()


Part = str | Media
_TYPES = {Media.PICTURE: "image", Media.CLIP: "audio", Media.VIDEO: "video"}
"""Names of media in templates whose content is a list."""


class Message(NamedTuple):
    """A message. The assistant's may have `calls`; a tool's has a `call_id`, and its text is the result."""

    role: str
    parts: Sequence[Part]
    calls: Sequence[ToolCall] = ()
    call_id: str = ""


class TemplateRefused(ValueError):
    """Raised when the template does not take these messages; the text says why."""


class ChatTemplate:
    """The chat template of a tokenizer, with the encoding of its prompts.

    The text of messages is encoded together with the template's words round it, as the tokenizer itself would
    do, unless it contains a control token: then it is encoded separately, as plain text.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast) -> None:
        self._tokenizer = tokenizer
        self._fast: FastTokenizer = tokenizer.backend_tokenizer
        added = self._fast.get_added_tokens_decoder()
        try:
            written = self._rendered(_PLAIN_TALK, add_generation_prompt=False)
        except TemplateRefused as refused:
            raise CheckpointError(f"The chat template cannot be used: {refused}.") from None
        self.thinks = self.token(THINK) is not None or self._heeds("enable_thinking")
        """Whether the model can think before it answers."""
        self.prepares_speech = self._heeds("use_tts_template")
        """Whether the prompt of a spoken answer differs."""
        self.calls = syntax.detect_syntax(self._with_tools)
        """The model's call syntax; None if it takes no tools, or has an unknown syntax."""
        if self.calls is not None:
            written += self._with_tools(syntax.TALK, [syntax.TOOL])
        self._special = {token for token, it in added.items() if it.special}
        self._control = self._special | (added.keys() & set(self._encode(written)))
        self._plain = FastTokenizer.from_str(self._fast.to_str())
        # Marks of roles count as special here, even if the checkpoint does not declare them so.
        self._plain.add_special_tokens(
            [AddedToken(added[token].content, special=True) for token in sorted(self._control)]
        )
        self._plain.encode_special_tokens = True
        self._longest = max(map(len, self._fast.get_vocab()))
        self.marks = self._marks()
        """Special tokens round calls and thoughts, with their text."""

    @classmethod
    def load(cls, folder: Path) -> "ChatTemplate | None":
        """Return the template of a checkpoint from either of the usual files; None if it has none."""
        try:
            tokenizer = PreTrainedTokenizerFast.from_pretrained(str(folder), local_files_only=True)
        except Exception as error:  # the library raises no narrower type
            raise CheckpointError(f"The tokenizer of {folder} cannot be read: {error}") from None
        return cls(tokenizer) if tokenizer.chat_template else None

    def tokenizer_json(self) -> str:
        """Return the content of `tokenizer.json`."""
        return str(self._fast.to_str())

    def _marks(self) -> dict[int, str]:
        found = self._tokens(*self._around_calls, THINK, END_THINK)
        return {token: text for token, text in found.items() if token in self._special}

    @property
    def around_calls(self) -> frozenset[int]:
        """Return the tokens round calls."""
        return frozenset(self._tokens(*self._around_calls))

    @property
    def _around_calls(self) -> tuple[str, ...]:
        return (self.calls.begin, self.calls.end) if self.calls else ()

    def _tokens(self, *texts: str) -> dict[int, str]:
        """Return those of these texts that are tokens."""
        found = ((self.token(text), text) for text in texts)
        return {token: text for token, text in found if token is not None}

    @cached_property
    def takes_text(self) -> bool:
        """Whether the content of a message may be a string; some templates take only lists."""
        return _WORD in self._talk(_WORD)

    @cached_property
    def media_marks(self) -> frozenset[Media]:
        """The media that the template marks by itself when the content of a message is a list."""
        words = {"type": "text", "text": _WORD}
        plain = self._talk([words])
        if _WORD not in plain or "'text'" in plain:
            return frozenset()
        return frozenset(it for it, name in _TYPES.items() if self._talk([{"type": name}, words]) != plain)

    def _talk(self, content: Any) -> str:
        """Return the rendering of one message; empty if the template refuses it."""
        try:
            return self._rendered([{"role": "user", "content": content}], add_generation_prompt=True)
        except TemplateRefused:
            return ""

    def opens_thought(self, prompt: Sequence[list[int] | Media]) -> bool:
        """Return whether a prompt ends with the opening of a thought."""
        last = prompt[-1] if prompt else []
        if not isinstance(last, list):
            return False
        return str(self._fast.decode(last[-_LAST:], skip_special_tokens=False)).rstrip().endswith(THINK)

    def least_tokens(self, text: str) -> int:
        """Return the least number of ids of `text`, without encoding it."""
        return -(-len(text) // self._longest)

    def token(self, text: str) -> int | None:
        """Return the id of a token by its text; None if there is none."""
        token: int | None = self._fast.token_to_id(text)
        return token

    def is_text(self, token: int) -> bool:
        """Return whether a token appears in the text, unlike a special one."""
        return token not in self._special

    def encode(self, text: str) -> list[int]:
        """Return ids of text that is known to hold no control tokens."""
        return self._encode(text)

    def decode(self, ids: list[int]) -> str:
        """Return the text of ids without special tokens."""
        return str(self._fast.decode(ids, skip_special_tokens=True))

    def prompt(
        self,
        messages: Sequence[Message],
        *,
        enable_thinking: bool = False,
        use_tts_template: bool = False,
        joint: str = PART_JOINT,
        tools: Sequence[Tool] = (),
        in_lists: bool = False,
    ) -> list[list[int] | Media]:
        """Return the prompt up to the start of the answer: ids, and the places of media.

        The parts of a message are joined by `joint`, or given to the template as a list, which then writes
        its own marks for media. Raises `TemplateRefused` for messages that the template does not take, or
        does not place in their order.
        """
        placeholders, free = _Placeholders(), _Placeholders(_FREE)
        told = [Message(*message) for message in messages]
        names = {call.id: call.name for message in told for call in message.calls}
        between = None if in_lists else joint
        conversation = [self._message(message, between, names, placeholders, free) for message in told]
        rendered = self._rendered(
            conversation,
            add_generation_prompt=True,
            enable_thinking=enable_thinking,
            use_tts_template=use_tts_template,
            **({"tools": [self._tool(tool, free) for tool in tools]} if tools else {}),
        )
        pieces = _PLACEHOLDER.split(rendered)
        if [int(number) for number in pieces[1::3] if number] != list(range(len(placeholders))):
            raise TemplateRefused("it does not show each part of them once and in order")
        prompt: list[list[int] | Media] = []
        for i, piece in enumerate(pieces):
            if piece:
                prompt.append((self._encode, placeholders.at, free.at)[i % 3](piece))
        return prompt

    def _message(
        self,
        message: Message,
        joint: str | None,
        names: dict[str, str],
        placeholders: "_Placeholders",
        free: "_Placeholders",
    ) -> dict[str, Any]:
        """Return a message as templates take it; `names` has the tools' names by the ids of their calls.
        Without a joint, the content of the message is a list.
        """
        told: dict[str, Any] = {"role": message.role}
        if joint is None:
            told["content"] = [self._item(part, placeholders) for part in message.parts]
        else:
            told["content"] = joint.join(self._filled(part, placeholders) for part in message.parts)
        if message.calls:
            told["tool_calls"] = [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": self._harmless(call.arguments, free)},
                }
                for call in message.calls
            ]
        if message.call_id:
            told |= {"tool_call_id": message.call_id, "name": names.get(message.call_id, "")}
        return told

    def _tool(self, tool: Tool, free: "_Placeholders") -> dict[str, Any]:
        about = {"name": tool.name, "description": tool.description, "parameters": tool.parameters}
        return {"type": "function", "function": self._harmless(about, free)}

    def _harmless(self, value: Any, free: "_Placeholders") -> Any:
        """Return a JSON value whose texts cannot become control tokens in a prompt."""
        match value:
            case dict():
                return {self._harmless(key, free): self._harmless(it, free) for key, it in value.items()}
            case list():
                return [self._harmless(it, free) for it in value]
            case str():
                written = syntax.as_json(value)[1:-1]
                return value if self._is_harmless(written) else free.take(self._as_text(written))
        return value

    def _with_tools(self, conversation: list[dict[str, Any]], tools: list[dict[str, Any]]) -> str:
        return self._rendered(conversation, add_generation_prompt=True, tools=tools)

    def _rendered(self, conversation: Sequence[dict[str, Any]], **flags: Any) -> str:
        try:
            return str(self._tokenizer.apply_chat_template(conversation, tokenize=False, **flags))
        except (TemplateError, TypeError) as error:
            raise TemplateRefused(str(error) or type(error).__name__) from None

    def _heeds(self, flag: str) -> bool:
        """Return whether the template renders differently with a flag."""
        without, with_flag = (
            self._rendered(_PLAIN_TALK[:1], add_generation_prompt=True, **{flag: value})
            for value in (False, True)
        )
        return without != with_flag

    def _filled(self, part: Part, placeholders: "_Placeholders") -> str:
        """Return the rendered text of a part; parts that are not harmless text move to `placeholders`."""
        if not isinstance(part, str):
            return placeholders.take(part)
        return part if self._is_harmless(part) else placeholders.take(self._as_text(part))

    def _item(self, part: Part, placeholders: "_Placeholders") -> dict[str, str]:
        """Return a part as an item of a list."""
        if isinstance(part, Media) and part in self.media_marks:
            return {"type": _TYPES[part]}
        return {"type": "text", "text": self._filled(part, placeholders)}

    def _is_harmless(self, text: str) -> bool:
        return _OPEN not in text and self._control.isdisjoint(self._encode(text))

    def _as_text(self, text: str) -> list[int]:
        return list(self._plain.encode(text, add_special_tokens=False).ids)

    def _encode(self, text: str) -> list[int]:
        return list(self._fast.encode(text, add_special_tokens=False).ids)


class _Placeholders:
    """Parts of a prompt that are not text; `mark` tells one kind of placeholder from another."""

    def __init__(self, mark: str = "") -> None:
        self._mark = mark
        self._content: list[list[int] | Media] = []

    def __len__(self) -> int:
        return len(self._content)

    def take(self, content: list[int] | Media) -> str:
        """Return the placeholder of this content in the rendered text."""
        self._content.append(content)
        return f"{_OPEN}{self._mark}{len(self) - 1}{_CLOSE}"

    def at(self, number: str) -> list[int] | Media:
        """Return the content of the placeholder with this number."""
        return self._content[int(number)]
