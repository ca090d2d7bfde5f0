"""Checks the profiles of a model as one set: each of them, and the files that they share.

A profile is an output with a receipt of its own. `base` of a GGUF file has none, so that the
receipt of the set says what its files are.
"""

from pathlib import Path

from ..errors import BadSource, Disagreement
from ..formats.kind import is_gguf
from ..inspection.receipts.companion import CompanionReceipt
from ..inspection.receipts.places import find_source
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
    is_each_compared = True
    for name, digest in receipt.members.items():
        output = _find_profile(folder, name)
        if output is None:
            faults.append(f"{name} has no receipt")
            continue
        try:
            is_of_this_run = member_digest(read_receipt(output)) == digest
            if not is_of_this_run:
                faults.append(f"{name} is of another run")
                continue
            source = _source_of(output, against)
            if source:
                _compare(output, source)
            else:
                is_each_compared = False
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
    if is_each_compared:
        return f"{words}, and each profile is what its recipe and its source give."
    return (
        f"{words}. The source is not beside it, so weights were not compared; name it with"
        " --against."
    )


def _find_profile(folder: Path, name: str) -> Path | None:
    """Return the output of a profile of a set; None where it is not there."""
    # a receipt can be written by anybody: a name must not lead out of the folder
    is_plain_name = Path(name).name == name
    if not is_plain_name:
        return None
    return output_in(folder / name)


def _source_of(output: Path, against: str) -> str:
    """Return the model to compare a profile with; empty where there is none.

    Args:
        output: The output of the profile.
        against: The model that the user names; empty to look for it.
    """
    found = find_source(output)
    # GGUF profiles are made from the file `base` beside them, whatever the user names
    if is_gguf(output) and found:
        return found
    return against or found


def _compare(output: Path, source: str) -> None:
    """Compare a profile with the model that it was made from.

    Raises:
        Disagreement: They differ, or cannot be compared.
    """
    try:
        verify_output(Comparison.open(output, source))
    except (BadSource, Disagreement):
        raise
    except RopeconvError as problem:
        raise Disagreement(str(problem)) from None


def output_in(folder: Path) -> Path | None:
    """Return the output in the folder of a profile; None where there is none, or several."""
    if has_receipt(folder):
        return folder
    shards = sorted(folder.glob("*-00001-of-*.gguf"))
    outputs = [shard for shard in shards if has_receipt(shard)]
    return outputs[0] if len(outputs) == 1 else None
