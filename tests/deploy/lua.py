"""The commands that functions of a Lua library call, read from its source."""

import re
from pathlib import Path


def commands_of(source: Path, functions: list[str]) -> set[str]:
    """Return the commands, in lower case, that the registered `functions` call, themselves or by helpers."""
    text = re.sub(r"--.*", "", source.read_text())
    registered = dict(re.findall(r"register_function\('(\w+)', (\w+)\)", text))
    parts = re.split(
        r"^local function (\w+)", text.partition("redis.register_function")[0], flags=re.MULTILINE
    )
    bodies = dict(zip(parts[1::2], parts[2::2], strict=True))
    waiting, seen, commands = [registered[name] for name in functions], set(), set()
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            commands |= {command.lower() for command in re.findall(r"call\('([A-Z]+)'", bodies[name])}
            waiting += [called for called in re.findall(r"\b(\w+)\(", bodies[name]) if called in bodies]
    return commands
