"""Checks of a checkpoint that need no forward pass: its source, its code and its frequencies.

`check_frequencies` asks the installed transformers, and `compare` judges its answer.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec
import numpy as np

from ..convert.encoding import ENCODINGS
from ..convert.encodings.buffers import KEY_OF_SETTINGS as SETTINGS_KEY
from ..convert.encodings.buffers import MODULE as MODELLING_MODULE
from ..convert.encodings.buffers import class_keys, modelling_file
from ..engines.probe import ProbeCache
from ..errors import BadSource, Disagreement
from ..formats.files import read_text
from ..formats.jsontext import JsonObject
from ..inspection.inspection import ConfigInspection
from ..inspection.receipts.receipt import CheckRecord
from ..loader import CODE as CODE_SUFFIXES
from ..loader import MAP as AUTO_MAP
from ..loader import entries as entries_of_all_levels
from ..loader import kernels, permission_error, read_json
from ..models.config import STORED_ROPE as STORED_ROPE_SUFFIX
from ..models.registry import by_name
from ..models.source import ADAPTER as ADAPTER_CONFIG
from ..models.source import Source
from ..rope.errors import RecipeError
from ..rope.forms import DynamicNtk, LongRope, Vector
from ..rope.schedule import LogN, Schedule
from ..rope.spec import RopeSpec
from ..runtimes.runtime import RUNS, find
from .comparison import Comparison

ATTENTION_FACTOR_TOLERANCE = 1e-6


def compare(answer: JsonObject, schedule: Schedule, spec: RopeSpec, encoding: str) -> CheckRecord:
    """Compare the answer of a probe with a schedule.

    A probe loads a config in transformers, and returns the frequencies of its rotary modules. An
    answer is {"modules": {"global": {"inv_freq": [...], "short": [...], "attention_factor": 1.1}},
    "transformers": "5.23.0"}, or {"error": message}. It may have "read_as", the model type that
    transformers loaded in place of an unknown one.

    Args:
        answer: From `Probe.ask`.
        schedule: That of the config, without factors that are folded into weights.
        spec: The RoPE of the source, for layers that a method does not change.
        encoding: The name of the encoding of the config, whose `max_ulp` is allowed.

    Raises:
        Disagreement: If a frequency or the attention factor differs, or the config did not load.
    """
    title = f"transformers {answer.get('transformers', '')}".strip()
    if "error" in answer:
        raise Disagreement(f"{title} does not load the baked config ({answer['error']})")

    # The rotary modules by the kind of layer that they are for: "global" and, in models such as
    # Gemma 3, "local" (with a sliding window, and frequencies that a method does not change).
    modules = answer["modules"]
    is_mislabelled = _is_mislabelled(modules, spec)

    largest_distance = 0
    attention_factor = 1.0
    allowed = ENCODINGS[encoding].max_ulp
    for label, module in modules.items():
        # a class may make a module for local layers that this model does not have
        if label == "local" and "local" not in spec.layers:
            continue
        is_local = label == "local" or is_mislabelled
        inv_freq, short_inv_freq, expected_factor = _expected(schedule, spec, is_local)

        # the frequencies of long sequences, then those of short ones (LongRoPE)
        for key, expected in (("inv_freq", inv_freq), ("short", short_inv_freq)):
            distance = ulp_distance(np.asarray(module[key]), expected)
            largest_distance = max(largest_distance, distance)
            if distance > allowed:
                raise Disagreement(
                    f"{title} computes other {label} frequencies than the schedule, by up to"
                    f" {distance} ulp of float32"
                )

        computed_factor = module["attention_factor"]
        if abs(computed_factor - expected_factor) > ATTENTION_FACTOR_TOLERANCE * expected_factor:
            raise Disagreement(
                f"{title} uses the attention factor {computed_factor:.7f} on {label} layers, not"
                f" {expected_factor:.7f}"
            )
        if label == "global":
            attention_factor = computed_factor
    return CheckRecord(
        transformers=answer["transformers"],
        max_ulp=largest_distance,
        attention_factor=attention_factor,
        read_as=answer.get("read_as", ""),
    )


READING_TOLERANCE = 1e-5
"""Relative difference that rounding explains between transformers and a config that was read.

