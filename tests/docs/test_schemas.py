"""Real plans and inspections are what their schemas in docs/schemas.md say, and wrong ones are not."""

from __future__ import annotations

import copy
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

import ropeconv
from ropeconv.bake.document import PlanDocument
from ropeconv.inspection.document import InspectionDocument
from scripts.reference import schema_of

from ..conftest import CONFIGS, Run
from ..support.gguf_files import write

KINDS = {"apply": PlanDocument, "inspect": InspectionDocument}
PLANS = (
    ("model", "--yarn", "4"),
    ("model", "--mixed", "4", "--keep-short"),
    ("model", "--yarn", "4", "--encoding", "weights"),
    ("model", "--mixed", "4", "--log-n", "clamped", "--encoding", "buffers"),
    ("model", "--as-is"),
    ("small.gguf", "--yarn", "4"),
)


def is_of(data: Any, kind: type[msgspec.Struct]) -> bool:
    """Whether a document has the types of its kind and no key beside them, and its schema takes it."""
    try:
        same = bool(json.loads(msgspec.json.encode(msgspec.convert(data, kind))) == data)
    except msgspec.ValidationError:
        same = False
    return same and taken(data, kind) is not False


def taken(data: Any, kind: type[msgspec.Struct]) -> bool | None:
    """Whether the schema of a kind takes a document; None without the package that could say so."""
    if importlib.util.find_spec("jsonschema") is None:
        return None
    from jsonschema import Draft202012Validator

    return bool(Draft202012Validator(schema_of((kind,))).is_valid(data))


def changed(data: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy of a document with another value at a path of keys; None removes the key."""
    made = copy.deepcopy(data)
    *outer, last = (int(key) if key.isdigit() else key for key in path.split("."))
    inner: Any = made
    for key in outer:
        inner = inner[key]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return made


@pytest.fixture
def printed(run: Run, llama: Path, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """What a command prints with --json, beside a checkpoint and a GGUF file."""
    write(tmp_path / "small.gguf")

    def get(*words: str) -> dict[str, Any]:
        done = run(*words, "--json")
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    return get


@pytest.mark.parametrize("words", PLANS, ids=" ".join)
def test_a_plan_is_what_its_schema_says(printed: Callable[..., dict[str, Any]], words: tuple[str, ...]) -> None:
    assert is_of(printed("apply", *words, "--dry-run"), PlanDocument)


def test_what_apply_prints_after_writing_has_the_keys_of_a_plan(printed: Callable[..., dict[str, Any]]) -> None:
    done = printed("apply", "model", "--yarn", "4", "-o", "out")
    assert is_of({key: value for key, value in done.items() if key not in ("check", "run")}, PlanDocument)


@pytest.mark.parametrize("source", ["model", "small.gguf"])
def test_an_inspection_is_what_its_schema_says(printed: Callable[..., dict[str, Any]], source: str) -> None:
    found = printed("inspect", source)
    assert is_of(found, InspectionDocument)
    assert "repairs" in found


def test_those_of_published_configs_are_too() -> None:
    seen = [ropeconv.inspect_source(ropeconv.open_source(str(path))) for path in published()]
    documents = [json.loads(json.dumps(one.to_dict())) for one in seen]
    assert len(documents) > 20
    assert [one["source"]["reference"] for one in documents if not is_of(one, InspectionDocument)] == []
    assert any(one["local_theta"] for one in documents)
    assert any(one["mla"] for one in documents)


def published() -> list[Path]:
    """Published configs that are no first sources and no parameters of Meta's layout."""
    return [path for path in sorted(CONFIGS.glob("*.json")) if not path.stem.endswith((".first", ".params"))]


@pytest.mark.parametrize(
    ("command", "path", "value"),
    [
        ("apply", "recipe", None),
        ("apply", "schedule.inv_freq", ["1.0"]),
        ("apply", "runtimes.0.status", "fine"),
        ("apply", "files.0.action", "link"),
        ("apply", "kv_cache.layers.0.keys", "many"),
        ("apply", "before.context", 1.5),
        ("apply", "considered.0.selected", "yes"),
        ("inspect", "layer_groups.0.kind", "round"),
        ("inspect", "original_context_source", "guessed"),
        ("inspect", "schedule.digest", None),
        ("inspect", "problems", {}),
    ],
)
def test_a_wrong_document_is_refused(
    printed: Callable[..., dict[str, Any]], command: str, path: str, value: object
) -> None:
    data = printed(command, "model", *(("--yarn", "4", "--dry-run") if command == "apply" else ()))
    wrong = changed(data, path, value)
    assert not is_of(wrong, KINDS[command])
    assert taken(wrong, KINDS[command]) in (None, False)
    with pytest.raises(msgspec.ValidationError):
        msgspec.convert(wrong, KINDS[command])


def test_a_key_without_a_type_is_noticed(printed: Callable[..., dict[str, Any]]) -> None:
    data = printed("inspect", "model")
    assert not is_of(data | {"more": 1}, InspectionDocument)
    assert taken(data | {"more": 1}, InspectionDocument) in (None, True), "readers accept keys of later versions"
