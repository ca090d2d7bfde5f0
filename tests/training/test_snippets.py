"""What `train-config` prints: as each trainer reads it, at the whole context, with nothing that scales RoPE again."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ropeconv
from ropeconv.errors import RopeconvError, UsageError
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.runtimes import runtimes
from ropeconv.training import Baked, baked_output, baked_plan, find_trainer, make_snippet, trainers
from ropeconv.training.trainer import Trainer

yaml = pytest.importorskip("yaml")
BAKED = Baked(
    path="./Qwen3-8B-yarn4", method="yarn", context=131072, trained=32768, model_type="qwen3", rope_type="yarn",
    two_lists=False, own_code=False, encoder=False, verdicts={"transformers@5.18": ("exact", "")},
)  # fmt: skip


class _Any(dict[str, tuple[str, str]]):
    """Verdicts that are the same for every row."""

    def __init__(self, status: str) -> None:
        super().__init__()
        self.status = status

    def get(self, key: str, default: Any = None) -> tuple[str, str]:
        return (self.status, "it computes other frequencies")


def exact(**changes: Any) -> Baked:
    return replace(BAKED, verdicts=_Any("exact"), **changes)


def settings(name: str, text: str) -> dict[str, Any]:
    """The options of a snippet by name: keys of YAML, and the keyword arguments of the calls in Python."""
    if name.endswith((".yml", ".yaml")):
        found: dict[str, Any] = yaml.safe_load(text)
        return found
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return {
        one.arg: one.value.value
        for call in calls
        for one in call.keywords
        if one.arg and isinstance(one.value, ast.Constant)
    }


def strings(text: str) -> list[object]:
    return [node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)]


@pytest.mark.parametrize("trainer", trainers().values(), ids=lambda one: one.name)
def test_the_length_is_the_context_and_nothing_scales_rope(trainer: Trainer) -> None:
    made = make_snippet(trainer, exact())
    given = settings(trainer.file, made.text)
    assert given[trainer.length] == 131072
    assert not {"rope_scaling", "rope_parameters", "overrides_of_model_config", "model_init_kwargs"} & set(given)
    assert "trust_remote_code" not in given
    model = given.get("base_model") or given.get("model_name_or_path")
    assert model == "./Qwen3-8B-yarn4" or "./Qwen3-8B-yarn4" in strings(made.text)
    assert given["output_dir"] == "Qwen3-8B-yarn4-trained"
    assert trainer.file in trainer.command
    assert made.notes == ()


@pytest.mark.parametrize("trainer", trainers().values(), ids=lambda one: one.name)
def test_a_model_with_its_own_code_is_trusted_or_refused(trainer: Trainer) -> None:
    if trainer.no_code:
        with pytest.raises(RopeconvError, match=re.escape(trainer.no_code)):
            make_snippet(trainer, exact(own_code=True))
    else:
        assert settings(trainer.file, make_snippet(trainer, exact(own_code=True)).text)["trust_remote_code"] is True


@pytest.mark.parametrize("path", ['a "b" \\ c', "it's", "x\n- y: z", "ü: #"])
@pytest.mark.parametrize("trainer", trainers().values(), ids=lambda one: one.name)
def test_any_path_stays_one_value(trainer: Trainer, path: str) -> None:
    text = make_snippet(trainer, exact(path=path)).text
    if trainer.file.endswith(".py"):
        assert path in strings(text)
    else:
        given = settings(trainer.file, text)
        assert path in (given.get("base_model"), given.get("model_name_or_path"))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"encoder": True}, "is an encoder"),
        ({"model_type": "gemma2"}, "for gemma2 ignores the rope type yarn"),
        ({"two_lists": True, "rope_type": "longrope"}, "takes the short list"),
    ],
)
def test_unsloth_refuses_what_it_would_train_otherwise(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(RopeconvError, match=reason) as refused:
        make_snippet(find_trainer("unsloth"), exact(**changes))
    others = [name for name in trainers() if name != "unsloth" and not changes.get("encoder")]
    assert all(f"--for {name}" in str(refused.value) for name in others)
    assert "--for unsloth" not in str(refused.value)


def test_unsloth_trains_a_base_of_gemma() -> None:
    assert make_snippet(find_trainer("unsloth"), exact(model_type="gemma2", rope_type="default")).text


@pytest.mark.parametrize("status", ["differs", "ignored", "refused", "unsupported"])
@pytest.mark.parametrize("name", list(trainers()))
def test_what_its_transformers_does_not_compute_is_refused(name: str, status: str) -> None:
    with pytest.raises(RopeconvError, match=rf"transformers.* does not compute it \({status}: it computes other") as no:
        make_snippet(find_trainer(name), replace(BAKED, verdicts=_Any(status)))
    assert no.value.exit_code == 1
    assert "apply --explain" in str(no.value)


def test_an_unknown_verdict_is_said() -> None:
    (note,) = make_snippet(find_trainer("trl"), replace(BAKED, verdicts={})).notes
    assert note.startswith("nobody has looked")


def test_the_verdict_is_that_of_the_version_that_the_trainer_brings() -> None:
    rows = [row for row in runtimes() if row.name == "transformers"]
    old = next(row for row in rows if row.covers("5.16.1"))
    assert old is not rows[-1]
    baked = replace(BAKED, verdicts={old.key: ("differs", "x"), rows[-1].key: ("exact", "")})
    assert (baked.verdict("5.16.1"), baked.verdict(""), baked.verdict("9.1")[0]) == (
        ("differs", "x"), ("exact", ""), "unknown",
    )  # fmt: skip


def test_two_lists_are_said() -> None:
    (note,) = make_snippet(find_trainer("trl"), exact(two_lists=True, rope_type="longrope")).notes
    assert "within 32,768 tokens" in note


def test_a_plan_and_its_output_give_the_same(llama: Path, tmp_path: Path) -> None:
    recipe = Recipe(REGISTRY["yarn"](4.0))  # type: ignore[call-arg]
    plan = ropeconv.make_plan(ropeconv.open_source(str(llama)), recipe, ropeconv.Target(out=tmp_path / "out"))
    planned = baked_plan(plan)
    done = ropeconv.apply(plan)
    written = baked_output(ropeconv.open_source(str(done.path)))
    assert planned == written
    assert (written.context, written.trained, written.rope_type, written.own_code) == (256, 64, "yarn", False)
    assert make_snippet(find_trainer("axolotl"), written).status == "exact"


def test_an_output_with_stored_frequencies_needs_its_code(tiny: Callable[[str], Path], tmp_path: Path) -> None:
    recipe = Recipe(REGISTRY["mixed"](4.0), log_n="clamped")  # type: ignore[call-arg]
    plan = ropeconv.make_plan(
        ropeconv.open_source(str(tiny("llama"))), recipe, ropeconv.Target(out=tmp_path / "out", encoding="buffers")
    )
    ropeconv.apply(plan)
    written = baked_output(ropeconv.open_source(str(tmp_path / "out")))
    assert written == baked_plan(plan)
    assert written.own_code


def test_an_edited_output_is_not_what_its_receipt_says(llama: Path, tmp_path: Path) -> None:
    recipe = Recipe(REGISTRY["yarn"](4.0))  # type: ignore[call-arg]
    ropeconv.apply(ropeconv.make_plan(ropeconv.open_source(str(llama)), recipe, ropeconv.Target(out=tmp_path / "out")))
    config = tmp_path / "out" / "config.json"
    config.write_text(config.read_text().replace("256", "512"))
    with pytest.raises(UsageError, match="not an output of ropeconv as that wrote it"):
        baked_output(ropeconv.open_source(str(tmp_path / "out")))


def test_a_name_that_no_trainer_has() -> None:
    with pytest.raises(UsageError, match="axolotl, llama-factory, trl, unsloth"):
        find_trainer("nanotron")