transformers computes frequencies in float32, which differ by about 1e-6.
"""
TOLERANCE_PER_FACTOR = 1.2e-7
"""The same for each unit of the factor of a scaling with a ramp.

1 - ramp has the rounding of float32, and where the ramp ends it is added to 1 / factor.
"""


def find_misreading(answer: JsonObject, spec: RopeSpec) -> str:
    """Return how the RoPE of a source differs between transformers and what ropeconv has read.

    Args:
        answer: From `Probe.ask` for the config.json of the source, without an error.
        spec: The RoPE that ropeconv reads from that file.

    Returns:
        A predicate such as "computes an attention factor of 1 for the source, and ropeconv reads
        1.0954"; empty where both are equal.
    """
    schedule = spec.current()
    form = spec.form
    factor = getattr(form, "factor", 1.0)
    tolerance = max(READING_TOLERANCE, TOLERANCE_PER_FACTOR * factor)
    modules = answer["modules"]
    is_mislabelled = _is_mislabelled(modules, spec)
    kinds = set(spec.layers) or {"global"}
    for label, module in modules.items():
        # a class may make a module for layers that this model does not have
        if label not in kinds and not is_mislabelled:
            continue
        is_local = label == "local" or is_mislabelled
        layers = ""
        if len(modules) > 1:
            layers = f" on {label} layers"
        inv_freq, short_inv_freq, attention_factor = _expected(schedule, spec, is_local)

        # dynamic scaling has no frequencies of its own for long texts, and LongRoPE has them only
        # beyond the length that it starts from
        vectors = [(module["short"], short_inv_freq)]
        is_constant = not isinstance(form, DynamicNtk)
        switches = isinstance(form, LongRope) and form.original_context >= spec.context
        if is_local or (is_constant and not switches):
            vectors.append((module["inv_freq"], inv_freq))
        for computed, read in vectors:
            if len(computed) != len(read):
                return (
                    f"rotates {2 * len(computed)} dimensions of a head{layers} in the source, and"
                    f" ropeconv reads {2 * len(read)}"
                )
            difference = _largest_ratio(np.asarray(computed), read)
            if difference > tolerance:
                return (
                    f"computes other frequencies{layers} for the source than ropeconv reads, by up"
                    f" to {100 * difference:.2g} %"
                )

        computed_factor = module["attention_factor"]
        if abs(computed_factor - attention_factor) > READING_TOLERANCE * attention_factor:
            return (
                f"computes an attention factor of {computed_factor:.6g}{layers} for the source, and"
                f" ropeconv reads {attention_factor:.6g}"
            )
    return ""


def reads_source_alike(source: Source, inspection: ConfigInspection) -> bool:
    """Return whether the installed transformers should compute the RoPE that ropeconv reads.

    False for a source in another format, whose config.json ropeconv writes itself; for a config
    that this version is known to read in another way; and for a version that was not tested.

    Args:
        source: The checkpoint.
        inspection: Its inspection.
    """
    if source.is_generated("config.json"):
        return False
    try:
        row = find(f"transformers@{version('transformers')}")[0]
    except (RecipeError, PackageNotFoundError):
        return False
    return inspection.planned.verdict(row).status in RUNS


def _largest_ratio(computed: Vector, read: Vector) -> float:
    """Return the largest relative difference of two vectors, which is 1 where only one is 0."""
    ratios = [0.0]
    for own, other in zip(computed, read, strict=True):
        if own != other:
            largest = max(abs(own), abs(other))
            ratios.append(abs(own - other) / largest)
    return float(max(ratios))


def _is_mislabelled(modules: JsonObject, spec: RopeSpec) -> bool:
    """Whether the only rotary module of a model, which a probe calls "global", is for local layers.

    Local layers have a sliding window, and frequencies that a method does not change.
    """
    has_only_local_layers = "local" in spec.layers and "global" not in spec.layers
    return len(modules) == 1 and has_only_local_layers


def _expected(schedule: Schedule, spec: RopeSpec, is_local: bool) -> tuple[Vector, Vector, float]:
    """Return the numbers that a rotary module must compute.

    Args:
        schedule: The schedule of the layers that a method changes.
        spec: The RoPE of the source, with that of the local layers.
        is_local: Whether the module is for layers with a sliding window.

    Returns:
        The frequencies of long sequences and those of short ones, [rotary_dim / 2] in radians per
        token, and the attention factor.
    """
    local = spec.local_inv_freq
    if is_local and local is not None:
        return local, local, 1.0
    if schedule.short_inv_freq is None:
        return schedule.inv_freq, schedule.inv_freq, schedule.attention_factor
    return schedule.inv_freq, schedule.short_inv_freq, schedule.attention_factor


def ulp_distance(first: Vector, second: Vector) -> int:
    """Return the largest distance of two non-negative vectors in ulp of float32.

    It is 2^31 if their lengths differ.
    """
    if first.shape != second.shape:
        return 1 << 31
    # patterns of bits, which are numbered in the order of the numbers
    left = first.astype(np.float32).view(np.int32).astype(np.int64)
    right = second.astype(np.float32).view(np.int32).astype(np.int64)
    return int(np.abs(left - right).max())


def needs_trust(folder: Path, allowed: bool) -> bool:
    """Whether loading a folder needs trust_remote_code.

    The user need not allow code that ropeconv wrote itself: every file in the folder from which
    transformers loads code is then equal to what `--encoding buffers` writes for this config.

    Args:
        folder: The checkpoint.
        allowed: Whether the user passed --trust-remote-code.

    Raises:
        BadSource: For unknown code without permission.
    """
    config = read_json(folder / "config.json")
    has_classes = bool(config.get(AUTO_MAP))
    if allowed:
        return has_classes

    # transformers loads kernels from the Hub that a config names, without trust_remote_code
    kernel = next(iter(kernels(config)), None)
    if kernel is not None:
        raise permission_error(folder, f"its config.json loads code from {kernel!r}")

    # without trust_remote_code transformers runs its own classes, which is safe; only a model_type
    # of `--encoding buffers`, which transformers does not know, needs the code in the folder
    is_ours = str(config.get("model_type", "")).endswith(STORED_ROPE_SUFFIX)
    if not has_classes or not is_ours:
        return False
    first_difference = next(_differences_from_written_code(folder, config), None)
    if first_difference is not None:
        raise permission_error(folder, first_difference)
    return True


class StoredSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The settings of a modelling file of `--encoding buffers` in a config."""

    attention_factor: float = 1.0
    log_n: LogN | None = None


