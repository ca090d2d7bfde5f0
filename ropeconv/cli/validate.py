"""`ropeconv validate`: logits of the baked checkpoint against a reference made another way."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..errors import RopeconvError, UsageError
from ..rope.lengths import parse_tokens
from .options import JsonOption, QuietOption
from .output import Output

if TYPE_CHECKING:
    from ..validate.rule.result import Validation
    from ..validate.settings import Settings


def validate_command(
    baked: Annotated[Path, typer.Argument(metavar="BAKED", help="A folder or GGUF file that `ropeconv apply` wrote.")],
    against: Annotated[str, typer.Option("--against", metavar="SOURCE", help="The checkpoint it was made from.")],
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda or mps.")] = "auto",
    dtype: Annotated[
        str,
        typer.Option("--dtype", help="auto, float32, bfloat16, float16 (auto: float32 on a CPU, elsewhere as stored)."),
    ] = "auto",
    device_map: Annotated[str, typer.Option("--device-map", help="auto spreads the model over several devices.")] = "",
    length: Annotated[
        str, typer.Option("--length", metavar="TOKENS", help="Also run every position up to here, with a cache.")
    ] = "",
    chunk: Annotated[int, typer.Option("--chunk", min=1, help="Tokens that the model sees at a time.")] = 4096,
    tokens: Annotated[
        int | None,
        typer.Option("--tokens", min=16, help="Tokens of each spread run (512; for GGUF 4 x trained, to 8192)."),
    ] = None,
    text: Annotated[
        Path | None, typer.Option("--text", metavar="FILE", help="Read this instead of synthetic tokens.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of the synthetic tokens.")] = 0,
    server: Annotated[
        str,
        typer.Option("--server", metavar="URL", help="Judge what a running vLLM, SGLang or llama-server says of it."),
    ] = "",
    model: Annotated[str, typer.Option("--model", help="Which of the models that the server runs.")] = "",
    reference: Annotated[
        str,
        typer.Option("--reference", help="patched, or config: also run SOURCE with the method in its config."),
    ] = "patched",
    report: Annotated[
        Path | None, typer.Option("--report", metavar="FILE", help="Write a page with plots and all numbers (HTML).")
    ] = None,
    plot: Annotated[Path | None, typer.Option("--plot", metavar="FILE", help="Write the plots (.png or .svg).")] = None,
    ignore_receipt: Annotated[
        bool, typer.Option("--ignore-receipt", help="Do not compare the files with the hashes in the receipt.")
    ] = False,
    trust_remote_code: Annotated[
        bool, typer.Option("--trust-remote-code", help="Run code in BAKED that ropeconv has not written.")
    ] = False,
    as_json: JsonOption = False,
    quiet: QuietOption = False,
) -> None:
    """Prove on logits that stock transformers or llama.cpp computes the method, inside and beyond the trained context.

    Exit code 3 when it does not, or when the unscaled source agrees too, which would mean that the test is blind.
    """
    from ..engines.probe.client import Probe
    from ..engines.transformers.distributed import first, world
    from ..receipts.read import record_validation
    from ..validate.settings import Settings
    from .views import show_validation

    if not Probe.available():
        raise RopeconvError("validating needs torch and transformers; pip install 'ropeconv[validate]'")
    if reference not in ("patched", "config"):
        raise UsageError(f"--reference {reference} is not known; choose patched or config")
    output = Output(as_json, quiet or not first())
    settings = Settings(
        device=device, dtype=dtype, device_map=device_map, tokens=tokens, length=parse_tokens(length) if length else 0,
        chunk=chunk, seed=seed, text=text, trust_remote_code=trust_remote_code, third=reference == "config",
    )  # fmt: skip
    if server and (settings.third or device_map):
        raise UsageError("--reference config and --device-map are for validation without --server")
    if world() > 1 and (server or baked.suffix == ".gguf" or device_map):
        raise UsageError("torchrun is for checkpoints, without --server and --device-map; start it without torchrun")
    if server:
        result = of_server(baked, against, server, model, settings, output)
    elif baked.suffix == ".gguf":
        from ..validate.gguf import validate_gguf

        if length or text or dtype != "auto" or device_map or settings.third:
            raise UsageError(
                "--length, --text, --dtype, --device-map and --reference are for checkpoints; for GGUF give --tokens"
            )
        result = validate_gguf(baked, against, tokens=tokens, seed=seed, note=output.note)
        record_validation(baked, result.to_dict())
    else:
        result = of_checkpoint(baked, against, settings, output, ignore_receipt)
    if first():
        _write_evidence(result, baked, against, report, plot)
        if as_json:
            output.data(result.to_dict())
        else:
            show_validation(result, f"{baked} against {against}, scaled at run time", output)
    if not result.agrees:
        raise typer.Exit(3)


def of_checkpoint(
    baked: Path, against: str, settings: Settings, output: Output, ignore_receipt: bool = False
) -> Validation:
    """The checks that need no forward pass, the comparison, and its entry in the receipt."""
    from ..engines.transformers.distributed import first, together
    from ..engines.transformers.load import out_of_memory
    from ..receipts.read import record_validation
    from ..validate.checkpoint import validate
    from ..validate.checks.before_forward import check_first
    from ..validate.settings import Watch

    check = check_first(baked, against, ignore_receipt, settings.trust_remote_code)
    output.note(f"Files and frequencies are right (within {check.max_ulp} ulp of float32).")
    with output.counting("Running") as (total, advance), _stopping(output) as stopped:
        watch = Watch(output.note, total, advance, together(stopped))
        result: Validation = out_of_memory(lambda: validate(baked, against, settings, watch))
    if first():
        record_validation(baked, result.to_dict())
    return result


def of_server(baked: Path, against: str, server: str, model: str, settings: Settings, output: Output) -> Validation:
    """The comparison with a running server, and its entry in the receipt."""
    from ..engines.transformers.load import out_of_memory
    from ..receipts.read import record_validation
    from ..validate.server import validate_server
    from ..validate.settings import Watch

    with output.counting("Running") as (total, advance):
        watch = Watch(output.note, total, advance)
        result: Validation = out_of_memory(lambda: validate_server(baked, against, server, model, settings, watch))
    record_validation(baked, result.to_dict(), result.runtime)
    return result


@contextmanager
def _stopping(output: Output) -> Iterator[Callable[[], bool]]:
    """Ctrl-C once ends the run in progress, and what is there is judged; twice ends everything."""
    pressed: list[int] = []

    def handler(number: int, frame: Any) -> None:
        pressed.append(number)
        if len(pressed) > 1:
            raise KeyboardInterrupt
        output.note("Stopping: what has been run so far will be compared. Press again to give up.")

    def stopped() -> bool:
        return bool(pressed and pressed.pop())

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield stopped
    finally:
        signal.signal(signal.SIGINT, before)


def _write_evidence(result: Validation, baked: Path, against: str, report: Path | None, plot: Path | None) -> None:
    if report is None and plot is None:
        return
    from ..validate.report.page import write_plot, write_report

    if plot is not None:
        write_plot(result, plot)
    if report is not None:
        write_report(result, baked, against, report)
