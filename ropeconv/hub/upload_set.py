"""UploadSet: the files of a repository to publish, local ones and ones that the Hub copies from
another repository.
"""

import re
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from ..bake.gguf import ExportPlan, GgufPlan
from ..bake.next_steps import plan_purpose
from ..bake.plan import Plan
from ..convert.gguf_encoding import GgufModel
from ..errors import BadSource
from ..formats.files import read_text
from ..formats.gguf.file import SHARD, GgufFile, shard_names
from ..formats.jsontext import JsonObject, parse
from ..formats.kind import named_gguf
from ..inspection.inspection import inspect_source
from ..inspection.kv_cache import KvCache
from ..inspection.receipts.receipt import FileRecord, Receipt
from ..inspection.receipts.storage import has_own_card, read_receipt
from ..models.folder import FolderSource
from ..models.gguf import GgufSource
from ..models.open import open_source
from ..models.purpose import Purpose, checkpoint_purpose
from ..models.source import CARD, RECEIPT, SOURCE_CARD, Source
from ..rope.errors import RopeconvError
from ..runtimes.llamacpp.purpose import diffusion_schedule, purpose_of
from ..runtimes.llamacpp.read_header import arch_of, read_file

CONFIG = "config.json"


@dataclass(frozen=True)
class UploadSet:
    """The files of a repository to publish.

    adds: local files, by their name in the repository. receipt: of the output. context: tokens that
    it declares. copies: names of files in the repository `source` at `commit`, by their name in the
    new repository. card: the text of a README.md that the output has, or empty. own_card: whether
    the user has written that. known: metadata for the card that the keys of a GGUF file state.
    quantised: how the weights of a checkpoint are quantised, such as "awq" or "mlx"; empty for
    others. sizes: in bytes, of files in `adds` that are not written yet. kv_cache: a sentence on
    the size of the key-value cache, or empty. purpose: what the model is run for. schedule: the
    options of llama-diffusion-cli for it, empty for other models.
    """

    adds: dict[str, Path]
    receipt: Receipt
    context: int
    copies: dict[str, str] = field(default_factory=dict)
    card: str = ""
    own_card: bool = False
    known: JsonObject = field(default_factory=dict)
    quantised: str = ""
    sizes: dict[str, int] = field(default_factory=dict)
    kv_cache: str = ""
    purpose: Purpose = "text"
    schedule: str = ""

    @property
    def source(self) -> str:
        """The Hub repository of the source; empty for sources from elsewhere."""
        return self.receipt.source.repository

    @property
    def commit(self) -> str:
        """The commit of the repository `source`; empty without one."""
        return self.receipt.source.commit or ""

    def size(self, name: str) -> int:
        """The size of a file in bytes, 0 where it is not known. name: of the file in the
        repository.
        """
        path = self.adds.get(name)
        return self.sizes.get(name) or (
            path.stat().st_size if path is not None and path.is_file() else 0
        )

    @property
    def gguf(self) -> list[str]:
        """Names of the GGUF files, sorted."""
        return sorted(name for name in self.adds if name.endswith(".gguf"))


def from_plan(plan: Plan, staged: Path) -> UploadSet:
    """The upload set of a plan. Files that the plan copies from a Hub repository are copied by the
    Hub.

    staged: the folder with its output, in which files that are copied unchanged may be missing.
    """
    adds = {RECEIPT: staged / RECEIPT}
    copies = {}
    for file in plan.files:
        if plan.source.kind == "hub" and file.action == "copy":
            copies[file.name] = file.origin or file.name
        elif (staged / file.name).exists():
            adds[file.name] = staged / file.name
        else:
            origin = plan.origin(file)
            assert origin is not None, file
            adds[file.name] = origin
    files = _without_base_card(adds, copies, read_receipt(staged), plan.kv_cache)
    return replace(files, purpose=plan_purpose(plan))


