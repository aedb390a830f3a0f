"""The files of the web page.

They are read once, so that no request waits for a disk. Requests look them up by exact name, so that no path
leads out of their folder.
"""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from antiphon_service.telemetry import look

FOLDER: Final = Path(__file__).parent / "app"
LOOK: Final = "look.css"
"""The style sheet that the web page and the status pages share, served as a file of the web page."""

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "media-src blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""The content security policy: nothing from other origins and nothing inline. `blob:` is for pictures and
videos of the camera and of the user."""

_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".svg": "image/svg+xml",
    ".wav": "audio/wav",
}


@dataclass(frozen=True)
class PageFile:
    """A file of the page; `etag` is a hash of its content."""

    content: bytes
    content_type: str
    etag: str

    def is_known(self, conditions: Sequence[str]) -> bool:
        """Return whether the browser has the file already, by its `If-None-Match`."""
        tags = (tag.strip().removeprefix("W/") for value in conditions for tag in value.split(","))
        return any(tag in (self.etag, "*") for tag in tags)


def read_files(folder: Path = FOLDER) -> Mapping[str, PageFile]:
    """Return the files below `folder` by their relative paths, and the style sheet. Files without a known
    content type are left out."""
    found = {
        file.relative_to(folder).as_posix(): _file(file.suffix, file.read_bytes())
        for file in sorted(folder.rglob("*"))
        if file.suffix in _TYPES and file.is_file()
    }
    return {**found, LOOK: _file(".css", look.STYLE.encode())}


def _file(suffix: str, content: bytes) -> PageFile:
    return PageFile(content, _TYPES[suffix], f'"{hashlib.sha256(content).hexdigest()[:32]}"')
