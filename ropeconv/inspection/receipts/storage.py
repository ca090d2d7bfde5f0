"""Receipts on the disk: in folders, in keys of GGUF files, and results beside these.

A receipt (`Receipt`) is the record that `ropeconv apply` leaves in its output: the source, the
recipe, the files, and later the results of `validate` and `eval`. A folder has all of it in
ropeconv.json. A GGUF file has it in a metadata key, and the results in a file beside it, so that
a result does not change the model file.

`read_receipt` and `write_receipt` are the functions to read first.
"""

import errno
import hashlib
import json
import math
import os
import shlex
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from ...errors import BadSource, UsageError
from ...formats import jsontext
from ...formats.disk import sha256
from ...formats.drafts import draft_of
from ...formats.files import read_text, try_lock
from ...formats.gguf.header import read_header
from ...formats.jsontext import JsonObject
from ...formats.kind import is_gguf, is_graph
from ...formats.package_data import as_type
from ...formats.safetensors import safe_name
from ...models.gguf import GgufSource, HubGguf
from ...models.source import CARD, RECEIPT, Source
from ...options import options
from ...rope.errors import RopeconvError, counted, shown
from ...rope.lengths import format_factor
from ...rope.methods.method import REGISTRY
from ...rope.recipe import Recipe, flags, resolved_factor
from ...version import SCHEMA
from .companion import CompanionReceipt, describe_kind, is_companion
from .metrics import GROWTH
from .receipt import EvaluationRecord, Receipt, StepRecord, TargetRecord

RESULTS = ("validation", "servers", "evaluations")
"""The fields of a receipt that are written after `apply`, by `validate` and `eval`."""
LARGEST_NUMBER = 1 << 63
"""The largest whole number of a receipt."""


class Results(msgspec.Struct, frozen=True):
    """The results of a GGUF file, in a file beside it."""

    size: int = -1
    """The size of the GGUF file in bytes when the results were written."""

    header_sha256: str = ""
    """The sha256 of its header, up to the first tensor; empty in files of earlier versions."""

    validation: JsonObject | None = None
    """The result of `ropeconv validate`, as in a receipt."""

    servers: dict[str, JsonObject] | None = None
    """The results of `ropeconv validate` on servers, by runtime, as in a receipt."""

    evaluations: tuple[EvaluationRecord, ...] = ()
    """The headlines of `ropeconv eval`, as in a receipt."""


def no_receipt(reference: str) -> BadSource:
    """Return the error about a model without a receipt."""
    if is_graph(reference):
        return BadSource(
            f"{reference} is a compiled graph without a receipt; give the folder that `ropeconv"
            " apply` wrote, or see its RoPE with `ropeconv compare`"
        )
    return BadSource(
        f"{reference} has no {RECEIPT}, so it is not an output of ropeconv; give the folder `apply`"
        " made"
    )


def read_receipt(baked: str | os.PathLike[str]) -> Receipt:
    """Return the receipt of an output, in which `ropeconv apply` recorded what it did.

    It is in ropeconv.json of a folder, or in the keys of a GGUF file and the results beside it.

    Raises:
        BadSource: There is no receipt, or it cannot be parsed.
    """
    baked = Path(baked)
    if is_gguf(baked):
        return _parse_embedded(GgufSource(baked), results=validations(baked))
    path = baked / RECEIPT
    if not path.is_file():
        raise no_receipt(str(baked))
    return parse_receipt(read_text(path, str(path)), str(path))


def receipt_of(source: Source | GgufSource) -> Receipt:
    """Return the receipt of an opened model, which may be on the Hub.

    It is what `ropeconv apply` recorded about the model, as in `read_receipt`.

    Raises:
        BadSource: There is no receipt, or it cannot be parsed.
    """
    if isinstance(source, HubGguf):
        # the results are in a file beside a GGUF file, which is not fetched from the Hub
        return _parse_embedded(source, results={})
    if isinstance(source, GgufSource):
        return _parse_embedded(source, results=validations(source.path))
    text = source.text(RECEIPT)
    if text is None:
        raise no_receipt(source.reference)
    return parse_receipt(text, source.reference)


def _parse_embedded(source: GgufSource, results: JsonObject) -> Receipt:
    """The receipt in a metadata key of a GGUF file, with the fields of RESULTS from elsewhere."""
    text = source.file.get(RECEIPT)
    if not isinstance(text, str):
        raise BadSource(
            f"{source.reference} has no receipt in its keys; give an output of `ropeconv apply`"
        )
    return parse_receipt(text, source.reference, results)


