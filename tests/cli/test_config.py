"""`antiphon config`, and how commands take settings from a file and the environment."""

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon_command.arguments.configuration import SECTIONS, without_settings
from antiphon_command.arguments.toml_file import LARGEST_KIB, SettingsInvalid, TomlFile
from antiphon_command.command import main
from antiphon_command.commands import config
from docs.drawing.source_tree import ROOT
from tests.cli.support.process import Outcome, run_cli, run_here


@pytest.fixture(autouse=True)
def no_settings_of_the_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("ANTIPHON_")]:
        monkeypatch.delenv(name)


def write(folder: Path, text: str) -> Path:
    path = folder / "antiphon.toml"
    path.write_text(text)
    return path


def start(command: str, path: Path, *more: str, env: Mapping[str, str] | None = None) -> Outcome:
    """Run a command that is to refuse its settings before it starts anything."""
    return run_cli(command, "--config", path, *more, env=os.environ | (env or {}))


def shown(*words: str | Path) -> dict[str, tuple[Any, str]]:
    """Return value and origin of every setting."""
    rows = json.loads(run_here("config", "show", "--json", *words).out)
    return {f"{row['section']}.{row['name']}": (row["value"], row["origin"]) for row in rows}


def test_show_prefers_flag_then_environment_then_file_then_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, "[adapter]\nport = 1\ntls_port = 2\nadmin_port = 3\nno_page = true\nmax_cpu = 1\n")
    monkeypatch.setenv("ANTIPHON_CONFIG", str(path))
    monkeypatch.setenv("ANTIPHON_ADAPTER__TLS_PORT", "20")
    monkeypatch.setenv("ANTIPHON_ADAPTER__ADMIN_PORT", "30")
    monkeypatch.setenv("ANTIPHON_ADAPTER__NO_PAGE", "false")

    values = shown("adapter", "--admin-port", "300")

    assert values["adapter.port"] == (1, f"{path}:2")
    assert values["adapter.tls_port"] == (20, "ANTIPHON_ADAPTER__TLS_PORT")
    assert values["adapter.admin_port"] == (300, "--admin-port")
    assert values["adapter.no_page"] == (False, "ANTIPHON_ADAPTER__NO_PAGE")
    assert values["adapter.max_cpu"] == (1.0, f"{path}:6")
    assert values["adapter.queue_capacity"] == (1000, "default")


def test_show_unknown_option_of_the_command_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["config", "show", "adapter", "--prot", "1"])

    assert ended.value.code == 2
    assert "unknown option --prot, perhaps --port." in capsys.readouterr().err


def test_show_lists_every_section_and_its_own_defaults(tmp_path: Path) -> None:
    values = shown("--config", write(tmp_path, '[serve]\nslots = 3\nallowed_origins = ["*"]\n'))

    assert {name.split(".")[0] for name in values} == {*SECTIONS}
    assert values["serve.slots"][0] == 3
    assert values["serve.allowed_origins"][0] == ["*"]
    assert values["serve.model"] == ("antiphon-mini", "default")
    assert values["worker.slots"] == (None, "default")


def test_show_secrets_are_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = tmp_path / "key"
    key.write_text("k" * 40)
    path = write(tmp_path, f'[worker]\nworker_key_file = "{key}"\ndispatcher = "redis://:sesame@host:1"\n')
    monkeypatch.setenv("ANTIPHON_ADMIN_KEY", "m" * 40)

    done = run_here("config", "show", "--config", path, "worker")
    monkeypatch.setenv("ANTIPHON_CLIENT_SECRET_KEY", "s" * 40)
    adapter = shown("adapter")

    assert adapter["adapter.client_secret_key_file"] == ("********", "ANTIPHON_CLIENT_SECRET_KEY")
    assert done.code == 0
    assert not re.search("kkkk|mmmm|sesame", done.out)
    assert re.search(r'^worker\.worker_key_file = "\*{8}" .* \S+:2$', done.out, re.MULTILINE)
    assert re.search(r'^worker\.admin_key_file = "\*{8}" +ANTIPHON_ADMIN_KEY$', done.out, re.MULTILINE)


