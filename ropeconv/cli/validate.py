"""`ropeconv validate`: logits of the baked checkpoint against a reference made another way."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import RopeconvError
from .options import JsonOption, QuietOption
from .output import Output


def validate_command(
    baked: Annotated[Path, typer.Argument(metavar="BAKED", help="A folder or GGUF file that `ropeconv apply` wrote.")],
    against: Annotated[str, typer.Option("--against", metavar="SOURCE", help="The checkpoint it was made from.")],
    device: Annotated[str, typer.Option("--device", help="auto, cpu or cuda.")] = "auto",
    tokens: Annotated[
        int | None,
        typer.Option("--tokens", min=16, help="Tokens per forward pass (default: 512; for GGUF 4 x trained, to 8192)."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the synthetic tokens.")] = 0,
    trust_remote_code: Annotated[
        bool,
        typer.Option("--trust-remote-code", help="Run code in BAKED that ropeconv has not written."),
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Prove on logits that stock transformers or llama.cpp computes the method, inside and beyond the trained context.

    Exit code 3 when it does not, or when the unscaled source agrees too, which would mean that the test is blind.
    """
    from ..sources.receipt import record_validation
    from ..validate.llamacpp.gguf import validate_gguf
    from ..validate.logits import validate
    from ..validate.process import Probe

    if device not in ("auto", "cpu", "cuda"):
        raise RopeconvError(f"--device {device} is not known; choose auto, cpu or cuda")
    if not Probe.available():
        raise RopeconvError("validating needs torch and transformers; pip install 'ropeconv[validate]'")
    output = Output(as_json, quiet)
    if baked.suffix == ".gguf":
        result = validate_gguf(baked, against, tokens=tokens, seed=seed, note=output.note)
    else:
        result = validate(
            baked, against, device=device, tokens=tokens or 512, seed=seed, trust_remote_code=trust_remote_code,
            note=output.note,
        )  # fmt: skip
        record_validation(baked, result.to_dict())
    if as_json:
        output.data(result.to_dict())
    else:
        rows = [
            (
                bucket.name,
                f"{bucket.kl_mean:.2e}",
                f"{bucket.kl_95:.2e}",
                f"{bucket.kl_max:.2e}",
                f"{bucket.max_dlogit:.2e}",
                f"{bucket.top1:.1%}",
                f"{bucket.control_kl:.2e}",
                "agrees" if bucket.agrees else "disagrees",
            )
            for bucket in result.buckets
        ]
        columns = (
            "positions",
            "KL mean",
            "KL 95 %",
            "KL max",
            "max |dlogit|",
            "top-1",
            "KL of the unscaled source",
            "",
        )
        output.table(f"{baked} against {against}, scaled at run time", columns, rows)
        output.say(result.sentence)
    if not result.agrees:
        raise typer.Exit(3)