def has_receipt(baked: str | os.PathLike[str]) -> bool:
    """Return whether `read_receipt` finds a receipt that it can read."""
    with suppress(BadSource):
        return bool(read_receipt(baked))
    return False


def parse_receipt(text: str, name: str, validated: JsonObject | None = None) -> Receipt:
    """Return a receipt, the record of a run of `ropeconv apply`, from its JSON.

    Args:
        text: The JSON.
        name: The name of the file, for messages.
        validated: The results of `validate` and `eval` (the fields of RESULTS) if they are in
            another file, as beside a GGUF file. They replace those of the JSON.

    Raises:
        BadSource: The text is not a receipt, or has another schema.
    """
    data = jsontext.parse(text, name)
    if is_companion(data):
        raise BadSource(
            f"{name} is the receipt of {describe_kind(data)} and not of a model; `ropeconv"
            " validate` compares its files"
        )
    # numbers must be finite, but a broken model can have computed NaN in its results, which are
    # only shown
    without_results = {key: value for key, value in data.items() if key not in RESULTS}
    _check_numbers(without_results, name)

    # the number of the schema comes first: a later version of ropeconv may have other fields
    schema = data.get("schema")
    if isinstance(schema, int) and schema > SCHEMA:
        version = shown(data.get("ropeconv", "unknown"))
        raise BadSource(f"{name} is of a later ropeconv ({version}); upgrade this one")
    try:
        if schema != SCHEMA:
            raise ValueError(f"its schema is {shown(schema)}")
        return msgspec.convert(data | (validated or {}), Receipt)
    except ValueError as problem:
        raise BadSource(
            f"{name} is not a receipt of ropeconv ({problem}); run apply again"
        ) from None


def validations_path(gguf: Path) -> Path:
    """Return the path of the validation results of a GGUF file, a file beside it."""
    return gguf.with_name(f"{gguf.name}.validation.json")


def validations(gguf: Path) -> JsonObject:
    """Return the results of `validate` and `eval` for a GGUF file, as JSON-ready data.

    They are in a file beside it, with the fields of RESULTS. Fields without a result are left out.
    Results of another file count as none: its name may have been given to this one since.
    """
    path = validations_path(gguf)
    if not path.is_file():
        return {}
    data = jsontext.parse(read_text(path, path.name), path.name)
    results = as_type(data, Results, path.name)
    if results.size != gguf.stat().st_size:
        return {}
    # Outputs of one source often have the same size, since their headers are padded. The header
    # has the receipt, so that of another method differs.
    if results.header_sha256 != _header_sha256(gguf):
        return {}
    return _results_in(results)


def _results_in(record: Results | Receipt) -> JsonObject:
    """The fields of RESULTS that have a result, as JSON-ready data."""
    fields = {}
    for key in RESULTS:
        value = getattr(record, key)
        if value:
            fields[key] = msgspec.to_builtins(value)
    return fields


def _header_sha256(gguf: Path) -> str:
    """The sha256 of a GGUF file up to its first tensor, or of its first shard."""
    length = read_header(gguf).data_start
    with gguf.open("rb") as file:
        return hashlib.sha256(file.read(length)).hexdigest()


def remove_results(gguf: Path) -> None:
    """Remove the results beside a GGUF file that was written anew, which are of an earlier file.

    Without the permission for that they stay. They count for no file with another header.

    Args:
        gguf: The file, or its first shard.
    """
    with suppress(OSError):
        validations_path(gguf).unlink(missing_ok=True)


def _check_numbers(data: object, name: str) -> None:
    """Refuse the JSON of a receipt with NaN, infinity or a number of more than 63 bits.

    Args:
        data: The parsed JSON.
        name: The name of the file, for messages.
    """
    # a queue and not recursion: anybody can write a file that is nested deeper than Python recurses
    unchecked = deque([data])
    while unchecked:
        item = unchecked.popleft()
        if isinstance(item, dict):
            unchecked += item.values()
        elif isinstance(item, list):
            unchecked += item
        elif isinstance(item, float) and not math.isfinite(item):
            raise BadSource(
                f"{name} is not a receipt of ropeconv (it has {item} as a number); run apply again"
            )
        elif isinstance(item, int) and abs(item) > LARGEST_NUMBER:
            raise BadSource(
                f"{name} is not a receipt of ropeconv (it has {shown(item)}); run apply again"
            )


