"""PEFT adapters: the model that they were trained on, its RoPE, and whether they fit another model.

An adapter is a folder with adapter_config.json and adapter_model.safetensors. PEFT loads it over
any model with tensors of the same names and shapes, and says nothing where RoPE differs
(`PeftModel.from_pretrained` reads no config.json).
"""

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..errors import BadSource, sentence
from ..formats.jsontext import JsonObject, parse
from ..models.folder import ConfigSource
from ..models.gguf import GgufSource
from ..models.open import open_source
from ..models.source import ADAPTER, RECEIPT, Source
from ..rope.summary import Summary
from ..runtimes.verdict import describe
from .inspection import Inspection, inspect_source
from .receipts.receipt import SourceRecord
from .receipts.storage import parse_receipt

COMMIT = re.compile("[0-9a-f]{7,40}")
"""A commit of a repository, in full or shortened."""
REPOSITORY = re.compile(r"[^/.~\\][^/\\]*/[^/\\]+")
"""`owner/name` on the Hub."""
CACHE_FOLDER = re.compile(
    r"models--(?P<owner>.+?)--(?P<name>.+)/snapshots/(?P<commit>[0-9a-f]{40})"
)
"""The end of a folder in the cache of huggingface_hub: models--OWNER--NAME/snapshots/COMMIT."""
ADAPTER_WEIGHTS = "adapter_model.safetensors"
TENSOR_PREFIX = "base_model.model."
SHARED_AXES = {".lora_A.weight": -1, ".lora_B.weight": 0}
"""The endings of the tensors of an adapter, and the axis that they share with the base's matrix."""


@dataclass(frozen=True)
class Adapter(Summary):
    """A PEFT adapter."""

    source: Source

    config: JsonObject
    """The content of its adapter_config.json."""

    @property
    def kind(self) -> str:
        """The method of PEFT, such as LoRA, with its rank."""
        method = str(self.config.get("peft_type", "PEFT"))
        if method == "LORA":
            method = "LoRA"
        rank = self.config.get("r")
        if isinstance(rank, int):
            return f"{method} adapter of rank {rank}"
        return f"{method} adapter"

    @property
    def base(self) -> str:
        """The path or Hub id of its base, with the revision; empty where it names none."""
        name = self.config.get("base_model_name_or_path")
        if not name:
            return ""
        revision = self.config.get("revision")
        if revision and revision != "main":
            return f"{name}@{revision}"
        return str(name)

    @property
    def modules(self) -> str:
        """The names of the modules that it changes, for display."""
        targets = self.config.get("target_modules")
        if isinstance(targets, list):
            return ", ".join(sorted(map(str, targets)))
        return str(targets or "unknown")  # PEFT also accepts "all-linear" or an expression

    @cached_property
    def trained_on(self) -> Inspection | None:
        """The model that the adapter was trained on; None where that cannot be read.

        It is read from a config.json beside the adapter, which Axolotl writes with the RoPE of the
        training, or else from the base model that the adapter names.
        """
        try:
            if self.source.text("config.json") is not None:
                config = ConfigSource(self.source.path("config.json"))
                return inspect_source(config)
            if not self.base:
                return None
            return inspect_source(open_source(self.base))
        except Exception as problem:
            # An expected error, as of a Hub that cannot be reached, has a sentence for users. One
            # without is a mistake in ropeconv.
            is_expected = bool(sentence(problem))
            if not is_expected:
                raise
            return None

    @cached_property
    def sizes(self) -> dict[str, dict[int, int]]:
        """The size of each matrix of the base that LoRA changes, by its name and then by axis.

        E.g. {"model.layers.0.self_attn.q_proj.weight": {0: 4096, -1: 2048}}. Axis 0 are the rows,
        and axis -1 the columns.
        """
        names = [file.name for file in self.source.files()]
        if ADAPTER_WEIGHTS not in names:
            return {}

        # LoRA computes W + B A. So lora_A, [rank, columns], has on its axis -1 the columns of W,
        # and lora_B, [rows, rank], on its axis 0 the rows (`SHARED_AXES`).
        sizes: dict[str, dict[int, int]] = {}
        for name, tensor in self.source.header(ADAPTER_WEIGHTS).tensors.items():
            for ending, axis in SHARED_AXES.items():
                if not name.endswith(ending) or not tensor.shape:
                    continue
                # base_model.model.X.lora_A.weight belongs to X.weight
                name_in_base = name.removeprefix(TENSOR_PREFIX).removesuffix(ending) + ".weight"
                sizes_by_axis = sizes.setdefault(name_in_base, {})
                sizes_by_axis[axis] = tensor.shape[axis]
        return sizes

    @property
    def sentence(self) -> str:
        """The kind of adapter and its base, in words."""
        over = f"for {self.base}" if self.base else "which names no base"
        return f"{self.kind}, {over}; not a whole model."

    def summary(self) -> dict[str, str]:
        """Return the facts that `inspect` shows about the adapter, by name."""
        rope = "unknown: no base here"
        if self.trained_on is not None:
            base = self.trained_on
            rope = f"{describe(base.spec.form)}; {base.context:,} tokens"
        return {
            "sentence": self.sentence,
            "source": self.source.reference,
            "kind": self.kind,
            "base": self.base,
            "modules": self.modules,
            "trained_on": rope,
        }

    def to_dict(self) -> JsonObject:
        """Return the adapter as JSON-ready data."""
        return {
            "source": self.source.to_dict(),
            "adapter": self.kind,
            "base": self.base or None,
            "modules": self.modules,
            "trained_on": self.trained_on.to_dict() if self.trained_on else None,
        }


