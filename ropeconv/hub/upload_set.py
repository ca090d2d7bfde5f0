"""UploadSet: the files of a repository to publish, local ones and ones that the Hub copies from another repository."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

from ..bake import Plan
from ..errors import BadSource
from ..formats.gguf.file import SHARD
from ..receipts import Receipt, read_receipt
from ..runtimes.llamacpp.read_file import read_file
from ..sources import RECEIPT, GgufSource
from ..sources.folder import FolderSource

CARD = "README.md"


@dataclass(frozen=True)
class UploadSet:
    """The files of a repository to publish.

    adds: local files, by their name in the repository. receipt: of the output. context: tokens that it declares.
    copies: names of files in the repository `source` at `commit`, by their name in the new repository. card: the text
    of a README.md that the output has, or empty. own_card: whether the user has written that.
    """

    adds: dict[str, Path]
    receipt: Receipt
    context: int
    copies: dict[str, str] = field(default_factory=dict)
    card: str = ""
    own_card: bool = False

    @property
    def source(self) -> str:
        """The Hub repository of the source; empty for sources from elsewhere."""
        return self.receipt.source.repository

    @property
    def commit(self) -> str:
        """The commit of the repository `source`; empty without one."""
        return self.receipt.source.commit or ""

    @property
    def gguf(self) -> list[str]:
        """Names of the GGUF files, sorted."""
        return sorted(name for name in self.adds if name.endswith(".gguf"))


def from_plan(plan: Plan, staged: Path) -> UploadSet:
    """The upload set of a plan. Files that the plan copies from a Hub repository are copied by the Hub.

    staged: the folder with its output, in which files that are copied unchanged may be missing.
    """
    adds, copies = {RECEIPT: staged / RECEIPT}, {}
    for file in plan.files:
        if plan.source.kind == "hub" and file.action == "copy":
            copies[file.name] = file.origin or file.name
        elif (staged / file.name).exists():
            adds[file.name] = staged / file.name
        else:
            origin = plan.origin(file)
            assert origin is not None, file
            adds[file.name] = origin
    return _without_base_card(adds, copies, read_receipt(staged), own_card=False)


def from_folder(folder: Path) -> UploadSet:
    """The upload set of a folder that `apply` wrote; unchanged files of a source on the Hub are copied by the Hub.

    Hidden files are left out. Raises BadSource for links that lead outside the folder, and for FIFOs and devices.
    """
    receipt, copies = read_receipt(folder), {}
    known = {file.name: file for file in receipt.files}
    adds = {file.name: folder / file.name for file in FolderSource(folder).files()}
    for name in list(adds):
        file = known.get(name)
        if receipt.source.repository and file and file.action == "copy" and file.sha256:
            del adds[name]
            copies[name] = file.origin or name
    written = CARD in adds and (CARD not in known or known[CARD].size != adds[CARD].stat().st_size)
    return _without_base_card(adds, copies, receipt, own_card=written)


def from_gguf(path: Path) -> UploadSet:
    """The upload set of a GGUF file that ropeconv wrote, with its other shards. Raises BadSource for a missing one."""
    match = SHARD.match(path.name)
    names = [path.name]
    if match:
        count = int(match["count"])
        names = [f"{match['stem']}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
    missing = [name for name in names if not path.with_name(name).is_file()]
    if missing:
        raise BadSource(f"{missing[0]} is missing beside {path}; download it, or run apply again")
    source = GgufSource(path.with_name(names[0]))
    kind = source.file.get("general.file_type")
    adds = {conventional(name, kind if isinstance(kind, int) else None): path.with_name(name) for name in names}
    return UploadSet(adds, read_receipt(path), read_file(source.file).spec.context)


def conventional(name: str, file_type: int | None) -> str:
    """The name of a GGUF file with its quantisation at the end, where runtimes and the Hub look for it.

    file_type: general.file_type of the file, None where it has none.
    https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#gguf-naming-convention
    """
    from gguf import LlamaFileType

    known = {kind.value: kind.name.removeprefix("MOSTLY_").removeprefix("ALL_") for kind in LlamaFileType}
    encoding, match = known.get(-1 if file_type is None else file_type, ""), SHARD.match(name)
    stem = match["stem"] if match else name.removesuffix(".gguf")
    if encoding and not re.search(rf"[-.]{encoding}$", stem, re.IGNORECASE):
        stem = re.sub(rf"[-.]{encoding}(?=[-.])", "", stem, count=1, flags=re.IGNORECASE) + f"-{encoding}"
    return stem + name[len(match["stem"]) if match else len(name) - len(".gguf") :]


def merged(parts: list[UploadSet]) -> UploadSet:
    """The upload set of several quantisations of one model. Raises BadSource where recipe or schedule differ."""
    first = parts[0]
    for part in parts[1:]:
        one, other = part.receipt, first.receipt
        if (one.recipe, one.schedule.digest) != (other.recipe, other.schedule.digest):
            raise BadSource(f"{part.gguf[0]} and {first.gguf[0]} are not of one recipe; push them to two repositories")
    return replace(first, adds={name: path for part in parts for name, path in part.adds.items()})


def _without_base_card(adds: dict[str, Path], copies: dict[str, str], receipt: Receipt, own_card: bool) -> UploadSet:
    """The upload set without the source's own card, which is about another model; it is linked, not copied."""
    text = adds[CARD].read_text("utf-8", errors="replace") if CARD in adds else ""
    if not own_card:
        adds.pop(CARD, None)
        copies.pop(CARD, None)
    return UploadSet(adds, receipt, receipt.schedule.context, copies, text, own_card)