def read_recipe(path: Path) -> Recipe:
    """Return the recipe in a file: the method of an earlier run with its settings.

    The file is a recipe that the user saved, a result of `ropeconv tune`, or a receipt.

    Args:
        path: The file, or a folder with one.

    Raises:
        UsageError: The file cannot be read.
        RecipeError: It is not a recipe.
    """
    if path.is_dir():
        path = path / "ropeconv.json"
    try:
        text = read_text(path, str(path))
        data = jsontext.loads(text, str(path))
    except OSError:
        raise UsageError(
            f"{path} cannot be read; give a recipe, or the ropeconv.json of an earlier output"
        ) from None
    except BadSource as problem:
        raise UsageError(str(problem)) from None
    # three kinds of files have a recipe: results of `tune`, receipts, and the recipe alone
    if isinstance(data, dict) and "ropeconv_tune" in data:
        data = data.get("recipe")
    elif isinstance(data, dict) and "ropeconv" in data:
        data = parse_receipt(text, str(path)).recipe
    return Recipe.from_dict(data)


def describe_recipe(recipe: JsonObject, trained: int, declared: int = 0) -> str:
    """Return a recipe for display, lists by their length.

    Args:
        recipe: The recipe as `Recipe.to_dict` has it.
        trained: The context of the model before its scaling, in tokens.
        declared: Its context with its scaling, in tokens; 0 for the same.
    """
    parts = [str(recipe.get("method", "")), describe_settings(recipe, trained, declared)]
    return ": ".join(part for part in parts if part)


def describe_settings(recipe: JsonObject, trained: int = 0, declared: int = 0) -> str:
    """Return the settings of a recipe for display, such as "factor 4, beta-fast 32".

    A list is shown by its length, as "long-factor of 48 values". A context to reach, such as 128k,
    is shown as the factor that reaches it, where the trained context is known.

    Args:
        recipe: The recipe as `Recipe.to_dict` has it.
        trained: The context of the model before its scaling, in tokens; 0 where it is not known.
        declared: Its context with its scaling, in tokens; 0 for the same.
    """
    # the parameters of the method, then the modifiers beside it
    settings = dict(recipe.get("parameters", {}))
    for name, value in recipe.items():
        if name not in ("method", "parameters"):
            settings[name] = value

    # a factor may be written as the length to reach, such as 128k, and readers compare factors
    factor = None
    if trained:
        factor = _factor_of(recipe, trained, declared or trained)
    if factor is not None and "factor" in settings:
        settings["factor"] = factor
    # The method piecewise has its factor in the text `spec`, as FACTOR@PAIR. So "128k@20" is shown
    # as "4@20".
    spec = settings.get("spec")
    if factor is not None and isinstance(spec, str):
        _, _, pair = spec.partition("@")
        settings["spec"] = f"{format_factor(factor)}@{pair}"

    parts = []
    for name, value in settings.items():
        parts.append(f"{name.replace('_', '-')} {_format_setting(name, value)}")
    return ", ".join(parts)


def _factor_of(recipe: JsonObject, trained: int, declared: int) -> float | None:
    """The scale factor of a recipe; None where it has none, or is of another version."""
    try:
        return resolved_factor(Recipe.from_dict(recipe), trained, declared)
    except RopeconvError:
        return None


def _format_setting(name: str, value: object) -> str:
    """The value of a setting for display: a list as `of 64 values`, True as `on`."""
    if isinstance(value, list):
        return f"of {counted(len(value), 'value')}"
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float) and name == "factor":
        return format_factor(value)
    if isinstance(value, float):
        return f"{value:.12g}"
    return str(value)


CHECKED_SUFFIXES = (".json", ".py", ".safetensors")
"""Suffixes of the files that are compared with a receipt."""


