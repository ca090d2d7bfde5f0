"""Plans carried out: with progress, and with the probe's word on the result before it takes its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import Disagreement
from .output import Output

if TYPE_CHECKING:
    from ..bake import CheckpointPlan, Plan
    from ..engines.probe.client import Probe
    from ..validate.checks.frequencies import FrequencyCheck


def write_gguf(plan: Plan, output: Output, in_place: bool, **options: Any) -> Path:
    """Carries out a plan for a GGUF file."""
    from ..bake import GgufPlan, apply
    from ..bake.inplace import apply_in_place

    if in_place:
        assert isinstance(plan, GgufPlan)
        return apply_in_place(plan)
    with output.progress("Writing", plan.bytes) as advance:
        return apply(plan, advance=advance, **options)


def carry_out(
    plan: CheckpointPlan, probe: Probe | None, output: Output, **options: Any
) -> tuple[FrequencyCheck | None, Path]:
    """Applies a plan, and lets the probe check the result before it takes its name."""
    from ..bake import apply
    from ..validate.checks.frequencies import compare

    done: list[FrequencyCheck] = []
    ask = None if probe is None else questioner(plan, probe)

    def verify(folder: Path) -> dict[str, Any] | None:
        if ask is None:
            output.note("not checked: transformers is not installed; pip install 'ropeconv[validate]'")
            return None
        answer = ask(folder)
        version = answer.get("transformers", "")
        if plan.predicted(version) not in ("exact", "rounded", "approximate"):
            output.note(
                f"not checked: transformers {version or 'as installed here'} is not among those that read it exactly"
            )
            return None
        try:
            done.append(compare(answer, plan.choice.in_config, plan.before, plan.choice.written_as))
        except Disagreement as problem:
            raise Disagreement(f"{problem}; nothing was kept") from None
        return done[0].to_dict()

    with output.progress("Writing", plan.bytes) as advance:
        folder = apply(plan, verify, advance=advance, **options)
    return (done[0] if done else None), folder


def questioner(plan: CheckpointPlan, probe: Probe) -> Callable[[Path], dict[str, Any]]:
    """A way to ask transformers about the plan's config: its recorded answer, or the probe, whose answer is kept."""
    from ..engines.probe import cache as record

    if plan.choice.texts:
        return lambda folder: probe.ask(folder, plan.schedule.context, own=True)
    model_type = str(plan.choice.config.get("model_type", ""))
    text = next(step.text for step in plan.steps if step.name == "config.json") or ""
    name = record.key(text, model_type, plan.schedule.context)
    known = record.recall(name)
    if known is not None:
        probe.stop()
        return lambda folder: known
    probe.prefetch(model_type)

    def ask(folder: Path) -> dict[str, Any]:
        answer = probe.ask(folder, plan.schedule.context)
        record.keep(name, answer)
        return answer

    return ask
