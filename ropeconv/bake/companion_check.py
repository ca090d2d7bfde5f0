"""Compares an adapter or a compiled graph with its receipt, file by file."""

from collections.abc import Mapping
from pathlib import Path

from ..errors import BadSource, Disagreement
from ..formats.disk import sha256, text_digest
from ..formats.safetensors import safe_name
from ..inspection.receipts.companion import CompanionReceipt, read_companion
from ..inspection.receipts.receipt import FileRecord, Receipt
from ..inspection.receipts.storage import check_files, has_receipt, read_receipt
from ..models.source import RECEIPT
from ..rope.errors import counted
from .file_checks import files_of, is_document
from .finished import member_digest


def check_companion(folder: Path) -> str:
    """Compare a LoRA adapter or a compiled graph with its receipt, and return that it is the same.

    The sentence is such as "The adapter is as it was written: 3 files are the same byte for byte."

    Raises:
        BadSource: Where the receipt of the folder is another one, or cannot be read.
        Disagreement: Where a file differs, is missing, or was added; it names the file.
    """
    receipt = read_companion(folder)
    if receipt is None:
        raise BadSource(f"{folder} has no receipt of an adapter or a graph; run apply again")
    wrong = companion_faults(folder, receipt)
    if wrong:
        raise Disagreement(
            f"{folder} is not what ropeconv wrote: {'; '.join(wrong[:3])}; remove it, and run apply"
            " again"
        )
    files = counted(len(receipt.files), "file is", "files are")
    return f"The {receipt.companion} is as it was written: {files} the same byte for byte."


def companion_faults(folder: Path, receipt: CompanionReceipt) -> list[str]:
    """Return how an adapter, a graph or a set of profiles differs from its receipt.

    Each difference is a clause for a message, such as "it has no adapter_config.json"; an empty
    list means that nothing differs.
    """
    # files that the receipt lists; those for people, such as a card, may be changed
    faults = []
    is_set = receipt.companion == "profiles"
    for file in receipt.files:
        fault = _fault_of(folder, file, may_lack_digest=is_set)
        if fault and not is_document(file.name):
            faults.append(fault)

    for name in _added_files(folder, receipt):
        faults.append(f"{name} was added (a runtime may load it: move it out of the folder)")

    # an adapter has no RoPE of its own: it was trained or copied for an output beside it, which
    # must still have the same schedule
    if receipt.output:
        output = folder.with_name(receipt.output)
        if has_receipt(output) and read_receipt(output).schedule.digest != receipt.schedule:
            faults.append(f"it belongs to another output than {output.name}, of another schedule")
    return faults


def _added_files(folder: Path, receipt: CompanionReceipt) -> list[str]:
    """Return the files that were put into a folder since ropeconv wrote it, and that may not be.

    Documents for people may be added, and so may whole other outputs beside the profiles of a set.
    """
    # the receipts themselves are in no list of files
    written = {file.name for file in receipt.files}
    written.add(RECEIPT)
    for member in receipt.members:
        written.add(f"{member}/{RECEIPT}")

    added = []
    for name in sorted(set(files_of(folder)) - written):
        may_be_added = is_document(name) or _is_of_another(folder, name, receipt)
        if not may_be_added:
            added.append(name)
    return added


def member_faults(output: Path, receipt: Receipt) -> list[str]:
    """Return what is wrong with the adapter, draft or target beside an output, as clauses.

    One that is not there is passed over: it may have been moved.

    Args:
        output: The output.
        receipt: Its receipt, which names them.
    """
    # the receipt has their names, such as "Qwen3-8B-yarn4-adapter"; `place_beside` gives the path
    # of one that is there
    names = receipt.target
    faults = []
    adapter = place_beside(output, names.adapter)
    if adapter is not None:
        faults += _faults_of_adapter(adapter, receipt)
    draft = place_beside(output, names.draft)
    if draft is not None:
        faults += _faults_of_pair(draft, "draft", names.draft_digest)
    target = place_beside(output, names.drafts_for)
    if target is not None:
        faults += _faults_of_pair(target, "target", names.drafts_for_digest)
    return faults


