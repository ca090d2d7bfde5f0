"""`ropeconv apply`: plan, write, check."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import UsageError
from ..hub.settings import Publish
from ..rope.recipe import Recipe
from .carry_out import carry_out, write_gguf
from .options import JsonOption, QuietOption, SourceArgument, build_recipe, with_recipe
from .output import Output
from .push import named, send, staged, with_publish

if TYPE_CHECKING:
    from ..bake import Plan
    from ..validate.rule.result import Validation

EXAMPLES = """Examples:

ropeconv apply meta-llama/Llama-2-7b --yarn 16

ropeconv apply ./Qwen2.5-7B-Instruct --mixed 4 --runtime transformers --runtime vllm --dry-run

ropeconv apply ./Meta-Llama-3-8B --theta-for 256k -o ./llama3-256k

ropeconv apply model-Q4_K_M.gguf --yarn 4 --in-place
"""

OutOption = Annotated[
    Path | None,
    typer.Option("-o", "--out", help="Output folder or GGUF file (default: ./NAME-METHODFACTOR).", metavar="PLACE"),
]
EncodingOption = Annotated[
    str,
    typer.Option(
        "--encoding",
        help="How to write it: auto, native, factors, weights, ministral3, buffers; for GGUF auto, keys, tensor.",
    ),
]
RuntimeOption = Annotated[
    list[str] | None,
    typer.Option("--runtime", help="A runtime that must read it exactly, NAME or NAME@VERSION; repeatable."),
]


@with_publish
@with_recipe(build_recipe)
def apply_command(
    source: SourceArgument,
    recipe: Recipe,
    how: Publish,
    out: OutOption = None,
    runtime: RuntimeOption = None,
    encoding: EncodingOption = "auto",
    replace: Annotated[bool, typer.Option("--replace", help="Start a scaled model from its unscaled RoPE.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and write nothing.")] = False,
    explain: Annotated[bool, typer.Option("--explain", help="Say why each encoding was taken or passed over.")] = False,
    link: Annotated[
        bool,
        typer.Option(
            "--link", help="Hard-link unchanged files. A trainer that saves into them changes the source too."
        ),
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier output of ropeconv.")] = False,
    all_files: Annotated[
        bool, typer.Option("--all-files", help="Carry the same weights in other formats too.")
    ] = False,
    fold: Annotated[
        str, typer.Option("--fold", metavar="SIDE", help="With --encoding weights: k, q or both take the amplitude.")
    ] = "k",
    fold_dtype: Annotated[
        str, typer.Option("--fold-dtype", metavar="TYPE", help="Of scaled norms: stored (as they are) or f32.")
    ] = "stored",
    allow_approximate: Annotated[
        bool, typer.Option("--allow-approximate", help="Take log-n in steps where the formula itself cannot be had.")
    ] = False,
    carrier: Annotated[
        str,
        typer.Option("--carrier", metavar="ARCH", help="Write GGUF as this architecture, which takes any vector."),
    ] = "",
    to: Annotated[str, typer.Option("--to", metavar="FORMAT", help="gguf converts a checkpoint for llama.cpp.")] = "",
    outtype: Annotated[
        str,
        typer.Option("--outtype", metavar="TYPE", help="Of GGUF: auto, f32, f16, bf16, q8_0, or q4_k_m and its like."),
    ] = "auto",
    pre: Annotated[
        str, typer.Option("--pre", metavar="NAME", help="tokenizer.ggml.pre, for a pre-tokenizer not in the table.")
    ] = "",
    in_place: Annotated[
        bool, typer.Option("--in-place", help="Change the GGUF file itself; a kill at any moment can be undone.")
    ] = False,
    validate: Annotated[
        str,
        typer.Option("--validate", metavar="WHERE", help="Validate on logits: cpu, cuda, auto (a GPU that fits), off."),
    ] = "off",
    push: Annotated[
        str,
        typer.Option(
            "--push", metavar="OWNER/NAME", help="Publish it on the Hub; without -o nothing large touches this disk."
        ),
    ] = "",
    checksum: Annotated[bool, typer.Option("--checksum", help="Hash copied weights as well, for the receipt.")] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Bake a context extension into a checkpoint.

    Exit codes: 0 done, 1 a known failure, 2 usage, 3 the output does not compute the schedule.
    """
    from ..engines.probe.client import Probe

    output = Output(as_json, quiet)
    gguf = source.endswith(".gguf")
    if in_place:
        _ready_for_place(source, gguf, out, output, dry_run)
    with Probe() if not (dry_run or gguf or to == "gguf") and Probe.available() else nullcontext() as probe:
        # after the probe has been started, which takes longer to import transformers than all of this
        from ..bake import CheckpointPlan, GgufPlan, make_plan
        from ..bake.inplace import where_it_lies
        from ..sources import open_source
        from .views import show_plan, show_validation

        output.note(recipe.method.patience)
        plan = make_plan(
            open_source(source),
            recipe,
            out,
            encoding,
            tuple(runtime or ()),
            replace_scaling=replace,
            all_files=all_files,
            carrier=carrier,
            to=to,
            outtype=outtype,
            pre=pre,
            side=one_of("--fold", fold, "k", "q", "both"),  # type: ignore[arg-type]
            allow_approximate=allow_approximate,
            fold_dtype=one_of("--fold-dtype", fold_dtype, "stored", "f32"),  # type: ignore[arg-type]
        )
        one_of("--validate", validate, "auto", "cuda", "cpu", "off")
        if validate != "off" and not isinstance(plan, CheckpointPlan):
            raise UsageError("--validate is for checkpoints; run `ropeconv validate` on the GGUF file afterwards")
        if in_place and isinstance(plan, GgufPlan):
            plan = where_it_lies(plan)
        if push:
            how = named(how, push)
            if in_place or (validate != "off" and out is None):
                raise UsageError("--push with --validate needs -o, and does not go with --in-place; push afterwards")
        if dry_run:
            output.data(plan.to_dict()) if as_json else show_plan(plan, output, explain)
            return
        check, place, published = None, None, ""
        if push and out is None and isinstance(plan, CheckpointPlan):
            check, published = staged(plan, probe, how, output, checksum=checksum)
        elif isinstance(plan, CheckpointPlan):
            check, place = carry_out(plan, probe, output, link=link, force=force, checksum=checksum)
        else:
            place = write_gguf(plan, output, in_place, link=link, force=force)
    proof = None if validate == "off" or place is None else _proof(plan, place, validate, output)
    if push and place and (proof is None or proof.agrees):
        from ..hub.outgoing import of_gguf, of_plan

        published = send(of_plan(plan, place) if plan.is_folder else of_gguf(place), how, output)
    if as_json:
        more: dict[str, Any] = {} if proof is None else {"validation": proof.to_dict()}
        more |= {"published": published} if published else {}
        output.data(plan.to_dict() | {"check": check.to_dict() if check else None} | more)
        _end(proof)
        return
    show_plan(plan, output, explain)
    if check:
        output.say(
            f"Checked: transformers {check.transformers} loads it and computes the schedule "
            f"(within {check.max_ulp} ulp of float32, attention factor {check.attention_factor:.6f})."
        )
    if place:
        output.say(f"Changed {place} in place." if in_place else f"Wrote {place}")
    if proof is not None:
        show_validation(proof, f"{place} against {plan.source.reference}, scaled at run time", output)
    if published:
        output.say(published)
    _end(proof)


