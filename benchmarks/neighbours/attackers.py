"""The process of attackers: `python -m benchmarks.neighbours.attackers NAME HOST:PORT`.

The process prints `ready on <address>`. The line `go` on standard input begins the attack, and `stop` ends
it. The answer to `stop` is a line of JSON with the number of each outcome. The process has a low priority,
because real attackers use their own machine.
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
"""The largest number of assaults of all attackers together, per window."""

REFUSED_S: Final = 0.1
"""The seconds before a rejected or disconnected attacker returns."""


async def assail(attack: Attack, address: str, tally: Counter[str]) -> None:
    """Repeat the assault in all attackers until cancelled; count outcomes in `tally`."""
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
    """Obey the lines `go` and `stop` until standard input ends."""
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
