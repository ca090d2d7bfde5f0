"""Logits of a GGUF file in llama.cpp against a reference made another way.

Against the GGUF file it was made from: that file, told the schedule at loading, which gives the same bits where keys
can say it. Against the checkpoint it was made from: transformers in float32, patched at run time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..engines.llamacpp.client import run_logits
from ..engines.llamacpp.overrides import overrides
from ..engines.transformers.load import load_stock, local_folder
from ..engines.transformers.patch import patch, patched_at, scale_queries
from ..errors import BadSource
from ..formats.gguf.types import F32, TYPES
from ..receipts.read import read_receipt
from ..rope.log_n import LogN, Staircase
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec
from ..runtimes.llamacpp.read_file import arch_of, rope_tensors
from ..runtimes.llamacpp.read_header import WINDOW_NORM
from ..sources import GgufSource, Source, open_source
from .comparison import described, query_module, query_scales, schedule_of
from .rule.measures import compare_logits
from .rule.result import SEPARATION, Validation, judge, verdict
from .sampling.positions import stretches, usual_length

EACH = 128


def validate_gguf(
    baked: Path,
    against: str,
    tokens: int | None = None,
    seed: int = 0,
    note: Callable[[str], None] = lambda message: None,
) -> Validation:
    """Runs llama.cpp on `baked`, the reference, and the unscaled source.

    tokens: length of the sequence; without it four times the trained context, up to 8192. Raises BadSource when
    `baked` has no receipt, or `against` is not what it was made from or cannot be told the schedule.
    """
    import torch

    file, source = GgufSource(baked), open_source(against)
    schedule, spec, unchanged = schedule_of(baked, source)
    usual = usual_length(schedule.original_context, schedule.context)
    length = min(schedule.context, tokens or usual)
    if length <= schedule.original_context:
        note(f"{length} tokens stay inside the trained context of {schedule.original_context}; --tokens reaches beyond")
    rounded = ""
    if isinstance(source, Source):
        rounded = weights_type(file)
        if rounded and unchanged:
            raise BadSource(
                f"{baked} changes nothing but the weights' type ({rounded}), and then there is no measure for a "
                "difference; compare a --outtype f32 export"
            )
    scale = query_scales(read_receipt(baked), schedule)
    runs = stretches(schedule.original_context, length, EACH)
    wanted = [position for run in runs for position in run.positions]
    width = file.file.tensors["token_embd.weight"].shape[1]
    ids = torch.randint(width, (length,), generator=torch.Generator().manual_seed(seed)).tolist()
    note(f"Running {length} tokens three times: control, reference, baked.")
    if isinstance(source, GgufSource):
        told = None if schedule.log_n else overrides(schedule, arch_of(source.file).name)
        if told is None or _cannot_be_told(source, file):
            raise BadSource(
                f"{against} cannot be told this schedule at loading; give --against the checkpoint it was made of"
            )
        control, reference = (run_logits(source.path, ids, wanted, given) for given in ({}, told))
    else:
        control, reference = _transformers(source, schedule, spec, scale, ids, wanted)
    stock = run_logits(baked, ids, wanted)
    results, first = [], 0
    for run in runs:
        rows = slice(first, first + len(run.positions))
        first = rows.stop
        known, seen, plain = (torch.as_tensor(logits[rows]) for logits in (reference, stock, control))
        result = judge(run, compare_logits(known, seen[:, : known.shape[1]]), compare_logits(known, plain).kl_mean)
        if rounded:
            allowed = max(result.tolerance, result.control_kl / SEPARATION)
            result = replace(result, tolerance=allowed, agrees=result.kl_mean <= allowed)
        results.append(result)
    same = bool((torch.as_tensor(reference) == torch.as_tensor(stock)).all()) if not rounded else False
    agrees, sentence = _sentence(*verdict(results, unchanged), same, rounded)
    if isinstance(scale, Staircase):
        sentence += " The reference scales queries in the steps that were written, which is not log-n to the letter."
    return Validation(
        "", "cpu", schedule.digest, length, seed, tuple(results), agrees, sentence, runtime=_version(),
        **described(schedule, spec),
    )  # fmt: skip


def _cannot_be_told(source: GgufSource, file: GgufSource) -> bool:
    """Rope tensors, a temperature of its own, and norms that take an amplitude back are no keys."""
    arch = arch_of(source.file)
    own = source.file.get(f"{arch.name}.rope.scaling.yarn_log_multiplier")
    return bool(rope_tensors(source.file)) or bool(own) or file.file.get(WINDOW_NORM) is not None


def _transformers(
    source: Source,
    schedule: Schedule,
    spec: RopeSpec,
    scale: LogN | Staircase | None,
    ids: list[int],
    wanted: list[int],
) -> tuple[Any, Any]:
    import torch

    model = load_stock(local_folder(source), "cpu")
    sequence, kept = torch.tensor([ids]), torch.tensor(wanted)
    with torch.no_grad():
        control = model(input_ids=sequence, use_cache=False, logits_to_keep=kept).logits[0].float()
        patch(model, patched_at(schedule, len(ids) - 1), spec)
        if scale is not None:
            scale_queries(model, scale, query_module(source))
        reference = model(input_ids=sequence, use_cache=False, logits_to_keep=kept).logits[0].float()
    return control.numpy(), reference.numpy()


def weights_type(file: GgufSource) -> str:
    """The type of the weights where they are not F32, and so not those of a reference in float32; empty else."""
    types = [info.type for info in file.file.tensors.values() if len(info.shape) > 1]
    usual = max(set(types), key=types.count)
    return "" if usual == F32 else TYPES[usual].name


def _sentence(agrees: bool, sentence: str, same: bool, rounded: str) -> tuple[bool, str]:
    if not agrees:
        return agrees, sentence
    if same:
        return agrees, f"Equal to the last bit. {sentence}"
    return agrees, f"{sentence} The weights are {rounded}: a tenth of the control is allowed." if rounded else sentence


def _version() -> str:
    from importlib.metadata import version

    return f"llama.cpp (llama-cpp-python {version('llama-cpp-python')})"
