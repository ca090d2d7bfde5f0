"""The warnings of a plan, the most important first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ..convert.encoding import EncodeRequest, select
from ..convert.target import Target
from ..inspection.document import Problem
from ..inspection.inspection import ConfigInspection, Inspection
from ..models.gguf import GgufSource
from ..models.length_limits import modelfile_limits
from ..models.schema import Config
from ..models.source import Source
from ..options import DualChunk
from ..rope.bound.reach import worse_than_source
from ..rope.errors import RecipeError, RopeconvError, counted
from ..rope.lengths import factor_text
from ..rope.methods.interpolation import Ntk
from ..rope.methods.vectors import AsIs
from ..rope.recipe import Recipe
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from ..runtimes.runtime import GOOD, WRONG, Runtime, newest, runtimes
from ..runtimes.verdict import Verdict
from .start import PlanStart, keeps_every_frequency, warn_of_short_reach

DROPE_PAPER = "(DroPE, https://arxiv.org/abs/2512.12167)"
CARRIED_OVER = ("load", "outside-text", "trained", "stale-inv-freq", "ignored-tensor")
"""Problems of a source, by code, that its outputs have as well."""


def warnings(inspection: Inspection, start: PlanStart) -> Iterator[str]:
    """Yield the warnings of a plan, the most important first.

    Args:
        inspection: The model that the user gave.
        start: The recipe, its schedule, and the RoPE that the recipe starts from. With --replace,
            it is the RoPE before the first run of ropeconv.
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
        if schedule.keeps_frequencies(start.spec.current()):
            yield from _warn_of_kept_frequencies(recipe, start)
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


def _warn_of_kept_frequencies(recipe: Recipe, start: PlanStart) -> Iterator[str]:
    """Yield a sentence on a longer context for which a method changes no frequency of a model.

    YaRN changes only the attention factor of Gemma 4.
    """
    if start.schedule.context <= start.spec.context:
        return
    kept = keeps_every_frequency(recipe.method, start.spec)
    attention_factor = start.schedule.attention_factor
    if attention_factor != start.spec.attention_factor:
        kept += f"; only its attention factor becomes {attention_factor:.4g}"
    yield kept


def cannot_gain(spec: RopeSpec, context: int) -> str:
    """Return a warning on a model whose layers with RoPE all have a window below the new context.

    Args:
        spec: The RoPE of the model. A "global" layer has the RoPE that methods change, with or
            without a window, and a "none" layer has no RoPE.
        context: The tokens that the output declares.

    Returns:
        The warning, with advice for the user; empty for any other model.
    """
    # the widest window of the layers with RoPE; None if one of these layers has no window
    window = spec.rotating_window
    if window is None or window >= context:
        return ""
    window_text = f"{window:,} tokens ({spec.window_kind})"
    layers_with_rope = spec.count("global")
    layers_without_rope = spec.count("none")

    # Mistral 7B v0.1: all layers have RoPE and a window
    if not layers_without_rope:
        return (
            f"every layer that rotates sees only {window_text}, so the extension adds nothing"
            " beyond them; set sliding_window to null first if the model was trained without it"
        )

    # Llama 4: further layers see the whole context, without RoPE. "the 36 layers that rotate see
    # 8,192 tokens (chunks), and the 12 that see the whole context have no RoPE: ..."
    with_rope = counted(layers_with_rope, "layer that rotates sees", "layers that rotate see")
    without_rope = counted(
        layers_without_rope, "that sees the whole context has", "that see the whole context have"
    )
    warning = (
        f"the {with_rope} {window_text}, and the {without_rope} no RoPE: the extension changes only"
        " the former"
    )
    if spec.sees_only_windows(spec.original_context):
        warning += f"; `--as-is --context {context}` raises the context without it"
    return warning


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


IN_DOUBT = {
    "schemas",
    "contradiction",
    "flat",
    "ignored-key",
    "outside-text",
    "attn-factor",
    "original",
}
"""Codes of problems in which transformers may read something else than what the weights were
trained with.
"""


