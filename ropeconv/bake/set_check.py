"""Checks the profiles of a model as one set: each of them, and the files that they share.

A profile is an output with a receipt of its own. `base` of a GGUF file has none, so that the
receipt of the set says what its files are.
"""

from pathlib import Path

from ..errors import BadSource, Disagreement
from ..formats.kind import is_gguf
from ..inspection.receipts.companion import CompanionReceipt
from ..inspection.receipts.places import find_source
from ..inspection.receipts.receipt import Receipt
from ..inspection.receipts.storage import has_receipt, read_receipt
from ..rope.errors import RopeconvError, counted
from ..validate.comparison import Comparison
from .companion_check import companion_faults
from .finished import member_digest
from .verify import verify_output


def check_set(folder: Path, receipt: CompanionReceipt, against: str = "") -> str:
    """Return a sentence which says that all profiles of a model are as ropeconv wrote them.

    The profiles are outputs of one model for several lengths, which `ropeconv profiles` writes into
    one folder as a set.

    Args:
        folder: The folder of the profiles.
        receipt: Its receipt.
        against: The model that they were made from; empty to look for it.

    Raises:
        Disagreement: Where a profile differs, is missing, or belongs to another run; it names the
            profile.
    """
    # each profile: it has a receipt of its own, of which the receipt of the set has a digest
    faults = list[str]()
    if not receipt.members:
        faults.append("its receipt names no profile")
    compared = 0
    for name, digest in receipt.members.items():
        # a receipt can be written by anybody: a name must not lead out of the folder
        is_plain_name = Path(name).name == name
        output = output_in(folder / name) if is_plain_name else None
        if output is None:
            faults.append(f"{name} has no receipt")
            continue
        try:
            profile_receipt = read_receipt(output)
            if member_digest(profile_receipt) != digest:
                faults.append(f"{name} is of another run")
                continue
            if _compare(output, profile_receipt, against):
                compared += 1
        except (BadSource, Disagreement) as problem:
            faults.append(f"{name}: {problem}")

    # the files that they share
    faults += companion_faults(folder, receipt)
    if faults:
        raise Disagreement(
            f"{folder} is not what ropeconv wrote: {'; '.join(faults[:3])}; remove it, and run"
            " profiles again"
        )

    words = f"The set is as it was written: {counted(len(receipt.files), 'file')}"
    if compared == len(receipt.members):
        return f"{words}, and each profile is what its recipe and its source give."
    return (
        f"{words}. The source is not beside it, so weights were not compared; name it with"
        " --against."
    )


def _compare(output: Path, receipt: Receipt, against: str) -> bool:
    """Compare a profile with its source, and return whether a source was found for that.

    Raises:
        Disagreement: They differ.
    """
    # the source that the user names; but GGUF profiles are made from the file `base` beside them,
    # which `find_source` returns
    found = find_source(output)
    is_made_from_base = is_gguf(output) and bool(found)
    source = found if is_made_from_base else against or found
    if not source:
        return False
    try:
        verify_output(Comparison.open(output, source))
    except (BadSource, Disagreement):
        raise
    except RopeconvError as problem:
        raise Disagreement(str(problem)) from None
    return True


def output_in(folder: Path) -> Path | None:
    """Return the output in the folder of a profile; None where there is none, or several."""
    if has_receipt(folder):
        return folder
    shards = sorted(folder.glob("*-00001-of-*.gguf"))
    outputs = [shard for shard in shards if has_receipt(shard)]
    return outputs[0] if len(outputs) == 1 else None
