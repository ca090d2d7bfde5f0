"""The warnings of a plan, the most important first, and the Modelfile of an output."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ..convert.encoding import EncodeRequest, select
from ..convert.target import Target
from ..errors import UsageError
from ..formats.drafts import write_file
from ..formats.gguf.file import SHARD
from ..formats.package_data import render
from ..inspection.document import Problem
from ..inspection.inspection import ConfigInspection, Inspection
from ..models.gguf import GgufSource
from ..models.length_limits import limits_in, modelfile_limits, raise_limits
from ..models.projector import projector_beside
from ..models.reference import FROM
from ..models.schema import Config
from ..models.source import Source
from ..options import DualChunk
from ..rope.bound.reach import worse_than_source
from ..rope.errors import RecipeError, RopeconvError, counted, shown
from ..rope.lengths import factor_text
from ..rope.methods.interpolation import Ntk
from ..rope.methods.vectors import AsIs
from ..rope.recipe import Recipe
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from ..runtimes.runtime import GOOD, WRONG, Runtime, newest, runtimes
from ..runtimes.verdict import Verdict
from .hidden import SideFile
from .start import PlanStart, warn_of_short_reach

if TYPE_CHECKING:
    from .plan import Plan

DROPE_PAPER = "(DroPE, https://arxiv.org/abs/2512.12167)"
CARRIED_OVER = ("load", "trained", "stale-inv-freq", "ignored-tensor")
"""Problems of a source, by code, that its outputs have as well."""


def warnings(inspection: Inspection, start: PlanStart) -> Iterator[str]:
    """Yield the warnings of a plan, the most important first.

    Args:
        inspection: The model that the user gave.
        start: The recipe for it, its schedule, and the RoPE that it starts from, which with
            --replace is an earlier one than that of the model.
    """
    recipe = start.recipe
    schedule = start.schedule
    spec = inspection.spec

    # lengths and quality that the output will not have; the sentence on training stands here if
    # training is known to be needed, and at the end if that is only in doubt
    yield from warn_of_short_reach(recipe, inspection, start.spec)
    if not start.fine_tuning.may_work_untuned:
        yield start.fine_tuning.sentence

    # what changes that the user may not expect
    if start.replaced:
        yield start.replaced
    if not isinstance(recipe.method, AsIs):
        useless = cannot_gain(spec, schedule.context)
        if useless:
            yield useless
    worse = worse_than_source(schedule, spec)
    if worse:
        yield worse
    if not schedule.inv_freq.any():
        yield (
            "no pair rotates: only the causal mask gives the order of tokens, which needs training"
            f" {DROPE_PAPER}"
        )
    # a base does not say a length, so `--theta 1e6` alone declares no longer context
    is_only_base = recipe.method.name == "theta" and recipe.context is None
    if is_only_base and schedule.context == spec.context:
        yield f"the context stays {schedule.context:,}; pass --context to declare a longer one"

    # problems of the source that the output has too, the most important first
    for code in CARRIED_OVER:
        for problem in inspection.problems:
            if problem.code == code:
                yield problem.message

    is_training_in_doubt = start.fine_tuning.level == "undecided"
    if is_training_in_doubt:
        yield start.fine_tuning.sentence
    if inspection.custom_code:
        yield inspection.custom_code


def cannot_gain(spec: RopeSpec, context: int) -> str:
    """Return why an extension of RoPE does not extend what a model sees, and what would.

    All layers with RoPE of such a model have a sliding window below the new context. The text is
    empty for other models.

    Args:
        spec: The RoPE of the model.
        context: The tokens that the output declares.
    """
    # the widest window of the layers with RoPE; None where one of them sees everything
    window = spec.rotating_window
    if window is None or window >= context:
        return ""
    window_text = f"{window:,} tokens ({spec.window_kind})"
    layers_with_rope = spec.count("global")
    layers_without_rope = spec.count("none")
    if not layers_without_rope:
        return (
            f"every layer that rotates sees only {window_text}, so the extension adds nothing"
            " beyond them; set sliding_window to null first if the model was trained without it"
        )

    # Llama 4 and others have layers without RoPE that see everything: only the declared context
    # limits those
    with_rope = counted(layers_with_rope, "layer that rotates sees", "layers that rotate see")
    without_rope = counted(
        layers_without_rope, "that sees the whole context has", "that see the whole context have"
    )
    # "the 36 layers that rotate see 8,192 tokens (chunks), and the 12 that see the whole context
    # have no RoPE: ..."
    return (
        f"the {with_rope} {window_text}, and the {without_rope} no RoPE: the extension changes only"
        f" the former; `--as-is --context {context}` raises the context without it"
    )


def list_notes(schedule: Schedule) -> tuple[str, ...]:
    """Return a sentence on llama.cpp's use of two factor lists; empty for one."""
    if schedule.short_inv_freq is None:
        return ()
    length = schedule.original_context
    note = (
        f"llama.cpp uses the short list when it is started with a window of up to {length:,}"
        " tokens and the long one with a larger one, for every prompt, so that no cache ever"
        " holds both"
    )
    return (note,)


