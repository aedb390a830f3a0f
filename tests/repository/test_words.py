"""One word, one thing: the glossary of docs/architecture.md, and words that are gone."""

import ast
import re

from docs.drawing.source_tree import ROOT, repository

GONE = set(
    "entrance fleet host intake ledger machines participant parts scribe site slot_watch traffic visitors "
    "watch worker_call worker_link worker_messages".split()
)
"""Names that said too little or two things: modules and classes have others."""


def glossary() -> list[str]:
    text = (ROOT / "docs/architecture.md").read_text().partition("## Words\n")[2].partition("\n## ")[0]
    return re.findall(r"^\| ([^|]+) \| .+ \|$", text, re.MULTILINE)[1:]


def snake(name: str) -> str:
    """`WorkerLink` as `worker_link`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def test_glossary_has_each_word_once() -> None:
    words = [word for row in glossary() for word in row.split(", ")]
    assert {"unit", "session", "slot", "machine", "tick"} <= set(words)
    assert sorted(words) == sorted(set(words))


def test_words_that_are_gone_name_no_module_and_no_class() -> None:
    files = repository().files
    named = {module.rpartition(".")[2]: module for module in files}
    for module, file in files.items():
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef):
                named[snake(node.name)] = f"{module}.{node.name}"
    assert [snake(name) for name in ("WorkerLink", "Fleet", "KVCache")] == ["worker_link", "fleet", "kvcache"]
    assert "session" in named
    assert [named[word] for word in sorted(GONE & named.keys())] == []
