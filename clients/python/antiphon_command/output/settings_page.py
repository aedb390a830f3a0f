"""The page of all settings, as Markdown."""

from collections.abc import Iterable, Mapping

INTRODUCTION = """\
# Configuration

This page says how to set every option of `antiphon adapter`, `antiphon worker` and `antiphon serve`.
`antiphon config reference` writes it.

A setting has the same name in three places. The first place with a value counts:

| place | example |
|---|---|
| flag | `--session-limit-audio-s 900` |
| environment | `ANTIPHON_ADAPTER__SESSION_LIMIT_AUDIO_S=900` |
| file | `session_limit_audio_s = 900` below `[adapter]` |

The file is TOML. `--config FILE` or the variable `ANTIPHON_CONFIG` names it; without either no file is read:

```toml
[adapter]
worker = ["10.0.0.1:50051", "10.0.0.2:50051"]
port = 9000
session_limit_audio_s = 900

[worker]
model = "antiphon-mini"
slots = 8
```

- Each command reads its own table. `antiphon serve` reads `[serve]` and passes the settings on to its
  processes, which read neither the file nor these variables.
- Variables have two underscores after the name of the table. A switch is `true` or `false`; a list is
  separated by commas. An empty variable counts as unset.
- A switch that the file or the environment turns on cannot be turned off by a flag.
- Relative paths start at the folder in which the command runs.
- The file contains no keys; it names files that contain them. `ANTIPHON_WORKER_KEY`, `ANTIPHON_ADMIN_KEY`,
  `ANTIPHON_CLIENT_SECRET_KEY` and `ANTIPHON_DISPATCHER` apply to all commands. They take precedence over the
  file, and the variables of a table take precedence over them.
- Unknown names and unusable values are errors. The command reports all of them with file and line, and
  exits with code 2 before it starts anything.
- A file may have at most 64 KiB.

## Check and show

`antiphon config check FILE` reports all problems of a file: unknown names, with the nearest known name, wrong
types, and values out of bounds. The exit code is 2 if there is a problem. The check takes the variables of
all commands into account, such as `ANTIPHON_WORKER_KEY`, but no flags.

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

On SIGHUP an adapter or a worker reads its file again, if it has one. Settings marked with *yes* in the column
*reload* below take effect at once for new connections, sessions and tickets; running ones keep the old
values. The log lists the applied settings (`settings applied: ...`) and those that need a restart
(`settings need a restart: ...`). If the file is unusable, the log gives the reason and no setting changes.
Flags and variables take precedence over the file, as at the start. `antiphon serve` does not read its file
again.
"""


def page(tables: Mapping[str, Iterable[tuple[str, str, str, str, str]]]) -> str:
    """Return the page; each row of a table is name, type, default, meaning and reload of a setting."""
    parts = [INTRODUCTION]
    for name, rows in tables.items():
        head = [f"## [{name}]", "", "| name | takes | default | meaning | reload |", "|---|---|---|---|---|"]
        parts.append("\n".join([*head, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n")
    return "\n".join(parts)
