"""The example questions of the web page."""

import asyncio
import json
import re

import antiphon
from tests.e2e.conftest import FOLDER as RECORDINGS
from tests.support.long import long
from ws_adapter.pages.files import FOLDER


@long
async def test_every_example_is_answered_rightly(adapter: str) -> None:
    """A first click on an example should not run into the model's limits."""
    told = {entry["file"]: entry for entry in json.loads((RECORDINGS / "manifest.json").read_text())}
    source = (FOLDER / "examples.js").read_text()
    examples = re.findall(r'name: "(\w+)", text: "([^"]+)"', source)
    assert len(examples) >= 5

    async def ask(name: str) -> str:
        said = ""
        async with antiphon.connect(adapter) as client, client.duplex() as session:
            async with session.stream_file(FOLDER / "questions" / f"{name}.wav"):
                async for event in session:
                    match event:
                        case antiphon.TextDelta(text=text):
                            said += text
                        case antiphon.TurnEnd():
                            break
        return said.strip()

    answers = await asyncio.gather(*(ask(name) for name, _ in examples))

    for (name, text), answer in zip(examples, answers, strict=True):
        entry = told[f"{name}.wav"]
        assert (text, answer) == (entry["text"], entry["expected_reply"])
