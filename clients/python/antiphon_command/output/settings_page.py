"""The page of all settings, as Markdown."""

from collections.abc import Iterable, Mapping

INTRODUCTION = """\
# Configuration

This page says how to set every option of `antiphon adapter`, `antiphon worker` and `antiphon serve`.
`antiphon config reference` writes it.

A setting has one name in three places. The first that gives a value counts:

| place | example |
|---|---|
| flag | `--session-limit-audio-s 900` |
| environment | `ANTIPHON_ADAPTER__SESSION_LIMIT_AUDIO_S=900` |
| file | `session_limit_audio_s = 900` below `[adapter]` |

The file is TOML; `--config FILE` or the variable `ANTIPHON_CONFIG` names it, and none is read otherwise:

```toml
[adapter]
worker = ["10.0.0.1:50051", "10.0.0.2:50051"]
port = 9000
session_limit_audio_s = 900

[worker]
model = "antiphon-mini"
slots = 8
```

- Each command reads its own table. `antiphon serve` reads `[serve]`; the processes it starts get their
  settings from it and read no file and none of these variables.
- Variables have two underscores after the name of the table. A switch takes `true` or `false`; lists have
  commas. An empty variable counts as none.
- A switch that the file or the environment turns on cannot be turned off by a flag.
- Relative paths start at the folder in which the command runs.
- Keys are never in the file: it names files that hold them. `ANTIPHON_WORKER_KEY`, `ANTIPHON_ADMIN_KEY`,
  `ANTIPHON_CLIENT_SECRET_KEY` and `ANTIPHON_DISPATCHER` count for all commands. They go before the file,
  and the variables of a table go before them.
- Unknown names and values that cannot be used are errors. The command names all of them with file and
  line, and exits with code 2 before it starts anything.
- A file may have 64 KiB.

## Check and show

`antiphon config check FILE` tells everything that is wrong with a file: unknown names, with the nearest
known one, wrong types, and values out of bounds. The exit code is 2 if there is anything. It knows the
variables of all commands, such as `ANTIPHON_WORKER_KEY`, and not the flags that the command will get.

`antiphon config show` prints every value with its origin. With the name of a table it also takes the
options of that command:

```
$ antiphon config show --config antiphon.toml adapter --port 9000
adapter.worker = ["10.0.0.1:50051"]    antiphon.toml:2
adapter.worker_key_file = "********"   ANTIPHON_WORKER_KEY
adapter.host = "127.0.0.1"             default
adapter.port = 9000                    --port
```

## Change settings without a restart

On SIGHUP an adapter or a worker that was given a file reads it again. Settings marked with *yes* in the
column *reload* below take effect at once: new connections, sessions and tickets have the new values, and
running ones keep theirs. The log names what was applied (`settings applied: ...`) and what waits for a
restart (`settings need a restart: ...`). If the file cannot be used, the log says why and no setting
changes. Flags and variables go before the file as at the start. `antiphon serve` does not read its file
again.
"""


def page(tables: Mapping[str, Iterable[tuple[str, str, str, str, str]]]) -> str:
    """Return the page; each row of a table is name, type, default, meaning and reload of a setting."""
    parts = [INTRODUCTION]
    for name, rows in tables.items():
        head = [f"## [{name}]", "", "| name | takes | default | what | reload |", "|---|---|---|---|---|"]
        parts.append("\n".join([*head, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n")
    return "\n".join(parts)