def test_config_check_accepts_valid_file_and_rejects_contradiction(tmp_path: Path) -> None:
    path = write(tmp_path, '[adapter]\nworker = ["unix:a"]\n[worker]\nslots = 4\n[serve]\nopen = false\n')
    done = run_here("config", "check", path)
    assert (done.code, done.out, done.err) == (0, f"{path} is valid.\n", "")

    write(tmp_path, '[adapter]\nauth = "keys"\n')
    done = run_here("config", "check", path)
    assert done.code == 2
    assert done.err.startswith(f"{path}: adapter: Keys need a file of keys.")


def test_shared_variable_overrides_the_file_but_not_the_variable_of_the_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path, '[worker]\ndispatcher = "redis://file:1"\n')
    assert shown("--config", path, "worker")["worker.dispatcher"][1] == f"{path}:2"

    monkeypatch.setenv("ANTIPHON_DISPATCHER", "redis://shared:1")
    assert shown("--config", path, "worker")["worker.dispatcher"][1] == "ANTIPHON_DISPATCHER"

    monkeypatch.setenv("ANTIPHON_WORKER__DISPATCHER", "redis://own:1")
    assert shown("--config", path, "worker")["worker.dispatcher"][1] == "ANTIPHON_WORKER__DISPATCHER"


def test_check_reports_all_problems_at_once_in_the_order_of_lines(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        """\
[adapter]
prot = 1
host = 4
worker = [1]
pause_timeout_s = 5000
init_timeout_s = 300
no_page = "yes"
note = \"\"\"
[adapter]
port = "in a string"
\"\"\"
port = 99999
[worker]
slots = 0
dtype = "float8"
seed = 1.5
vocoder_steps = 99
[srve]
[serve]
drain_timeout_s = nan
""",
    )

    done = run_here("config", "check", path)

    assert done.code == 2
    assert [line.removeprefix(f"{path}:") for line in done.err.splitlines()] == [
        "2: adapter.prot is unknown, perhaps port.",
        "3: adapter.host must be a string, not 4.",
        "4: adapter.worker must be an array of strings, not an array.",
        "5: adapter.pause_timeout_s must be 1 to 300, not 5000: no client may pause for a shorter or a "
        "longer time.",
        "6: adapter.init_timeout_s must be below 30, not 300: workers take a slot back whose session is not "
        "configured by then.",
        '7: adapter.no_page must be true or false, not "yes".',
        "8: adapter.note is unknown.",
        "12: adapter.port cannot be used: 99999 is no port: 0 to 65535.",
        "14: worker.slots cannot be used: 0 is not 1 or more.",
        '15: worker.dtype must be "float32" or "bfloat16" or "float16", not "float8".',
        "16: worker.seed must be a whole number, not 1.5.",
        "17: worker.vocoder_steps must be 1 to 16, not 99.",
        "18: srve is unknown, perhaps serve.",
        "20: serve.drain_timeout_s cannot be used: nan is no number of seconds.",
    ]


