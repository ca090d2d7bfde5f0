"""UploadSet: the files of a repository to publish, some of which the Hub copies from another one.

`from_folder`, `from_gguf` and `from_plan` make one of an output, `planned_upload` of a plan.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from ..bake.gguf import ExportPlan, GgufPlan
from ..bake.next_steps import plan_purpose
from ..bake.plan import Plan
from ..bake.shown_runtime import SERVERS
from ..convert.gguf_encoding import GgufModel
from ..errors import BadSource
from ..formats.disk import sha256
from ..formats.files import read_text
from ..formats.gguf.file import SHARD, GgufFile, shard_names
from ..formats.jsontext import JsonObject, parse
from ..formats.kind import has_gguf_name
from ..inspection.inspection import inspect_source
from ..inspection.kv_cache import KvCache
from ..inspection.memory.fit import find_fit
from ..inspection.memory.machine import GIB, Machine
from ..inspection.memory.shape import ModelShape
from ..inspection.receipts.receipt import FileRecord, Receipt
from ..inspection.receipts.storage import (
    check_files,
    has_own_card,
    read_receipt,
    without_results,
)
from ..models.folder import FolderSource
from ..models.gguf import GgufSource
from ..models.open import open_source
from ..models.purpose import Purpose, checkpoint_purpose
from ..models.source import CARD, RECEIPT, SOURCE_CARD, Source, is_weights
from ..rope.errors import RopeconvError
from ..runtimes.llamacpp.purpose import diffusion_schedule, purpose_of
from ..runtimes.llamacpp.read_header import arch_of, read_file
from ..runtimes.runtime import LLAMA_CPP, RUNS

CONFIG = "config.json"


@dataclass(frozen=True)
class UploadSet:
    """The files of a repository to publish."""

    adds: dict[str, Path]
    """Local files, by their name in the repository."""

    receipt: Receipt
    """The receipt of the output."""

    context: int
    """The tokens that the output declares."""

    copies: dict[str, str] = field(default_factory=dict)
    """Names of files in the repository `source` at `commit`, by their name in the new one."""

    card: str = ""
    """The text of a model card beside the output, whose metadata the new card inherits, or empty.

    It is that of the source, or one that the user has written.
    """

    own_card: bool = False
    """Whether the user has written the README.md of the output, which is then published."""

    card_metadata: JsonObject = field(default_factory=dict)
    """Metadata for the card that the keys of a GGUF file state."""

    quantised: str = ""
    """How the weights of a checkpoint are quantised, such as "awq" or "mlx"; empty for others."""

    sizes: dict[str, int] = field(default_factory=dict)
    """Sizes in bytes of files in `adds` that are not written yet."""

    kv_cache: str = ""
    """A sentence on the size of the key-value cache, or empty."""

    memory: str = ""
    """A sentence on all memory that the context takes, or empty."""

    purpose: Purpose = "text"
    """The purpose that the model is run for."""

    diffusion_options: str = ""
    """The options of llama-diffusion-cli for the model; empty for models of other kinds."""

    edited_weights: bool = False
    """Whether the weights were edited after ropeconv wrote them, or may have been.

    The receipt above is then without the results of `validate` and `eval`.
    """

    @property
    def source(self) -> str:
        """The Hub repository of the source; empty for sources from elsewhere."""
        return self.receipt.source.repository

    @property
    def commit(self) -> str:
        """The commit of the repository `source`; empty without one."""
        return self.receipt.source.commit or ""

    def size(self, name: str) -> int:
        """Return the size of a file in bytes, by its name in the repository; 0 if not known."""
        if self.sizes.get(name):
            return self.sizes[name]
        path = self.adds.get(name)
        if path is not None and path.is_file():
            return path.stat().st_size
        return 0

    @property
    def gguf(self) -> list[str]:
        """Names of the GGUF files, sorted."""
        return sorted(name for name in self.adds if name.endswith(".gguf"))


def from_plan(plan: Plan, staged: Path) -> UploadSet:
    """Return the files to publish for a plan that was written.

    Args:
        plan: The plan of a folder.
        staged: The folder with the output. Unchanged files of the source may be missing there.
    """
    adds = {RECEIPT: staged / RECEIPT}
    copies = {}
    for file in plan.files:
        written_file = staged / file.name
        if plan.source.kind == "hub" and file.action == "copy":
            # the Hub copies the file from the repository of the source, without a transfer
            copies[file.name] = file.origin or file.name
        elif written_file.exists():
            adds[file.name] = written_file
        else:
            # an unchanged file of a local source is uploaded from the folder of the source
            file_of_source = plan.origin(file)
            assert file_of_source is not None, file
            adds[file.name] = file_of_source
    upload = _folder_upload(
        adds, copies, read_receipt(staged), kv_cache=plan.kv_cache, shape=plan.shape
    )
    return replace(upload, purpose=plan_purpose(plan))


def planned_upload(plan: Plan) -> UploadSet:
    """Return the files to publish for a plan that is not written yet."""
    if isinstance(plan, GgufPlan | ExportPlan):
        return _planned_gguf(plan)

    # unchanged files of a source on the Hub are copied there; the others, and the receipt, are
    # uploaded
    copies = {}
    adds = {}
    for file in plan.files:
        if plan.source.kind == "hub" and file.action == "copy":
            copies[file.name] = file.name
        else:
            adds[file.name] = plan.out / file.name
    adds[RECEIPT] = plan.out / RECEIPT

    # the sizes and the receipt, as they will be written
    sizes = {}
    records = []
    config_text = None
    for file in plan.files:
        sizes[file.name] = file.size
        if file.name == CONFIG:
            config_text = file.text
        record = FileRecord(
            name=file.name,
            action=file.action,
            size=file.size,
            sha256=file.sha256,
            origin=file.origin or None,
        )
        records.append(record)
    receipt = msgspec.structs.replace(plan.receipt(), files=tuple(records))

    upload = _folder_upload(
        adds, copies, receipt, kv_cache=plan.kv_cache, shape=plan.shape, is_written=False
    )
    return replace(
        upload,
        quantised=quantisation_of(config_text),
        sizes=sizes,
        purpose=plan_purpose(plan),  # what the model is used for, such as "text"
    )


def _planned_gguf(plan: GgufPlan | ExportPlan) -> UploadSet:
    """Return the GGUF files to publish for a plan that is not written yet."""
    # by the name on the Hub, such as model-yarn4-Q4_K_M.gguf
    adds = {}
    sizes = {}
    for file in plan.files:
        hub_name = conventional_name(file.name, plan.file_type)
        adds[hub_name] = plan.out.with_name(file.name)
        sizes[hub_name] = file.size

    # licence, languages and so on, from the keys of the GGUF file
    if isinstance(plan, ExportPlan):  # a checkpoint is converted, which makes the keys
        card_metadata = gguf_metadata(plan.exported.model)
    else:  # the source is a GGUF file
        card_metadata = gguf_metadata(plan.source.file)

    # what the card says about running the files
    context = plan.schedule.context
    purpose = plan_purpose(plan)
    diffusion_options = ""
    if purpose == "diffusion":  # a diffusion language model, which llama-diffusion-cli runs
        diffusion_options = diffusion_schedule(plan.family, context)
    return UploadSet(
        adds=adds,
        receipt=plan.receipt(),
        context=context,
        card_metadata=card_metadata,
        sizes=sizes,
        kv_cache=plan.kv_cache.short(context) if plan.kv_cache else "",
        memory=_describe_memory(plan.shape, context, plan.receipt(), is_folder=False),
        purpose=purpose,
        diffusion_options=diffusion_options,
    )


def quantisation_of(text: str | None) -> str:
    """Return how weights are quantised, such as "awq"; empty where they are not.

    Args:
        text: The text of config.json, None without one.
    """
    config = parse(text, CONFIG) if text else {}
    if config.get("quantization"):  # the key of mlx-lm
        return "mlx"
    method = config.get("quantization_config")
    if not isinstance(method, dict):
        return ""
    return str(method.get("quant_method") or "")


def from_folder(folder: Path, ignore_receipt: bool = False) -> UploadSet:
    """Return the files to publish from a folder that `apply` wrote, without hidden files.

    Args:
        folder: The folder.
        ignore_receipt: Also publish files that are not those of the receipt.

    Raises:
        BadSource: A link leads outside the folder, or a file is a FIFO or a device. Without
            `ignore_receipt`, also where a file was changed or removed after `apply`.
    """
    receipt = read_receipt(folder)
    compared = frozenset[str]()
    if not ignore_receipt:
        compared = check_files(folder, receipt)
    names = [file.name for file in FolderSource(folder).files()]
    proved = _proved_files(folder, receipt, names, compared)

    # The Hub copies the files that the output and the repository of the source both have, and the
    # others are uploaded. A file whose sha256 is not that of the receipt may have been changed.
    records = {record.name: record for record in receipt.files}
    adds = {}
    copies = {}
    for name in names:
        is_copy = name in proved and records[name].action == "copy"
        if is_copy and receipt.source.repository:
            copies[name] = records[name].origin or name  # `origin` only for a renamed file
        else:
            adds[name] = folder / name

    # the results in the receipt are of the weights that ropeconv wrote
    edited_weights = _may_have_other_weights(folder, receipt, names, proved, ignore_receipt)
    if edited_weights:
        receipt = without_results(receipt)

    # facts for the card: the key-value cache, the memory, and what the model is used for
    user_wrote_card = CARD in adds and has_own_card(folder, receipt)
    output = open_source(str(folder), receipt.source.family or "")
    kv_cache, shape = _cache_and_shape(output)
    upload = _folder_upload(
        adds, copies, receipt, kv_cache=kv_cache, shape=shape, own_card=user_wrote_card
    )
    purpose: Purpose = "text"
    if isinstance(output, Source):
        purpose = checkpoint_purpose(output)
    return replace(upload, purpose=purpose, edited_weights=edited_weights)


def _proved_files(
    folder: Path, receipt: Receipt, names: Collection[str], compared: frozenset[str]
) -> frozenset[str]:
    """Return the names of files that have the size and the sha256 of the receipt.

    Only weights, and files that the Hub could copy, are read for that.

    Args:
        folder: The output.
        receipt: Its receipt.
        names: The names of its files.
        compared: Files that are known to have them, which are not read again.
    """
    proved = set(compared)
    for record in receipt.files:
        is_copy = record.action == "copy" and bool(receipt.source.repository)
        if record.name not in names or record.name in compared:
            continue
        if not record.sha256 or not (is_copy or is_weights(record.name)):
            continue
        path = folder / record.name
        if path.stat().st_size == record.size and sha256(path) == record.sha256:
            proved.add(record.name)
    return frozenset(proved)


def _may_have_other_weights(
    folder: Path,
    receipt: Receipt,
    names: Collection[str],
    proved: frozenset[str],
    ignore_receipt: bool,
) -> bool:
    """Return whether the weights of an output may be others than those that ropeconv wrote.

    Args:
        folder: The output.
        receipt: Its receipt.
        names: The names of its files.
        proved: The files that have the sha256 of the receipt.
        ignore_receipt: Whether the user says that files were edited. Weights without a sha256 in
            the receipt then count as edited, although their size is the same.
    """
    records = {record.name: record for record in receipt.files}
    added = set(names) - records.keys()
    removed = records.keys() - set(names)
    if any(name.endswith(".safetensors") for name in added | removed):
        return True

    for name in names:
        if name not in records or name in proved or not is_weights(name):
            continue
        record = records[name]
        has_other_size = (folder / name).stat().st_size != record.size
        if has_other_size or record.sha256 or ignore_receipt:
            return True
    return False


def from_gguf(path: Path) -> UploadSet:
    """Return the files to publish for a GGUF model that ropeconv wrote, with all its shards.

    Args:
        path: The file, or any of its shards.

    Raises:
        BadSource: A shard is missing.
    """
    # the local files: one file, or model-00001-of-00003.gguf and so on
    shard_count = 1
    name_of_shard = SHARD.match(path.name)
    if name_of_shard:
        shard_count = int(name_of_shard["count"])
    local_names = shard_names(path.name, shard_count)
    for name in local_names:
        if not path.with_name(name).is_file():
            raise BadSource(f"{name} is missing beside {path}; download it, or run apply again")

    # by their names on the Hub, which end with the quantisation
    source = GgufSource(path.with_name(local_names[0]))
    file_type = source.file.get("general.file_type")
    if not isinstance(file_type, int):
        file_type = None
    adds = {}
    for name in local_names:
        adds[conventional_name(name, file_type)] = path.with_name(name)

    # facts for the card
    receipt = read_receipt(path)
    context = read_file(source.file).spec.context
    kv_cache, shape = _cache_and_shape(source)
    arch = arch_of(source.file)
    purpose = purpose_of(source.file, arch)
    diffusion_options = ""
    if purpose == "diffusion":  # a diffusion language model, which llama-diffusion-cli runs
        diffusion_options = diffusion_schedule(arch.name, context)
    return UploadSet(
        adds=adds,
        receipt=receipt,
        context=context,
        card_metadata=gguf_metadata(source.file),
        kv_cache=kv_cache.short(context) if kv_cache else "",
        memory=_describe_memory(shape, context, receipt, is_folder=False),
        purpose=purpose,
        diffusion_options=diffusion_options,
    )


def _cache_and_shape(source: Source | GgufSource) -> tuple[KvCache | None, ModelShape | None]:
    """Return the key-value cache and the sizes of an output; None for what its keys do not say."""
    try:
        inspection = inspect_source(source)
    except RopeconvError:
        return None, None
    return inspection.kv_cache, inspection.shape


ONE_GPU = Machine(kind="given", name="--memory", bytes=24 * GIB)
"""The machine of a card: a GPU on which a server has its smaller defaults."""


def _describe_memory(
    shape: ModelShape | None, context: int, receipt: Receipt, is_folder: bool
) -> str:
    """Return a sentence on the memory that the context takes in a usual runtime, or empty.

    Args:
        shape: The output.
        context: Its context in tokens.
        receipt: Its receipt, with the runtimes that support it.
        is_folder: Whether it is a checkpoint, and not a GGUF file.
    """
    # Whether each runtime supports the output in its newest version. The rows of a runtime are in
    # the order of its versions, so that the newest one overwrites the others.
    newest_supports = {}
    for row in receipt.runtimes:
        name, _, _ = row.runtime.partition("@")
        name = name.removesuffix("-gguf")  # vllm-gguf is vLLM as a reader of GGUF
        newest_supports[name] = row.status in RUNS

    # the memory in the first of the usual runtimes that supports it
    usual = SERVERS if is_folder else (LLAMA_CPP,)
    supporting = [name for name in usual if newest_supports.get(name)]
    if shape is None or not supporting:
        return ""
    fit = find_fit(supporting[0], shape, context, ONE_GPU)
    return (
        f"Memory: {fit.memory} in {fit.runtime.display_name} on one GPU, with one sequence of"
        f" {context:,} tokens."
    )


def gguf_metadata(file: GgufFile | GgufModel) -> JsonObject:
    """Return the metadata for a card from the general.* keys of a GGUF file.

    These are licence, languages, datasets, tags and base model.
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
    if isinstance(url, str):  # https://huggingface.co/OWNER/NAME
        parts = url.rstrip("/").split("/")
        metadata["base_model"] = "/".join(parts[-2:])
    return text_entries(metadata)