def read_adapter(source: Source | GgufSource) -> Adapter | None:
    """Return the adapter that a folder or repository holds; None for others, such as a whole model.

    Raises:
        BadSource: adapter_config.json is not a JSON object.
    """
    if isinstance(source, GgufSource) or source.kind not in ("folder", "hub"):
        return None
    text = source.text(ADAPTER)
    if text is None or source.weights():
        return None
    return Adapter(source, parse(text, ADAPTER))


def misplaced_tensor(adapter: Adapter, base: Inspection) -> str:
    """Return why an adapter does not fit a base model, by the first matrix that does not fit.

    It is the end of a sentence, such as "is for a ...q_proj.weight of 4,096 x 4,096, and that of
    BASE is 2,048 x 2,048". It is empty where all fit, and where that is unknown: for a base whose
    tensors are not on this machine.
    """
    # for a base on the Hub, the headers of all weights would be downloaded
    source = base.source
    if not isinstance(source, Source) or source.kind != "folder":
        return ""
    if not source.weights():
        return ""

    tensors = source.tensors
    for name, sizes in adapter.sizes.items():
        if name not in tensors:
            return f"is for a model with {name}, which {source.reference} does not have"
        shape = tensors[name].shape
        fits = all(shape[axis] == size for axis, size in sizes.items())
        if not fits:
            # rows before columns: axis 0, then axis -1; either may be missing
            sides = " x ".join(f"{sizes[axis]:,}" for axis in (0, -1) if axis in sizes)
            return (
                f"is for a {name} of {sides}, and that of {source.reference} is {shape[0]:,} x"
                f" {shape[-1]:,}"
            )
    return ""


def other_base(adapter: Adapter, source: Source) -> str:
    """Return a sentence where an adapter names another base model than a source; else empty.

    Tensors of the same names and shapes say nothing about the weights: every fine-tuned model of a
    family has them. A place on another machine is compared by its last part, and a revision only
    where both are known.

    Args:
        adapter: A PEFT adapter.
        source: The model that it is to be applied over.
    """
    name = str(adapter.config.get("base_model_name_or_path") or "")
    if not name:
        return ""
    revision = str(adapter.config.get("revision") or "")
    known = list(_origins(source))
    repair = "give the adapter of this model, unless both have the same weights"

    same_name = [origin for origin in known if origin.has_name(name)]
    if not same_name:
        return (
            f"the adapter {adapter.source.reference} was trained on {adapter.base}, and not on"
            f" {source.reference}; {repair}"
        )
    if revision and all(origin.has_other_revision(revision) for origin in same_name):
        which = same_name[0].commit or same_name[0].revision
        return (
            f"the adapter {adapter.source.reference} was trained on {adapter.base}, and"
            f" {source.reference} is revision {which}; {repair}"
        )
    return ""


@dataclass(frozen=True)
class _Origin:
    """A name under which people may know a model."""

    name: str
    """A repository on the Hub, or the absolute path of a folder, or the name of one."""

    revision: str = ""
    """The branch, tag or commit that was asked for."""

    commit: str = ""
    """The commit on the Hub."""

    def has_name(self, name: str) -> bool:
        """Whether a base of an adapter has this name."""
        is_here = Path(name).is_dir()
        if is_here and os.path.isabs(self.name):
            return os.path.realpath(name) == os.path.realpath(self.name)
        if not is_here and REPOSITORY.fullmatch(name) and REPOSITORY.fullmatch(self.name):
            return name.lower() == self.name.lower()  # the Hub finds them in any case
        # at least one is a folder, perhaps of another machine
        return Path(name).name.lower() == Path(self.name).name.lower()

    def has_other_revision(self, revision: str) -> bool:
        """Whether this is another revision than one that an adapter names."""
        if self.commit and COMMIT.fullmatch(revision):
            return not self.commit.startswith(revision)
        return bool(self.revision) and self.revision != revision


def _origins(source: Source) -> Iterator[_Origin]:
    """Yield the names of a source: its own, and those of its sources if ropeconv wrote it."""
    # its own: owner/name@revision on the Hub, or a folder
    if source.kind == "hub":
        name, _, revision = source.reference.partition("@")
        yield _Origin(name, revision, source.commit or "")
    else:
        place = Path(source.reference).absolute().as_posix()
        yield _Origin(place)
        # a folder in the cache of huggingface_hub is known by its repository too
        cached = CACHE_FOLDER.search(place)
        if cached:
            yield _Origin(f"{cached['owner']}/{cached['name']}", commit=cached["commit"])

    # an output of ropeconv has a receipt, which names the source of its last bake, and that of the
    # first bake where there were several
    text = source.text(RECEIPT)
    if text is None:
        return
    try:
        receipt = parse_receipt(text, RECEIPT)
    except BadSource:
        return
    for record in (receipt.source, receipt.first):
        yield _origin_of(record)


def _origin_of(record: SourceRecord) -> _Origin:
    """The name of a source in a receipt."""
    if record.repository:
        _, _, revision = (record.reference or "").partition("@")
        return _Origin(record.repository, revision, record.commit or "")
    return _Origin(record.name)
