"""Write the published protocols: `python -m ws_adapter.schemas DIRECTORY`.

The examples of events are read from `DIRECTORY/examples`.
"""

import argparse
import json
from importlib.metadata import version
from pathlib import Path

from ws_adapter.schemas import asyncapi, tables, typescript
from ws_adapter.schemas.catalogue import DIALECTS, Json
from ws_adapter.schemas.definitions import bundle
from ws_adapter.usage import line


def read_examples(folder: Path) -> dict[str, list[Json]]:
    """Return the events of `folder/examples/DIALECT.jsonl`, one in each line, by dialect."""
    files = {dialect.name: folder / "examples" / f"{dialect.name}.jsonl" for dialect in DIALECTS}
    return {name: [json.loads(line) for line in file.open()] for name, file in files.items()}


def write(folder: Path) -> None:
    """Write all published files into `folder`; equal definitions make equal bytes."""
    documents = {dialect.file: bundle(dialect) for dialect in DIALECTS}
    documents["asyncapi.json"] = asyncapi.document(version("antiphon"), read_examples(folder))
    documents["usage.schema.json"] = line.schema()
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n")
    (folder / "events.md").write_text(tables.page())
    (folder / "events.d.ts").write_text(typescript.declarations())


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m ws_adapter.schemas", description=__doc__)
    parser.add_argument("directory", type=Path, help="folder of the files, which contains the examples")
    write(parser.parse_args().directory)