def text_entries(metadata: JsonObject) -> JsonObject:
    """Return the entries of metadata that are texts or lists of texts, without empty ones.

    The Hub refuses a card whose licence or tags are anything else.
    """
    entries = {}
    for name, value in metadata.items():
        items = value if isinstance(value, list) else [value]
        if value and all(isinstance(item, str) for item in items):
            entries[name] = value
    return entries


def conventional_name(name: str, file_type: int | None) -> str:
    """Return the name of a GGUF file with its quantisation at the end, as in `model-Q4_K_M.gguf`.

    Runtimes and the Hub look for it there:
    https://github.com/ggml-org/ggml/blob/master/docs/gguf.md#gguf-naming-convention

    Args:
        name: The present name, also that of a shard.
        file_type: The number in `general.file_type`; None where the file has none.
    """
    # the number of a shard stays at the end: model-Q4_K_M-00001-of-00003.gguf
    stem = name
    end = ".gguf"
    match = SHARD.match(name)
    if match:
        stem = match["stem"]
        end = name[len(stem) :]
    elif has_gguf_name(name):
        stem = name[: -len(".gguf")]

    # nothing to add, as in model-Q4_K_M.gguf and where the quantisation is not known
    quantisation = _quantisation_of_type(file_type)
    if not quantisation:
        return stem + end
    has_it_at_end = re.search(rf"[-.]{quantisation}$", stem, re.IGNORECASE) is not None
    if has_it_at_end:
        return stem + end

    # inside the name it is moved: model-Q4_K_M-yarn4 becomes model-yarn4-Q4_K_M
    inside = rf"[-.]{quantisation}(?=[-.])"
    without = re.sub(inside, "", stem, count=1, flags=re.IGNORECASE)
    return f"{without}-{quantisation}{end}"


