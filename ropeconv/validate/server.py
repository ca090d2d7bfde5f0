"""A running server against a reference made another way: what it answers, and the source patched at run time."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..engines.servers.connect import connect
from ..engines.servers.protocol import LogProbs, Served
from ..engines.transformers.backbone import keep_head, logits
from ..engines.transformers.load import load_stock, load_widened, local_folder, place, stored_dtype
from ..errors import BadSource, RopeconvError
from ..families.config import detect, text_part
from ..receipts.read import read_receipt
from ..rope.schedule import Schedule
from ..sources import GgufSource, Source, open_checkpoint
from .comparison import described, query_scales, rounded_weights, schedule_of
from .gguf import weights_type
from .hidden_states import Case, Sides, read_again, read_source
from .rule.likeliest import as_said, coarse
from .rule.measures import Measures, in_blocks, summarise
from .rule.result import RULE, SEPARATION, Validation, judge, noise_floor, verdict
from .sampling.positions import spread, usual_length
from .sampling.token_runs import KEPT, Passage
from .sampling.tokens import of_text, synthetic
from .settings import Settings, Watch

UNCHECKED = ("the files that it has loaded",)
SERVER_RULE = (
    f"{RULE}; of a server, whose kernels are others, that from float32 counts whole, and KL is over what it names"
)


def validate_server(
    baked: Path, against: str, url: str, model: str, settings: Settings, watch: Watch, **more: Any
) -> Validation:
    """Compares what a server says of a text with the reference. model: which of those it runs, or empty.

    Raises RopeconvError when the server is not there, runs something else, or takes fewer tokens than --length; and
    what `schedule_of` raises.
    """
    settings = replace(settings, **more)
    source = open_checkpoint(against)
    receipt = read_receipt(baked)
    schedule, spec, unchanged = schedule_of(baked, source)
    server, served = connect(url, model)
    watch.note(f"{served.runtime} runs {served.model}.")
    _same_model(served, baked)
    run = _passage(settings, schedule, source, served)
    watch.total(6 * len(run.ids))
    said = server.ask(served.model, run.ids, run.kept, watch.advance)
    dtype = stored_dtype(source.config()) if settings.dtype == "auto" and baked.suffix != ".gguf" else settings.dtype
    at = place(settings.device, dtype, settings.device_map, dtype)
    loaded = load_stock(local_folder(source), at)
    watch.note(f"Running {len(run.ids):,} tokens on {at.device} in {at.dtype}: control, reference, noise floor.")
    case = Case(source, schedule, spec, query_scales(receipt, schedule), settings, watch)
    sides = read_source(loaded, case, rounded_weights(receipt, at.dtype), [run])
    head = keep_head(loaded)
    if at.dtype != "float32" or server.computes_in:
        folder = local_folder(source)
        wide = at.dtype != "float32"
        there = load_widened(folder, at) if wide else load_stock(folder, replace(at, dtype=server.computes_in))
        sides.again.append(read_again(there, case, [run]))
    rounded = weights_type(GgufSource(baked)) if baked.suffix == ".gguf" else ""
    results, curve = _judged(run, sides, head, said, bool(rounded))
    agrees, sentence = verdict(results, unchanged)
    if not agrees and all(result.kl_mean > 2 * result.control_kl for result in results[1:]):
        sentence += " The server is further away than the unscaled source is, as another model would be."
    return Validation(
        "", f"{at.device}, the server at {server.client.base_url}", schedule.digest, len(run.ids), settings.seed,
        tuple(results), agrees, sentence, runtime=served.runtime, dtype=at.dtype, length=len(run.ids),
        chunk=settings.chunk, curve=curve, rule=SERVER_RULE, unchecked=(*UNCHECKED, *server.unchecked),
        **described(schedule, spec),
    )  # fmt: skip


def _passage(settings: Settings, schedule: Schedule, source: Source, served: Served) -> Passage:
    """A text from its beginning, as servers read it."""
    wanted = settings.length or usual_length(schedule.original_context, schedule.context)
    if settings.length > schedule.context:
        raise BadSource(f"the checkpoint is made for {schedule.context} tokens, so --length {wanted} is beyond it")
    if served.length and settings.length > served.length:
        raise RopeconvError(
            f"the server takes {served.length} tokens, so --length {wanted} is beyond it; start it with a longer "
            "context (vLLM --max-model-len, SGLang --context-length, llama-server -c), or lower --length"
        )
    length = min(wanted, served.length - 1) if served.length else wanted  # one token is generated after it
    config = source.config()
    known = int(text_part(config, detect(config))["vocab_size"])
    if settings.text:
        ids = of_text(settings.text, local_folder(source), length)
    else:
        ids = synthetic(length, min(served.vocabulary or known, known), settings.seed)
    found = spread(schedule.original_context, length - 1, KEPT)
    kept = [position for bucket in found for position in bucket.positions]
    return Passage("spread", ids, list(range(length)), kept, found)


def _judged(
    run: Passage, sides: Sides, head: Any, said: list[LogProbs], rounded: bool
) -> tuple[list[Any], tuple[tuple[int, float], ...]]:
    wanted, vocabulary = sides.reference[0], head.get_output_embeddings().weight.shape[0]
    targets = run.targets().tolist()

    def compared(told: Callable[[slice], list[LogProbs]]) -> Measures:
        def measured(rows: slice) -> Measures:
            return coarse(logits(head, wanted[rows]), told(rows), targets[rows])

        return in_blocks(measured, len(said), vocabulary)

    def ours(model: Any, read: Any) -> Measures:
        return compared(lambda rows: as_said(logits(model, read[rows]), said[rows]))

    found, control = compared(lambda rows: said[rows]), ours(head, sides.control[0])
    floors = [ours(own or head, read[0]) for own, read in sides.again]
    results, noise = [], 0.0
    for bucket, rows in run.parts():
        away = control[rows].kl.mean().item()
        same, other = sides.parted([measures[rows].kl.quantile(0.95).item() for measures in floors])
        noise = max(noise, noise_floor(same, []), *other)  # whole: a server's kernels are others
        result = judge(bucket, summarise(found[rows]), away, noise, "whole")
        if rounded:  # of quantised weights nothing smaller can be told
            allowed = max(result.tolerance, away / SEPARATION)
            result = replace(result, tolerance=allowed, agrees=result.kl_mean <= allowed)
        results.append(result)
    return results, tuple(zip(run.kept, found.kl.tolist(), strict=True))


def _same_model(served: Served, baked: Path) -> None:
    """Raises RopeconvError when the server has loaded something else from this machine's disk."""
    path = Path(served.path) if served.path else baked
    if not path.exists() or path.resolve() == baked.resolve():
        return
    try:
        same = _told(path) == _told(baked)
    except BadSource:
        same = False
    if not same:
        raise RopeconvError(f"the server runs {path}, which is not {baked}; start it with that, or correct --server")


def _told(path: Path) -> str:
    receipt = read_receipt(path)
    return json.dumps([receipt["recipe"], receipt["schedule"], receipt["source"]], sort_keys=True)
