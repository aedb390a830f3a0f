"""A client of the administration port."""

import asyncio
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from tests.support.patience import PATIENCE_S

Series = tuple[str, frozenset[tuple[str, str]]]


@dataclass(frozen=True)
class Page:
    status: int
    headers: dict[str, str]
    """Names in small letters."""
    body: str


async def get(port: int, path: str, method: str = "GET") -> Page:
    async with asyncio.timeout(PATIENCE_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
        writer.close()
    status, *lines = head.split("\r\n")
    headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
    return Page(int(status.split()[1]), headers, body)


def samples(exposition: str) -> dict[Series, float]:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(exposition)
        for sample in family.samples
    }


class Scrape:
    def __init__(self, exposition: str) -> None:
        self.exposition = exposition
        self.samples = samples(exposition)

    def value(self, name: str, **labels: str) -> float | None:
        """Return the value of the only series with that name and those labels, or None."""
        return self.samples.get((name, frozenset(labels.items())))

    def total(self, name: str) -> float:
        return sum(value for (series, _), value in self.samples.items() if series == name)

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.samples}


async def scrape(port: int) -> Scrape:
    return Scrape((await get(port, "/metrics")).body)