def _differences_from_written_code(folder: Path, config: JsonObject) -> Iterator[str]:
    """Yield, in words, how a checkpoint's code differs from what `--encoding buffers` writes.

    `--encoding buffers` stores inv_freq in the weights and writes a modelling file that uses them.
    Anyone can write such a model type into a config, so the type proves nothing: the code is
    generated again from the config and compared with the file.
    """
    # the model type is the name of a family with an ending: "llama_stored_rope"
    family_name = str(config["model_type"]).removesuffix(STORED_ROPE_SUFFIX)
    family = by_name().get(family_name)
    if family is None or family.code is None:
        yield f"ropeconv has no code for {config['model_type']!r}"
        return

    # model_type, architectures and auto_map, which name the classes that transformers loads
    for key, value in class_keys(family).items():
        if config.get(key) != value:
            yield f"{key} of its config.json is {str(config.get(key))[:200]}"

    # All models of a family have the same modelling file. With log-n, which scales queries by the
    # logarithm of their position, the file has a few lines more. The numbers that the file reads
    # are in the config, with the key "stored_rope" (SETTINGS_KEY).
    settings = config.get(SETTINGS_KEY)
    try:
        stored = msgspec.convert(settings, StoredSettings)
        code = modelling_file(family, stored.log_n)
    except msgspec.ValidationError:
        yield f"{SETTINGS_KEY} of its config.json is {str(settings)[:200]}"
        return
    path = folder / f"{MODELLING_MODULE}.py"  # modeling_stored_rope.py
    # the size is compared first, so that a file of many gigabytes is not read
    has_same_size = path.is_file() and path.stat().st_size == len(code.encode())
    if not has_same_size or read_text(path, path.name) != code:
        yield f"{path.name} has other contents"
    yield from _untrusted_files(folder)


