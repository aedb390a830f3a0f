"""A chat in the terminal; this process keeps its history."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from antiphon.audio.samples import OUTPUT_RATE_HZ
from antiphon.audio.wav import write_wav
from antiphon.client import connect
from antiphon.protocol.chat import GenerationConfig, Speech
from antiphon.protocol.events import Answer, ChatEvent, Queued, TextDelta
from antiphon.protocol.messages import Message, Part, Video
from antiphon_command.output.event_lines import EventLines
from antiphon_command.output.failure import Failure
from antiphon_command.output.terminal import QueueNote, printable


@dataclass(frozen=True)
class ChatOptions:
    """The options of a chat."""

    generation: GenerationConfig
    streaming: bool
    enable_thinking: bool
    answer: Path | None
    """The file of the spoken answer; None for text only."""
    json: bool


class Dialogue:
    """A dialogue that sends questions, prints answers as they arrive, and keeps the history."""

    def __init__(self, url: str, api_key: str | None, system: str | None, options: ChatOptions) -> None:
        self._url = url
        self._api_key = api_key
        self._options = options
        self._history = [Message("system", system)] if system else []
        self._answers = 0
        self._note = QueueNote()
        self._lines = EventLines()

    def ask(self, parts: Sequence[Part]) -> None:
        """Send one question and print its answer. An incomplete answer is not added to the history.

        Raises the errors of the SDK, `Failure`, and KeyboardInterrupt, which stops the answer.
        """
        question = Message("user", parts[0] if parts and isinstance(parts[0], str) else parts)
        answer = asyncio.run(self._ask([*self._history, question]))
        self._history += [question, Message("assistant", answer.text)]
        self._answers += 1
        if answer.unsupported_fields and not self._options.json:
            print(
                f"settings without effect: {', '.join(answer.unsupported_fields)}",
                file=sys.stderr,
                flush=True,
            )
        if self._options.answer is not None:
            self._save(answer, self._options.answer)

    async def _ask(self, messages: Sequence[Message]) -> Answer:
        printed = ""
        async with connect(self._url, self._api_key) as client:
            try:
                async with client.chat(
                    messages,
                    generation=self._options.generation,
                    speech=Speech() if self._options.answer is not None else None,
                    streaming=self._options.streaming,
                    omni_mode=any(isinstance(part, Video) for message in messages for part in message.parts),
                    enable_thinking=self._options.enable_thinking,
                    on_queue=self._wait,
                    reconnect=True,
                ) as turn:
                    self._note.clear()
                    async for event in turn:
                        printed += self._print(event, printed)
                        if isinstance(event, Answer):
                            return event
            finally:
                self._note.clear()
                if printed and not printed.endswith("\n"):
                    print(flush=True)
        raise AssertionError("a chat that ends without an answer raises")

    def _wait(self, place: Queued) -> None:
        if self._options.json:
            self._lines.event(place)
        else:
            self._note.show(place)

    def _print(self, event: ChatEvent, printed: str) -> str:
        """Print the new text of an event, and return it."""
        if self._options.json:
            self._lines.event(event)
            return ""
        new = ""
        if isinstance(event, TextDelta):
            new = event.text
        elif isinstance(event, Answer) and not printed:
            new = event.text + "\n"
        print(printable(new), end="", flush=True)
        return new

    def _save(self, answer: Answer, path: Path) -> None:
        if not len(answer.samples):
            raise Failure("The answer was written, but not spoken. Does this model speak?")
        if self._answers > 1:
            path = path.with_stem(f"{path.stem}-{self._answers}")
        write_wav(path, answer.samples)
        seconds = len(answer.samples) / OUTPUT_RATE_HZ
        print(f"saved {path}, {seconds:.2f} s of audio", file=sys.stderr, flush=True)
