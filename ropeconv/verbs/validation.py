"""Validates an output: compares its files with its source, then its logits, and records the result.

`run_validation` is what every front calls. `choose_validation` decides for `apply` whether an
output is validated at once, on which device, and about how long that takes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import Protocol, Unpack

import numpy as np

from ..bake.checkpoint import CheckpointPlan
from ..bake.findings import Options, Verification
from ..bake.next_steps import why_not_compared
from ..bake.output import Output
from ..bake.plan import GgufOutput, Plan
from ..bake.verify import verify_output
from ..engines import llamacpp
from ..engines.engine import Progress
from ..engines.probe import Probe
from ..environment import require
from ..errors import BadSource, Disagreement, Interruption, UsageError
from ..formats.jsontext import JsonObject
from ..formats.kind import is_gguf
from ..formats.texts import text_or_path
from ..inspection.receipts.places import find_source, why_not_found
from ..keywords import ValidateKeywords
from ..models.config import text_part
from ..models.gguf import GgufSource
from ..models.source import Source
from ..options import ValidateOn, asked_names, changed_names
from ..reporting import Reporter, SilentReporter
from ..rope.errors import RopeconvError
from ..rope.features import find_hook, hook
from ..rope.lengths import format_duration, parse_tokens
from ..runtimes.runtime import RUNS
from ..validate.checks import check_frequencies
from ..validate.comparison import Comparison, Settings
from ..validate.sampling import count_spread_tokens, usual_length
from ..validate.validation import Validation
from .arguments import check_keywords, list_keywords, reference_of
from .recipes import length_text

ServerComparison = Callable[[Comparison, str, str, Settings, Progress], Validation]
"""The hook `validate_server`: an output, the URL of a server, one of its models, how, and whom to
tell.
"""
Identification = Callable[[Comparison, str, str, Settings, Progress], "Identified"]
"""The hook `identify_output`: an output, the URL of a server, one of its models, how, and whom to
tell.
"""
PATIENCE = 30.0
"""Seconds that a validation may take on a CPU unless it is asked for."""
SECONDS_OF_IMPORTS = 6.0
"""Seconds until transformers and torch are imported and two models are made."""
PASSES_OF_LLAMA_CPP = 4
"""How often the tokens of a run are computed for a GGUF file: output, control, two references."""
DISK_BYTES_PER_SECOND = 1e9
"""Bytes a second at which weights are read and widened."""
SHARE_OF_SPEED = 0.4
"""The part of the speed of one large product of matrices that a model reaches on short runs."""
BYTES_OF_FLOAT32 = 4
"""Bytes of a number in float32, in which a CPU runs a model."""
OF_CHECKPOINTS = ("chunk", "device", "layer_by_layer", "dtype", "length")
"""Keys of [validate] in a plan of `run` that have no effect where llama.cpp runs the output."""


def run_validation(
    comparison: Comparison,
    settings: Settings,
    server: str,
    model: str,
    checks: Options,
    reporter: Reporter,
) -> tuple[Validation, Verification]:
    """Compare the files of an output, run it in transformers, llama.cpp or a server, and record
    that.

    Args:
        comparison: The output and its source.
        settings: How it is run.
        server: The URL of a running server, or empty.
        model: Which of its models, empty for the only one.
        checks: How its files are compared.
        reporter: Receives what happens; its `stopping` can end a long run early.

    Raises:
        Disagreement: Where files differ, or the frequencies that transformers computes.
        Interruption: Where it was stopped before anything could be compared.
        UsageError: As `refuse_ignored` does.
        RopeconvError: As `verify_output`, `validate_checkpoint`, `validate_gguf` and
            `validate_server` do.
    """
    from ..validate.gguf import check_gguf

    # a front has refused what its user named; this is for callers with settings of their own
    names = changed_names(settings) | asked_names({"model": model})
    refuse_ignored(names, comparison.baked, settings, server)

    # refuse what cannot run before any check: a file without a reference, a device that is missing
    by_llama_cpp = not server and is_gguf(comparison.baked)
    by_transformers = not server and not by_llama_cpp
    if by_llama_cpp:
        check_gguf(comparison, settings)
    else:
        settings.place()

    # what needs no model in memory: the files, and the frequencies that transformers computes
    files = compare_files(comparison, checks, reporter)
    if by_transformers:
        check = check_frequencies(comparison, settings.trust_remote_code)
        read_as = f", read as {check.read_as}," if check.read_as else ""
        reporter.note(
            f"The frequencies{read_as} are right (within {check.max_ulp} ulp of float32)."
        )

    # the logits
    try:
        with reporter.counting("Running") as (set_total, advance):
            progress = Progress(reporter.note, set_total, advance)
            if by_transformers and settings.length:
                # a long run can be stopped with Ctrl-C, and its first part is compared
                with reporter.stopping("what has been run so far will be compared") as should_stop:
                    stoppable = replace(progress, stopped=should_stop)
                    result = _run(comparison, settings, server, model, stoppable)
            else:
                result = _run(comparison, settings, server, model, progress)
    except KeyboardInterrupt:
        raise Interruption(
            f"interrupted; nothing was compared or recorded, and {comparison.baked} is unchanged:"
            " run the same command again"
        ) from None

    try:
        document = result.to_dict() | {"files": files.to_dict()}
        comparison.record(document, result.runtime if server else "")
    except OSError as problem:
        reporter.note(f"The result is not stored beside {comparison.baked}: {problem.strerror}.")
    except BadSource as problem:
        reporter.note(f"The result is not stored: {problem}.")
    return result, files


def refuse_ignored(names: Set[str], output: Path, settings: Settings, server: str) -> None:
    """Refuse an option that has no effect where the output runs.

    Args:
        names: The names of the options that the user gave, such as "device", also of those with
            their default values.
        output: The output.
        settings: How it is run.
        server: The URL of a server that runs it; empty without one.

    Raises:
        UsageError: An option has no effect.
    """
    gguf = is_gguf(output)
    if "seed" in names and settings.text:
        raise UsageError("--seed is that of synthetic tokens, which --text replaces; leave one out")
    if "trust_remote_code" in names and gguf:
        raise UsageError(
            "--trust-remote-code is for folders, and a GGUF file brings no code; leave it out"
        )
    if server:
        if "device_map" in names:
            raise UsageError("--device-map is for validation without --server; leave it out")
        if "tokens" in names:
            raise UsageError("--tokens is for spread runs and GGUF; give --length for a server")
    elif "model" in names:
        raise UsageError(
            "--model names one of a server's models; add --server URL, or leave it out"
        )

    # llama.cpp runs a GGUF file, unless a server does; transformers runs all others
    by_llama_cpp = gguf and not server
    if not by_llama_cpp:
        if "dequantised" in names:
            raise UsageError(
                "--dequantised is for a GGUF file and its source in GGUF; leave it out"
            )
        return
    for name in ("chunk", "device", "layer_by_layer"):
        if name in names:
            flag = name.replace("_", "-")
            raise UsageError(f"--{flag} is for checkpoints; leave it out")
    if "dtype" in names and not settings.dequantised:
        raise UsageError("--dtype is for checkpoints and for --dequantised; leave it out")
    if not names.isdisjoint(("length", "text", "device_map")):
        raise UsageError(
            "--length, --text and --device-map are for checkpoints; for GGUF give --tokens"
        )


def name_mistake(
    comparison: Comparison, server: str, model: str, settings: Settings, reporter: Reporter
) -> Identified | None:
    """Find the mistake of an output that failed its validation: which other RoPE it computes.

    `identify_output` is a feature that compares the output with known mistakes, such as YaRN
    without its attention factor. It may not be installed.

    Args:
        comparison: The output and its source.
        server: The address of the server that ran the output; empty for transformers.
        model: Which of the server's models; empty for the only one.
        settings: How the models run.
        reporter: Receives what happens.

    Returns:
        The mistake; None where it was not found, or `identify` is not there.
    """
    identify: Identification | None = find_hook("identify_output")
    if identify is None:
        return None
    reporter.note("It disagrees; looking for the mistake.")
    try:
        with reporter.counting("Running") as (total, advance):
            progress = Progress(reporter.note, total, advance)
            return identify(comparison, server, model, settings, progress)
    except RopeconvError as problem:
        reporter.note(f"The mistake was not looked for: {problem}.")
        return None


def _run(
    comparison: Comparison, settings: Settings, server: str, model: str, progress: Progress
) -> Validation:
    """Run an output and its reference in a server, llama.cpp or transformers, and compare them.

    Args:
        comparison: The output and its source.
        settings: How the models run.
        server: The address of a server that runs the output; empty without one.
        model: Which of the server's models; empty for the only one.
        progress: Receives notes, the number of tokens, and those that have run.
    """
    # these import torch, which takes seconds
    from ..engines.transformers.load import advice_on_memory
    from ..validate.checkpoint import validate_checkpoint
    from ..validate.gguf import validate_gguf

    run: Callable[[], Validation]
    if server:
        compare: ServerComparison = hook("validate_server")
        run = partial(compare, comparison, server, model, settings, progress)
    elif is_gguf(comparison.baked):
        run = partial(validate_gguf, comparison, settings, progress)
    else:
        run = partial(validate_checkpoint, comparison, settings, progress)
    with advice_on_memory():
        return run()


def compare_files(comparison: Comparison, checks: Options, reporter: Reporter) -> Verification:
    """Compare the files of an output with those that its recipe and its source give.

    Args:
        comparison: The output and its source.
        checks: How they are compared.
        reporter: Receives the result in words.

    Raises:
        BadSource: For files that cannot be read.
        Disagreement: For files that differ.
    """
    with reporter.progress("Comparing", comparison.size) as advance:
        verification = verify_output(comparison, checks, advance)
    # some are sentences, and others clauses, without a capital and a full stop
    results = (verification.sentence, *verification.notes, *verification.unverified)
    for words in results:
        is_sentence = words.endswith(".")
        if is_sentence:
            reporter.note(words)
        else:
            reporter.note(f"Note: {words}.")
    return verification


@list_keywords(ValidateKeywords)
def validate(
    output: object, against: object = None, **keywords: Unpack[ValidateKeywords]
) -> Validation:
    """Compare the logits of an output with its source, and record the result in the output.

    Args:
        output: The result of `apply`, or the path of a folder or GGUF file that `apply` wrote.
        against: The source. It may be left out for the result of `apply`, and for a source that is
            on the Hub or beside the output.
        keywords: The flags of `ropeconv validate` with underscores, such as `device` and `tokens`.

    Returns:
        The comparison: `agrees`, `sentence`, `buckets`.

    Raises:
        UsageError: For keywords that do not exist or have no effect, or if the source is not known.
        RopeconvError: The output or its source cannot be read or run.
    """
    given = check_keywords("validate", keywords, ValidateKeywords)
    names = asked_names(given)
    require("torch", "validating")
    require("transformers", "validating")
    reporter = given.pop("reporter", None) or SilentReporter()

    # the server that runs the output, in place of the installed transformers; empty for none
    server = given.pop("server", "")
    model = given.pop("model", "")

    # how files are compared with the receipt, the record that `apply` wrote
    quick = given.pop("quick", False)
    may_be_edited = given.pop("ignore_receipt", False)

    # how the models run: all other keywords are fields of `Settings`
    if "length" in given:
        given["length"] = parse_tokens(length_text(given["length"]))
    if given.get("text") is not None:
        given["text"] = text_or_path(given["text"])
    settings = Settings(**given)

    output_path = Path(reference_of("validate", output))
    refuse_ignored(names, output_path, settings, server)
    source = _source_for(output, output_path, against)
    comparison = Comparison.open(output_path, source)
    file_checks = Options(quick, may_be_edited, settings.trust_remote_code)
    validation, _file_results = run_validation(
        comparison, settings, server, model, file_checks, reporter
    )
    return validation


def _source_for(output: object, baked: Path, against: object) -> str:
    """Return the source of an output: the given one, else that of `apply` or of the receipt."""
    if against is not None:
        return reference_of("validate", against)
    if isinstance(output, Output) and output.against:
        return output.against
    reference = find_source(baked)
    if not reference:
        raise UsageError(
            why_not_found(baked).replace("add --against SOURCE", "pass against='PATH'")
        )
    return reference


class Identified(Protocol):
    """The result of the hook `identify_output`."""

    @property
    def sentence(self) -> str:
        """The conclusion for people."""

    def to_dict(self) -> JsonObject:
        """Return the result as JSON-ready data."""


@dataclass(frozen=True)
class ValidationChoice:
    """Whether `apply` validates an output after it was written."""

    device: str = ""
    """Where it runs, as torch names it, or "llama.cpp"; empty where it is not validated."""

    seconds: float = 0.0
    """About how long it takes."""

    reason: str = ""
    """Why it is not validated; empty where that was asked for, or has no meaning."""

    automatic: bool = False
    """Whether `auto` decided, so that a run that is impossible is only noted."""

    @property
    def sentence(self) -> str:
        """The choice in words, for a plan; empty where there is nothing to say."""
        if self.device:
            return f"It will be validated on {self.device}, which takes about {self.time}."
        if self.reason:
            return f"It will not be validated: {self.reason}."
        return ""

    @property
    def time(self) -> str:
        """The time in words."""
        return format_duration(max(1.0, self.seconds))

    def to_dict(self) -> JsonObject:
        """Return the choice as JSON-ready data."""
        return {
            "device": self.device or None,
            "seconds": round(self.seconds, 1) if self.device else None,
            "reason": self.reason,
        }


def choose_validation(plan: Plan, wanted: ValidateOn) -> ValidationChoice:
    """Decide whether the output of a plan is validated after it was written, and where.

    "auto" takes a GPU on which the model fits, else the CPU where about half a minute is enough.

    Args:
        plan: The plan of the output.
        wanted: The value of --validate: "off", "auto" or a device.

    Raises:
        UsageError: Where a device is asked for, and the output cannot be run.
    """
    if wanted == "off":
        return ValidationChoice()
    automatic = wanted == "auto"

    # An output that cannot be validated: "auto" leaves it out, and a named device is an error.
    obstacle = why_not_compared(plan)
    if obstacle:
        if not automatic:
            raise UsageError(f"--validate {wanted}: {obstacle}; leave it out")
        return ValidationChoice()
    missing = _missing_package(plan)
    if missing:
        if not automatic:
            raise UsageError(f"--validate {wanted} needs {missing}; pip install it")
        return ValidationChoice(reason=f"{missing} is not installed")
    if automatic and not _is_computed_here(plan):
        return ValidationChoice(reason="the installed transformers does not compute it exactly")

    # a GGUF file runs in llama.cpp
    size = parameters(plan)
    if isinstance(plan, GgufOutput):
        seconds = _estimate_seconds(plan, size)
        if automatic and seconds > PATIENCE:
            return ValidationChoice(reason=f"llama.cpp would need about {format_duration(seconds)}")
        return ValidationChoice("llama.cpp", seconds, automatic=automatic)

    # a checkpoint: where the user says, else on a GPU, else on the CPU if that is fast enough
    if not automatic:
        Settings(device=wanted).place()  # raises for a device that this machine does not have
        on_gpu = wanted == "cuda"
        return ValidationChoice(wanted, _estimate_seconds(plan, size, on_gpu))
    if _fits_on_gpu(plan):
        return ValidationChoice("cuda", _estimate_seconds(plan, size, on_gpu=True), automatic=True)
    seconds = _estimate_seconds(plan, size)
    if seconds > PATIENCE:
        return ValidationChoice(reason=f"the CPU would need about {format_duration(seconds)}")
    return ValidationChoice("cpu", seconds, automatic=True)


def validate_written(
    plan: Plan, path: Path, choice: ValidationChoice, reporter: Reporter
) -> Validation | None:
    """Compare the logits of an output that `apply` has written with its source.

    Args:
        plan: The plan of the output.
        path: The path of the output.
        choice: The device, from `choose_validation`, and whether ropeconv or the user chose to
            validate.
        reporter: Receives notes and progress for the user.

    Returns:
        The comparison; None if ropeconv chose to validate and the output cannot be run.

    Raises:
        RopeconvError: The output differs from its plan, or the user asked for a validation of an
            output that cannot be run.
    """
    # "llama.cpp" is not a device of torch; the source of a GGUF file may run in torch
    device = "auto" if choice.device == "llama.cpp" else choice.device
    try:
        comparison = Comparison.open(path, plan.source.reference)
        validation, _file_results = run_validation(
            comparison,
            Settings(device=device),
            server="",  # the output runs on this machine
            model="",
            checks=Options(),
            reporter=reporter,
        )
        return validation
    except RopeconvError as problem:
        # exit code 1: the output cannot be run; exit code 3: the output differs from its plan
        cannot_run = problem.exit_code == 1
        if choice.automatic and cannot_run:
            reporter.note(f"Not validated: {problem}.")
            return None
        raise


def disagreement_of(validation: Validation | None, kept: Path | None) -> Disagreement | None:
    """Return the error of an output that its validation does not confirm; None for the others.

    Such an output is not published, whether it is kept on this disk or not.

    Args:
        validation: The comparison of its logits; None where none was made.
        kept: The path of the output; None for an output that was made only to be published.
    """
    if validation is None or validation.agrees:
        return None
    if kept is None:
        return Disagreement(f"{validation.sentence} Nothing is published, and nothing is kept.")
    return Disagreement(f"{validation.sentence} {kept} is kept.")


def parameters(plan: Plan) -> int:
    """Return the number of weights of the source of a plan, from its headers."""
    if isinstance(plan.source, GgufSource):
        shapes = [tensor.shape for tensor in plan.source.file.tensors.values()]
    else:
        assert isinstance(plan.source, Source)
        shapes = [tensor.shape for tensor in plan.source.tensors.values()]
    return sum(math.prod(shape) for shape in shapes)


def _missing_package(plan: Plan) -> str:
    """Return the package without which the output of a plan cannot be run; empty where all are."""
    if not Probe.available():  # which needs torch too
        return "transformers"
    if isinstance(plan, GgufOutput) and not llamacpp.available():
        return "llama.cpp (ropeconv[llamacpp])"
    return ""


def _is_computed_here(plan: Plan) -> bool:
    """Whether the installed transformers is among the versions that compute the output of a
    plan.
    """
    if not isinstance(plan, CheckpointPlan):
        return True
    return plan.transformers_status(version("transformers")) in RUNS


def _has_gpu() -> bool:
    """Whether this machine has a GPU of NVIDIA or AMD, without importing torch."""
    devices = Path("/dev")
    return any(devices.glob("nvidia[0-9]*")) or (devices / "kfd").exists()


def _fits_on_gpu(plan: Plan) -> bool:
    """Whether a GPU of this machine has memory for the model."""
    if not isinstance(plan.source, Source) or not _has_gpu():
        return False
    from ..engines.transformers.load import choose_place, stored_dtype
    from ..engines.transformers.memory import gpu_bytes

    if not gpu_bytes():
        return False
    at = Settings(device="cuda").place(stored_dtype(plan.source.config()))
    return not choose_place(plan.source, at).layer_by_layer


def _estimate_seconds(plan: Plan, weight_count: int, on_gpu: bool = False) -> float:
    """Estimate how many seconds a validation takes.

    Args:
        plan: The plan of the output.
        weight_count: The number of weights of the model.
        on_gpu: Whether the models run on a GPU. The time of computing is then left out.
    """
    # reading both models, the output and its source, as float32
    read_bytes = 2 * weight_count * BYTES_OF_FLOAT32
    reading_seconds = read_bytes / DISK_BYTES_PER_SECOND
    if on_gpu:
        return SECONDS_OF_IMPORTS + reading_seconds

    # all tokens that run through a model: the same tokens run several times, through the output,
    # its source and variants of the source
    schedule = plan.schedule
    if isinstance(plan, GgufOutput):
        length = usual_length(schedule.original_context, schedule.context)
        token_count = PASSES_OF_LLAMA_CPP * length
    else:
        settings = Settings()
        in_parts = not _has_window(plan, settings.spread)
        token_count = count_spread_tokens(schedule, settings, in_parts)

    # a token needs one multiplication and one addition for each weight
    operations = 2.0 * weight_count * token_count
    # the speed of a large product of matrices on this machine, of which a model reaches a part
    operations_per_second = SHARE_OF_SPEED * _speed()
    computing_seconds = operations / operations_per_second
    return SECONDS_OF_IMPORTS + reading_seconds + computing_seconds


def _has_window(plan: Plan, tokens: int) -> bool:
    """Whether attention sees fewer tokens at once than a sequence has, as in GPT-OSS."""
    from ..engines.transformers.patch import has_window

    if not isinstance(plan.source, Source):
        return False
    settings = text_part(plan.source.config(), plan.source.family)
    return has_window(settings, tokens)


@cache
def _speed() -> float:
    """Measure the operations a second of this machine, on a product of matrices in float32."""
    side = 1024
    matrix = np.ones((side, side), np.float32)
    best = math.inf
    for _ in range(2):
        begin = time.perf_counter()
        matrix @ matrix
        best = min(best, time.perf_counter() - begin)
    return 2 * side**3 / best
