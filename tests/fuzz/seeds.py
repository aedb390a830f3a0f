"""The checked-in inputs of each target: `tests/fuzz/corpus/<target>/<name>`.

Each target has valid inputs there, and every input that once broke something.
"""

from pathlib import Path

FOLDER = Path(__file__).parent / "corpus"


def load(target: str) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted((FOLDER / target).iterdir())}