def test_check_takes_shared_variables_into_account(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, "[worker]\nunleased_slots = 1\nslots = 2\n")
    assert run_here("config", "check", path).code == 2

    monkeypatch.setenv("ANTIPHON_WORKER_KEY", "k" * 40)
    assert run_here("config", "check", path).code == 0


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"[adapter]\nport = 1\nport = 2\n", "{path}:3: a name is given twice."),
        (b"[adapter]\n[adapter]\n", "{path}:2: not TOML: Cannot declare ('adapter',) twice."),
        (b"[adapter\n", "{path}:1: not TOML: Expected ']' at the end of a table declaration."),
        (b"a = " + b"[" * 20_000, "{path}: values are nested too deeply."),
        (b"\n\xff", "{path}:2: the text is not UTF-8."),
        (b"#" * (10 << 20), f"{{path}} has more than {LARGEST_KIB} KiB: it is no file of settings."),
        (b"adapter = 1", "{path}:1: adapter must be a table: [adapter]."),
        (b"adapter.port = {}", "{path}:1: adapter.port must be a whole number, not a table."),
        (b"adapter.port = 2026-01-01", "{path}:1: adapter.port must be a whole number, not a date or time."),
    ],
    ids=["name twice", "table twice", "syntax", "depth", "latin 1", "large", "no table", "table", "date"],
)  # fmt: skip
def test_unusable_file_is_reported_in_one_sentence(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "antiphon.toml"
    path.write_bytes(content)

    done = run_here("config", "check", path)

    assert (done.code, done.err) == (2, problem.format(path=path) + "\n")


@given(st.one_of(st.binary(max_size=200), st.text("[]{}=\"'#.,\\\n ab1\u00e9", max_size=200).map(str.encode)))
def test_any_content_is_read_or_refused_in_one_line(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.toml"
    path.write_bytes(content)
    try:
        TomlFile.read(path)
    except SettingsInvalid as error:
        [problem] = error.problems
        assert problem.startswith(str(path))
        assert problem.isprintable()


def test_unreadable_path_is_reported_in_one_sentence(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    problems = []
    for path in (tmp_path / "none", tmp_path, tmp_path / "pipe", Path("/proc/self/mem")):
        with pytest.raises(SettingsInvalid) as refused:
            TomlFile.read(path)
        problems += refused.value.problems

    assert problems == [
        f"{tmp_path / 'none'} does not exist. Check the path of the settings.",
        f"{tmp_path} is a directory: name a TOML file.",
        f"{tmp_path / 'pipe'} is no regular file: name a TOML file.",
        "Cannot read /proc/self/mem: Input/output error.",
    ]


@pytest.mark.parametrize("command", SECTIONS)
def test_command_with_unusable_file_exits_with_2_before_it_starts(tmp_path: Path, command: str) -> None:
    path = write(tmp_path, f"[{command}]\nprt = 1\n")

    done = start(command, path, env={f"ANTIPHON_{command.upper()}__NOTHING": "1"})

    assert done.code == 2
    assert done.out == ""
    unknown, variable = done.err.splitlines()
    assert unknown.startswith(f"{path}:2: {command}.prt is unknown")
    assert variable.startswith(f"ANTIPHON_{command.upper()}__NOTHING is unknown")


def test_rejected_value_is_reported_with_file_and_line(tmp_path: Path) -> None:
    path = write(tmp_path, '[adapter]\nworker = "unix:none"\npause_timeout_s = 400\n')

    in_file, by_flag = start("adapter", path), start("adapter", path, "--pause-timeout-s", "500")

    assert (in_file.code, by_flag.code) == (2, 2)
    assert in_file.err.startswith(f"{path}:3: pause_timeout_s must be 1 to 300, not 400")
    assert by_flag.err.startswith("pause_timeout_s must be 1 to 300, not 500")


def test_variables_of_a_kubernetes_service_are_no_settings() -> None:
    """One named `antiphon-adapter` sets them in every pod of its namespace."""
    service = {"ANTIPHON_ADAPTER_PORT": "tcp://10.0.0.1:8006", "ANTIPHON_ADAPTER_SERVICE_HOST": "10.0.0.1"}

    done = run_cli("config", "show", "adapter", env=os.environ | service)

    assert done.code == 0
    assert "tcp:" not in done.out


def test_help_works_with_a_missing_settings_file() -> None:
    assert run_cli("worker", "--help", env=os.environ | {"ANTIPHON_CONFIG": "/none"}).code == 0


def test_child_environment_has_no_settings_of_sections() -> None:
    shared = {"ANTIPHON_WORKER_KEY": "k", "PATH": "/bin"}
    own = {"ANTIPHON_CONFIG": "f", "ANTIPHON_ADAPTER__PORT": "1", "ANTIPHON_WORKER__SLOTS": "1"}

    assert without_settings(shared | own) == shared


def test_reference_page_is_up_to_date() -> None:
    """Write it anew with `make reference`."""
    assert (ROOT / "docs/configuration.md").read_text() == config.reference()
