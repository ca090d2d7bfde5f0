"""The check of a source before its output is kept: transformers reads it as ropeconv does."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import transformers

import ropeconv
from ropeconv.bake import source_check
from ropeconv.bake.apply import OutputCheck
from ropeconv.bake.checkpoint import CheckpointPlan
from ropeconv.bake.source_check import SourceCheck
from ropeconv.engines.probe import SharedProbe
from ropeconv.errors import Disagreement
from ropeconv.rope.forms import Plain, Yarn
from ropeconv.rope.spec import RopeSpec

from ..support.baking import AS_IS, YARN, make_plan, write_config
from ..support.extent import sample
from ..support.in_process import command
from ..support.models import TINY, make

VERSION = transformers.__version__


def planned(source: Path, out: Path) -> CheckpointPlan:
    plan = make_plan(source, YARN, out)
    assert isinstance(plan, CheckpointPlan)
    return plan


def check_of(source: Path, probe: SharedProbe) -> SourceCheck:
    check = SourceCheck.of(planned(source, source.with_name("out")), probe)
    assert check is not None
    return check


# Right readings


@pytest.mark.parametrize("model_type", sample(sorted(TINY)))
def test_the_source_of_any_family_is_read_right(
    model_type: str, tmp_path: Path, probe: SharedProbe
) -> None:
    """Also that of a family whose source transformers reads otherwise, which is not asked about."""
    source = make(model_type, tmp_path / "source")
    check = SourceCheck.of(planned(source, tmp_path / "out"), probe)
    assert check is None or check() == ""


# Wrong readings


def half_the_width(spec: RopeSpec) -> RopeSpec:
    return replace(spec, rotary_dim=spec.rotary_dim // 2)


WRONG: dict[str, tuple[Callable[[RopeSpec], RopeSpec], str]] = {
    "frequencies": (lambda spec: replace(spec, form=Plain(9_990.0)), "frequencies.*%"),
    "factor": (
        lambda spec: replace(spec, attention_factor=1.0954),
        "attention factor of 1 .*1.0954",
    ),
    "width": (half_the_width, "64 dimensions.* 32"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_reading_is_named(name: str, llama: Path, probe: SharedProbe) -> None:
    change, words = WRONG[name]
    check = check_of(llama, probe)
    assert check() == ""
    with pytest.raises(Disagreement, match=f"{VERSION} .*{words}.*nothing was kept"):
        replace(check, spec=change(check.spec))()


@pytest.mark.parametrize(("factor", "is_alike"), [(512.0, True), (512.1, False)])
def test_large_factors_are_read_up_to_the_rounding_of_float32(
    factor: float, is_alike: bool, llama: Path, tmp_path: Path, probe: SharedProbe
) -> None:
    """1 - ramp has 24 bits in transformers, and is added to 1 / 512."""
    scaled = {
        "rope_type": "yarn",
        "factor": 512.0,
        "original_max_position_embeddings": 4096,
        "truncate": False,
    }
    source = tmp_path / "source"
    shutil.copytree(llama, source)
    config = json.loads((source / "config.json").read_text())
    config["rope_parameters"] = {**scaled, "rope_theta": 1e6}
    config.pop("rope_theta", None)
    config["max_position_embeddings"] = 4096 * 512
    (source / "config.json").write_text(json.dumps(config))
    plan = make_plan(source, AS_IS, tmp_path / "out")
    assert isinstance(plan, CheckpointPlan)
    check = SourceCheck.of(plan, probe)
    assert check is not None
    form = check.spec.form
    assert isinstance(form, Yarn)
    read = replace(check, spec=replace(check.spec, form=replace(form, factor=factor)))
    if is_alike:
        assert read() == ""
    else:
        with pytest.raises(Disagreement, match="other frequencies"):
            read()


@pytest.mark.parametrize("form", ["local", "global"])
def test_both_kinds_of_layers_are_compared(form: str, tmp_path: Path, probe: SharedProbe) -> None:
    check = check_of(make("gemma3_text", tmp_path / "source"), probe)
    spec = replace(check.spec, **{"form" if form == "global" else "local_form": Plain(5_000.0)})
    with pytest.raises(Disagreement, match=f"frequencies on {form} layers"):
        replace(check, spec=spec)()


@pytest.mark.parametrize("recipe", ["--yarn=4", "--as-is"])
def test_nothing_is_left_under_the_name_of_the_output(
    recipe: str, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_check, "find_misreading", lambda answer, spec: "reads otherwise")
    before = sorted(tmp_path.iterdir())
    done = command(tmp_path, "apply", llama, recipe, "-o", "out", code=3)
    assert "reads otherwise" in done.stderr
    assert sorted(tmp_path.iterdir()) == before


# Sources that transformers does not load


def answering(error: str) -> MagicMock:
    probe = MagicMock()
    probe.ask.return_value = {"transformers": VERSION, "error": error}
    return probe


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("KeyError: 'rope_type'", "KeyError: 'rope_type'"),
        (
            "BadSource: transformers does not load the config of /tmp/a (b) (no (c)); correct its"
            " files",
            "no (c)",
        ),
    ],
)
def test_a_source_that_does_not_load_is_named(
    error: str,
    reason: str,
    llama: Path,
    probe: SharedProbe,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    check = check_of(llama, probe)
    clause = replace(check, probe=answering(error))()
    assert clause.startswith(f"transformers {VERSION} ")
    assert clause.endswith(f"({reason})")
    unknown = answering("LookupError: it has no model type x")
    assert replace(check, probe=unknown)() == ""


def test_its_output_is_kept_and_the_commands_work(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command that compares logits would end with an error, so it is not printed."""
    monkeypatch.delenv("ROPECONV_VALIDATE")
    monkeypatch.setattr(SourceCheck, "__call__", lambda self: "it does not load the source (why)")
    done = command(tmp_path, "apply", llama, "--yarn", 4, "-o", "out", code=0)
    assert done.stdout.count("(why)") == 1
    assert "alidate" not in done.stdout + done.stderr


def test_a_source_that_nothing_repairs(llama: Path, tmp_path: Path) -> None:
    plan = planned(llama, tmp_path / "out")
    write_config(plan, tmp_path)
    answer: dict[str, Any] = {"transformers": VERSION, "error": "KeyError: 'x'"}
    checking = OutputCheck(
        plan, lambda place: answer, check_source=lambda: "it does not load the source (why)"
    )
    with pytest.raises(Disagreement, match=r"\(why\), .*the output.*nothing was kept"):
        checking(tmp_path)


# Sources that are not compared


def test_a_source_that_transformers_is_known_to_read_otherwise(
    llama: Path, tmp_path: Path, probe: SharedProbe, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = import_module("ropeconv.validate.checks")
    plan = planned(llama, tmp_path / "out")
    for version in ("4.30.0", "9.1.0"):  # which the tables do not have
        monkeypatch.setattr(checks, "version", lambda name, here=version: here)
        assert SourceCheck.of(plan, probe) is None


def test_a_config_without_weights_is_compared_too(llama: Path, tmp_path: Path) -> None:
    plan = make_plan(llama / "config.json", AS_IS, tmp_path / "out")
    assert ropeconv.apply(plan).check is not None
