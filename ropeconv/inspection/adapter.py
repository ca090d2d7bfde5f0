"""PEFT adapters: the model that they were trained on, its RoPE, and whether they fit another model.

An adapter is a folder with adapter_config.json and adapter_model.safetensors. PEFT loads it over
any model with tensors of the same names and shapes, and says nothing where RoPE differs
(`PeftModel.from_pretrained` reads no config.json).
"""

from dataclasses import dataclass
from functools import cached_property

from ..errors import sentence
from ..formats.jsontext import JsonObject, parse
from ..models.folder import ConfigSource
from ..models.gguf import GgufSource
from ..models.open import open_source
from ..models.source import ADAPTER, Source
from ..rope.summary import Summary
from ..runtimes.verdict import describe
from .inspection import Inspection, inspect_source

WEIGHTS = "adapter_model.safetensors"
PREFIX = "base_model.model."
MATRICES = {".lora_A.weight": -1, ".lora_B.weight": 0}


@dataclass(frozen=True)
class Adapter(Summary):
    """A PEFT adapter. config: the content of its adapter_config.json."""

    source: Source
    config: JsonObject

    @property
    def kind(self) -> str:
        """The method of PEFT, such as LoRA, with its rank."""
        kind = str(self.config.get("peft_type", "PEFT"))
        rank = self.config.get("r")
        return (
            f"{'LoRA' if kind == 'LORA' else kind}"
            f" adapter{f' of rank {rank}' if isinstance(rank, int) else ''}"
        )

    @property
    def base(self) -> str:
        """The path or Hub id of the model that it was trained on, with the revision; empty where it
        names none.
        """
        name = self.config.get("base_model_name_or_path")
        revision = self.config.get("revision")
        return f"{name}{f'@{revision}' if revision and revision != 'main' else ''}" if name else ""

    @property
    def modules(self) -> str:
        """The names of the modules that it changes, for display."""
        targets = self.config.get("target_modules")
        return (
            ", ".join(sorted(map(str, targets)))
            if isinstance(targets, list)
            else str(targets or "unknown")
        )

    @cached_property
    def trained_on(self) -> Inspection | None:
        """The model that it was trained on; None where that cannot be read.

        A config.json beside the adapter, which Axolotl writes, has the RoPE of the training, and
        counts first.
        """
        try:
            if self.source.text("config.json") is not None:
                return inspect_source(ConfigSource(self.source.path("config.json")))
            return inspect_source(open_source(self.base)) if self.base else None
        except Exception as problem:  # as of a Hub that cannot be reached
            if not sentence(problem):
                raise
            return None

    @cached_property
    def sizes(self) -> dict[str, dict[int, int]]:
        """Rows (0) and columns (-1) of each matrix of the base that LoRA changes, by its name."""
        names = {file.name for file in self.source.files()}
        sizes: dict[str, dict[int, int]] = {}
        for name, tensor in (
            self.source.header(WEIGHTS).tensors if WEIGHTS in names else {}
        ).items():
            for end, axis in MATRICES.items():
                if name.endswith(end) and tensor.shape:
                    changed = name.removeprefix(PREFIX).removesuffix(end) + ".weight"
                    sizes.setdefault(changed, {})[axis] = tensor.shape[axis]
        return sizes

    @property
    def sentence(self) -> str:
        """The kind of adapter and its base, in words."""
        over = f"for {self.base}" if self.base else "which names no base"
        return f"{self.kind}, {over}; not a whole model."

    def summary(self) -> dict[str, str]:
        """Return what is shown, by name."""
        trained = self.trained_on
        rope = f"{describe(trained.spec.form)}; {trained.context:,} tokens" if trained else ""
        return {
            "sentence": self.sentence,
            "source": self.source.reference,
            "kind": self.kind,
            "base": self.base,
            "modules": self.modules,
            "trained_on": rope or "unknown: no base here",
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

    Raises BadSource for an adapter_config.json that is not a JSON object.
    """
    if isinstance(source, GgufSource) or source.kind not in ("folder", "hub"):
        return None
    text = source.text(ADAPTER)
    return None if text is None or source.weights() else Adapter(source, parse(text, ADAPTER))


def misplaced_tensor(adapter: Adapter, base: Inspection) -> str:
    """Return a sentence on the first matrix that a base has no place for; empty where all fit or
    that is unknown.
    """
    if (
        not isinstance(base.source, Source)
        or base.source.kind != "folder"
        or not base.source.weights()
    ):
        return ""
    tensors = base.source.tensors
    for name, sizes in adapter.sizes.items():
        if name not in tensors:
            return f"is for a model with {name}, which {base.source.reference} does not have"
        shape = tensors[name].shape
        if any(shape[axis] != size for axis, size in sizes.items()):
            sides = " x ".join(f"{size:,}" for _, size in sorted(sizes.items(), reverse=True))
            return (
                f"is for a {name} of {sides}, and that of {base.source.reference} is {shape[0]:,} x"
                f" {shape[-1]:,}"
            )
    return ""
