"""Write receipts into folders and GGUF keys, and validation results into or beside them."""

from __future__ import annotations

import errno
import json
import os
import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec

from ...formats import jsontext
from ...formats.disk import sync_file, sync_folder
from ...formats.files import try_lock
from ...formats.gguf.header import GgufHeader
from ...formats.jsontext import JsonObject
from ...models.gguf import GgufSource
from ...models.open import open_source
from ...models.source import RECEIPT
from ...options import options
from ...rope.errors import RopeconvError, counted
from ...rope.methods.method import REGISTRY
from ...rope.recipe import Recipe, flags
from .folder import OriginalSource
from .gguf import earlier
from .reader import described_settings, validations, validations_path
from .receipt import EvaluationRecord, Receipt, StepRecord, TargetRecord

DRAFT = f".{RECEIPT}.new"
PAUSE = 0.01  # seconds between two attempts to write a draft
MOST_EVALUATIONS = 8
"""The most evaluations in a receipt: of different texts and runtimes, the newest last."""
ELSEWHERE = (errno.EXDEV, errno.EACCES, errno.EPERM, errno.EROFS)


def write_receipt(folder: Path, receipt: Receipt, fsync: bool = True) -> None:
    """Write ropeconv.json into a folder, replacing an earlier one atomically.

    The draft is beside the folder, so that a kill leaves nothing new in it, or inside if that fails, as for a mounted
    folder. fsync: wait until it is on the disk. Raises OSError.
    """
    folder, data = folder.resolve(), receipt.to_dict()
    beside, inside = _drafts(folder)
    try:
        _replace(folder / RECEIPT, beside, data, fsync)
    except OSError as problem:
        if problem.errno not in ELSEWHERE:
            raise
        _replace(folder / RECEIPT, inside, data, fsync)
    clear_drafts(folder)


def embedded(receipt: Receipt) -> str:
    """Return a receipt as JSON on one line, for a key of a GGUF file."""
    return json.dumps(receipt.to_dict())


def add_validation(baked: Path, receipt: Receipt, result: JsonObject, server: str = "") -> None:
    """Write a validation result into the receipt of a folder, or into a file beside a GGUF file.

    receipt: as read from the output. result: as `Validation.to_dict` has it. server: the runtime of a server, for the
    field `servers`; empty for the field `validation`.
    """
    if server:
        _add(baked, receipt, "servers", {**receipt.servers, server: result})
    else:
        _add(baked, receipt, "validation", result)


def add_evaluation(baked: Path, receipt: Receipt, record: EvaluationRecord) -> None:
    """Write the headlines of an evaluation into the receipt of a folder, or into a file beside a GGUF file.

    receipt: as read from the output. record: replaces an earlier one of the same measures and text in the same runtime.
    """
    others = [other for other in receipt.evaluations if other.of_what != record.of_what]
    _add(baked, receipt, "evaluations", (*others[1 - MOST_EVALUATIONS :], record))


def _add(baked: Path, receipt: Receipt, field: str, value: object) -> None:
    if baked.suffix != ".gguf":
        write_receipt(baked, msgspec.structs.replace(receipt, **{field: value}))
        return
    results = {"schema": receipt.schema, "size": baked.stat().st_size, **validations(baked)}
    _replace(validations_path(baked), _results_draft(baked), {**results, field: msgspec.to_builtins(value)})


def clear_drafts(baked: Path) -> None:
    """Remove the drafts that killed processes left of a receipt, or of the results beside a GGUF file.

    baked: the folder or GGUF file, which need not exist. Drafts that another process is writing stay, and those that
    cannot be removed.
    """
    for draft in (_results_draft(baked),) if baked.suffix == ".gguf" else _drafts(baked.resolve()):
        with suppress(OSError):
            if draft.is_file() and not draft.is_symlink():
                with draft.open("r+b") as file:  # which may have been renamed, and the draft be another by now
                    if try_lock(file) == "taken" and os.path.samestat(os.fstat(file.fileno()), draft.stat()):
                        draft.unlink()


def _drafts(folder: Path) -> tuple[Path, Path]:
    """Return the paths of drafts of a receipt: beside its folder, and inside if that fails."""
    return folder.with_name(f".{folder.name}.{RECEIPT}.new"), folder / DRAFT


def _results_draft(gguf: Path) -> Path:
    path = validations_path(gguf)
    return path.with_name(f".{path.name}.new")


def _replace(path: Path, draft: Path, data: JsonObject, fsync: bool = True) -> None:
    with _opened(draft) as file:
        try:
            file.truncate(0)  # a kill may have left it
            file.write(jsontext.dump(data).encode())
            file.flush()
            if fsync:
                sync_file(draft)
            draft.replace(path)
        except OSError:
            with suppress(OSError):
                draft.unlink()
            raise
    if fsync:
        for folder in {draft.parent, path.parent}:
            sync_folder(folder)


