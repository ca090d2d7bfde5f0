"""Executes a plan, and checks the output before it is moved to its final name."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ..convert.from_gguf.source import GgufCheckpoint
from ..convert.target import Target
from ..engines.llamacpp import available, why_not_run
from ..engines.probe import Probe, ProbeCache
from ..engines.transformers.patch import Undo
from ..engines.transformers.patch import patch as patch_modules
from ..errors import Disagreement
from ..formats.disk import Advance
from ..formats.gguf.edit import Edit
from ..formats.gguf.inplace import phases
from ..formats.jsontext import JsonObject
from ..inspection.receipts.receipt import CheckRecord
from ..models.config import detect
from ..models.gguf import GgufSource
from ..models.source import Source
from ..rope.errors import RopeconvError
from ..rope.methods.vectors import AsIs
from ..rope.recipe import Recipe
from ..rope.schedule import LogN, QueryScaling, effective_scaling
from ..runtimes.grouping import ALL, find
from ..runtimes.llamacpp.archs import assumed_keys
from ..runtimes.read_config import read_spec
from ..runtimes.runtime import RUNS, SILENT
from ..runtimes.verdict import describe
from ..summary import Summary
from ..validate.checks import compare
from .checkpoint import CheckpointPlan, checkpoint_plan
from .gguf import ExportPlan, GgufPlan, export_plan, gguf_plan
from .plan import GgufOutput, Plan
from .writing.execute import execute_plan
from .writing.place import ApplyOptions

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NOT_INSTALLED = "transformers is not installed; pip install 'ropeconv[validate]'"
Query = Callable[[Path], JsonObject]


@dataclass
class OutputCheck:
    """The check of the output of a plan, called with the folder of the finished files.

    plan: what the output has to compute. query: from a folder to the answer of transformers, None where that is not
    installed. found: the result of the check, None before it and without one. reason: why there is none, or empty.
    """

    plan: CheckpointPlan
    query: Query | None
    found: CheckRecord | None = None
    reason: str = ""

    def __call__(self, folder: Path) -> CheckRecord | None:
        """The result; None where no verdict predicts that the installed transformers computes the schedule.

        Raises Disagreement where one does and it computes something else, and where one says that it computes another
        RoPE without an error, unless the plan is for other runtimes alone.
        """
        if self.query is None:
            self.reason = NOT_INSTALLED
            return None
        answer = self.query(folder)
        version = answer.get("transformers", "")
        predicted, runtimes = self.plan.predicted(version), self.plan.target.runtimes
        if predicted in SILENT and any(name in (ALL, "transformers") for name in runtimes or ("transformers",)):
            verdict = self.plan.result.verdict_of(find(f"transformers@{version}")[0])
            raise Disagreement(
                f"transformers {version}, which is installed here, computes another RoPE from this output "
                f"({verdict.reason or predicted}); install a version that `ropeconv list runtimes` names, or say "
                "what the output is for, as in --runtime vllm; nothing was kept"
            )
        if predicted not in RUNS:
            self.reason = f"transformers {version or 'as installed here'} is not among those that read it exactly"
            return None
        result = self.plan.result
        if result.family.origin and answer.get("error", "").startswith("LookupError: it has no model type"):
            said = result.family.origin
            self.reason = f"transformers {version} has no such model type, so nothing was compared with {said}"
            return None
        try:
            self.found = compare(answer, result.in_config, self.plan.before, result.written_as)
        except Disagreement as problem:
            raise Disagreement(f"{problem}; nothing was kept") from None
        return self.found


@dataclass
class DecodingCheck:
    """The check of a converted file by the installed llama.cpp, called with the folder that it is in.

    plan: of the file. reason: why it was not checked, or empty.
    """

    plan: GgufOutput
    reason: str = ""

    def __call__(self, folder: Path) -> None:
        """Raises RopeconvError where llama.cpp does not load the file or does not decode a few tokens with it."""
        if available():
            problem, self.reason = why_not_run(folder / self.plan.files[0].name)
            if problem:
                raise RopeconvError(
                    f"llama.cpp cannot run what was converted: {problem}; convert it with llama.cpp and patch that, or "
                    "keep safetensors; nothing was kept"
                )


def probe_query(plan: CheckpointPlan, probe: Probe) -> Query:
    """The function that asks transformers about the config in a folder: from the cache of answers, else by a probe.

    plan: of the folder. probe: stopped where the cache has the answer to the config of the plan.
    """
    own, family, context = bool(plan.result.texts), plan.result.family, plan.schedule.context
    stands_for = family.text_type if family.assumed else ""
    model_type = stands_for or str(plan.result.config.get("model_type", ""))
    cache = ProbeCache()
    if not own:
        planned = next(file.text for file in plan.files if file.name == "config.json") or ""
        if cache.get(cache.key(planned, model_type, context, stands_for)) is None:
            probe.prefetch(model_type)
        else:
            probe.stop()
    return lambda folder: cache.answer(folder, model_type, context, own, stands_for, probe)


def change_in_place(source: GgufSource, edit: Edit, hard_links: bool = False) -> Path:
    """Changes the first shard of a GGUF file in place. After a kill at any moment, running again undoes it first.

    source: the file. edit: what to change. hard_links: change a file that has other names as well. Raises RopeconvError
    for links into a cache, for a file that another process changes or has changed since it was planned, where the
    filesystem cannot make room and where the disk fails; the file is as it was then.
    """
    try:
        for _ in phases(source.file, edit, hard_links):
            pass
    except OSError as problem:
        place = problem.filename or source.path
        raise RopeconvError(
            f"{source.path} cannot be changed in place ({problem.strerror}: {place}) and is as it was; write a new "
            "file with -o"
        ) from None
    return source.path


@dataclass(frozen=True)
class AppliedPlan(Summary):
    """An output that has been written. It can be passed wherever a path is expected.

    path: a folder, or a GGUF file (of several shards the first). check: what the installed transformers computes from a
    checkpoint, None where it was not asked. reason: why it was not asked, or llama.cpp of a conversion, or empty.
    """

    path: Path
    check: CheckRecord | None = None
    reason: str = ""

    def __fspath__(self) -> str:
        return str(self.path)

    def summary(self) -> dict[str, str]:
        """What is shown, by name."""
        checked = "transformers computes the schedule" if self.check else self.reason
        return {"path": str(self.path), "check": checked}


def apply(
    plan: Plan,
    *,
    link: bool = False,
    force: bool = False,
    checksum: bool = False,
    staged: bool = False,
    fsync: bool = True,
    check: bool = True,
    advance: Advance = lambda done: None,
    probe: Probe | None = None,
) -> AppliedPlan:
    """Writes the output of a plan and checks it.

    plan: what to write. link, force, checksum, staged, fsync: as in `ApplyOptions`. check: ask the installed
    transformers what it computes from a checkpoint, and let the installed llama.cpp decode a few tokens with a
    conversion, before the output is moved to its final name. advance: called with the bytes done since the last call.
    probe: one that the caller has started already; None starts one where transformers is installed.

    Raises Disagreement where the installed transformers computes something else than the schedule, RopeconvError where
    llama.cpp does not run a conversion and where the output cannot be written; nothing is kept then.
    """
    options = ApplyOptions(link=link, force=force, checksum=checksum, staged=staged, fsync=fsync)
    if isinstance(plan, GgufPlan) and plan.target.in_place:
        return AppliedPlan(change_in_place(plan.source, plan.edit, plan.target.allow_hard_links))
    if isinstance(plan, ExportPlan) and check:
        decoding = DecodingCheck(plan)
        return AppliedPlan(execute_plan(plan, options, decoding, advance), reason=decoding.reason)
    if not isinstance(plan, CheckpointPlan) or not check:
        return AppliedPlan(execute_plan(plan, options, advance=advance))
    started = Probe() if probe is None and Probe.available() else None
    with started or nullcontext():
        running = probe or started
        checking = OutputCheck(plan, probe_query(plan, running) if running else None)
        path = execute_plan(plan, options, checking, advance)
    return AppliedPlan(path, checking.found, checking.reason)


def make_plan(source: Source | GgufSource, recipe: Recipe, target: Target | None = None) -> Plan:
    """Plans an output: its schedule, encoding, verdicts and files. Writes nothing.

    source: from `open_source`. recipe: the method and its modifiers. target: format, encoding and runtimes; by default
    the format of the source, for transformers (or llama.cpp). Raises UsageError for options that do not go together,
    BadSource for a damaged source, UnsupportedBake for a schedule that the target cannot express, RopeconvError for a
    model that is scaled already without `target.replace`.
    """
    target = target or Target()
    target.check(recipe, from_gguf=source.kind == "gguf")
    if isinstance(source, GgufSource) and target.to == "safetensors":
        source = _as_checkpoint(source, recipe, target)
    if isinstance(source, GgufSource):
        with assumed_keys(target.assume_arch_keys):
            return gguf_plan(source, recipe, target)
    if target.to == "gguf":
        return export_plan(source, recipe, target)
    return checkpoint_plan(source, recipe, target)


def _as_checkpoint(source: GgufSource, recipe: Recipe, target: Target) -> GgufCheckpoint:
    """A GGUF file as a checkpoint. Raises RopeconvError for one that ropeconv has extended, unless it stays so."""
    found = GgufCheckpoint(source, target.outtype or "auto")
    seen = found.inspection
    if seen.first is not None and seen.extended and not isinstance(recipe.method, AsIs):
        raise RopeconvError(
            f"{source.reference} was extended by ropeconv already, and a checkpoint would not say from what; run "
            "`ropeconv restore` on it first, or pass --as-is to keep the RoPE it has"
        )
    return found


def patch(model: PreTrainedModel, recipe_or_plan: Recipe | Plan) -> Undo:
    """Makes a loaded model compute a context extension. Calling the returned function undoes it.

    model: a causal language model of transformers, loaded from the source of the plan, or unscaled for a recipe; its
    RoPE is read from its config. recipe_or_plan: what to compute. The config of the model does not change, so that
    servers and `generate` still see its own context length. Patches are undone in the reverse order.

    Raises RopeconvError for a recipe over a model that is scaled already (plan it with `Target(replace=True)`),
    BadSource for a model whose rotary modules are not of the known shape.
    """
    config = model.config.to_dict()
    family = detect(config)
    spec = read_spec(config, family)
    if isinstance(recipe_or_plan, Recipe):
        if spec.scaled and recipe_or_plan.start(spec) is not spec:
            raise RopeconvError(
                f"the model is scaled already ({describe(spec.form)}); make a plan with Target(replace=True) and patch "
                "with that, or set on_top in the recipe"
            )
        schedule = recipe_or_plan.schedule(spec)
        scale: LogN | QueryScaling | None = schedule.log_n
    else:
        schedule, result, before = recipe_or_plan.schedule, recipe_or_plan.result, recipe_or_plan.before
        if before.rotary_dim != spec.rotary_dim or not math.isclose(before.rope_theta, spec.rope_theta, rel_tol=1e-6):
            raise RopeconvError(
                f"the plan is for {recipe_or_plan.source.reference}, whose RoPE is another than the model's; load that"
            )
        scale = effective_scaling(schedule.log_n, result.log_n_approximation, result.deviation)
    return patch_modules(model, schedule, spec, scale, family.weights.q_norm or family.weights.q)