def planned(plan: Plan) -> UploadSet:
    """The upload set that a plan will have, for a preview: none of its files is there yet."""
    if isinstance(plan, GgufPlan | ExportPlan):
        return _planned_gguf(plan)
    sizes = {file.name: file.size for file in plan.files}
    copied = {
        file.name for file in plan.files if plan.source.kind == "hub" and file.action == "copy"
    }
    adds = {name: plan.out / name for name in (*sizes, RECEIPT) if name not in copied}
    records = tuple(
        FileRecord(f.name, f.action, f.size, f.sha256, f.origin or None) for f in plan.files
    )
    receipt = msgspec.structs.replace(plan.receipt(), files=records)
    files = _without_base_card(adds, {name: name for name in copied}, receipt, plan.kv_cache)
    config = next((file.text for file in plan.files if file.name == CONFIG), None)
    return replace(files, quantised=quantised_as(config), sizes=sizes, purpose=plan_purpose(plan))


def _planned_gguf(plan: GgufPlan | ExportPlan) -> UploadSet:
    """The upload set that a plan of GGUF files will have, under the names that they get on the
    Hub.
    """
    names = {file.name: conventional(file.name, plan.file_type) for file in plan.files}
    adds = {names[file.name]: plan.out.with_name(file.name) for file in plan.files}
    sizes = {names[file.name]: file.size for file in plan.files}
    context = plan.schedule.context
    words = plan.kv_cache.short(context) if plan.kv_cache else ""
    header = plan.exported.model if isinstance(plan, ExportPlan) else plan.source.file
    known = stated_metadata(header)
    purpose = plan_purpose(plan)
    schedule = diffusion_schedule(plan.family, context) if purpose == "diffusion" else ""
    return UploadSet(
        adds,
        plan.receipt(),
        context,
        known=known,
        sizes=sizes,
        kv_cache=words,
        purpose=purpose,
        schedule=schedule,
    )


def quantised_as(text: str | None) -> str:
    """How weights are quantised by a config.json: such as "awq", "mlx" for those of mlx-lm; empty
    for others.
    """
    config = parse(text, CONFIG) if text else {}
    if config.get("quantization"):
        return "mlx"
    method = config.get("quantization_config")
    return str(method.get("quant_method") or "") if isinstance(method, dict) else ""


def from_folder(folder: Path) -> UploadSet:
    """The upload set of a folder that `apply` wrote; unchanged files of a source on the Hub are
    copied by the Hub.

    Hidden files are left out. Raises BadSource for links that lead outside the folder, and for
    FIFOs and devices.
    """
    receipt = read_receipt(folder)
    copies = {}
    known = {file.name: file for file in receipt.files}
    adds = {file.name: folder / file.name for file in FolderSource(folder).files()}
    for name in list(adds):
        file = known.get(name)
        if receipt.source.repository and file and file.action == "copy" and file.sha256:
            del adds[name]
            copies[name] = file.origin or name
    written = CARD in adds and has_own_card(folder, receipt)
    output = open_source(str(folder), receipt.source.family or "")
    files = _without_base_card(adds, copies, receipt, _cache_of(output), own_card=written)
    return replace(
        files, purpose=checkpoint_purpose(output) if isinstance(output, Source) else "text"
    )


def from_gguf(path: Path) -> UploadSet:
    """The upload set of a GGUF file that ropeconv wrote, with its other shards. Raises BadSource
    for a missing one.
    """
    match = SHARD.match(path.name)
    names = shard_names(path.name, int(match["count"]) if match else 1)
    missing = [name for name in names if not path.with_name(name).is_file()]
    if missing:
        raise BadSource(f"{missing[0]} is missing beside {path}; download it, or run apply again")
    source = GgufSource(path.with_name(names[0]))
    kind = source.file.get("general.file_type")
    adds = {
        conventional(name, kind if isinstance(kind, int) else None): path.with_name(name)
        for name in names
    }
    context = read_file(source.file).spec.context
    cache = _cache_of(source)
    words = cache.short(context) if cache else ""
    arch = arch_of(source.file)
    purpose = purpose_of(source.file, arch)
    schedule = diffusion_schedule(arch.name, context) if purpose == "diffusion" else ""
    return UploadSet(
        adds,
        read_receipt(path),
        context,
        known=stated_metadata(source.file),
        kv_cache=words,
        purpose=purpose,
        schedule=schedule,
    )


