"""System prompts that the operator allows all tenants to share in the prefix cache."""

import json
from pathlib import Path
from typing import Any, Final

from inference_service.config.reader import MAX_PROMPT_CHARACTERS
from inference_service.errors import ConfigurationError

MOST_PROMPTS: Final = 64
_EXPECTED: Final = "a JSON array of strings, each one whole system prompt"


def read_shared_prompts(path: Path) -> list[str]:
    """Read a JSON array of system prompts. Raises `ConfigurationError`, which shows none of them."""
    try:
        prompts: Any = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise ConfigurationError(f"Cannot read the shared prompts in {path}: {error.strerror}.") from None
    except (ValueError, RecursionError):
        raise ConfigurationError(f"The shared prompts in {path} must be {_EXPECTED}.") from None
    if not isinstance(prompts, list) or not all(isinstance(prompt, str) for prompt in prompts):
        raise ConfigurationError(f"The shared prompts in {path} must be {_EXPECTED}.")
    if len(prompts) > MOST_PROMPTS:
        raise ConfigurationError(
            f"{path} has {len(prompts)} shared prompts; at most {MOST_PROMPTS} are taken."
        )
    for number, prompt in enumerate(prompts, 1):
        if len(prompt) > MAX_PROMPT_CHARACTERS:
            raise ConfigurationError(
                f"Prompt {number} in {path} has {len(prompt)} characters; a system prompt has at most "
                f"{MAX_PROMPT_CHARACTERS}."
            )
    return prompts
