"""No field of a client is passed over: it has an effect, is listed as unsupported, or is refused."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.settings.families import FAMILIES, Family, load
from tests.e2e.settings.fields import fields
from tests.e2e.settings.probes import ALIASES, NO_SETTINGS, TOLD, VALUES, Event, Script, scripts
from tests.e2e.settings.scene import WORKER_MODES, Scene
from ws_adapter.protocol.core.config import Mode

DIALECTS = ("realtime", "earlier", "duplex", "chat", "realtime_chat", "transcription", "live")
CASES = [(dialect, event, path) for dialect in DIALECTS for event, path in fields(dialect)]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Family:
    return load(request.param, tmp_path_factory.mktemp("models"))


def told(family: Family, script: Script, mode: Mode, name: str, event: Event) -> Scene:
    with pytest.MonkeyPatch.context() as monkeypatch:
        scene = Scene(family, script.selection(mode), monkeypatch)
        for before in script.before.get(name, ()):
            scene.send(script.events[before])
        scene.send(event)
        for after in script.after.get(name, ()):
            scene.send(script.events[after])
        return scene


def with_and_without(script: Script, name: str, path: str) -> tuple[Event, Event]:
    base = copy.deepcopy(script.events[name])
    for inner in (base, base.get("input")):
        for other in _others(path) if isinstance(inner, dict) else ():
            inner.pop(other, None)
    if path in script.patches:
        without, with_it = script.patches[path]
        return merged(base, without), merged(base, with_it)
    return base, put(copy.deepcopy(base), path, VALUES[path.rpartition(".")[2].removesuffix("[]")])


def _others(path: str) -> frozenset[str]:
    """Names of fields of which one makes the others of no account, where the path leads to one of them."""
    names = path.removeprefix("input.").replace("[]", "").split(".")
    return next((names_of_one for names_of_one in ALIASES if names[0] in names_of_one), frozenset())


def merged(target: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merged(result.get(key), value)
    return result


def put(event: Event, path: str, value: Any) -> Event:
    *parents, last = path.split(".")
    here: Any = event
    for name in parents:
        key = name.removesuffix("[]")
        if name.endswith("[]"):
            entries = here.setdefault(key, [{}])
            if not isinstance(entries[0], dict):
                entries[0] = {}
            here = entries[0]
        else:
            if not isinstance(here.get(key), dict):
                here[key] = {}
            here = here[key]
    here[last.removesuffix("[]")] = [value] if last.endswith("[]") else value
    return event


def figures(scene: Scene) -> Iterator[str]:
    for event in scene.events:
        yield from event
        yield from event.get("metrics", ())


@pytest.mark.parametrize(("dialect", "event", "path"), CASES, ids=[":".join(case) for case in CASES])
def test_field_has_effect_or_is_listed_or_refused(
    family: Family, dialect: str, event: str, path: str
) -> None:
    script = scripts(family.info)[dialect]
    for mode in script.modes:
        if WORKER_MODES[mode] not in family.info.modes or (dialect, event, path) in NO_SETTINGS:
            continue
        without, with_it = with_and_without(script, event, path)
        plain, given = (told(family, script, mode, event, it) for it in (without, with_it))
        has_effect = plain.trace != given.trace
        listed = set(given.listed) - set(plain.listed)
        if path in TOLD and not has_effect and not listed:
            assert {"vision_slices", "ignored_frames"} & set(figures(given))
            continue
        assert has_effect or listed or given.refused, (mode, given.trace)
        assert not (listed and has_effect), (mode, listed)
