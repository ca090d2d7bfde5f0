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
        BadSource: The folder has no receipt of an adapter or a graph, or the receipt cannot be
            read.
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

    Args:
        folder: The folder.
        receipt: The receipt of the folder, which lists the files that ropeconv wrote.

    Returns:
        Clauses for a message, such as "it has no adapter_config.json"; empty if nothing differs.
    """
    # files that the receipt lists; documents for people, such as a card, may be changed
    faults = []
    is_set = receipt.companion == "profiles"
    for file in receipt.files:
        fault = _fault_of(folder, file, may_lack_digest=is_set)
        if fault and not is_document(file.name):
            faults.append(fault)

    for name in _added_files(folder, receipt):
        faults.append(f"{name} was added (a runtime may load it: move it out of the folder)")

    # an adapter or a graph was made for an output beside it, which must still have the same RoPE
    if receipt.output:
        output = folder.with_name(receipt.output)
        if has_receipt(output) and read_receipt(output).schedule.digest != receipt.schedule:
            faults.append(f"it belongs to another output than {output.name}, of another schedule")
    return faults


def _added_files(folder: Path, receipt: CompanionReceipt) -> list[str]:
    """Return the files in a folder that ropeconv did not write and that a runtime may load.

    A document for people, such as NOTES.md, may be added. In a set of profiles (one model, baked
    for several lengths, with a subfolder for each), a subfolder with another output may be added.

    Args:
        folder: The folder of an adapter, a graph or a set of profiles.
        receipt: The receipt of the folder, which lists the files that ropeconv wrote.
    """
    written = {file.name for file in receipt.files}
    # a receipt lists neither itself nor the receipts of the profiles
    written.add(RECEIPT)
    for profile in receipt.members:
        written.add(f"{profile}/{RECEIPT}")

    unexpected = []
    for name in sorted(set(files_of(folder)) - written):
        may_be_added = is_document(name) or _belongs_to_other_output(folder, name, receipt)
        if not may_be_added:
            unexpected.append(name)
    return unexpected


def member_faults(output: Path, receipt: Receipt) -> list[str]:
    """Return what is wrong with the adapter, draft or target beside an output, as clauses.

    A member that is not there is passed over, since the user may have moved it.

    Args:
        output: The output.
        receipt: The receipt of the output, which names the members.
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

    # the files of the adapter, and the frequencies that it was written for
    faults = [f"{adapter.name}: {fault}" for fault in companion_faults(adapter, adapter_receipt)]
    has_same_schedule = adapter_receipt.schedule == output_receipt.schedule.digest
    if not has_same_schedule:
        faults.append(f"{adapter.name} is of another output, of another schedule")

    # The copied files must have the digest that the receipt of the output records. The digest is
    # empty for an adapter from the Hub, since its files were not read.
    recorded_digest = output_receipt.target.adapter_digest
    if not recorded_digest:
        return faults
    sha256_by_name = {}
    for file in adapter_receipt.files:
        if file.action == "copy":
            sha256_by_name[file.name] = file.sha256 or ""
    if recorded_digest != copies_digest(sha256_by_name):
        faults.append(f"{adapter.name} is not the adapter that it was written with")
    return faults


def _faults_of_pair(model: Path, kind: str, recorded_digest: str) -> list[str]:
    """Return what is wrong with a draft model or with its target, as clauses.

    In speculative decoding, a small draft model proposes tokens for a large target model. ropeconv
    writes the two together. The receipt of the draft has a digest of the target, and the receipt of
    the target has a digest of the draft, so that a draft for another target is noticed.

    Args:
        model: The path of the draft or of the target.
        kind: "draft" if `model` is the draft, "target" if it is the target.
        recorded_digest: The digest that `model` must have, from the receipt of its partner. Empty
            in receipts of earlier versions of ropeconv; any digest is accepted then.
    """
    try:
        receipt = read_receipt(model)
        if recorded_digest and member_digest(receipt) != recorded_digest:
            return [f"{model.name} is not the {kind} that it was written with"]

        # The files of a draft are compared with its receipt. The files of a target are not:
        # `validate TARGET` does that.
        if kind != "draft" or not model.is_dir():
            return []
        check_files(model, receipt)
        faults = []
        written = {file.name for file in receipt.files} | {RECEIPT}
        for name in sorted(set(files_of(model)) - written):
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
    """Return the path of a file or folder beside an output, by its name; None if there is none."""
    if not name or Path(name).name != name:
        return None
    place = output.with_name(name)
    return place if place.exists() else None


def _belongs_to_other_output(folder: Path, name: str, receipt: CompanionReceipt) -> bool:
    """Return whether a file belongs to an output that the user put into a set of profiles.

    A set of profiles has a subfolder for each length that one model is baked for. Any other
    subfolder with a receipt is another output.

    Args:
        folder: The folder of the set.
        name: The path of the file in the folder, such as "other-model/config.json".
        receipt: The receipt of the set.
    """
    subfolder, slash, _ = name.partition("/")
    if receipt.companion != "profiles" or not slash:
        return False
    # a damaged receipt may lack a profile in `members` that it still has in `files`
    has_files_in_receipt = any(file.name.startswith(f"{subfolder}/") for file in receipt.files)
    is_profile = subfolder in receipt.members or has_files_in_receipt
    return not is_profile and has_receipt(folder / subfolder)


def _fault_of(folder: Path, file: FileRecord, may_lack_digest: bool = False) -> str:
    """Return what is wrong with a file; empty where it is the recorded file.

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
