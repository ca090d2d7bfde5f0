"""Checks of a checkpoint that need no forward pass: its source, frequencies, and folded weights."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from ..convert.encoding import ENCODINGS, Encoding
from ..convert.encodings.buffers import MODULE, SETTINGS, class_keys, modelling
from ..engines.probe import ProbeCache
from ..errors import BadSource, Disagreement
from ..formats.files import read_text
from ..formats.jsontext import JsonObject
from ..inspection.receipts.receipt import CheckRecord
from ..models.config import STORED_ROPE
from ..models.folder import FolderSource
from ..models.length_limits import limits_in, raised
from ..models.registry import by_name
from ..models.source import Source
from ..pretrained import CODE, MAP, entries, foreign, kernels, parsed
from ..rope.lazy import Vector
from ..rope.schedule import LogN, Schedule
from ..rope.spec import RopeSpec
from .comparison import Comparison

TOKENIZER = "tokenizer.json"


def check_same_model(baked: Path, source: Source, encoding: Encoding) -> None:
    """Raises BadSource where tensors are missing or of another shape, or the model type is not that of the encoding."""
    output = FolderSource(baked)
    ours = output.tensors
    if source.tensors and not ours:
        raise BadSource(
            f"{baked} has no weights, as an output of a config.json alone; bake the folder of the model, or put its "
            "weights beside the config"
        )
    for name, tensor in source.tensors.items():
        if name not in ours:
            raise BadSource(f"{baked} has no {name}, which {source.reference} has; name the source it was made from")
        if ours[name].shape != tensor.shape:
            raise BadSource(
                f"{name} is {list(ours[name].shape)} in {baked} and {list(tensor.shape)} in {source.reference}; name "
                "the source it was made from"
            )
    one, other = (str(folder.config().get("model_type")) for folder in (source, output))
    if other not in (one, encoding.model_type(one)):
        raise BadSource(f"{baked} is a {other} and {source.reference} a {one}; name the source it was made from")


def check_tokenizer(baked: Path, source: Source) -> None:
    """Raises BadSource where tokenizer.json of the output is not that of the source, but for limits of the length."""
    one, other = source.text(TOKENIZER), baked / TOKENIZER
    if one is None or not other.is_file():
        return
    found = read_text(other, str(other))
    if found != one and _without_limits(found) != _without_limits(one):
        raise BadSource(f"{other} is not the tokenizer of {source.reference}; name the source it was made from")


def _without_limits(text: str) -> bytes:
    content = text.encode()
    limits = limits_in(TOKENIZER, (content,), large=True)
    if not limits:
        return content
    splice = raised(limits, 0, content[limits[0].start : limits[-1].stop])
    return b"".join(splice.applied((content,)))


ATTENTION_FACTOR_TOLERANCE = 1e-6


def compare(answer: JsonObject, schedule: Schedule, spec: RopeSpec, encoding: str) -> CheckRecord:
    """Compares a probe's answer with a schedule.

    answer: from `Probe.ask`. schedule: of the config, without factors that are folded into weights. spec: the RoPE of
    the source, for layers that a method does not change. encoding: name of the encoding of the config, whose `max_ulp`
    is allowed.

    Raises Disagreement where a frequency or the attention factor differs, or the config did not load.
    """
    title = f"transformers {answer.get('transformers', '')}".strip()
    if "error" in answer:
        raise Disagreement(f"{title} does not load the baked config ({answer['error']})")
    short = schedule.inv_freq if schedule.short_inv_freq is None else schedule.short_inv_freq
    worst, attention_factor, allowed = 0, 1.0, ENCODINGS[encoding].max_ulp
    for label, found in answer["modules"].items():
        wanted, wanted_short, factor = (schedule.inv_freq, short, schedule.attention_factor)
        local = spec.local_inv_freq
        if label == "local" and "local" not in spec.layers:
            continue
        if label == "local" and local is not None:
            wanted, wanted_short, factor = local, local, 1.0
        for vector, target in ((found["inv_freq"], wanted), (found["short"], wanted_short)):
            distance = ulp_distance(np.asarray(vector), target)
            worst = max(worst, distance)
            if distance > allowed:
                raise Disagreement(
                    f"{title} computes other {label} frequencies than the schedule, by up to {distance} ulp of float32"
                )
        if abs(found["attention_factor"] - factor) > ATTENTION_FACTOR_TOLERANCE * factor:
            raise Disagreement(
                f"{title} uses the attention factor {found['attention_factor']:.7f} on {label} layers, not {factor:.7f}"
            )
        attention_factor = found["attention_factor"] if label == "global" else attention_factor
    return CheckRecord(answer["transformers"], worst, attention_factor, answer.get("read_as", ""))


def ulp_distance(found: Vector, wanted: Vector) -> int:
    """Largest distance of two vectors without negative numbers in ulp of float32; 2^31 where their lengths differ."""
    if found.shape != wanted.shape:
        return 1 << 31
    left, right = (vector.astype(np.float32).view(np.int32).astype(np.int64) for vector in (found, wanted))
    return int(np.abs(left - right).max())


ADAPTER = "adapter_config.json"


def needs_trust(folder: Path, allowed: bool) -> bool:
    """Whether loading a folder needs trust_remote_code. Raises BadSource for unknown code without permission.

    folder: the checkpoint. allowed: whether the user has passed --trust-remote-code. Code is known where everything in
    the folder from which transformers takes code is equal to what `--encoding buffers` writes for this config.
    """
    config = parsed(folder / "config.json")
    classes = config.get(MAP)
    if not allowed and (place := next(kernels(config), "")):
        raise foreign(folder, f"its config.json loads code from {place!r}")
    if not classes or (not str(config.get("model_type", "")).endswith(STORED_ROPE) and not allowed):
        return False  # transformers runs its own classes then
    if not allowed and (what := next(_unlike_ours(folder, config), "")):
        raise foreign(folder, what)
    return True


def _unlike_ours(folder: Path, config: JsonObject) -> Iterator[str]:
    """Yields what of the code of a checkpoint, or of its naming, is not what the encoding `buffers` writes."""
    family = by_name().get(str(config["model_type"]).removesuffix(STORED_ROPE))
    if family is None or family.code is None:
        yield f"ropeconv has no code for {config['model_type']!r}"
        return
    for key, value in class_keys(family).items():
        if config.get(key) != value:
            yield f"{key} of its config.json is {str(config.get(key))[:200]}"
    path, settings = folder / f"{MODULE}.py", config.get(SETTINGS)
    try:
        wanted = modelling(family, _log_n(settings))
        same = path.is_file() and path.stat().st_size == len(wanted.encode()) and read_text(path, path.name) == wanted
    except (AttributeError, TypeError, ValueError):
        yield f"{SETTINGS} of its config.json is {str(settings)[:200]}"
        return
    if not same:
        yield f"{path.name} has other contents"
    yield from _other_code(folder)


def _log_n(settings: object) -> LogN | None:
    """The log-n that the settings in a config state. Raises TypeError, ValueError or AttributeError for others."""
    if not isinstance(settings, dict) or not settings.keys() <= {"attention_factor", "log_n"}:
        raise TypeError(settings)
    rule = settings.get("log_n")
    if rule is None:
        return None
    if (
        rule.keys() != {"kind", "length"}
        or rule["kind"] not in ("clamped", "full")
        or not isinstance(rule["length"], int)
    ):
        raise ValueError(rule)
    return LogN(rule["kind"], rule["length"])


def _other_code(folder: Path) -> Iterator[str]:
    """Yields what else in a folder transformers may run, or load on top of the model."""
    for place, subfolders, names in os.walk(folder):
        for name in (*subfolders, *names):
            path = Path(place, name)
            if name in subfolders and path.is_symlink():
                yield f"{path.relative_to(folder)} is a link to another folder"
            elif name in names and path.suffix in CODE and path != folder / f"{MODULE}.py":
                yield f"{path.relative_to(folder)} is not its own"
    for path in folder.glob("*config*.json"):
        if path.name == ADAPTER:
            yield f"{path.name} names an adapter"
        elif path.name != "config.json" and any(key == MAP for key, _ in entries(parsed(path))):
            yield f"{path.name} has an auto_map"


def check_frequencies(comparison: Comparison, trust_remote_code: bool = False) -> CheckRecord:
    """Compares what the installed transformers computes from the config of an output with the schedule.

    `verify_output` compares the files. comparison: the output and its source. trust_remote_code: run code in the output
    that ropeconv has not written. Raises BadSource for an unknown encoding, Disagreement where other frequencies are
    computed.
    """
    baked, receipt, stands_for = comparison.baked, comparison.receipt, comparison.stands_for
    written = receipt.in_config
    if written is None or receipt.encoding not in ENCODINGS:
        raise BadSource(f"{baked} was written as {receipt.encoding}, which is not known here; run apply again")
    own = needs_trust(baked, trust_remote_code)
    schedule = replace(
        comparison.schedule, attention_factor=written.attention_factor, softmax_scale=written.softmax_scale
    )
    model_type = stands_for or str(parsed(baked / "config.json").get("model_type", ""))
    answer = ProbeCache().answer(baked, model_type, schedule.context, own, stands_for)
    return compare(answer, schedule, comparison.spec, written.written_as)