def check_files(baked: Path, receipt: Receipt, weights: bool = True) -> frozenset[str]:
    """Compare the files of an output with its receipt, by size and, where it is known, sha256.

    Only files that change what a model computes are compared.

    Args:
        baked: The output.
        receipt: Its receipt.
        weights: Whether the sha256 of weights is compared too, which is slow.

    Returns:
        The names of the files whose sha256 is that of the receipt.

    Raises:
        BadSource: A file is missing, or differs.
    """
    proved = set()
    for file in receipt.files:
        if not safe_name(file.name):
            raise BadSource(
                f"the receipt of {baked} lists {shown(file.name)}, outside it; do not trust it"
            )
        # people edit model cards
        path = baked / file.name
        if path.suffix not in CHECKED_SUFFIXES:
            continue
        if not path.is_file():
            raise BadSource(f"{path} no longer exists; run apply again")

        is_same = path.stat().st_size == file.size
        may_read = weights or path.suffix != ".safetensors"
        if is_same and file.sha256 and may_read:
            is_same = sha256(path) == file.sha256
            proved.add(file.name)
        if not is_same:
            raise BadSource(
                f"{path} is not the file that ropeconv wrote; run apply again, or pass"
                " --ignore-receipt if it was edited on purpose"
            )
    return frozenset(proved)


def has_own_card(folder: Path, receipt: Receipt) -> bool:
    """Return whether an output has a README.md that its user has written or edited."""
    card = folder / CARD
    sizes = {file.name: file.size for file in receipt.files}
    return card.is_file() and card.stat().st_size != sizes.get(CARD)


DRAFT = f".{RECEIPT}.new"
"""The name of a draft of the receipt inside its folder."""
MOST_EVALUATIONS = 8
"""The most evaluations in a receipt: of different texts and runtimes, the newest last."""
ELSEWHERE = (errno.EXDEV, errno.EACCES, errno.EPERM, errno.EROFS)
"""Errors after which a draft is written inside the folder instead of beside it."""


def write_receipt(folder: Path, receipt: Receipt | CompanionReceipt, fsync: bool = True) -> None:
    """Write ropeconv.json into a folder, replacing an earlier one atomically.

    It is first written to a draft beside the folder, so that a run that is killed leaves nothing
    new in the folder. If a file from there cannot be moved into the folder, as where a disk is
    mounted there, the draft is inside.

    Args:
        folder: The folder.
        receipt: The receipt.
        fsync: Whether to wait until it is on the disk.

    Raises:
        OSError: It cannot be written.
    """
    _replace_receipt(folder, receipt.to_dict, fsync)


def _replace_receipt(folder: Path, make: Callable[[], JsonObject], fsync: bool = True) -> None:
    """Write ropeconv.json into a folder, as `write_receipt` does.

    Args:
        folder: The folder.
        make: Returns the content. While it is called, no other process writes to the file.
        fsync: Whether to wait until it is on the disk.
    """
    folder = folder.resolve()
    beside, inside = _drafts(folder)
    try:
        _write_json(folder / RECEIPT, beside, make, fsync)
    except OSError as problem:
        if problem.errno not in ELSEWHERE:
            raise
        _write_json(folder / RECEIPT, inside, make, fsync)
    clear_drafts(folder)


def embedded(receipt: Receipt) -> str:
    """Return a receipt as JSON on one line, for a key of a GGUF file."""
    return json.dumps(receipt.to_dict())


def add_validation(baked: Path, receipt: Receipt, result: JsonObject, server: str = "") -> None:
    """Write a validation result into the receipt of a folder, or into a file beside a GGUF file.

    Args:
        baked: The output.
        receipt: Its receipt from before the validation.
        result: The result as `Validation.to_dict` has it.
        server: The runtime of a server, for the field `servers`; empty for `validation`.

    Raises:
        BadSource: The output was replaced or removed since.
    """

    def add(now: Receipt) -> Receipt:
        if server:
            return msgspec.structs.replace(now, servers={**now.servers, server: result})
        return msgspec.structs.replace(now, validation=result)

    _change_results(baked, receipt, add)


def add_evaluation(baked: Path, receipt: Receipt, *records: EvaluationRecord) -> None:
    """Write the headlines of an evaluation into the receipt of an output, or beside a GGUF file.

    Args:
        baked: The output.
        receipt: Its receipt from before the evaluation.
        records: The evaluation, one record for each row that others are compared with. Older ones
            keep the numbers that it has not measured again.

    Raises:
        BadSource: The output was replaced or removed since.
    """

    def add(now: Receipt) -> Receipt:
        evaluations = list(now.evaluations)
        for record in records:
            kept = []
            for older in evaluations:
                left = _what_is_left(older, record)
                if left is not None:
                    kept.append(left)
            evaluations = [*kept, record]
        newest = tuple(evaluations[-MOST_EVALUATIONS:])
        return msgspec.structs.replace(now, evaluations=newest)

    _change_results(baked, receipt, add)