IN_DOUBT = {"schemas", "contradiction", "flat", "ignored-key", "attn-factor", "original"}
"""Codes of problems in which transformers may read something else than what the weights were
trained with.
"""


def repairs(source: Source | GgufSource, inspection: Inspection) -> Iterator[Problem]:
    """Yield a problem for each runtime that computes a checkpoint wrongly, if a new config helps.

    Such as "vLLM 0.33: ignored, it reads rope_parameters only", with the repair "--as-is --runtime
    vllm": flags of `ropeconv apply` that write a config which this runtime computes. There are none
    for GGUF files. Weights are not read.
    """
    if inspection.refuse:
        return
    if not isinstance(source, Source) or not isinstance(inspection, ConfigInspection):
        return

    # the ways to write the config again, of which the first that helps is the repair
    config = source.config()
    candidates = _candidates(inspection)
    names = dict.fromkeys(version.name for version in runtimes())
    for name in names:
        version = newest(name)  # such as vllm@0.33
        verdict = _last_verdict(inspection.verdicts, version)
        if verdict.status not in WRONG:
            continue
        for candidate in candidates:
            if _would_compute(version, config, inspection, candidate):
                message = f"{verdict.display_name}: {verdict.status}, {verdict.reason}"
                yield Problem("runtime", message, f"{candidate.flags} --runtime {name}")
                break


def _last_verdict(verdicts: Sequence[Verdict], version: Runtime) -> Verdict:
    """The last verdict on a version of a runtime."""
    for verdict in reversed(verdicts):
        if verdict.covers(version):
            return verdict
    raise LookupError(f"no verdict on {version.key}")


class NewWriting(NamedTuple):
    """Another way to write a checkpoint for the context that it has."""

    flags: str
    """The options of `ropeconv apply` that write it so."""

    recipe: Recipe

    dual_chunk: DualChunk | None = None
    """Whether the key of dual chunk attention is removed ("drop") or stays (None)."""


def _candidates(inspection: ConfigInspection) -> list[NewWriting]:
    """Other ways to write a checkpoint for its context, with which more runtimes may compute it."""
    # The same RoPE, written for every version of transformers (rope_scaling and rope_parameters).
    # Where the config has contradicting settings (problems of IN_DOUBT), and ropeconv cannot repair
    # that, nobody knows with which of them the model was trained.
    candidates = []
    rope_is_known = True
    for problem in inspection.problems:
        if problem.code in IN_DOUBT and problem.repair is None:
            rope_is_known = False
    if rope_is_known:
        candidates.append(NewWriting("--as-is", Recipe(AsIs())))
        if any(problem.code == "dual-chunk" for problem in inspection.problems):
            flags = "--as-is --dual-chunk drop"
            candidates.append(NewWriting(flags, Recipe(AsIs()), dual_chunk="drop"))

    # A new base (NTK) instead of the scaling, since every runtime can compute another base. This is
    # only for weights that were trained without a scaling. That is known for an output of ropeconv:
    # its receipt has the RoPE of the model before the first run (`first`).
    spec = inspection.spec
    before_ropeconv = inspection.first
    was_trained_unscaled = before_ropeconv is not None and not before_ropeconv.scaled
    is_extended = spec.scaled and spec.context > spec.original_context
    if was_trained_unscaled and is_extended:
        factor = spec.context / spec.original_context
        has_few_digits = round(factor, 2) == factor
        value = f"{factor:g}" if has_few_digits else factor_text(spec.context)
        candidates.append(NewWriting(f"--ntk {value} --replace", Recipe(Ntk(factor))))
    return candidates


