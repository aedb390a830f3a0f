"""Names of pools and of revisions of workers, as workers and dispatchers write them."""

from collections.abc import Iterable
from typing import Final

STABLE: Final = "stable"
"""The revision of a worker that is started without one."""

REVISION: Final = r"[A-Za-z0-9][A-Za-z0-9._-]{0,31}"
"""The pattern of the names of revisions."""


def pool_name(model: str, modes: Iterable[str]) -> str:
    """Return the name of the pool of workers with this model and these modes.

    The modes are `audio`, `video`, `chat` and `transcription`. An example is
    `antiphon-mini/audio+chat+transcription+video`.
    """
    return f"{model}/{'+'.join(sorted(modes))}"
