"""The check of an output: whom it asks, what it takes from the cache, and when it asks nobody."""

import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock, call

import msgspec
import pytest
import transformers

import ropeconv
from ropeconv.bake.apply import OutputCheck, probe_query
from ropeconv.bake.checkpoint import CheckpointPlan
from ropeconv.engines.probe import Probe
from ropeconv.errors import Disagreement
from ropeconv.inspection.receipts.storage import read_receipt

from ..support.baking import YARN, make_plan, recipe_of, write_config


def asked(name: str = "given") -> MagicMock:
    """A probe that answers with its name."""
    probe = MagicMock()
    probe.__enter__.return_value = probe
    probe.ask.return_value = {"by": name, "modules": {}}
    return probe


@pytest.fixture
def plan(llama: Path, tmp_path: Path) -> CheckpointPlan:
    checkpoint_plan = make_plan(llama, YARN, tmp_path / "out")
    assert isinstance(checkpoint_plan, CheckpointPlan)
    return checkpoint_plan


@pytest.fixture
def folder(plan: CheckpointPlan, tmp_path: Path) -> Path:
    (tmp_path / "made").mkdir()
    write_config(plan, tmp_path / "made")
    return tmp_path / "made"


def right(
    plan: CheckpointPlan, version: str = transformers.__version__, factor: float = 1.0
) -> dict[str, Any]:
    vector = (plan.schedule.inv_freq * factor).tolist()
    module = {
        "inv_freq": vector,
        "short": vector,
        "attention_factor": plan.schedule.attention_factor,
    }
    return {"transformers": version, "modules": {"global": module}}


# Whether anybody is asked


@pytest.mark.parametrize("factor", [1.0, 1.01])
@pytest.mark.parametrize(
    ("version", "words"), [("4.30.0", "transformers 4.30.0 is"), ("", "as installed")]
)
def test_unknown_versions_prove_nothing(
    plan: CheckpointPlan, folder: Path, version: str, words: str, factor: float
) -> None:
    """Neither a right answer nor a wrong one, where no verdict says that this version reads it."""
    checking = OutputCheck(plan, lambda place: right(plan, version, factor))
    assert checking(folder) is None
    assert words in checking.reason
    assert "exactly" in checking.reason


def test_a_version_that_computes_another_rope_without_an_error_keeps_nothing(
    llama: Path, tmp_path: Path
) -> None:
    """transformers reads `truncate` from 4.55 on. An output for other runtimes alone is not its
    business.
    """
    default_plan = make_plan(
        llama, recipe_of("yarn", 4.0, 32.0, 1.0, False), tmp_path / "out", encoding="native"
    )
    assert isinstance(default_plan, CheckpointPlan)
    assert (
        default_plan.transformers_status("4.51.0"),
        default_plan.transformers_status("4.56.0"),
    ) == (
        "differs",
        "exact",
    )
    write_config(default_plan, tmp_path)
    for runtimes in ((), ("all",), ("vllm", "transformers")):
        plan = replace(default_plan, target=replace(default_plan.target, runtimes=runtimes))
        with pytest.raises(
            Disagreement,
            match=r"transformers 4\.51\.0, .*another RoPE .*other freq.*nothing was kept",
        ):
            OutputCheck(plan, lambda place: right(default_plan, "4.51.0"))(tmp_path)
        assert OutputCheck(plan, lambda place: right(default_plan, "4.56.0"))(tmp_path) is not None
    for runtimes in (("vllm",), ("transformers@4.56",)):
        plan = replace(default_plan, target=replace(default_plan.target, runtimes=runtimes))
        checking = OutputCheck(plan, lambda place: right(default_plan, "4.51.0"))
        assert checking(tmp_path) is None
        assert (
            checking.reason
            == "transformers 4.51.0 is not among the versions that compute it exactly"
        )


def test_a_model_type_that_transformers_should_have_is_missed(
    plan: CheckpointPlan, folder: Path
) -> None:
    """For a copy of a family under a name of its own there is nothing to compare, and that is
    said.
    """
    answer = {
        "transformers": transformers.__version__,
        "error": "LookupError: it has no model type x",
    }
    with pytest.raises(Disagreement, match="nothing was kept"):
        OutputCheck(plan, lambda place: answer)(folder)
    copied = msgspec.structs.replace(plan.result.family, origin="the model card")
    checking = OutputCheck(
        replace(plan, result=replace(plan.result, family=copied)), lambda place: answer
    )
    assert checking(folder) is None
    assert (
        checking.reason
        == f"transformers {transformers.__version__} does not have this model type, so nothing was"
        " compared with the model card"
    )
    with pytest.raises(Disagreement):
        OutputCheck(checking.plan, lambda place: {**answer, "error": "ValueError: x"})(folder)


# Where an answer comes from


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> MagicMock:
    start = MagicMock(return_value=asked("started"))
    monkeypatch.setattr("ropeconv.engines.probe.Probe", start)
    return start


def test_the_first_answer_is_cached(
    plan: CheckpointPlan, folder: Path, cache: Path, started: MagicMock
) -> None:
    probe = asked()
    second = asked("second")
    context = plan.schedule.context
    ask = probe_query(plan, probe)
    assert probe.method_calls == [call.prefetch("llama")]
    assert ask(folder)["by"] == "given"
    assert probe.method_calls[1:] == [call.ask(folder, context, False, "")]
    assert probe_query(plan, second)(folder)["by"] == "given"
    assert second.method_calls == [call.prefetch("llama")]
    started.assert_not_called()


# `ropeconv.apply` in Python: what it writes, and the check of the result


def test_it_is_checked_and_the_receipt_says_so(llama: Path, tmp_path: Path) -> None:
    done = ropeconv.apply(make_plan(llama, YARN, tmp_path / "out"))
    assert done.check is not None
    assert done.check.attention_factor == pytest.approx(1 + 0.1 * 1.3862943611198906, abs=1e-6)
    assert read_receipt(done.path).check == done.check
    assert os.fspath(done) == str(tmp_path / "out")
    assert read_receipt(done) == read_receipt(str(done.path))
    assert ropeconv.Comparison.open(done, str(llama)).baked == done.path


def test_without_transformers_there_is_a_reason(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Probe, "available", staticmethod(lambda: False))
    done = ropeconv.apply(make_plan(llama, YARN, tmp_path / "out"))
    assert done.check is None
    assert done.reason == "transformers is not installed; pip install ropeconv"
