"""Executes a plan, and checks the output before it is moved to its final name."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ..convert.encoding import why_no_attention_factor
from ..convert.from_gguf.source import GgufCheckpoint
from ..convert.target import Target, refuse_attention_factor
from ..engines.llamacpp import DECODED, available, runtime, why_not_run
from ..engines.probe import Probe, ProbeCache, SharedProbe
from ..engines.transformers.patch import Undo
from ..engines.transformers.patch import patch as patch_modules
from ..errors import Disagreement
from ..formats.disk import Advance
from ..formats.gguf.edit import Edit
from ..formats.gguf.inplace import Neighbour, change_by_phases
from ..formats.jsontext import JsonObject
from ..inspection.receipts.places import remember_converter, remember_imatrix, remember_source
from ..inspection.receipts.receipt import CheckRecord, GgufCheckRecord, LayersRecord
from ..inspection.receipts.storage import remove_results
from ..loader import read_json
from ..models.config import detect
from ..models.gguf import GgufSource
from ..models.source import Source
from ..models.stored.checkpoint import dequantised
from ..rope.errors import RopeconvError
from ..rope.methods.vectors import AsIs
from ..rope.recipe import Recipe
from ..rope.schedule import LogN, QueryScaling, effective_scaling
from ..runtimes.llamacpp.archs import assumed_keys
from ..runtimes.read_config import read_spec
from ..runtimes.runtime import ALL, RUNS, SILENT, find
from ..runtimes.verdict import describe, difference
from ..validate.checks import compare
from .checkpoint import CheckpointPlan, checkpoint_plan
from .execution import ApplyOptions, Placed, Verify, execute_plan
from .fold_check import refuse_uneven_fold
from .gguf import ExportPlan, GgufPlan, export_plan, gguf_plan
from .gguf_check import (
    check_gguf,
    join_layers,
    refuse_wrong_layers,
    run_converted_layers,
    run_first_layers,
)
from .hidden import SideFile
from .layer_check import RunLayers, layer_runner, refuse_difference, refuse_other_source
from .plan import GgufOutput, Plan
from .row_check import refuse_other_rows
from .source_check import SourceCheck
from .start import complete_on_top, not_extended

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NOT_INSTALLED = "transformers is not installed; pip install ropeconv"
NO_LLAMA_CPP = "is not installed here; pip install 'ropeconv[llamacpp]'"
ENCODINGS_WITH_SAME_TYPE = ("native", "factors", "weights")
"""Encodings of a config.json whose model type stays that of the source."""
Query = Callable[[Path], JsonObject]
"""Returns the answer of transformers about the config in a folder."""


@dataclass
class OutputCheck:
    """The check of the output of a plan, called with the folder of the finished files."""

    plan: CheckpointPlan

    query: Query | None
    """None where transformers is not installed."""

    run_layers: RunLayers | None = None
    """None where only frequencies are compared."""

    record: CheckRecord | None = None
    """The result; None before the check, and where there is none."""

    reason: str = ""
    """Why there is no result, or empty."""

    uncomputed: bool = False
    """Whether `reason` is that the installed transformers computes another RoPE."""

    check_source: Callable[[], str] | None = None
    """Compares the source, as `SourceCheck` does; None where it is not compared."""

    source_problem: str = ""
    """Why transformers does not load the source, as a clause; empty where it does."""

    @classmethod
    def by_probe(
        cls, plan: CheckpointPlan, probe: Probe | None, with_layers: bool = True
    ) -> OutputCheck:
        """Return the check that asks a probe.

        Args:
            plan: The plan of the output.
            probe: A process with transformers; None where transformers is not installed.
            with_layers: Whether the first layers are run too, and not only frequencies compared.
        """
        if probe is None:
            return cls(plan, None)
        check_source = SourceCheck.of(plan, probe)
        asks_for_source = check_source is not None and not check_source.is_cached
        run_layers = layer_runner(plan, probe) if with_layers else None
        query = probe_query(plan, probe, asks_for_source, with_layers)
        return cls(plan, query, run_layers, check_source=check_source)

    def outcome(self, path: Path, was_complete: bool = False) -> AppliedPlan:
        """Return the outcome of `apply` for an output that was checked.

        Args:
            path: The output.
            was_complete: Whether it was there already, so that nothing was changed.
        """
        return AppliedPlan(
            path=path,
            check=self.record,
            reason=self.reason,
            uncomputed=self.uncomputed,
            source_problem=self.source_problem,
            was_complete=was_complete,
        )

    def __call__(self, folder: Path) -> CheckRecord | None:
        """Compare what the installed transformers computes from the output with the schedule.

        The tables of verdicts say which versions compute it. A version that should is asked for its
        frequencies and for the attention of the first layers.

        The result is kept in `record` too. Where nothing was compared, `reason` says why, and
        `uncomputed` is set for a version that does not compute the schedule.

        Args:
            folder: The output, before it gets its final name.

        Returns:
            The result. None, with the reason in `reason`, where transformers is not installed, does
            not have the model, or is a version that does not compute the schedule.

        Raises:
            Disagreement: transformers computes another RoPE, although its version should compute
                the schedule; or its version is known to compute another RoPE without an error, and
                the output is for transformers; or it computes another RoPE from the source than
                ropeconv reads.
        """
        # what needs no transformers: a fold is the same in all layers
        try:
            refuse_uneven_fold(self.plan, folder)
        except Disagreement as problem:
            raise Disagreement(f"{problem}; nothing was kept") from None

        # what can be asked: the installed version, if there is one
        if self.query is None:
            self.reason = NOT_INSTALLED
            self._refuse_wrong_config(folder)
            return None
        if self.check_source is not None:
            self.source_problem = self.check_source()
        answer = self.query(folder)
        version = answer.get("transformers", "")
        self._refuse_silent_error(version)

        # a version that is not expected to compute the schedule cannot show that it is right
        if self.plan.transformers_status(version) not in RUNS:
            version = version or "as installed here"
            self.reason = (
                f"transformers {version} is not among the versions that compute it exactly"
            )
            self.uncomputed = True
            self._refuse_wrong_config(folder)
            return None

        # a family that a user has described may be of a model that transformers does not have
        result = self.plan.result
        origin = result.family.origin
        if origin and answer.get("error", "").startswith("LookupError: it has no model type"):
            self.reason = (
                f"transformers {version} does not have this model type, so nothing was compared"
                f" with {origin}"
            )
            return None

        # frequencies and attention factor, then the attention of the first layers
        try:
            record = compare(answer, result.in_config, self.plan.before, result.written_as)
            if self.run_layers is not None:
                if self.source_problem:
                    unconfirmed = "nothing confirms the RoPE that ropeconv reads from it"
                    layers = LayersRecord(reason=f"{self.source_problem}, and {unconfirmed}")
                else:
                    layers = self.run_layers(folder)
                refuse_difference(layers, version)
                if self.check_source is not None:
                    refuse_other_source(layers, version)
                record = msgspec.structs.replace(record, layers=layers)
        except Disagreement as problem:
            if self.source_problem and "error" in answer:
                raise Disagreement(
                    f"{self.source_problem}, and does not load the output either; correct the"
                    f" config.json of {self.plan.source.reference}; nothing was kept"
                ) from None
            raise Disagreement(f"{problem}; nothing was kept") from None
        self.record = record
        return record

    def _refuse_wrong_config(self, folder: Path) -> None:
        """Raise Disagreement where the written config.json does not give the planned frequencies.

        This replaces the check by transformers for outputs that the installed transformers cannot
        load, such as an EAGLE head. The file is read as the config.json of any other model would
        be, so a mistake of the code that wrote it shows.
        """
        result = self.plan.result
        if result.encoding not in ENCODINGS_WITH_SAME_TYPE:
            return
        # in_config is the part of the schedule that config.json must give: an attention factor that
        # was multiplied into weights is not in it
        spec = read_spec(read_json(folder / "config.json"), result.family)
        schedule = result.in_config
        if spec.context != schedule.context:
            wrong = f"it declares {spec.context:,} tokens, not {schedule.context:,}"
        else:
            wrong = difference(schedule, self.plan.before, spec)
        if wrong:
            raise Disagreement(
                f"config.json does not hold the schedule: {wrong}; report it; nothing was kept"
            )

    def _refuse_silent_error(self, version: str) -> None:
        """Raise Disagreement where the installed transformers would compute another RoPE silently.

        It does not matter for an output that only another runtime, such as vLLM, is to run.

        Args:
            version: The installed version of transformers.
        """
        # The status is "exact", "ignored" and so on. With "unsupported", transformers raises an
        # error, which the user sees. With "ignored" or "differs" (SILENT) it raises none.
        status = self.plan.transformers_status(version)
        if status not in SILENT:
            return

        # --runtime names the runtimes that the output is for; without it, that is transformers
        runtimes = self.plan.target.runtimes or ("transformers",)
        is_for_transformers = "transformers" in runtimes or ALL in runtimes
        if not is_for_transformers:
            return

        # the verdict on this version has the reason in words
        table_row = find(f"transformers@{version}")[0]
        verdict = self.plan.result.verdict_of(table_row)
        raise Disagreement(
            f"transformers {version}, which is installed here, computes another RoPE from this"
            f" output ({verdict.reason or status}); install a version that `ropeconv list"
            " runtimes` names, or name another runtime for the output, as in --runtime vllm;"
            " nothing was kept"
        )


def probe_query(
    plan: CheckpointPlan, probe: Probe, is_needed: bool = False, runs_layers: bool = True
) -> Query:
    """Return a function that asks transformers what it computes from the config in a folder.

    The function is called when the output is written. Importing transformers takes seconds, so the
    probe, a process of its own, starts the import now. The probe is stopped instead if the answer
    is cached and there are no weights to run.

    Args:
        plan: The plan of the output.
        probe: The process that has imported transformers, or is importing it now. It is asked
            where the cache does not have the answer.
        is_needed: Whether the probe is asked about more than this config.
        runs_layers: Whether the probe runs the layers of an output with weights.
    """
    # A model_type that transformers does not know is loaded as one with the same layers, such as
    # "llama", if the user named that with --family.
    family = plan.result.family
    loaded_as = family.text_type if family.assumed else ""
    model_type = loaded_as or str(plan.result.config.get("model_type", ""))
    context = plan.schedule.context
    has_code = bool(plan.result.texts)  # the modelling file of `--encoding buffers`

    # The cache has answers by the text of config.json, which is known before the file is written.
    # An output with modelling code has no answer in the cache, and its code does not exist yet.
    cache = ProbeCache()
    if not has_code:
        key = cache.key(_config_text(plan), model_type, context, loaded_as)
        is_cached = cache.get(key) is not None
        has_weights_to_run = runs_layers and bool(plan.source.weights())
        if is_cached and not has_weights_to_run and not is_needed:
            probe.stop()
        else:
            probe.prefetch(model_type)  # imports transformers and the class of the model

    def query(folder: Path) -> JsonObject:
        """Return what transformers computes from the config in a folder."""
        return cache.answer(folder, model_type, context, has_code, loaded_as, probe)

    return query


def _config_text(plan: CheckpointPlan) -> str:
    """The text of the planned config.json."""
    for file in plan.files:
        if file.name == "config.json":
            return file.text or ""
    raise LookupError("the plan has no config.json")


def change_in_place(
    source: GgufSource,
    edit: Edit,
    verify: Callable[[Path], None] = lambda path: None,
    beside: SideFile | None = None,
) -> Path:
    """Change the first shard of a GGUF file in place, and verify it before the change is final.

    After a kill at any moment, running again undoes the change first.

    Args:
        source: The model.
        edit: The keys and tensors that change.
        verify: Called with the changed file before the change is final; where it raises, the change
            is undone.
        beside: A small file that is written in the same step, such as a Modelfile.

    Raises:
        RopeconvError: The file is a link into the cache of the Hub, or has a hard link under
            another name; another process changes it, or has changed it since it was planned; the
            filesystem cannot make space, or the disk fails. The file does not change then.
    """
    small_file = None
    if beside is not None:
        small_file = Neighbour(beside.name, beside.text)
    try:
        # `change_by_phases` is a generator, which yields the name of each phase after the phase.
        # After "durable", the new bytes are on the disk, and the old bytes are in a journal.
        phases = change_by_phases(source.file, edit, small_file)
        for phase in phases:
            if phase != "durable":
                continue
            try:
                verify(source.path)
            except RopeconvError as problem:
                # the generator restores the old bytes, and raises the error again
                phases.throw(problem)
    except OSError as problem:
        place = problem.filename or source.path
        raise RopeconvError(
            f"{source.path} cannot be changed in place ({problem.strerror}: {place}) and has not"
            " changed; write a new file with -o"
        ) from None
    remove_results(source.path)
    return source.path


@dataclass(frozen=True)
class AppliedPlan:
    """The outcome of `apply`: where the output is, and the result of its check."""

    path: Path
    """A folder, or a GGUF file (of several shards the first)."""

    check: CheckRecord | GgufCheckRecord | None = None
    """The result of the installed transformers for a checkpoint, or of reading a GGUF file back.
    None where neither was done.
    """

    reason: str = ""
    """Why transformers, or llama.cpp for a conversion, was not run; or empty."""

    uncomputed: bool = False
    """Whether `reason` is that the installed transformers does not compute the schedule."""

    source_problem: str = ""
    """Why transformers does not load the source, as a clause; empty where it does."""

    was_complete: bool = False
    """Whether the place had exactly this output already, so that nothing was changed."""

    @property
    def can_be_compared(self) -> bool:
        """Whether the installed transformers runs both the output and its source.

        An output that it does not compute cannot agree, and a source that it does not load cannot
        be run for a comparison.
        """
        return not self.uncomputed and not self.source_problem

    def __fspath__(self) -> str:
        return str(self.path)


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
    remember: bool = True,
    beside: SideFile | None = None,
) -> AppliedPlan:
    """Write the output of a plan and check it.

    Args:
        plan: From `make_plan`.
        link: Hard-link unchanged files.
        force: Replace an earlier output.
        checksum: Hash copied weights too, for the receipt.
        staged: Leave out files that are copied unchanged.
        fsync: Wait until everything is on the disk before it gets its final name.
        check: Before the output gets its final name, ask the installed transformers what it
            computes from a checkpoint; read a GGUF file back, and let the installed llama.cpp
            decode a few tokens with a conversion.
        advance: Called with the bytes done since the last call.
        probe: A process with the installed transformers, which the caller has started already;
            None starts one where transformers is installed.
        remember: Note where the local source is, in the user's state, so that `validate` and `eval`
            find it again.
        beside: A file that gets its name in one set with a GGUF file.

    Raises:
        Disagreement: Where the installed transformers computes something else than the schedule,
            and where a GGUF file that was read back is not as planned.
        RopeconvError: Where llama.cpp does not run a conversion and where the output cannot be
            written. Nothing is kept.
    """
    plan.check_packages()
    options = ApplyOptions(link=link, force=force, checksum=checksum, staged=staged, fsync=fsync)
    if isinstance(plan, GgufOutput):
        # the check of a conversion uses only a process that several conversions share
        shared_probe = probe if isinstance(probe, SharedProbe) else None
        done = _apply_gguf(plan, options, check, advance, beside, shared_probe)
    else:
        done = _apply_checkpoint(plan, options, check, advance, probe)

    # A later check of the output needs its source, the converter and the importance matrix again.
    # A receipt has no local paths, so these are noted in the state of the user.
    if remember and not plan.target.in_place:
        remember_source(done.path, plan.source)
        if isinstance(plan, ExportPlan) and plan.converter is not None:
            remember_converter(plan.converter.sha256, plan.converter.script)
        record = plan.imatrix_record
        if record is not None and plan.target.imatrix is not None:
            remember_imatrix(record.sha256, plan.target.imatrix)
    return done


def _apply_checkpoint(
    plan: Plan, options: ApplyOptions, check: bool, advance: Advance, probe: Probe | None
) -> AppliedPlan:
    """Write a checkpoint, and ask transformers about it. Parameters are those of `apply`."""
    if not isinstance(plan, CheckpointPlan) or not check:
        placed = execute_plan(plan, options, advance=advance)
        return AppliedPlan(placed.path, was_complete=placed.was_there)

    # a probe that is started here is stopped here; it imports torch while the files are written
    if probe is None and Probe.available():
        with Probe() as started:
            return _write_and_ask(plan, options, advance, started)
    return _write_and_ask(plan, options, advance, probe)


def _write_and_ask(
    plan: CheckpointPlan, options: ApplyOptions, advance: Advance, probe: Probe | None
) -> AppliedPlan:
    """Write a checkpoint, and ask a probe about it; None where transformers is not installed."""
    check = OutputCheck.by_probe(plan, probe)
    placed = execute_plan(plan, options, check, advance)
    return check.outcome(placed.path, placed.was_there)


def check_earlier(plan: Plan) -> AppliedPlan:
    """Return the outcome of `apply` for an output that an earlier run of the command has written.

    The installed transformers is asked again what it computes from a checkpoint, since another
    version may be installed now. No layer is run.

    Args:
        plan: The plan of the output, which is at its place.

    Raises:
        Disagreement: The installed transformers computes another RoPE. The output is kept.
    """
    if not isinstance(plan, CheckpointPlan):
        return AppliedPlan(plan.out, was_complete=True)
    # this process starts only for a question whose answer is not cached
    probe = SharedProbe() if Probe.available() else None
    try:
        check = OutputCheck.by_probe(plan, probe, with_layers=False)
        check(plan.out)
    except Disagreement as problem:
        words = str(problem).removesuffix("; nothing was kept")
        raise Disagreement(f"{words}; {plan.out} is kept") from None
    finally:
        if probe is not None:
            probe.close()
    return check.outcome(plan.out, was_complete=True)


def _apply_gguf(
    plan: GgufOutput,
    options: ApplyOptions,
    check: bool,
    advance: Advance,
    beside: SideFile | None,
    shared_probe: SharedProbe | None,
) -> AppliedPlan:
    """Write a GGUF file, or change a GGUF file in place, and check the result.

    Args:
        plan: The plan of the file.
        options: How the file is written.
        check: Whether the result is checked; False for `--no-check`.
        advance: Called with the bytes done since the last call.
        beside: A small file that is written in the same step, such as a Modelfile.
        shared_probe: A process with transformers that checks several outputs; None to start a
            process for this output.
    """
    output_check = GgufOutputCheck(plan, shared_probe)

    def accept(path: Path) -> None:
        """Accept a file without a check, for `--no-check`."""

    if isinstance(plan, GgufPlan) and plan.target.in_place:
        # called with the changed file, while the change can still be undone
        verify_change = output_check.check if check else accept
        placed = Placed(change_in_place(plan.source, plan.edit, verify_change, beside))
    else:
        # called with the folder of the new file, before the file gets its final name
        verify_folder: Verify = output_check if check else accept
        placed = execute_plan(plan, options, verify_folder, advance, beside)
    return AppliedPlan(
        path=placed.path,
        check=output_check.record,
        reason=output_check.reason,
        was_complete=placed.was_there,  # an earlier run had finished exactly this output
    )


@dataclass
class GgufOutputCheck:
    """The check of a GGUF output, called with the folder of the finished files."""

    plan: GgufOutput

    shared: SharedProbe | None = None
    """The process with transformers for several conversions; None starts one for this one."""

    record: GgufCheckRecord | None = None
    """The result; None before the check."""

    reason: str = ""
    """Why llama.cpp was not run on a conversion, or empty."""

    def __call__(self, folder: Path) -> None:
        """Check the first of the finished files in a folder, as `check` does."""
        self.check(folder / self.plan.files[0].name)

    def check(self, path: Path) -> None:
        """Read the file back, decode a few tokens with a conversion, and run its first layers.

        Raises:
            Disagreement: It is not as planned, or llama.cpp does not compute the method.
            RopeconvError: llama.cpp cannot run a conversion.
        """
        self.record = check_gguf(self.plan, path, in_place=self.plan.target.in_place)
        if isinstance(self.plan, ExportPlan):
            refuse_other_rows(self.plan, path)
            self._decode(path)
        if available():
            self._run_layers(path)

    def _run_layers(self, path: Path) -> None:
        """Compare the first layers with the method, and record that in `self.record`."""
        assert self.record is not None
        layers = run_first_layers(self.plan, path)
        refuse_wrong_layers(layers)
        # rows in another order show only beside the checkpoint
        if isinstance(self.plan, ExportPlan) and Probe.available():
            with self.shared or Probe() as probe:
                converted = run_converted_layers(self.plan, path, probe)
            refuse_wrong_layers(converted)
            layers = join_layers(layers, converted)
        self.record = msgspec.structs.replace(self.record, layers=layers, llama_cpp=runtime())

    def _decode(self, path: Path) -> None:
        """Let llama.cpp decode a few tokens with a conversion.

        The result is added to `self.record`, which goes into the receipt. Where llama.cpp cannot be
        tried, `self.reason` says what is not checked and why; users see it after "Not checked: ".

        Raises:
            RopeconvError: llama.cpp cannot run the file.
        """
        if not available():
            # "Not checked: whether llama.cpp runs it, which is not installed here; pip install ..."
            self.reason = f"whether llama.cpp runs it, which {NO_LLAMA_CPP}"
            return

        # both texts are empty if llama.cpp runs the file
        why_it_fails, why_unknown = why_not_run(path)
        if why_it_fails:
            assert isinstance(self.plan, ExportPlan)  # the plan of a conversion
            advice = "convert it with llama.cpp and patch that, or keep safetensors"
            if self.plan.converter is not None:  # llama.cpp's script has converted it already
                advice = self.plan.converter.repair
            raise RopeconvError(
                f"llama.cpp cannot run the conversion: {why_it_fails}; {advice}; nothing was kept"
            )
        if why_unknown:
            self.reason = why_unknown
            return
        assert self.record is not None
        self.record = msgspec.structs.replace(self.record, decoded=DECODED, llama_cpp=runtime())


def make_plan(source: Source | GgufSource, recipe: Recipe, target: Target | None = None) -> Plan:
    """Plan an output: its schedule, encoding, verdicts and files. Writes nothing.

    Args:
        source: From `open_source`.
        recipe: The method and its modifiers.
        target: Format, encoding and runtimes; by default the format of the source, for transformers
            (or llama.cpp).

    Raises:
        UsageError: For options that do not go together.
        BadSource: For a damaged source.
        UnsupportedBake: For a schedule that the target cannot express.
        RopeconvError: For a model that is scaled already without `target.replace`.
    """
    target = target or Target()
    target.check(recipe, from_gguf=source.kind == "gguf")

    # four ways: GGUF to GGUF, GGUF to a checkpoint, a checkpoint to GGUF, and to a checkpoint
    if isinstance(source, GgufSource):
        if target.to != "safetensors":
            with assumed_keys(target.assume_arch_keys):
                return gguf_plan(source, recipe, target)
        source = _open_as_checkpoint(source, recipe, target)
    if target.to == "gguf":
        return export_plan(dequantised(source), recipe, target)
    return checkpoint_plan(source, recipe, target)


def _open_as_checkpoint(source: GgufSource, recipe: Recipe, target: Target) -> GgufCheckpoint:
    """A GGUF file as a checkpoint. Raises RopeconvError for one that was extended already."""
    checkpoint = GgufCheckpoint(source, target.outtype or "auto")
    inspection = checkpoint.inspection
    by_ropeconv = inspection.first is not None and inspection.extended
    if by_ropeconv and not isinstance(recipe.method, AsIs):
        raise RopeconvError(
            f"{source.reference} was extended by ropeconv already, and a checkpoint would not"
            " record its source; run `ropeconv restore` on it first, or pass --as-is to keep"
            " the RoPE it has"
        )
    return checkpoint


def patch(model: PreTrainedModel, recipe_or_plan: Recipe | Plan) -> Undo:
    """Make a loaded model compute a context extension. Calling the returned function undoes it.

    The config of the model does not change, so that servers and `generate` still see its own
    context length. Patches are undone in the reverse order.

    Args:
        model: A causal language model of transformers, loaded from the source of the plan, or
            unscaled for a recipe; its RoPE is read from its config.
        recipe_or_plan: The method, or the plan of an output that has it.

    Raises:
        RopeconvError: For a recipe over a model that is scaled already (plan it with
            `Target(replace=True)`).
        UnsupportedBake: For a model whose family has no context extension, and for an attention
            factor in a family that can have only its own.
        BadSource: For a model whose rotary modules are not of the known shape.
    """
    config = model.config.to_dict()
    family = detect(config)
    if family.refuse:
        raise not_extended(family.display_name, family.refuse)
    spec = read_spec(config, family)

    # the factor by which queries grow with their position (log-n attention, as in Qwen 1); None for
    # a model without it
    query_scaling: LogN | QueryScaling | None

    # a recipe: its schedule (frequencies and attention factor) for this model
    if isinstance(recipe_or_plan, Recipe):
        recipe = recipe_or_plan
        keeps_scaling = recipe.on_top or isinstance(recipe.method, AsIs)
        if spec.scaled and not keeps_scaling:
            raise RopeconvError(
                f"the model is scaled already ({describe(spec.form)}); make a plan with"
                " Target(replace=True) and patch with that, or set on_top in the recipe"
            )
        if recipe.on_top:
            recipe = complete_on_top(recipe, config, family, spec)
        schedule = recipe.schedule(spec)
        only_own_factor = why_no_attention_factor(config, family)
        if only_own_factor:
            refuse_attention_factor(schedule, spec.attention_factor, family.name, only_own_factor)
        query_scaling = schedule.log_n

    # a plan: the schedule of its output, if the model is the source of the plan
    else:
        plan = recipe_or_plan
        before = plan.before
        same_base = math.isclose(before.rope_theta, spec.rope_theta, rel_tol=1e-6)
        if before.rotary_dim != spec.rotary_dim or not same_base:
            raise RopeconvError(
                f"the plan is for {plan.source.reference}; the model has another RoPE, so"
                " load the source of the plan"
            )
        schedule = plan.schedule
        # the config of an output may approximate log-n attention by steps, as in Ministral 3; the
        # patch computes what the output does
        result = plan.result
        query_scaling = effective_scaling(
            schedule.log_n, result.log_n_approximation, result.deviation
        )
    return patch_modules(model, schedule, spec.mla, query_scaling, family.weights.queries)
