"""What a plan says and refuses, from numbers made for the test: start, factors, warnings, inherited settings."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from ropeconv.bake.advice import Writing, leaders
from ropeconv.bake.extra_shard import RENAMED, SHARD, extra_shard
from ropeconv.bake.inherited import inherit_mscale, inherited_notes, mscale_of_config, mscale_of_gguf
from ropeconv.bake.matrix import MatrixCell, counts, letters
from ropeconv.bake.original import _scalings
from ropeconv.bake.planned import FilePlan, PlannedFile
from ropeconv.bake.record import runtime_record, source_record
from ropeconv.bake.start import derivation, scheduled, start_spec, uncovered
from ropeconv.bake.warnings import list_notes, warnings
from ropeconv.encode import Target
from ropeconv.encode.fold.placement import Fold, Scaling
from ropeconv.errors import RopeconvError, UnsupportedBake, UsageError
from ropeconv.families import by_model_type
from ropeconv.formats.safetensors import Tensor
from ropeconv.inspection import Problem
from ropeconv.receipts.original import ScaledRecord
from ropeconv.rope.forms import Interpolated, Plain, Yarn
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.schedule import Schedule
from ropeconv.rope.spec import RopeSpec
from ropeconv.runtimes.evidence import Evidence
from ropeconv.runtimes.verdict import Verdict
from ropeconv.sources import GgufSource
from ropeconv.sources.folder import FolderSource

from ..support.gguf_files import write


def spec(**changes: Any) -> RopeSpec:
    given = {"head_dim": 64, "rotary_dim": 64, "form": Plain(10000.0), "original_context": 1024, "context": 1024}
    return RopeSpec(**{**given, **changes})


LINEAR = spec(form=Interpolated(10000.0, 4.0), context=4096)


def seen(of: RopeSpec, extended: bool | None = None, **more: Any) -> Any:
    given = {
        "spec": of, "refuse": "", "display_name": "Made", "source": SimpleNamespace(reference="m"),
        "extended": of.scaled if extended is None else extended, "problems": (), "custom_code": "",
    }  # fmt: skip
    return SimpleNamespace(**{**given, **more})


def recipe(method: str, *values: Any, **modifiers: Any) -> Recipe:
    return Recipe(REGISTRY[method](*values), **modifiers)


YARN = recipe("yarn", 4.0)


# Where a plan starts


def test_a_plain_model_is_where_a_plan_starts() -> None:
    plain = spec()
    assert start_spec(seen(plain), YARN, Target()) is plain
    with pytest.raises(UsageError, match="m has no scaling that --on-top could keep"):
        start_spec(seen(plain), recipe("yarn", 4.0, on_top=True), Target())
    with pytest.raises(UnsupportedBake, match="no way"):
        start_spec(seen(plain, refuse="no way"), YARN, Target())


def test_a_scaled_model_needs_a_word() -> None:
    with pytest.raises(RopeconvError, match=r"m is scaled already \(linear, theta 10000, factor 4\); pass --replace"):
        start_spec(seen(LINEAR), YARN, Target())
    assert start_spec(seen(LINEAR), YARN, Target(replace=True)) == spec()
    assert start_spec(seen(LINEAR), recipe("yarn", 4.0, on_top=True), Target()) is LINEAR
    assert start_spec(seen(LINEAR), recipe("as-is"), Target()) is LINEAR
    with pytest.raises(RopeconvError, match="m was extended by ropeconv already"):
        start_spec(seen(spec(), extended=True), YARN, Target())


@pytest.mark.parametrize(("declared", "refused"), [(1024, True), (4095, True), (4096, False), (8192, False)])
def test_a_scaling_that_covers_more_than_is_declared_is_declared_first(declared: int, refused: bool) -> None:
    yarn = spec(form=Yarn(10000.0, 4.0, 1024), context=declared)
    on_top = recipe("linear", 2.0, on_top=True)
    if not refused:
        assert start_spec(seen(yarn), on_top, Target()) is yarn
        return
    with pytest.raises(
        RopeconvError, match=f"declares {declared:,} tokens and its scaling already covers 4,096.*4096, or"
    ):
        start_spec(seen(yarn), on_top, Target())
    assert start_spec(seen(yarn), YARN, Target(replace=True)).form == Plain(10000.0)


@pytest.mark.parametrize(
    ("method", "today", "repair"),
    [
        (recipe("yarn", 4.0), 4096, None), (recipe("yarn", 4.0), 4097, "pass --yarn 16388,"),
        (recipe("yarn", 2.0), 4096, "pass --yarn 8k,"), (recipe("yarn", "2k"), 4096, "pass --yarn 8k,"),
        (recipe("linear", 1.0), 4096, "pass --linear 8k,"),
        (recipe("theta", 5e5), 4096, "pass --context 4k to keep that,"),
        (recipe("theta", 5e5, context=2048), 4096, None),
    ],
)  # fmt: skip
def test_nothing_becomes_shorter_unasked(method: Recipe, today: int, repair: str | None) -> None:
    if repair is None:
        assert scheduled(seen(spec()), method, spec(), today).context <= today
        return
    with pytest.raises(UsageError) as refusal:
        scheduled(seen(spec()), method, spec(), today)
    assert repair in str(refusal.value)
    assert f"less than today's {today:,}" in str(refusal.value)


@pytest.mark.parametrize(
    ("method", "of", "expected"),
    [
        (recipe("yarn", 4.0), spec(), []), (recipe("theta", 5e5), LINEAR, []),
        (recipe("yarn", "4k"), spec(), ["factor 4 = 4,096 / 1,024 trained tokens"]),
        (recipe("yarn", "3k", original_context=512), spec(), ["factor 6 = 3,072 / 512 trained tokens"]),
        (recipe("yarn", 2.0), LINEAR, [
            "factor 2 = 2,048 / 1,024 trained tokens; 1,024 is the length before the linear scaling that --replace "
            "takes away, with which the model declares 4,096"]),
        (recipe("linear", 2.0, on_top=True), LINEAR, [
            "the linear scaling is kept with factor 8 = 4 x 2 (2 = 8,192 / 4,096 declared tokens)"]),
        (recipe("ntk", 2.0, on_top=True), LINEAR, [
            "the linear scaling is kept, and ntk goes on top of it with factor 2 = 8,192 / 4,096 declared tokens"]),
        (recipe("theta", 5e5, on_top=True), LINEAR, ["the linear scaling is kept"]),
    ],
)  # fmt: skip
def test_how_a_factor_follows(method: Recipe, of: RopeSpec, expected: list[str]) -> None:
    start = method.start(of)
    assert derivation(seen(of), method, start) == expected


@pytest.mark.parametrize(
    ("method", "of", "words"),
    [
        (recipe("yarn", 4.0), spec(), ""), (recipe("yarn", 4.0, context=4096), spec(), ""),
        (recipe("yarn", 4.0, context=4097), spec(),
         "4 x 1,024 trained tokens is 4,096, which does not cover --context 4,097; pass --yarn 4097"),
        (recipe("yarn", 4.0, context=2048, original_context=512), spec(), ""),
        (recipe("yarn", 4.0, context=2049, original_context=512), spec(), "4 x 512 trained tokens is 2,048"),
        (recipe("linear", 2.0, context=8192, on_top=True), LINEAR, ""),
        (recipe("linear", 2.0, context=8193, on_top=True), LINEAR, "2 x 4,096 declared tokens is 8,192"),
        (recipe("theta-for", 4096, context=4096), spec(), ""),
        (recipe("theta-for", 4096, context=4097), spec(), "it is made for 4,096 tokens, which does not cover"),
        (recipe("dynamic", "yarn:8", 4096, context=8192), spec(), "it is made for 4,096 tokens, which does not cover"),
        (recipe("theta", 5e5, context=1 << 20), spec(), ""),
    ],
)  # fmt: skip
def test_a_context_beyond_the_factor_is_warned_of(method: Recipe, of: RopeSpec, words: str) -> None:
    found = uncovered(method, seen(of), method.start(of))
    assert bool(found) is bool(words)
    assert words in "".join(found)
    assert all(one.startswith(f"{method.method.flag()}: ") for one in found)


# Warnings


def plain_schedule(context: int = 4096, **more: Any) -> Schedule:
    return Schedule(Plain(5e5).inv_freq(64), 1.0, context, 1024, Plain(5e5), **more)


def test_warnings_come_in_the_order_of_their_weight() -> None:
    problems = [
        Problem("stale-inv-freq", "stale"), Problem("other", "left out"), Problem("trained", "trained"),
        Problem("load", "load"),
    ]  # fmt: skip
    of, given = spec(context=4096), recipe("theta", 5e5)
    found = warnings(seen(of, problems=problems, custom_code="code"), given, of, plain_schedule())
    assert found[-5:] == [
        "the context stays 4,096; pass --context to declare a longer one",
        "load",
        "trained",
        "stale",
        "code",
    ]


def test_a_context_that_stays_is_only_said_of_a_base_without_a_context() -> None:
    of = spec(context=4096)
    for given, schedule in (
        (recipe("theta", 5e5, context=4096), plain_schedule()), (recipe("theta", 5e5), plain_schedule(8192)),
        (recipe("ntk", 4.0), plain_schedule()),
    ):  # fmt: skip
        assert not any("stays" in one for one in warnings(seen(of), given, of, schedule))


def test_a_model_in_which_nothing_rotates() -> None:
    still = Schedule(np.zeros(32), 1.0, 4096, 1024)
    turning = Schedule(np.array([0.0] * 31 + [1e-3]), 1.0, 4096, 1024)
    given = recipe("yarn", 4.0)
    assert any("no pair rotates" in one for one in warnings(seen(spec()), given, spec(), still))
    assert not any("no pair rotates" in one for one in warnings(seen(spec()), given, spec(), turning))


def test_windows_beyond_which_nothing_is_seen() -> None:
    windowed = spec(layers=("global",), windows=(512,))
    said = [one for one in warnings(seen(windowed), YARN, windowed, YARN.schedule(windowed)) if "512" in one]
    assert said
    as_is = recipe("as-is", context=4096)
    assert not any("512" in one for one in warnings(seen(windowed), as_is, windowed, as_is.schedule(windowed)))


def test_two_lists_in_llama_cpp() -> None:
    assert list_notes(plain_schedule()) == ()
    (note,) = list_notes(plain_schedule(short_inv_freq=np.ones(32)))
    assert "a window of up to 1,024 tokens" in note


# What a recipe takes over


def test_mscale_of_deepseek_is_taken_over(tmp_path: Path) -> None:
    family = by_model_type()["deepseek_v3"]

    def of(**rope: Any) -> Any:
        config = {"model_type": "deepseek_v3", "rope_scaling": {"rope_type": "yarn", "factor": 4.0, **rope}}
        return mscale_of_config(config, SimpleNamespace(family=family))  # type: ignore[arg-type]

    assert of(mscale=0.7, mscale_all_dim=0.9) == (0.7, 0.9)
    assert of(mscale_all_dim=0.9) == (1.0, 0.9)
    assert of(mscale=0.7) is None
    given = inherit_mscale(YARN, (0.7, 0.9))
    assert (given.method.mscale, given.method.mscale_all_dim) == (0.7, 0.9)  # type: ignore[attr-defined]
    own = recipe("yarn", 4.0, 32.0, 1.0, True, 1.0, 1.0)
    for kept, pair in ((YARN, None), (own, (0.7, 0.9)), (recipe("linear", 4.0), (0.7, 0.9))):
        assert inherit_mscale(kept, pair) is kept
    schedule = given.schedule(spec(mla=True))
    assert schedule.softmax_scale == pytest.approx((0.09 * np.log(4) + 1) ** 2)
    (note,) = inherited_notes(YARN, given, schedule)
    assert note.startswith(
        f"mscale 0.7 and mscale_all_dim 0.9 are the model's own: attention_factor {schedule.attention_factor:.5g}"
    )
    assert f"softmax_scale {schedule.softmax_scale:.5g}" in note
    assert "softmax_scale" not in inherited_notes(YARN, given, plain_schedule())[0]
    assert inherited_notes(YARN, YARN, schedule) == []


@pytest.mark.parametrize(
    ("arch", "multiplier", "pair"),
    [("deepseek2", 0.07, (0.7, 0.7)), ("mistral3", 0.7, (1.0, 0.7)), ("llama", 0.7, None), ("deepseek2", None, None)],
)
def test_mscale_of_gguf(tmp_path: Path, arch: str, multiplier: float | None, pair: tuple[float, float] | None) -> None:
    extra = {} if multiplier is None else {"rope.scaling.yarn_log_multiplier": multiplier}
    found = mscale_of_gguf(GgufSource(write(tmp_path / "x.gguf", arch, extra=extra)))
    assert found == (None if pair is None else pytest.approx(pair))


# What is recorded and written


def test_powers_of_two_are_recorded_and_other_factors_only_named() -> None:
    scalings = (
        Scaling("two", ((0, 4),), 2.0), Scaling("half", ((1, 2),), 0.5), Scaling("other", ((0, 4),), 1.1),
        Scaling("plus", ((0, 4),), 2.0, True), Scaling("int", ((0, 4),), 2.0), Scaling("both", ((0, 4),), 2.0),
        Scaling("both", ((0, 4),), 1.1), Scaling("near", ((0, 1),), 2.0 * (1 + 1e-10)),
    )  # fmt: skip
    names = {one.tensor for one in scalings}
    tensors = {name: Tensor(name, "F8_E4M3" if name == "int" else "BF16", (4,), 0, 8) for name in names}
    exact, rounded = _scalings(Fold("k", scalings, 0.0), tensors)
    assert exact == (
        ScaledRecord("two", 2.0, ((0, 4),)), ScaledRecord("half", 0.5, ((1, 2),)),
        ScaledRecord("near", 2.0 * (1 + 1e-10), ((0, 1),)),
    )  # fmt: skip
    assert rounded == ("both", "int", "other", "plus")


def test_tensors_are_added_as_one_more_shard(tmp_path: Path) -> None:
    save_file({"a": np.ones(4, np.float16), "b": np.ones(2, np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text("{}")
    source, tensors = FolderSource(tmp_path), {"x": np.arange(3, dtype=np.float32), "y": np.ones((2, 2), np.float32)}
    assert extra_shard(source, {}).files == ()
    added = extra_shard(source, tensors)
    (file,) = added.files
    assert (file.name, file.action, added.renamed) == (SHARD, "write", {"model.safetensors": RENAMED})
    assert file.make is not None
    done: list[int] = []
    file.make(tmp_path / "out", done.append)
    assert (tmp_path / "out").stat().st_size == file.size == sum(done)
    for name, data in load_file(tmp_path / "out").items():
        np.testing.assert_array_equal(data, tensors[name])
    text = '{"metadata": {"total_size": 16}, "weight_map": {"a": "1.safetensors"}}'
    (tmp_path / "model.safetensors.index.json").write_text(text)
    first, second = (
        json.loads(added.texts["model.safetensors.index.json"]),
        extra_shard(FolderSource(tmp_path), tensors),
    )
    assert first == {
        "metadata": {"total_size": 16 + 28}, "weight_map": {"a": RENAMED, "b": RENAMED, "x": SHARD, "y": SHARD},
    }  # fmt: skip
    assert second.renamed == {}
    assert json.loads(second.texts["model.safetensors.index.json"])["metadata"]["total_size"] == 16 + 28


def test_files_of_a_plan() -> None:
    plan = FilePlan(
        SimpleNamespace(seen=dict), Path("out"), (PlannedFile("copy", "a", 3), PlannedFile("write", "b", 4)), ()
    )  # type: ignore[arg-type]
    assert (plan.bytes, plan.is_folder, plan.resume_key, plan.receipt()) == (7, True, "", None)
    assert plan.origin(plan.files[0]) is None


def test_a_source_is_recorded_without_paths_of_this_machine() -> None:
    def record(**fields: Any) -> Any:
        return source_record(
            SimpleNamespace(
                **{"name": "m", "reference": "/home/x/m", "kind": "folder", "commit": None, "treat_as": "", **fields}
            )
        )  # type: ignore[arg-type]

    assert record().reference is None
    assert record(kind="hub", reference="a/m").reference == "a/m"
    assert record(commit="0123", reference="a/m").reference == "a/m"


# Tables


def verdict(status: Any, name: str = "made", grade: Any = "") -> Verdict:
    return Verdict(f"{name}@1.2", f"{name} 1.2", status, "why", "here", "1.4", Evidence(grade, "when" if grade else ""))


def test_a_verdict_is_recorded_with_its_evidence() -> None:
    record = runtime_record(verdict("exact", grade="run"))
    assert (record.runtime, record.status, record.reason, record.source) == ("made@1.2", "exact", "why", "here")
    assert (record.display_name, record.evidence, record.evidence_detail) == ("made 1.2", "run", "when")


def test_an_output_in_a_table() -> None:
    assert Writing("", (), "no").summary == "refused"
    assert Writing("native", (verdict("differs"),)).summary == "differs"
    many = Writing("native", tuple(map(verdict, ("exact", "exact", "ignored", "unknown", "unsupported"))))
    assert many.summary == "exact in 2 of 3"
    several = Writing(
        "native", (verdict("exact", "a"), verdict("differs", "b"), verdict("refused", "c"), verdict("unknown", "d"))
    )
    assert several.exceptions == "differs: b 1.2; refused: c 1.2"
    assert Writing("native", (verdict("exact"),)).exceptions == ""
    assert Writing("", (), "").to_dict() == {"encoding": None, "runtimes": [], "reason": None}
    assert Writing("x", (), "no").to_dict() == {"encoding": "x", "runtimes": [], "reason": "no"}
    assert leaders([]) == []


def test_cells_of_the_matrix() -> None:
    def cells(**statuses: Any) -> list[MatrixCell]:
        return [MatrixCell("llama", writing, verdict(status)) for writing, status in statuses.items()]

    assert letters(cells(theta="exact", linear="exact", llama3="exact", yarn="exact", factors="exact")) == "TL3YF"
    assert letters(cells(theta="exact", yarn="differs", factors="rounded")) == "T...."
    assert letters(cells(theta="unsupported", yarn="unsupported")) == "-"
    assert letters(cells(theta="unknown", yarn="unknown")) == "?"
    assert letters(cells(theta="unknown", yarn="unsupported")) == "....."
    graded = [MatrixCell("llama", "yarn", verdict("exact", grade=grade)) for grade in ("run", "run", "read", "")]
    assert counts(graded) == {"run": 2, "read": 1, "unknown": 1}
    assert graded[0].to_dict()["family"] == "llama"
    assert graded[0].to_dict()["evidence"] == "run"