def _what_is_left(older: EvaluationRecord, newer: EvaluationRecord) -> EvaluationRecord | None:
    """Return an evaluation without the numbers that a newer one measured again.

    A number is measured again where the newer one has the same metric of the same measure at the
    same length, computed from the same text in the same way.

    Args:
        older: The evaluation that a receipt has.
        newer: The evaluation that is added to it.

    Returns:
        The older evaluation with the other numbers; None if there are no others.
    """
    for name in ("runtime", "dtype", "tokens_sha256", "against"):
        if getattr(older, name) != getattr(newer, name):
            return older
    measured_again = {number.place for number in newer.measured}
    left = tuple(number for number in older.measured if number.place not in measured_again)
    if not left:
        return None
    if left == older.measured:
        return older

    # the price is from the loss at the trained length, and the reach from the losses at all lengths
    changed: dict[str, object] = {"measured": left}
    if (GROWTH, "loss", older.trained) in measured_again:
        changed |= {"price": None, "price_error": None}
    if any(measure == GROWTH for measure, _, _ in measured_again):
        changed["holds_to"] = None
    return msgspec.structs.replace(older, **changed)


def _change_results(baked: Path, receipt: Receipt, change: Callable[[Receipt], Receipt]) -> None:
    """Change the fields `RESULTS` of a receipt, which `validate` and `eval` add to it later.

    Another process may have added results since the receipt was read. So the receipt is read once
    more, while no other process writes to it.

    Args:
        baked: The output.
        receipt: Its receipt from before the run that has the results.
        change: Returns the receipt that is on the disk now, with the results.

    Raises:
        BadSource: The output was replaced or removed since.
    """

    def make_receipt() -> JsonObject:
        return change(_read_again(baked, receipt)).to_dict()

    def make_results() -> JsonObject:
        now = change(_read_again(baked, receipt))
        return {
            "schema": now.schema,
            "size": baked.stat().st_size,
            "header_sha256": _header_sha256(baked),
            **_results_in(now),
        }

    # a GGUF file has its results in a file beside it
    if is_gguf(baked):
        _write_json(validations_path(baked), _results_draft(baked), make_results)
    else:
        _replace_receipt(baked, make_receipt)


def _read_again(baked: Path, receipt: Receipt) -> Receipt:
    """Return the receipt that an output has now.

    Raises:
        BadSource: It has none, or that of another output than the one that was read before.
    """
    now = read_receipt(baked)
    if without_results(now) != without_results(receipt):
        raise BadSource(f"{baked} was replaced while it was run; run the same command again")
    return now


def without_results(receipt: Receipt) -> Receipt:
    """Return a receipt as `apply` wrote it, without the results of `validate` and `eval`."""
    return msgspec.structs.replace(receipt, validation=None, servers={}, evaluations=())


def clear_drafts(baked: Path) -> None:
    """Remove the drafts that killed processes left of a receipt, or of results of a GGUF file.

    Drafts that another process is writing stay, and those that cannot be removed.

    Args:
        baked: The folder or GGUF file, which need not exist.
    """
    if is_gguf(baked):
        drafts = [_results_draft(baked)]
    else:
        drafts = _drafts(baked.resolve())
    for draft in drafts:
        with suppress(OSError):
            _remove_unless_locked(draft)


def _remove_unless_locked(draft: Path) -> None:
    """Remove a draft that no process is writing."""
    if not draft.is_file() or draft.is_symlink():
        return
    with draft.open("r+b") as file:
        if try_lock(file) != "taken":
            return
        # between open and lock, its writer may have renamed it and another one begun a new draft
        if os.path.samestat(os.fstat(file.fileno()), draft.stat()):
            draft.unlink()


def _drafts(folder: Path) -> list[Path]:
    """The paths of drafts of a receipt: beside its folder, and inside if that fails."""
    return [folder.with_name(f".{folder.name}.{RECEIPT}.new"), folder / DRAFT]


def _results_draft(gguf: Path) -> Path:
    """The path of a draft of the results of a GGUF file."""
    path = validations_path(gguf)
    return path.with_name(f".{path.name}.new")