def _quantisation_of_type(file_type: int | None) -> str:
    """Return the name of a `general.file_type`, such as Q4_K_M; empty for an unknown one."""
    from gguf import LlamaFileType

    for kind in LlamaFileType:  # MOSTLY_Q4_K_M, ALL_F32
        if kind.value == file_type:
            return kind.name.removeprefix("MOSTLY_").removeprefix("ALL_")
    return ""


def merge(parts: list[UploadSet]) -> UploadSet:
    """Return several quantisations of a model as one upload, for the same repository.

    Raises:
        BadSource: Their recipes or schedules differ.
    """
    first = parts[0]
    recipe = first.receipt.recipe
    digest = first.receipt.schedule.digest
    adds: dict[str, Path] = {}
    sizes: dict[str, int] = {}
    for part in parts:
        if part.receipt.recipe != recipe or part.receipt.schedule.digest != digest:
            raise BadSource(
                f"{part.gguf[0]} and {first.gguf[0]} are not of one recipe; push them to two"
                " repositories"
            )
        adds |= part.adds
        sizes |= part.sizes
    return replace(first, adds=adds, sizes=sizes)


def _card_of_source(adds: Mapping[str, Path]) -> str:
    """Return the text of the source's model card from the files of an output, or "".

    The card is in SOURCE_CARD if ropeconv wrote a README.md, and in README.md otherwise.
    """
    for name in (SOURCE_CARD, CARD):
        if name in adds and adds[name].is_file():
            return adds[name].read_text("utf-8", errors="replace")
    return ""


