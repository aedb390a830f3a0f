"""The version of the distribution, which a test holds against `pyproject.toml`."""

from typing import Final

VERSION: Final = "0.1.0"
