"""The process of attackers: `python -m benchmarks.neighbours.attackers NAME HOST:PORT`.

Prints `ready on <address>`; then a line `go` begins the attack and `stop` ends it, which is answered by a
line of JSON: how often what came of it. It runs at a low priority: what an attacker does on its own machine
costs the neighbours nothing.
"""

import argparse
import asyncio
import json
import os
import sys
from collections import Counter
from typing import Final

from benchmarks.neighbours.attacks import ATTACKS
from benchmarks.neighbours.attacks.attack import Attack
from benchmarks.neighbours.attacks.client import AttackClient, Disconnected

LOW_PRIORITY: Final = 10
MOST_ASSAULTS: Final = 200_000
"""The largest number of assaults of all attackers together in one run."""

REFUSED_S: Final = 0.1
"""The seconds before a rejected or disconnected attacker returns."""


async def assail(attack: Attack, address: str, tally: Counter[str]) -> None:
    """Attack until it is cancelled."""
    left = MOST_ASSAULTS

    async def again() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            try:
                await attack.assault(AttackClient(address, tally))
            except Disconnected:
                await asyncio.sleep(REFUSED_S)

    async with asyncio.TaskGroup() as attackers:
        for _ in range(attack.attackers):
            attackers.create_task(again())


async def obey(attack: Attack, address: str) -> None:
    """Do what standard input says, until that ends."""
    loop = asyncio.get_running_loop()
    under_way: asyncio.Task[None] | None = None
    tally: Counter[str] = Counter()
    while order := await loop.run_in_executor(None, sys.stdin.readline):
        if order.strip() == "go":
            tally = Counter()
            under_way = asyncio.create_task(assail(attack, address, tally))
        elif under_way is not None:
            under_way.cancel()
            await asyncio.wait({under_way})
            if not under_way.cancelled() and (error := under_way.exception()) is not None:
                raise error
            print(json.dumps(tally), flush=True)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Attackers of one adapter.")
    parser.add_argument("name", choices=list(ATTACKS))
    parser.add_argument("address")
    given = parser.parse_args()
    os.nice(LOW_PRIORITY)
    attack = ATTACKS[given.name]
    attack.prepare()
    print(f"ready on {given.address}", flush=True)
    asyncio.run(obey(attack, given.address))


if __name__ == "__main__":
    main()
