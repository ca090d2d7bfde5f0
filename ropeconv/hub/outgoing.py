"""What a repository is to hold: files of this machine, and files that the Hub copies from another repository."""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..bake import Plan
from ..errors import BadSource
from ..formats.gguf.file import SHARD
from ..receipts.read import read_receipt, validations
from ..runtimes.llamacpp.read_file import read_file
from ..sources import RECEIPT, GgufSource

CARD = "README.md"


@dataclass(frozen=True)
class Outgoing:
    """adds: local files by their name in the repository. copies: names there, to names in `source` at `commit`.

    receipt: what was done. source: a repository, empty where the source is none. card: the text of a card that is there
    already, and `own_card` whether a person wrote it.
    """

    adds: dict[str, Path]
    receipt: dict[str, Any]
    copies: dict[str, str] = field(default_factory=dict)
    source: str = ""
    commit: str = ""
    card: str = ""
    own_card: bool = False

    @property
    def gguf(self) -> list[str]:
        """Names of GGUF files."""
        return sorted(name for name in self.adds if name.endswith(".gguf"))


def of_plan(plan: Plan, staged: Path) -> Outgoing:
    """A plan that was carried out in `staged`, at least as far as it does more than copy."""
    adds, copies = {RECEIPT: staged / RECEIPT}, {}
    on_hub = plan.source.kind == "hub"
    for step in plan.steps:
        if on_hub and step.action == "copy":
            copies[step.name] = step.origin or step.name
        elif (staged / step.name).exists():
            adds[step.name] = staged / step.name
        else:
            origin = plan.origin(step)
            assert origin is not None, step
            adds[step.name] = origin
    receipt = read_receipt(staged)
    return _without_base_card(adds, copies, receipt, _repository(receipt), own_card=False)


def of_folder(folder: Path) -> Outgoing:
    """A folder that `apply` wrote; what its source on the Hub has as well is copied from there."""
    receipt, copies = read_receipt(folder), {}
    repository = _repository(receipt)
    known = {file["name"]: file for file in receipt["files"]}
    adds = {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.relative_to(folder).parts[0] not in (".cache", ".git")
    }
    for name in list(adds):
        file = known.get(name)
        if repository and file and file["action"] == "copy" and file["sha256"]:
            del adds[name]
            copies[name] = file.get("origin") or name
    written = CARD in adds and (CARD not in known or known[CARD]["size"] != adds[CARD].stat().st_size)
    return _without_base_card(adds, copies, receipt, repository, own_card=written)


def of_gguf(path: Path) -> Outgoing:
    """A GGUF file that ropeconv wrote, with its other shards."""
    receipt = read_receipt(path)
    match = SHARD.match(path.name)
    names = [path.name]
    if match:
        count = int(match["count"])
        names = [f"{match['stem']}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
    missing = [name for name in names if not path.with_name(name).is_file()]
    if missing:
        raise BadSource(f"{missing[0]} is missing beside {path}; fetch or bake it anew")
    source = GgufSource(path.with_name(names[0]))
    receipt |= validations(path)
    receipt["context"] = read_file(source.file).spec.context
    kind = source.file.get("general.file_type")
    adds = {conventional(name, kind if isinstance(kind, int) else None): path.with_name(name) for name in names}
    return Outgoing(adds, receipt, source=_repository(receipt), commit=str(receipt["source"].get("commit") or ""))


def conventional(name: str, file_type: int | None) -> str:
    """The name of a GGUF file with its quantisation at the end, where runtimes and the Hub look for it.

    https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#gguf-naming-convention
    """
    from gguf import LlamaFileType

    known = {kind.value: kind.name.removeprefix("MOSTLY_").removeprefix("ALL_") for kind in LlamaFileType}
    encoding, match = known.get(-1 if file_type is None else file_type, ""), SHARD.match(name)
    stem = match["stem"] if match else name.removesuffix(".gguf")
    if encoding and not re.search(rf"[-.]{encoding}$", stem, re.IGNORECASE):
        stem = re.sub(rf"[-.]{encoding}(?=[-.])", "", stem, count=1, flags=re.IGNORECASE) + f"-{encoding}"
    return stem + name[len(match["stem"]) if match else len(name) - len(".gguf") :]


def together(parts: list[Outgoing]) -> Outgoing:
    """Several quantisations of one model in one repository. Raises BadSource where they are not of one recipe."""
    first = parts[0]
    for part in parts[1:]:
        if (part.receipt["recipe"], part.receipt["schedule"]) != (first.receipt["recipe"], first.receipt["schedule"]):
            raise BadSource(f"{part.gguf[0]} and {first.gguf[0]} are not of one recipe; push them to two repositories")
    return replace(first, adds={name: path for part in parts for name, path in part.adds.items()})


def _repository(receipt: dict[str, Any]) -> str:
    source = receipt["source"]
    if source.get("kind") not in ("hub", "gguf") or not source.get("commit"):
        return ""
    reference = str(source.get("reference") or "").split("@")[0]
    return "/".join(reference.split("/")[:2])


def _without_base_card(
    adds: dict[str, Path], copies: dict[str, str], receipt: dict[str, Any], repository: str, own_card: bool
) -> Outgoing:
    """The source's own card speaks of another model: it is linked, not copied."""
    text = adds[CARD].read_text("utf-8", errors="replace") if CARD in adds else ""
    if not own_card:
        adds.pop(CARD, None)
        copies.pop(CARD, None)
    commit = str(receipt["source"].get("commit") or "")
    return Outgoing(adds, receipt, copies, repository, commit, text, own_card)