def _opened(draft: Path) -> BinaryIO:
    """Open a draft that only this process writes, after others have renamed theirs. Raises OSError."""
    while True:
        file = draft.open("ab")
        try:
            if try_lock(file) != "busy" and os.path.samestat(os.fstat(file.fileno()), draft.stat()):
                return file
        except FileNotFoundError:
            pass
        except BaseException:
            file.close()
            raise
        file.close()
        time.sleep(PAUSE)


def commands(receipt: Receipt) -> list[str]:
    """Return the `ropeconv apply` of each bake from the first source to the output of a receipt, in order.

    Local sources have their names in the receipts, without folders. A recipe with lists of numbers is read from the
    receipt, `--recipe ropeconv.json`.
    """
    first, lines = receipt.first, list[str]()
    is_gguf = first.kind == "gguf"
    name = first.reference or f"{first.name}{'.gguf' * is_gguf}"
    for number, step in enumerate(receipt.steps, 1):
        words = apply_words(name, step, is_gguf, receipt.source.family or "")
        if number < len(receipt.steps):
            is_gguf = step.target.to == "gguf"
            name = f"step{number}{'.gguf' * is_gguf}"
            words += ["-o", name]
        lines.append(shlex.join(words))
    return lines


def apply_words(name: str, step: StepRecord, is_gguf: bool, family: str = "") -> list[str]:
    """Return the words of the `ropeconv apply` of a bake, without its output.

    name: of the source. is_gguf: whether the source is a GGUF file. family: that the user gave.
    """
    recipe, target = None, step.target
    with suppress(RopeconvError):  # of another version
        recipe = flags(Recipe.from_dict(step.recipe))
    words = ["ropeconv", "apply", name, *(["--family", family] if family else [])]
    words += ["--recipe", RECEIPT] if recipe is None else recipe
    words += ["--to", target.to] if is_gguf != (target.to == "gguf") else []
    for option in options(TargetRecord):
        value = getattr(target, option.name)
        if option.many:
            words += [word for item in value for word in (option.flag, item)]
        elif value != option.default:
            words += [option.flag] if value is True else [option.flag, value]
    return words


def facts_of(receipt: Receipt) -> dict[str, str]:
    """Return the facts on the method in a receipt, for display."""
    method, before, schedule = REGISTRY.get(receipt.method), receipt.before, receipt.schedule
    facts = {
        "Method": f"{receipt.method}: {method.summary} ({method.paper})" if method else receipt.method,
        "Settings": described_settings(receipt.recipe),
        "Frequencies": f"{before.rope}, then {before.after}",
        "Context": f"{before.context:,} tokens, then {schedule.context:,}",
        "Attention factor": f"{before.attention_factor:.6g}, then {schedule.attention_factor:.6g}",
        "Encoding": receipt.encoding,
    }
    return {name: value for name, value in facts.items() if value}


LONGEST = 100
"""Characters of a value."""


@dataclass(frozen=True)
class ChangedKey:
    """A key with its values as text. name: with dots between levels. before, after: empty if it is absent."""

    name: str
    before: str
    after: str


def changed_keys(baked: Path, receipt: Receipt) -> tuple[ChangedKey, ...]:
    """Return the keys that differ between an output and its first source; none if that had another format."""
    before, after = dict[str, str](), dict[str, str]()
    try:
        source = open_source(str(baked))
        if isinstance(source, GgufSource):
            before, after = _header(earlier(source.file, receipt).header), _header(source.file.header)
        elif receipt.original is not None and receipt.original.folder is not None:
            first = OriginalSource(source, receipt, receipt.original.folder)
            before, after = dict(_flat(first.config())), dict(_flat(source.config()))
    except (RopeconvError, OSError):
        return ()
    names = [name for name in dict.fromkeys((*before, *after)) if before.get(name) != after.get(name)]
    return tuple(ChangedKey(name, before.get(name, ""), after.get(name, "")) for name in names)


def _header(header: GgufHeader) -> dict[str, str]:
    """Return the keys of a GGUF file except the receipt; long arrays, such as vocabularies, by their length."""
    return {
        name: f"{value.count()} values" if value.count() > 8 else _shown(value.decode())
        for name, value in header.values.items()
        if name != RECEIPT
    }


def _flat(data: Mapping[str, object], above: str = "") -> Iterator[tuple[str, str]]:
    for name, value in data.items():
        if isinstance(value, dict) and value:
            yield from _flat(value, f"{above}{name}.")
        else:
            yield above + name, _shown(value)


def _shown(value: object) -> str:
    if isinstance(value, list) and len(value) > 8:
        return f"{counted(len(value), 'value')}, {json.dumps(value[0])} to {json.dumps(value[-1])}"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= LONGEST else text[:LONGEST] + "..."