def _untrusted_files(folder: Path) -> Iterator[str]:
    """Yield a sentence for each file of a checkpoint that may make transformers run unknown code.

    For example "evil.py is a file of code that ropeconv did not write". The modelling file of
    `--encoding buffers` is not reported, since the caller has compared its contents.

    Args:
        folder: The checkpoint.
    """
    own_code = folder / f"{MODELLING_MODULE}.py"  # modeling_stored_rope.py
    for parent, subfolders, names in os.walk(folder):
        # links to folders: `os.walk` does not follow them, and transformers does
        for name in subfolders:
            path = Path(parent, name)
            if path.is_symlink():
                yield f"{path.relative_to(folder)} is a link to another folder"

        # code, such as .py and .so
        for name in names:
            path = Path(parent, name)
            if path.suffix in CODE_SUFFIXES and path != own_code:
                yield f"{path.relative_to(folder)} is a file of code that ropeconv did not write"

    for path in folder.glob("*config*.json"):
        # an adapter (adapter_config.json), which transformers loads on top of the model
        if path.name == ADAPTER_CONFIG:
            yield f"{path.name} names an adapter"

        # other configs, such as tokenizer_config.json, whose auto_map may name code
        elif path.name != "config.json":
            keys_of_all_levels = [key for key, _value in entries_of_all_levels(read_json(path))]
            if AUTO_MAP in keys_of_all_levels:
                yield f"{path.name} has an auto_map"


def check_frequencies(comparison: Comparison, trust_remote_code: bool = False) -> CheckRecord:
    """Check that transformers computes the planned frequencies and attention factor for an output.

    The installed transformers loads the config.json of the output in another process, without
    weights. The planned frequencies were computed from the recipe and the source.

    Args:
        comparison: The output and its source.
        trust_remote_code: Run code in the output that ropeconv did not write.

    Raises:
        BadSource: For an unknown encoding.
        Disagreement: If transformers computes other frequencies.
    """
    # The receipt, a record that apply writes beside the output, says which encoding was used and
    # which factors are in the config.
    baked = comparison.baked
    receipt = comparison.receipt
    config_record = receipt.in_config
    if config_record is None or receipt.encoding not in ENCODINGS:
        raise BadSource(
            f"{baked} was written as {receipt.encoding}, which this version does not know; run"
            " apply again"
        )

    # Some outputs have a part of the attention factor multiplied into their weights. The config
    # then has a smaller factor than the planned one. transformers reads only the config here, so
    # the factors of the config are expected.
    schedule_of_config = replace(
        comparison.schedule,
        attention_factor=config_record.attention_factor,
        softmax_scale=config_record.softmax_scale,
    )

    # With --family, transformers loads a model type that it does not know as another model type,
    # such as "llama". Without --family `loaded_as` is empty.
    loaded_as = comparison.loaded_as
    type_in_config = str(read_json(baked / "config.json").get("model_type", ""))
    model_type = loaded_as or type_in_config
    trust = needs_trust(baked, trust_remote_code)
    context = schedule_of_config.context
    answer = ProbeCache().answer(baked, model_type, context, trust, loaded_as)
    return compare(answer, schedule_of_config, comparison.spec, config_record.written_as)
