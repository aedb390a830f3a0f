"""The file of prompts that all tenants share: what it may hold, and how it is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from inference_service.config.reader import MAX_PROMPT_CHARACTERS
from inference_service.config.shared_prompts import MOST_PROMPTS, read_shared_prompts
from inference_service.errors import ConfigurationError


def written(folder: Path, content: bytes) -> Path:
    file = folder / "prompts.json"
    file.write_bytes(content)
    return file


def test_shared_prompts_are_read_as_they_are(tmp_path: Path) -> None:
    prompts = ["You are kind.\n", "", "Élan"]
    assert read_shared_prompts(written(tmp_path, json.dumps(prompts).encode())) == prompts


@pytest.mark.parametrize(
    "content", [b"", b"You are kind.", b'{"a": "b"}', b'["a", 1]', b'"a"', b'["\xff"]', b"[" * 9999]
)
def test_shared_prompts_that_are_no_array_of_strings_are_refused(tmp_path: Path, content: bytes) -> None:
    with pytest.raises(ConfigurationError, match="JSON array of strings"):
        read_shared_prompts(written(tmp_path, content))


@pytest.mark.parametrize(
    ("prompts", "problem"),
    [
        (["a"] * (MOST_PROMPTS + 1), "at most 64"),
        (["a", "canary" * MAX_PROMPT_CHARACTERS], "Prompt 2 .* characters"),
    ],
)
def test_shared_prompts_beyond_the_bounds_are_refused(tmp_path: Path, prompts: Any, problem: str) -> None:
    with pytest.raises(ConfigurationError, match=problem) as refused:
        read_shared_prompts(written(tmp_path, json.dumps(prompts).encode()))
    assert "canary" not in str(refused.value)


def test_shared_prompts_in_a_file_that_is_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="Cannot read"):
        read_shared_prompts(tmp_path / "none.json")
