"""Whether a place has the output of the same command already, as after a kill at its very end.

`may_be_finished` is quick and decides whether it is worth to write the output again beside it;
`is_finished` compares the two, file by file.
"""

import filecmp
import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import msgspec

from ..errors import BadSource
from ..formats.files import read_text
from ..inspection.receipts.receipt import Receipt, TargetRecord
from ..inspection.receipts.storage import DRAFT, RESULTS, parse_receipt, read_receipt
from ..models.source import RECEIPT
from ..options import CompanionNames, copied
from .plan import FilePlan, Plan

NOT_WRITTEN = (".cache", DRAFT)
"""Files that the Hub's client and a killed `validate` leave in the folder of an output."""


def may_be_finished(plan: FilePlan) -> bool:
    """Return whether an output seems to be written already, by an earlier run of the same command.

    Its files are there with the planned sizes, and its receipt says that it was made in the same
    way. No other file is read, so this is quick. `is_finished` compares their contents.
    """
    for file in plan.files:
        place = _place(plan, file.name)
        if not place.is_file() or place.is_symlink():
            return False
        # the sizes of some files are not known before they are written
        is_size_known = file.size and not file.estimated
        if is_size_known and place.stat().st_size != file.size:
            return False

    # only outputs of `apply` have a receipt; two agree where source, recipe, target and schedule do
    if not isinstance(plan, Plan):
        return True
    with suppress(BadSource):
        return made_from(read_receipt(plan.out)) == made_from(plan.receipt())
    return False


def is_finished(plan: FilePlan, new_folder: Path) -> bool:
    """Return whether the output of a plan is there already, with exactly the bytes of a new one.

    The new output was written into a hidden folder, and is compared with the one at `plan.out`.
    Results of later measurements in the receipts are not compared.

    Args:
        plan: The plan of the output.
        new_folder: The hidden folder, in which the new files have their final names.
    """
    # a GGUF model: its shards
    if not plan.is_folder:
        return all(_same(new_folder / file.name, _place(plan, file.name)) for file in plan.files)

    # a folder: the same files and no others
    new_root = new_folder / plan.out.name
    names = set(_names(new_root))
    if names != set(_names(plan.out)):
        return False
    return all(_same(new_root / name, plan.out / name) for name in sorted(names))


def made_from(receipt: Receipt) -> bytes:
    """Return the source of an output and how it was made, as JSON, without later measurements and
    its adapter.
    """
    target = replace(receipt.target, adapter="", adapter_digest="")
    return msgspec.json.encode(
        [receipt.source, receipt.recipe, target, receipt.schedule, receipt.encoding]
    )


def member_digest(receipt: Receipt) -> str:
    """Return the sha256 of what made an output, by which other outputs of its set name it.

    A model and its draft have each other's digest in their receipts. So the digest leaves out the
    fields with the names and digests of companions.
    """
    target = copied(TargetRecord, receipt.target, **vars(CompanionNames()))
    parts = [receipt.source, receipt.recipe, target, receipt.schedule, receipt.encoding]
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def _place(plan: FilePlan, name: str) -> Path:
    """The final path of a file: in the folder of the output, or beside the first shard of a GGUF
    model.
    """
    return plan.out / name if plan.is_folder else plan.out.with_name(name)


def _same(new: Path, old: Path) -> bool:
    """Return whether two files are equal, or receipts that differ only in later results."""
    if old.is_symlink() or not old.is_file():
        return False
    if old.samefile(new) or filecmp.cmp(new, old, shallow=False):
        return True
    if new.name != RECEIPT:
        return False

    # `validate` and `eval` write their results into the receipt after `apply`
    try:
        new_receipt = parse_receipt(read_text(new, RECEIPT), RECEIPT)
        old_receipt = parse_receipt(read_text(old, RECEIPT), RECEIPT)
    except BadSource:
        return False
    return _without_results(new_receipt) == _without_results(old_receipt)


def _without_results(receipt: Receipt) -> dict[str, object]:
    return {key: value for key, value in receipt.to_dict().items() if key not in RESULTS}


def _names(root: Path) -> Iterator[str]:
    """Yield the names of all files and links in a folder, relative to it."""
    for folder, subfolders, files in os.walk(root):
        links = [name for name in subfolders if Path(folder, name).is_symlink()]
        for each in (*files, *links):
            name = Path(folder, each).relative_to(root).as_posix()
            if name.split("/")[0] not in NOT_WRITTEN:
                yield name