def _would_compute(
    runtime: Runtime, config: Config, inspection: ConfigInspection, candidate: NewWriting
) -> bool:
    """Whether a runtime would compute a checkpoint exactly if its config were written in a new way.

    Args:
        runtime: A version of the runtime.
        config: The config.json of the checkpoint.
        inspection: The inspection of the checkpoint.
        candidate: The new way to write it.
    """
    # --as-is keeps the scaling; any other method replaces it, and starts without it
    recipe = candidate.recipe
    spec = inspection.spec
    if not isinstance(recipe.method, AsIs):
        spec = inspection.spec.unscaled()
    target = Target(runtimes=(runtime.key,), dual_chunk=candidate.dual_chunk)
    try:
        result = select(
            EncodeRequest(
                schedule=recipe.schedule(spec),
                spec=spec,
                family=inspection.model_family,
                config=config,
                target=target,
                judge=inspection.judge,
            )
        )
    except (RopeconvError, RecipeError):
        return False
    return result.verdict_of(runtime).status in GOOD


def modelfile_of(plan: Plan) -> Path:
    """Return the path of the Modelfile of an output.

    Raises UsageError for folders and several files, RopeconvError where another one exists.
    """
    if plan.is_folder:
        raise UsageError("Ollama runs GGUF files, and the output is a folder; add --to gguf")

    # a Modelfile names one file of a model: https://github.com/ollama/ollama/issues/5245
    if SHARD.fullmatch(plan.out.name):
        raise UsageError(
            f"Ollama loads a model from one GGUF file, and {plan.out.name} is one of several; leave"
            " --split-max-size out, or merge SOURCE with llama-gguf-split --merge first"
        )

    path = plan.out.with_name(f"{plan.out.stem}.Modelfile")
    _refuse_other_modelfile(plan, path_for_user=path, existing=path)
    return path


def _refuse_other_modelfile(plan: Plan, path_for_user: Path, existing: Path) -> None:
    """Raise RopeconvError for a Modelfile that ropeconv did not write for such an output.

    Args:
        plan: The plan of the output.
        path_for_user: The path of the Modelfile, which the message names.
        existing: The file that is checked. While an output is written, an earlier Modelfile has
            been moved into a hidden folder; else this is the same path.
    """
    if not os.path.lexists(existing):
        return
    if existing.is_file() and not existing.is_symlink():
        # the Modelfile of an earlier output may have another context
        context = re.compile(r"num_ctx \d+")
        existing_text = context.sub("", existing.read_text(errors="replace"))
        if existing_text == context.sub("", _text(plan)):
            return
    raise RopeconvError(
        f"{path_for_user} exists and has other contents; move it away, or leave --ollama out"
    )


def planned_modelfile(plan: Plan) -> SideFile:
    """Return the Modelfile that gets its name in one set with an output.

    Raises as `modelfile_of`.
    """
    path = modelfile_of(plan)
    return SideFile(path.name, _text(plan), partial(_refuse_other_modelfile, plan, path))


def write_modelfile(plan: Plan) -> Path:
    """Write the Modelfile of an output beside it, unless it is there, and return its path.

    Raises as `modelfile_of`.
    """
    path = modelfile_of(plan)
    text = _text(plan)
    if not path.exists() or path.read_bytes() != text.encode():
        write_file(path, text)
    return path


