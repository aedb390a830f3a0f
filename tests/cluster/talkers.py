"""Clients that talk to a cluster, and the outcomes of their conversations."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import antiphon
from tests.cluster.nodes import Cluster

LONGEST_WAIT_S: Final = 90.0
"""A client's patience for its slot, and for the next unit."""

_RETRY_S: Final = 0.2
_ANSWERS: Final = (antiphon.Listening, antiphon.AudioDelta, antiphon.TextDelta)


@dataclass
class Conversation:
    """One session, from the slot on. `lost` is why it ended if that was not our doing."""

    adapter: str
    began: float
    units: int = 0
    ended: float = 0.0
    lost: str = ""


@dataclass
class Talkers:
    """So many at once, each with one conversation after another until they are told to stop."""

    cluster: Cluster
    recordings: Sequence[Path]
    units: int
    conversations: list[Conversation] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Why newcomers were not let in, each time."""
    _stopping: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def live(self) -> list[Conversation]:
        return [one for one in self.conversations if not one.ended]

    async def talk(self, count: int) -> None:
        async with asyncio.TaskGroup() as talking:
            for number in range(count):
                talking.create_task(self._talker(number))

    def stop(self) -> None:
        self._stopping.set()

    async def _talker(self, number: int) -> None:
        turn = number
        while not self._stopping.is_set():
            adapters = sorted(self.cluster.adapters.items())
            name, address = adapters[turn % len(adapters)]
            recording = self.recordings[turn % len(self.recordings)]
            turn += 1
            try:
                await self._converse(name, address, recording)
            except (antiphon.AntiphonError, OSError, TimeoutError) as error:
                # It had no slot yet: an adapter that was killed or drains, or nobody to serve it.
                self.refused.append(f"{name}: {error}")
                await asyncio.sleep(_RETRY_S)

    async def _converse(self, name: str, address: str, recording: Path) -> None:
        async with asyncio.timeout(LONGEST_WAIT_S) as patience, antiphon.connect(address) as client:
            async with client.duplex() as session:
                conversation = Conversation(name, time.monotonic())
                self.conversations.append(conversation)
                try:
                    async with session.stream_file(recording):
                        async for event in session:
                            if isinstance(event, _ANSWERS):
                                patience.reschedule(asyncio.get_running_loop().time() + LONGEST_WAIT_S)
                                conversation.units += 1
                                if conversation.units >= self.units:
                                    break
                except antiphon.SessionClosed as closed:
                    conversation.lost = closed.reason
                except TimeoutError:
                    conversation.lost = "silence"
                finally:
                    conversation.ended = time.monotonic()