def _faults_of_adapter(adapter: Path, output_receipt: Receipt) -> list[str]:
    """Return what is wrong with the LoRA adapter that was written for an output, as clauses.

    An adapter is copied into a folder beside the output, with a receipt (a list of its files) that
    names the schedule of the output. The receipt of the output has a digest of the copied files.

    Args:
        adapter: The folder of the adapter.
        output_receipt: The receipt of the output.
    """
    adapter_receipt = read_companion(adapter)
    if adapter_receipt is None:
        return [f"its adapter {adapter.name} has no receipt"]
    faults = [f"{adapter.name}: {fault}" for fault in companion_faults(adapter, adapter_receipt)]
    if adapter_receipt.schedule != output_receipt.schedule.digest:
        faults.append(f"{adapter.name} is of another output, of another schedule")

    # the output must have been written with this adapter; it has no digest of an adapter that came
    # from the Hub, whose files were not read
    digest_in_output = output_receipt.target.adapter_digest
    if not digest_in_output:
        return faults
    sha256_by_name = {}
    for file in adapter_receipt.files:
        if file.action == "copy":
            sha256_by_name[file.name] = file.sha256 or ""
    if digest_in_output != copies_digest(sha256_by_name):
        faults.append(f"{adapter.name} is not the adapter that it was written with")
    return faults


def _faults_of_pair(model: Path, kind: str, recorded_digest: str) -> list[str]:
    """Return what is wrong with a draft model or with its target, as clauses.

    In speculative decoding, a small draft model proposes tokens for a large one, the target. The
    two are written together. The receipt of the draft has a digest of the target (of its source,
    recipe and options), and the receipt of the target has one of the draft. So a draft for another
    target is noticed.

    Args:
        model: The model that is checked.
        kind: "draft" or "target", as which of the two it is checked.
        recorded_digest: The digest of that model, from the receipt of the other one. Empty if the
            other one was written by an earlier version of ropeconv, without a digest.
    """
    try:
        receipt = read_receipt(model)
        is_of_pair = not recorded_digest or recorded_digest == member_digest(receipt)
        if not is_of_pair:
            return [f"{model.name} is not the {kind} that it was written with"]

        # only the files of a draft are compared here; `validate` of a target compares its own
        if kind != "draft" or not model.is_dir():
            return []
        check_files(model, receipt)
        faults = []
        listed = {file.name for file in receipt.files} | {RECEIPT}
        for name in sorted(set(files_of(model)) - listed):
            if not is_document(name):
                faults.append(
                    f"{model.name}: {name} was added (a runtime may load it: move it out of the"
                    " folder)"
                )
        return faults
    except BadSource as problem:
        return [f"its {kind} {model.name}: {problem}"]


def copies_digest(digests: Mapping[str, str]) -> str:
    """Return the sha256 over the files that were copied into an adapter, by name and sha256."""
    return text_digest(*(f"{name!r} {digests[name]}" for name in sorted(digests)))


def place_beside(output: Path, name: str) -> Path | None:
    """Return a member of the set of an output; None where it is not there."""
    if not name or Path(name).name != name:
        return None
    place = output.with_name(name)
    return place if place.exists() else None


def _is_of_another(folder: Path, name: str, receipt: CompanionReceipt) -> bool:
    """Whether a file belongs to another output, so that it is not a fault of this one.

    A set of profiles is a folder with a subfolder for each profile, a length that one model is
    baked for. Users may put further outputs into that folder: subfolders that the receipt of the
    set does not list, and that have a receipt of their own.

    Args:
        folder: The folder of the set.
        name: The name of the file in it.
        receipt: The receipt of the set.
    """
    subfolder, slash, _ = name.partition("/")
    if receipt.companion != "profiles" or not slash:
        return False
    # a receipt may be damaged: a profile of the set is one that its members or its files name
    has_files = any(file.name.startswith(f"{subfolder}/") for file in receipt.files)
    is_profile = subfolder in receipt.members or has_files
    return not is_profile and has_receipt(folder / subfolder)


def _fault_of(folder: Path, file: FileRecord, may_lack_digest: bool = False) -> str:
    """Return what is wrong with a file; empty where it is the recorded one.

    Args:
        folder: The folder of the file.
        file: The file as the receipt records it.
        may_lack_digest: Whether a record without sha256 is accepted, as for the weights of
            profiles.
    """
    if not safe_name(file.name):
        return f"its receipt lists {file.name!r}, outside it"
    path = folder / file.name
    if not path.is_file():
        return f"it has no {file.name}"
    size = path.stat().st_size
    if size != file.size:
        return f"{file.name} has {size:,} bytes, and {file.size:,} belong there"
    if file.sha256 is None and may_lack_digest:
        return ""
    if file.sha256 is None or sha256(path) != file.sha256:
        return f"{file.name} has other contents"
    return ""