def _cache_of(source: Source | GgufSource) -> KvCache | None:
    """The key-value cache of an output; None where its keys do not say it."""
    try:
        return inspect_source(source).kv_cache
    except RopeconvError:
        return None


def stated_metadata(file: GgufFile | GgufModel) -> JsonObject:
    """Return the metadata for a card from the general.* keys of a GGUF file: licence, languages,
    tags, base model.

    https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#general-metadata
    """
    keys = {
        "license": "license",
        "license_name": "license.name",
        "license_link": "license.link",
        "language": "languages",
        "datasets": "datasets",
        "tags": "tags",
    }
    metadata = {name: file.get(f"general.{key}") for name, key in keys.items()}
    url = file.get("general.base_model.0.repo_url")
    if isinstance(url, str):
        metadata["base_model"] = "/".join(url.rstrip("/").split("/")[-2:])
    return texts(metadata)


def texts(metadata: JsonObject) -> JsonObject:
    """The entries of metadata that are texts or lists of texts; the Hub refuses a card with another
    licence or tag.
    """
    lists = {
        name: value if isinstance(value, list) else [value]
        for name, value in metadata.items()
        if value
    }
    return {
        name: metadata[name]
        for name, items in lists.items()
        if all(isinstance(item, str) for item in items)
    }


def conventional(name: str, file_type: int | None) -> str:
    """The name of a GGUF file with its quantisation at the end, where runtimes and the Hub look for
    it.

    https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#gguf-naming-convention
    """
    from gguf import LlamaFileType

    known = {
        kind.value: kind.name.removeprefix("MOSTLY_").removeprefix("ALL_") for kind in LlamaFileType
    }
    encoding = known.get(-1 if file_type is None else file_type, "")
    match = SHARD.match(name)
    if match:
        stem = match["stem"]
    elif named_gguf(name):
        stem = name[: -len(".gguf")]
    else:
        stem = name
    if encoding and not re.search(rf"[-.]{encoding}$", stem, re.IGNORECASE):
        stem = (
            re.sub(rf"[-.]{encoding}(?=[-.])", "", stem, count=1, flags=re.IGNORECASE)
            + f"-{encoding}"
        )
    return stem + (name[len(match["stem"]) :] if match else ".gguf")


def merged(parts: list[UploadSet]) -> UploadSet:
    """The upload set of several quantisations of one model. Raises BadSource where recipe or
    schedule differ.
    """
    first = parts[0]
    for part in parts[1:]:
        receipt, expected = part.receipt, first.receipt
        if (receipt.recipe, receipt.schedule.digest) != (expected.recipe, expected.schedule.digest):
            raise BadSource(
                f"{part.gguf[0]} and {first.gguf[0]} are not of one recipe; push them to two"
                " repositories"
            )
    adds = {name: path for part in parts for name, path in part.adds.items()}
    return replace(
        first, adds=adds, sizes={name: size for part in parts for name, size in part.sizes.items()}
    )


def _without_base_card(
    adds: dict[str, Path],
    copies: dict[str, str],
    receipt: Receipt,
    cache: KvCache | None,
    own_card: bool = False,
) -> UploadSet:
    """The upload set without the source's own card, which is about another model; it is linked, not
    copied.
    """
    readme = next(
        (adds[name] for name in (SOURCE_CARD, CARD) if name in adds and adds[name].is_file()), None
    )
    text = readme.read_text("utf-8", errors="replace") if readme else ""
    for name in (SOURCE_CARD, *([] if own_card else [CARD])):
        adds.pop(name, None)
        copies.pop(name, None)
    config = adds.get(CONFIG)
    quantised = quantised_as(read_text(config, CONFIG)) if config and config.is_file() else ""
    context = receipt.schedule.context
    words = cache.short(context) if cache else ""
    return UploadSet(
        adds, receipt, context, copies, text, own_card, quantised=quantised, kv_cache=words
    )
