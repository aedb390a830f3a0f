"""Hooks of MkDocs that add generated pages, and pages from the root of the repository.

Run MkDocs as `python -m mkdocs` in the root, so that this module can import `docs.site.reference`.
"""

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import Any, Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs.site import reference

ROOT: Final = Path(__file__).parents[2]

AT_THE_ROOT: Final = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
}
"""File in the repository's root -> page of the site."""

GENERATED: Final = {
    "reference/cli.md": reference.commands,
    "reference/metrics.md": reference.metrics,
    "reference/errors.md": reference.errors,
}

_LINK: Final = re.compile(
    r"(?P<text>!?\[(?:[^\[\]]|\[[^\]]*\])*\])\((?P<target>[^)#\s:]+)(?P<anchor>#[^)\s]*)?\)"
)


def on_files(files: Files, config: MkDocsConfig, **_: Any) -> Files:
    """Add the pages that have no file below `docs`."""
    for name, page in AT_THE_ROOT.items():
        text = (ROOT / name).read_text()
        files.append(File.generated(config, page, content=_links(text, PurePosixPath(name), page)))
    for page, write in GENERATED.items():
        files.append(File.generated(config, page, content=write()))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Turn links that lead out of `docs` into links within the site, or into plain text."""
    if page.file.src_uri in {*AT_THE_ROOT.values(), *GENERATED}:
        return markdown
    return _links(markdown, PurePosixPath("docs") / page.file.src_uri, page.file.src_uri)


def _links(markdown: str, file: PurePosixPath, page: str) -> str:
    """Return the text of the repository's `file`, with its links rewritten for `page` of the site."""

    def link(found: re.Match[str]) -> str:
        target = PurePosixPath(normpath(file.parent / found["target"]))
        if target.parts[0] == "docs":
            there = PurePosixPath(*target.parts[1:])
        elif str(target) in AT_THE_ROOT:
            there = PurePosixPath(AT_THE_ROOT[str(target)])
        else:
            return found["text"].removeprefix("[").removesuffix("]")
        up = "../" * (len(PurePosixPath(page).parts) - 1)
        return f"{found['text']}({up}{there}{found['anchor'] or ''})"

    return _LINK.sub(link, markdown)