def modelfile_notes(source: GgufSource, context: int) -> tuple[str, ...]:
    """Return sentences on values in a source's Modelfile that are below the output's context."""
    if source.modelfile is None:
        return ()
    low = [limit for limit in modelfile_limits(source) if limit.tokens < context]
    name = source.modelfile.name
    writes = f"--ollama writes a Modelfile with {context} for the output"
    return tuple(f"{name} has {limit.key} {limit.tokens}; {writes}" for limit in low)


LINE_WITH_FILE = re.compile(
    r"^(?P<word>\s*(?:FROM|ADAPTER)\s+)(?P<path>\S+)\s*$", re.IGNORECASE | re.MULTILINE
)
"""A line of a Modelfile that names a file: https://docs.ollama.com/modelfile. A second FROM names a
projector.
"""


def _text(plan: Plan) -> str:
    """The text of a Modelfile: that of the source with the new context, else one of its own.

    Raises RopeconvError for a name that would be several lines of it.
    """
    folder = plan.out.parent
    model = f"./{plan.out.name}"
    _refuse_lines(model)
    context = plan.schedule.context

    # the vision part of a multimodal model, which lies beside it as a file of its own
    projector = ""
    projector_path = projector_beside(plan.source)
    if projector_path is not None:
        projector = _relative_path(projector_path, folder)
    if plan.source.modelfile is None:
        return render("Modelfile.jinja", path=model, context=context, projector=projector)

    # Otherwise the Modelfile of the source, with three changes.
    # 1. The limits of the context (`num_ctx 4096`), which must be the new context at least. This is
    # first, since a limit is replaced at its offset in the unchanged text.
    content = plan.source.modelfile.text.encode()
    limits = limits_in("Modelfile", (content,))
    low_limits = [limit for limit in limits if limit.tokens < context]
    if low_limits:
        content = raise_limits(low_limits, context, content)

    # 2. its paths, such as that after FROM, as seen from the folder of the output
    source_folder = Path(plan.source.modelfile.name).parent
    text = _move_text(content.decode(), source_folder, folder, model)

    # 3. lines that it lacks: a second FROM for the projector, and num_ctx
    has_only_model = len(FROM.findall(text)) == 1
    if projector and has_only_model:
        text = FROM.sub(lambda line: f"{line[0].rstrip()}\nFROM {projector}\n", text, count=1)
    if not limits:
        text = f"{text.rstrip()}\nPARAMETER num_ctx {context}\n"
    return text


def _move_text(text: str, old_folder: Path, new_folder: Path, model: str) -> str:
    """The text of a Modelfile in another folder, with another model.

    A Modelfile names files in lines such as `FROM ./model.gguf` and `ADAPTER ./lora.gguf`. Their
    paths are relative to its folder.

    Args:
        text: The text.
        old_folder: The folder that it is in.
        new_folder: The folder that it moves to.
        model: The path of the other model, for the first FROM.
    """
    first_from = FROM.search(text)

    def move_line(line: re.Match[str]) -> str:
        """Return such a line with its path as seen from the new folder."""
        path = line["path"]  # "./model.gguf"
        is_first_from = first_from is not None and line.start() == first_from.start()
        if is_first_from:
            return line[0].replace(path, model)
        # `FROM llama3` has the name of a model in place of a file, which stays
        file = old_folder / path.strip("\"'")
        if os.path.isabs(path) or not file.exists():
            return line[0]
        return line[0].replace(path, _relative_path(file, new_folder))

    return LINE_WITH_FILE.sub(move_line, text)


def _relative_path(path: Path, folder: Path) -> str:
    """A path as seen from a folder, such as "./model.gguf", for a Modelfile in that folder."""
    relative = os.path.relpath(path, folder)
    _refuse_lines(relative)
    return relative if relative.startswith("..") else f"./{relative}"


def _refuse_lines(path: str) -> None:
    """Raise RopeconvError for a path that would be several lines of a Modelfile."""
    if len(path.splitlines()) > 1:
        raise RopeconvError(
            f"a Modelfile cannot name {shown(path)}, which would be several lines of it; rename"
            " that, or choose another name with -o"
        )