def repairs(source: Source | GgufSource, inspection: Inspection) -> Iterator[Problem]:
    """Yield a problem for each runtime that computes a model wrongly, if a new config helps.

    Each problem has a repair: flags of `ropeconv apply` that write the new config. The problem
    "vLLM 0.33: ignored, it reads rope_parameters only" has the repair "--as-is --runtime vllm".

    Args:
        source: The model. Nothing is yielded for a GGUF file.
        inspection: The inspection of the model.
    """
    # `refuse` is the reason why the family of the model has no context extension
    if inspection.refuse:
        return
    if not isinstance(source, Source) or not isinstance(inspection, ConfigInspection):
        return

    config = source.config()
    candidates = _new_writings(inspection)
    names_of_runtimes = dict.fromkeys(version.name for version in runtimes())
    for name in names_of_runtimes:
        version = newest(name)  # such as vllm@0.33
        verdict = _last_verdict(inspection.verdicts, version)
        if verdict.status not in WRONG:
            continue
        # the first new config that this runtime computes
        for candidate in candidates:
            if _would_compute(version, config, inspection, candidate):
                message = f"{verdict.display_name}: {verdict.status}, {verdict.reason}"
                yield Problem("runtime", message, f"{candidate.flags} --runtime {name}")
                break


def _last_verdict(verdicts: Sequence[Verdict], version: Runtime) -> Verdict:
    """Return the last verdict that is about a version of a runtime."""
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


def _new_writings(inspection: ConfigInspection) -> list[NewWriting]:
    """Return ways to write a config for the same context that more runtimes may compute."""
    ways = []
    # Not if the config has contradicting settings that ropeconv cannot repair: nobody knows with
    # which of them the model was trained. IN_DOUBT has the codes of such problems.
    rope_is_known = True
    for problem in inspection.problems:
        if problem.code in IN_DOUBT and problem.repair is None:
            rope_is_known = False
    if rope_is_known:
        # the same RoPE in rope_scaling and in rope_parameters, for all versions of transformers
        ways.append(NewWriting("--as-is", Recipe(AsIs())))
        # Qwen2.5-1M: without the key of dual chunk attention, which some runtimes refuse
        if any(problem.code == "dual-chunk" for problem in inspection.problems):
            flags = "--as-is --dual-chunk drop"
            ways.append(NewWriting(flags, Recipe(AsIs()), dual_chunk="drop"))

    # A new base (NTK) in place of the scaling, since every runtime can compute another base. This
    # is only for an output of ropeconv whose model was trained without a scaling. The receipt of
    # the output has the RoPE before the first run of ropeconv (`first`).
    spec = inspection.spec
    spec_before_ropeconv = inspection.first
    was_unscaled = spec_before_ropeconv is not None and not spec_before_ropeconv.scaled
    is_extended = spec.scaled and spec.context > spec.original_context
    if was_unscaled and is_extended:
        factor = spec.context / spec.original_context
        has_few_digits = round(factor, 2) == factor
        value = f"{factor:g}" if has_few_digits else factor_text(spec.context)
        ways.append(NewWriting(f"--ntk {value} --replace", Recipe(Ntk(factor))))
    return ways


def _would_compute(
    runtime: Runtime, config: Config, inspection: ConfigInspection, candidate: NewWriting
) -> bool:
    """Return whether a runtime would compute a checkpoint correctly from a new config.

    Args:
        runtime: A version of the runtime.
        config: The present config.json of the checkpoint.
        inspection: The inspection of the checkpoint.
        candidate: The new way to write the config.
    """
    # the RoPE that the method is applied to: with --as-is the present scaling, otherwise none
    recipe = candidate.recipe
    if isinstance(recipe.method, AsIs):
        spec = inspection.spec
    else:
        spec = inspection.spec.unscaled()

    # write the new config in memory; "drop" removes the key of dual chunk attention (Qwen2.5-1M)
    target = Target(runtimes=(runtime.key,), dual_chunk=candidate.dual_chunk)
    try:
        request = EncodeRequest(
            schedule=recipe.schedule(spec),
            spec=spec,
            family=inspection.model_family,
            config=config,
            target=target,
            judge=inspection.judge,
        )
        result = select(request)
    except (RopeconvError, RecipeError):
        return False
    return result.verdict_of(runtime).status in GOOD


def modelfile_notes(source: GgufSource, context: int) -> tuple[str, ...]:
    """Return sentences on values in a source's Modelfile that are below the output's context."""
    if source.modelfile is None:
        return ()
    low = [limit for limit in modelfile_limits(source) if limit.tokens < context]
    name = source.modelfile.name
    writes = f"--ollama writes a Modelfile with {context} for the output"
    return tuple(f"{name} has {limit.key} {limit.tokens}; {writes}" for limit in low)