def _proof(plan: Plan, place: Path, where: str, output: Output) -> Validation | None:
    """The output validated; None, with the reason, where `auto` finds no GPU that is large enough."""
    from ..engines.transformers.load import room
    from ..validate.settings import Settings
    from .validate import of_checkpoint

    again = f"`ropeconv validate {place} --against {plan.source.reference}` does it on the CPU"
    if where == "auto":
        free = room()
        if free < 1.2 * plan.bytes:
            output.note(f"Not validated: {'no GPU is here' if not free else 'the GPU is too small'}; {again}.")
            return None
    return of_checkpoint(place, plan.source.reference, Settings(device="cuda" if where == "auto" else where), output)


def _end(proof: Validation | None) -> None:
    if proof is not None and not proof.agrees:
        raise typer.Exit(3)


def one_of(flag: str, value: str, *known: str) -> str:
    """Checks the value of an option that has few."""
    if value not in known:
        raise UsageError(f"{flag} is {', '.join(known[:-1])} or {known[-1]}, not {value!r}")
    return value


def _ready_for_place(source: str, gguf: bool, out: Path | None, output: Output, dry_run: bool) -> None:
    from ..formats.gguf.inplace import recover

    if not gguf or out is not None:
        raise UsageError("--in-place changes a GGUF file where it lies; give one as SOURCE, and leave -o out")
    if not dry_run and recover(Path(source)):
        output.note(f"An interrupted change of {source} was undone first.")