def _write_json(
    path: Path, draft: Path, make: Callable[[], JsonObject], fsync: bool = True
) -> None:
    """Replace a file by JSON atomically: lock a draft, write what `make` returns, and rename it."""
    with draft_of(path, draft, fsync) as place:
        place.write_bytes(jsontext.dump(make()).encode())


def commands(receipt: Receipt) -> list[str]:
    """Return the command lines that make an output again from its first source, in order.

    An output of `ropeconv apply` may have been extended by a further run, so there may be several:
    `ropeconv apply Qwen/Qwen3-8B --ntk 2 -o step1`, then `ropeconv apply step1 --yarn 4`.
    Local sources are named without their folders. A recipe with lists of numbers has no options,
    and is read from the receipt, `--recipe ropeconv.json`.
    """
    # the first command reads the first source
    first = receipt.first
    source_is_gguf = first.kind == "gguf"
    source_name = first.reference or _file_name(first.name, source_is_gguf)
    family = receipt.source.family or ""

    # all commands but the last write an output that the next one reads: step1, step2 and so on
    *earlier_steps, last_step = receipt.steps
    lines = list[str]()
    for number, step in enumerate(earlier_steps, 1):
        output_is_gguf = step.target.to == "gguf"
        output_name = _file_name(f"step{number}", output_is_gguf)
        words = apply_words(source_name, step, source_is_gguf, family)
        lines.append(shlex.join([*words, "-o", output_name]))
        source_name = output_name
        source_is_gguf = output_is_gguf

    # the last command lets `apply` name the output; the receipt has its converter and imatrix
    words = apply_words(source_name, last_step, source_is_gguf, family)
    if receipt.converter is not None:
        words += ["--converter", "llama.cpp"]  # its path may be another one on another machine
    if receipt.imatrix is not None:
        words += ["--imatrix", receipt.imatrix.name]
    lines.append(shlex.join(words))
    return lines


def _file_name(name: str, is_gguf: bool) -> str:
    """The name of an output with the ending of its format."""
    if is_gguf:
        return f"{name}.gguf"
    return name


def apply_words(name: str, step: StepRecord, is_gguf: bool, family: str = "") -> list[str]:
    """Return the words of the command line that repeats a run of `ropeconv apply`, without `-o`.

    For instance ["ropeconv", "apply", "Qwen/Qwen3-8B", "--yarn", "4"].

    Args:
        name: The source, for the command line.
        step: The run, as a receipt records it.
        is_gguf: Whether the source is a GGUF file.
        family: The family that the user gave.
    """
    words = ["ropeconv", "apply", name]
    if family:
        words += ["--family", family]

    # the recipe as options of the method; a recipe of another version cannot be read, and one with
    # lists of numbers has no options
    method_options = None
    with suppress(RopeconvError):
        method_options = flags(Recipe.from_dict(step.recipe))
    words += method_options or ["--recipe", RECEIPT]

    # options of the output, as far as they differ from the defaults
    target = step.target
    to_gguf = target.to == "gguf"
    changes_format = is_gguf != to_gguf
    if changes_format:
        words += ["--to", target.to]
    for option in options(TargetRecord):
        value = getattr(target, option.name)
        if option.many:
            for item in value:
                words += [option.flag, item]
        elif value != option.default:
            words.append(option.flag)
            is_switch = value is True  # without a value on the command line
            if not is_switch:
                words.append(value)
    return words


def facts_of(receipt: Receipt) -> dict[str, str]:
    """Return what a receipt says about the method, by titles for display: {"Context": ..., ...}."""
    method = REGISTRY.get(receipt.method)
    before = receipt.before
    schedule = receipt.schedule
    described_method = receipt.method
    if method:
        described_method = f"{receipt.method}: {method.summary} ({method.paper})"
    facts = {
        "Method": described_method,
        "Settings": describe_settings(receipt.recipe, before.original_context, before.context),
        "Frequencies": f"{before.rope}, then {before.after}",
        "Context": f"{before.context:,} tokens, then {receipt.context:,}",
        "Attention factor": f"{before.attention_factor:.6g}, then {schedule.attention_factor:.6g}",
        "Encoding": receipt.encoding,
        "Approximation": "",
    }
    if receipt.ramp_approximation is not None:
        facts["Approximation"] = receipt.ramp_approximation.distance
    return {name: value for name, value in facts.items() if value}