def _folder_upload(
    adds: dict[str, Path],
    copies: dict[str, str],
    receipt: Receipt,
    kv_cache: KvCache | None,
    shape: ModelShape | None,
    own_card: bool = False,
    is_written: bool = True,
) -> UploadSet:
    """Return the files to publish for a folder, with facts for the model card.

    Args:
        adds: Local files, by their name in the new repository.
        copies: Names of files in the repository of the source, by their name in the new repository.
        receipt: The receipt of the output.
        kv_cache: The key-value cache of the output; None if its size is unknown.
        shape: The sizes on which the memory of the output depends; None if unknown.
        own_card: Whether the user has written the README.md, which is then uploaded.
        is_written: Whether the files were written. If not, another output may be in their place,
            so that none is read.
    """
    # The model card of the source is about another model, so it is not published. The new card
    # takes the licence and the languages from its text. It is README.md (CARD), or the file
    # SOURCE_CARD if ropeconv has written a README.md.
    inherited_card = ""
    if is_written:
        inherited_card = _card_of_source(adds)
    left_out = {SOURCE_CARD}
    if not own_card:
        left_out.add(CARD)
    adds = {name: path for name, path in adds.items() if name not in left_out}
    copies = {name: origin for name, origin in copies.items() if name not in left_out}

    # config.json says how the weights are quantised
    quantised = ""
    config = adds.get(CONFIG)
    if is_written and config is not None and config.is_file():
        quantised = quantisation_of(read_text(config, CONFIG))

    context = receipt.context
    return UploadSet(
        adds=adds,
        receipt=receipt,
        context=context,
        copies=copies,
        card=inherited_card,
        own_card=own_card,
        quantised=quantised,
        kv_cache=kv_cache.short(context) if kv_cache else "",
        memory=_describe_memory(shape, context, receipt, is_folder=True),
    )
