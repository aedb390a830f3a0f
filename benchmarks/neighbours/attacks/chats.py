"""Chats with long prompts, large requests or text that is hard to pronounce."""

import json
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from benchmarks.neighbours.attacks.attack import Assault, Attack
from benchmarks.neighbours.attacks.audio import noise
from benchmarks.neighbours.attacks.client import AttackClient
from benchmarks.neighbours.attacks.pictures import largest

MOST_BYTES: Final = 32 * 2**20
MOST_TEXT: Final = 8 * 2**20
LETTERS: Final = 600
CLIP_S: Final = 120.0
CLIP_RATE_HZ: Final = 48_000
_AT_ONCE: Final = 8


def _request(content: Any, **fields: Any) -> str:
    return json.dumps({"messages": [{"role": "user", "content": content}], **fields})


@cache
def long_prompt() -> str:
    """Return a prompt of about 1,870 tokens: most of the context of the shipped model."""
    return _request("what is two and two " * 370, generation={"max_new_tokens": 32})


@cache
def long_word() -> str:
    """Return a request to speak a word of `LETTERS` letters without a space."""
    return _request(
        "repeat after me " + "abcdefghij" * (LETTERS // 10),
        tts={"enabled": True},
        generation={"max_new_tokens": LETTERS, "temperature": 2.0, "top_p": 1.0, "length_penalty": 5.0},
    )


@cache
def many_pictures() -> str:
    """Return a request of eight messages with four of the largest pictures each."""
    frames = json.loads(largest())["input"]["video_frames"]
    pictures = [{"type": "image", "data": data} for data in frames]
    message = {"role": "user", "content": [*pictures, {"type": "text", "text": "what is this"}]}
    return json.dumps(
        {
            "messages": [message] * 8,
            "image": {"max_slice_nums": 9},
            "generation": {"max_new_tokens": 8},
        }
    )


@cache
def largest_text() -> str:
    """Return a request with the longest text that fits into a frame."""
    return _request(_text(MOST_BYTES - 200))


@cache
def most_text() -> str:
    """Return a request with the longest text that the adapter sends to a worker."""
    return _request(_text(MOST_TEXT))


def _text(size: int) -> str:
    text = "what is two and two "
    return text * (size // len(text))


@cache
def largest_clips() -> str:
    """Return a request with the largest clip that fits into a frame and the shipped model's context."""
    clip = {"type": "audio", "data": noise(CLIP_S, CLIP_RATE_HZ), "sample_rate": CLIP_RATE_HZ}
    return _request([clip, {"type": "text", "text": "what was said"}])


def _ask(request: Callable[[], str]) -> Assault:
    async def ask(client: AttackClient) -> None:
        async with client.visit("/ws/chat") as visit:
            await visit.say(request())
            await visit.until("done", "error")

    return ask


_ANSWERED: Final = frozenset({"done"})
_EITHER: Final = frozenset({"done", "invalid_payload"})

ATTACKS: Final = (
    Attack("long-chats", _ask(long_prompt), _ANSWERED, attackers=_AT_ONCE, prepare=long_prompt),
    Attack("long-words", _ask(long_word), frozenset({"done", "chunk"}), attackers=4, prepare=long_word),
    Attack("chats-of-pictures", _ask(many_pictures), _EITHER, attackers=4, prepare=many_pictures),
    Attack("chats-of-32-mib", _ask(largest_text), _EITHER, attackers=2, prepare=largest_text),
    Attack("chats-of-8-mib", _ask(most_text), _EITHER, attackers=2, prepare=most_text),
    Attack("chats-of-clips", _ask(largest_clips), _EITHER, attackers=2, prepare=largest_clips),
)
