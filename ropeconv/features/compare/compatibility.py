"""Whether models can be merged, and adapters applied over them.

`open_models` opens what a user names, and `compatibility` yields the differences that matter, each
with its repair.

A repair is a command only where a RoPE is known to have been edited after training: a receipt of
ropeconv says so. A setting cannot replace the base that weights were trained with.

mergekit averages weights and reads no RoPE setting. The merge gets the config.json of `base_model`,
and without one that of any model: it takes the first of a set of strings, whose order changes from
run to run (mergekit 0.1.5, mergekit/merge.py:293-296, config.py:122-142; executed). Its file has
`models`, `slices`, `modules` or experts, each with a base and with LoRA adapters. A reference is
`PATH[@REVISION][+LORA[@REVISION]]`, or an object of these (mergekit/common.py:37-205,
config.py:76-142, moe/config.py:12-46).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import msgspec

from ropeconv.bake.evidence import marked_as_trained
from ropeconv.bake.start import complete_recipe
from ropeconv.errors import BadSource, UsageError
from ropeconv.formats import jsontext
from ropeconv.formats.files import LONGEST, expand_home, read_text
from ropeconv.formats.jsontext import JsonObject
from ropeconv.inspection.adapter import Adapter, misplaced_tensor, other_base, read_adapter
from ropeconv.inspection.inspection import Inspection, inspect_source
from ropeconv.inspection.receipts.folder import valid_receipt
from ropeconv.inspection.receipts.receipt import Receipt
from ropeconv.inspection.receipts.storage import receipt_of
from ropeconv.models.gguf import GgufSource
from ropeconv.models.open import open_source
from ropeconv.models.reference import names_gguf
from ropeconv.models.source import Source
from ropeconv.rope.errors import RopeconvError, command_line, counted, shown
from ropeconv.rope.forms import DynamicNtk, InterpolatedForm, Plain, Yarn, simplify_crossed
from ropeconv.rope.methods.bases import Theta
from ropeconv.rope.methods.interpolation import Linear, Llama3Method, YarnMethod
from ropeconv.rope.methods.method import Method
from ropeconv.rope.recipe import Recipe, flags
from ropeconv.rope.spec import RopeSpec
from ropeconv.rope.summary import Summary, SummaryTable
from ropeconv.runtimes.drafts import draft_sizes
from ropeconv.runtimes.verdict import describe, difference

from .side_by_side import side_by_side

TOKENIZER = "tokenizer.json"
PROPERTIES_OF_STRUCTURE = {"rotary_dim", "mla", "layout", "layers"}
"""Properties of a RoPE that no command changes."""
LEAVE_OUT = "leave it out"
TRAIN_AT_ONE_BASE = "they cannot be merged without training at one base"
TRAIN_AT_ONE_ROPE = "they cannot be merged without training at one RoPE"
SCALINGS_WITHOUT_TRAINING = (Yarn, InterpolatedForm, DynamicNtk)
"""Scalings that people add to a config.json without training; Llama 3.1 and LongRoPE models are
trained with theirs.
"""
ALIGN_TOKENIZERS = "add `tokenizer: {source: union}` to the YAML"
YAML_SUFFIXES = (".yaml", ".yml")
KEYS_OF_MODELS = ("base_model", "model", "source_model")
"""Keys of a mergekit file whose value names a model."""
KEYS_OF_LISTS = ("models", "slices", "sources", "experts", "shared_experts")
"""Keys of a mergekit file whose value is a list of parts."""


@dataclass(frozen=True)
class Merge:
    """A mergekit file."""

    models: tuple[str, ...]
    """Paths or Hub ids, the base first."""

    adapters: tuple[tuple[str, str], ...]
    """Pairs of a model and an adapter on it."""

    base: str
    """The model of `base_model`; empty without one."""

    sliced: bool
    """Whether it takes ranges of layers."""

    aligned: bool
    """Whether it matches tokens by name."""


def is_merge(reference: str) -> bool:
    """Return whether a reference is the path of a YAML file."""
    return reference.endswith(YAML_SUFFIXES) and expand_home(reference).is_file()


def read_merge(path: Path) -> Merge:
    """Read a mergekit file.

    Raises:
        BadSource: It is not YAML, or names no models.
    """
    try:
        data = msgspec.yaml.decode(read_text(path, path.name))
    except (msgspec.DecodeError, ValueError, RecursionError) as problem:
        # a ValueError is about a date or number
        reason = str(problem).splitlines()[0]
        raise BadSource(f"{path} is not one YAML document ({reason}); correct it") from None
    if not isinstance(data, dict):
        data = {}

    # mergekit has no list of all models: slices, experts and modules name them where they are used
    models = []
    adapters = []
    for value in _references(data, visited=set()):
        model, adapter = _model_and_adapter(value, path)
        models.append(model)
        if adapter:
            adapters.append((model, adapter))
    if not models:
        raise BadSource(
            f"{path} names no models, so it is not a file of mergekit; give its models, slices or"
            " experts"
        )

    base = ""
    if data.get("base_model"):
        base, _ = _model_and_adapter(data["base_model"], path)
        models.insert(0, base)
    return Merge(
        models=tuple(dict.fromkeys(models)),  # each once, in this order
        adapters=tuple(dict.fromkeys(adapters)),
        base=base,
        sliced=bool(data.get("slices") or data.get("modules")),
        aligned=bool(data.get("tokenizer") or data.get("tokenizer_source")),
    )


def _references(node: object, visited: set[int]) -> Iterator[object]:
    """Yield the references of models in a mapping of a file, and in the mappings inside it.

    {"slices": [{"sources": [{"model": "A"}, {"model": "B"}]}]} gives "A" and "B", for example.

    Args:
        node: A part of the file; one that is not a mapping has no references.
        visited: The ids of the mappings up to here. An alias of YAML (`*name`) can repeat one, even
            inside itself.
    """
    if not isinstance(node, dict) or id(node) in visited:
        return
    visited.add(id(node))

    # keys of this mapping that name a model
    for name in KEYS_OF_MODELS:
        if node.get(name):
            yield node[name]

    # and those of the mappings in it
    inner = []
    for name in KEYS_OF_LISTS:
        if isinstance(node.get(name), list):
            inner += node[name]
    if isinstance(node.get("modules"), dict):  # by name, where the other parts are lists
        inner += node["modules"].values()
    for part in inner:
        yield from _references(part, visited)


def _model_and_adapter(value: object, path: Path) -> tuple[str, str]:
    """Return the model and the adapter of a reference; the adapter is empty without one.

    mergekit reads a reference as "MODEL", "MODEL+ADAPTER", or `{model: ..., lora: ...}`.

    Args:
        value: The reference in the YAML.
        path: The file, for the message.

    Raises:
        BadSource: The reference has another form.
    """
    names = [""]
    if isinstance(value, str):
        names = value.split("+")
    elif isinstance(value, dict):
        names = [_place(value.get("model"))]
        if value.get("lora"):
            names.append(_place(value["lora"]))

    is_understood = len(names) <= 2 and all(names)
    if not is_understood:
        raise BadSource(
            f"{path} names the model {shown(value)}; write it as PATH, or as PATH+ADAPTER"
        )
    if len(names) == 1:
        return names[0], ""
    model, adapter = names
    return model, adapter


def _place(value: object) -> str:
    """Return the path with the revision of a ModelPath of mergekit; empty for anything else."""
    if isinstance(value, str):
        return value
    if not isinstance(value, dict) or not value.get("path"):
        return ""
    if value.get("revision"):
        return f"{value['path']}@{value['revision']}"
    return str(value["path"])


Pairs = Sequence[tuple[Adapter, Inspection]]
"""Adapters, each with the model that it is applied to."""


@dataclass(frozen=True)
class Misfit:
    """A difference that keeps a model from being merged, or an adapter from being applied."""

    name: str
    """The model or adapter."""

    about: str
    """rope, structure, folded, context, vocabulary, sizes, family, format or tensors."""

    message: str
    """The difference, as the end of a sentence that begins with the name."""

    repair: str
    """A command or a phrase."""


@dataclass(frozen=True)
class Compatibility(Summary):
    """The models of a merge, adapters with the models they are applied to, and what differs."""

    base: Inspection
    models: tuple[Inspection, ...]
    adapters: Pairs
    misfits: tuple[Misfit, ...]
    notes: tuple[str, ...]

    @property
    def fits(self) -> bool:
        """Whether nothing differs that matters."""
        return not self.misfits

    @property
    def sentence(self) -> str:
        """The conclusion, for display."""
        verb = "applied" if self.adapters and not self.models else "merged"
        if not self.fits:
            differences = counted(len(self.misfits), "difference")
            return f"They cannot be {verb} unchanged: {differences}."
        if any(adapter.trained_on is None for adapter, _ in self.adapters):
            return f"No difference is known that keeps them from being {verb}."
        return f"They can be {verb}."

    def summary(self) -> dict[str, str]:
        """Return what is shown, by name."""
        models = [model.source.reference for model in self.models]
        adapters = []
        for adapter, over in self.adapters:
            adapters.append(f"{adapter.source.reference} over {over.source.reference}")
        return {
            "sentence": self.sentence,
            "base": self.base.source.reference,
            "models": "\n".join(models),
            "adapters": "\n".join(adapters),
            "notes": "\n".join(self.notes),
        }

    def shown_tables(self) -> list[SummaryTable]:
        """Return a table with a row for each difference."""
        rows = [(misfit.name, misfit.message, misfit.repair) for misfit in self.misfits]
        return [SummaryTable("misfits", ("model", "difference", "repair"), rows)]

    def to_dict(self) -> JsonObject:
        """Return the result as JSON-ready data: whether the models fit, and each misfit.

        {"fits": false, "sentence": "They cannot be merged ...", "base": "Qwen/Qwen3-8B", "models":
        [...], "adapters": [...], "misfits": [{"name": ..., "about": "rope", ...}], "notes": []}
        """
        # an adapter has the keys of `Adapter.to_dict`, and under "over" the model below it
        adapters = []
        for adapter, model in self.adapters:
            adapters.append({**adapter.to_dict(), "over": model.source.reference})
        return {
            "fits": self.fits,
            "sentence": self.sentence,
            "base": self.base.source.reference,
            "models": [model.source.reference for model in self.models],
            "adapters": adapters,
            "misfits": [asdict(misfit) for misfit in self.misfits],
            "notes": list(self.notes),
        }


def open_models(
    given: Sequence[str], family: str = ""
) -> tuple[list[Inspection], Pairs, Merge | None]:
    """Open the models and adapters that a command line names, or those in a file of mergekit.

    Each adapter is compared with the first model. Without a model, it is compared with the base
    that it names. A file of mergekit names the model of each adapter.

    Args:
        given: References of models and adapters, or the path of a YAML file.
        family: The family of the checkpoints; empty to find it.

    Returns:
        The models, the adapters, and the file of mergekit, None without one.

    Raises:
        UsageError: A single model is given.
        BadSource: As `inspect_source` does.
    """
    if any(is_merge(reference) for reference in given):
        if len(given) > 1:
            raise UsageError("a YAML file names all models of a merge; leave the others out")
        merge = read_merge(expand_home(given[0]))
        models, pairs = _open_merge(merge, given[0], family)
        return models, pairs, merge

    models, adapters = _open_each(given, family)
    # an adapter names its base in adapter_config.json, so `compare ADAPTER` needs no model
    if adapters and not models:
        trained_on = adapters[0].trained_on
        if trained_on is None:
            base = shown(adapters[0].base)
            raise BadSource(
                f"{given[0]} is an adapter, and its base {base} cannot be read; name a model too"
            )
        models.append(trained_on)
    if len(models) + len(adapters) < 2:
        raise UsageError(
            "compare needs two models, an adapter, or a YAML file of mergekit; name another one"
        )
    return models, [(adapter, models[0]) for adapter in adapters], None


def _open_merge(merge: Merge, file: str, family: str) -> tuple[list[Inspection], Pairs]:
    """Open the models and the adapters of a mergekit file.

    Args:
        merge: The content of the file.
        file: Its path, for messages.
        family: The family of the checkpoints; empty to find it.

    Returns:
        The models, and each adapter with the model that it is applied to.

    Raises:
        BadSource: A model is an adapter, or the reverse.
    """
    models, adapters = _open_each(merge.models, family)
    if adapters:
        place = adapters[0].source.reference
        raise BadSource(f"{place} in {file} is an adapter; write it as MODEL+{place}")
    # `models` are in the order of the names in `merge.models`
    model_by_name = dict(zip(merge.models, models, strict=True))
    pairs = []
    for name, place in merge.adapters:
        adapter = read_adapter(open_source(place))
        if adapter is None:
            raise BadSource(f"{place} in {file} is not a PEFT adapter; write only the model")
        pairs.append((adapter, model_by_name[name]))
    return models, pairs


def _open_each(names: Sequence[str], family: str) -> tuple[list[Inspection], list[Adapter]]:
    """Open models and adapters, and return a list of each kind, in the order of the names.

    Args:
        names: Paths or Hub ids.
        family: The family of the checkpoints; empty to find it.
    """
    sources = []
    for name in names:
        # a GGUF file names its architecture itself
        sources.append(open_source(name, "" if names_gguf(name) else family))

    models = []
    adapters = []
    for source in sources:
        adapter = read_adapter(source)
        if adapter is None:
            models.append(source)
        else:
            adapters.append(adapter)

    # models come last, since to inspect one takes longer
    return [inspect_source(source) for source in models], adapters


def compatibility(
    models: Sequence[Inspection], adapters: Pairs = (), merge: Merge | None = None
) -> Compatibility:
    """Find the differences that keep models from being merged, or adapters from being applied.

    Args:
        models: The models of a merge. Each is compared with the first, the base of the merge.
        adapters: Pairs of an adapter and the model that it is applied to.
        merge: The file of mergekit that names the models; None without a file.
    """
    # compare each model of a merge with the base
    base, *others = models
    misfits: list[Misfit] = []
    if others:
        misfits += _misfits_of_gguf_files(models)
    for other in others:
        for misfit in _merge_misfits(base, other, merge):
            if misfit not in misfits:  # an extended base differs from each model in the same way
                misfits.append(misfit)

    # mergekit writes the config.json of base_model. If its file names none, it uses the config.json
    # of the first model in a Python set, whose order changes from run to run.
    notes = []
    configs_differ = any(misfit.about in ("rope", "context") for misfit in misfits)
    names_no_base = merge is not None and not merge.base
    if names_no_base and configs_differ:
        notes.append(
            "The YAML names no base_model, so mergekit takes the RoPE of any of the models, another"
            " one from run to run; name one."
        )

    # compare each adapter with the model that it is applied to
    for adapter, model_of_adapter in adapters:
        adapter_misfits, note = _adapter_misfits(adapter, model_of_adapter)
        misfits += adapter_misfits
        if note:
            notes.append(note)
    return Compatibility(
        base=base,
        models=tuple(others),
        adapters=tuple(adapters),
        misfits=tuple(misfits),
        notes=tuple(notes),
    )


def _misfits_of_gguf_files(models: Sequence[Inspection]) -> Iterator[Misfit]:
    """Yield a misfit for each model that is a GGUF file, which mergekit cannot load."""
    for model in models:
        if isinstance(model.source, GgufSource):
            name = model.source.reference
            message = "is a GGUF file, and mergekit loads checkpoints"
            repair = command_line("apply", name, "--as-is", "--to", "safetensors")
            yield Misfit(name=name, about="format", message=message, repair=repair)


def _merge_misfits(base: Inspection, other: Inspection, merge: Merge | None) -> list[Misfit]:
    """Return the reasons why mergekit cannot merge a model with the base.

    Args:
        base: The model whose config.json the merge gets.
        other: The other model.
        merge: The file of mergekit that names both models; None without a file.
    """
    # models of two families, such as llama and qwen3: mergekit refuses them, so nothing else
    # matters. A GGUF file is not compared by its family.
    name = other.source.reference
    if other.name != base.name and not isinstance(other.source, GgufSource):
        message = (
            f"is of the family {other.name}, and the base of {base.name}; mergekit refuses that"
        )
        return [Misfit(name=name, about="family", message=message, repair=LEAVE_OUT)]

    # the number of layers; with `slices`, the file of mergekit chooses layers of each model
    misfits = list[Misfit]()
    chooses_layers = merge is not None and merge.sliced
    layers = len(other.spec.layers)
    if not chooses_layers and layers != len(base.spec.layers):
        message = f"has {layers} layers, and the base {len(base.spec.layers)}"
        repair = "choose ranges of layers with `slices`, or leave it out"
        misfits.append(Misfit(name=name, about="sizes", message=message, repair=repair))

    # the RoPE; a misfit about "folded" says that the settings are the same, and that one model has
    # a part of the attention factor in its weights
    rope_misfits = list(_rope_misfits(base, other))
    misfits += rope_misfits
    has_same_settings = all(misfit.about == "folded" for misfit in rope_misfits)

    # the context length; where the RoPE differs, its repair changes the context length too
    if has_same_settings and other.spec.context > base.spec.context:
        misfits.append(_misfit_of_shorter_base(base, other))

    # the sizes of tensors; with `tokenizer`, mergekit matches the rows of embeddings by token
    if isinstance(base.source, Source) and isinstance(other.source, Source):
        matches_tokens_by_name = merge is not None and merge.aligned
        misfits += _size_misfits(base.source, other.source, matches_tokens_by_name)
    return misfits


def _misfit_of_shorter_base(base: Inspection, other: Inspection) -> Misfit:
    """Return the misfit of a base that declares fewer tokens than a model with the same RoPE.

    A misfit has what is wrong with a model, and how to repair that.

    Args:
        base: The model whose config.json the merge gets.
        other: The other model, which declares more tokens (max_position_embeddings).
    """
    context = other.spec.context
    message = (
        f"declares {context:,} tokens, and the merge gets the {base.spec.context:,} of the base"
    )

    # the tokens that the scaling of the base covers: a factor of 4 over 32k covers 128k
    factor = getattr(base.spec.form, "factor", 1.0)  # RoPE without a scaling has none
    covered = base.spec.covered_context or round(factor * base.spec.original_context)
    if context <= covered:
        # the base only declares less, so the same RoPE is written with another length
        repair = command_line("apply", base.source.reference, "--as-is", "--context", context)
    else:
        # a larger number would promise a context that nobody has trained or tested
        repair = "evaluate the merge beyond that before it declares more"
    return Misfit(name=other.source.reference, about="context", message=message, repair=repair)


def _rope_misfits(base: Inspection, other: Inspection) -> Iterator[Misfit]:
    """Yield the differences in the RoPE of two models that keep them from being merged.

    Args:
        base: The base of the merge, whose config.json the result gets.
        other: Another model of the merge.
    """
    name = other.source.reference
    compared = side_by_side(base, other)
    message = f"differs from the base in {compared.differences}"
    differing_properties = set(compared.differs)  # such as {"rope_theta", "rotary_dim"}

    # which dimensions or layers rotate: no command changes that
    if PROPERTIES_OF_STRUCTURE & differing_properties:
        yield Misfit(name=name, about="structure", message=message, repair=LEAVE_OUT)
        return

    # Other RoPE settings. `first_spec` is the RoPE of a model before ropeconv extended it. If both
    # models had the same RoPE then, `ropeconv restore` repairs the difference. Otherwise they were
    # trained with different RoPE.
    misfits_to_restore = list[Misfit]()
    if differing_properties:
        if _same_rope(base.first_spec, other.first_spec):
            misfits_to_restore = list(_misfits_of_extended_models((base, other)))
        if misfits_to_restore:
            yield from misfits_to_restore
        else:
            yield _misfit_of_training(base, other, message)

    # The attention factor. `ropeconv apply` can multiply (fold) it into the weights of queries and
    # keys, so models with equal settings can still differ in their weights.
    base_is_folded = compared.first.folded
    other_is_folded = compared.second.folded
    if base_is_folded == other_is_folded:
        return
    folded_model = base if base_is_folded else other
    names_to_restore = {misfit.name for misfit in misfits_to_restore}
    if folded_model.source.reference not in names_to_restore:  # `restore` repairs the weights too
        yield _folded_misfit(folded_model)


def _folded_misfit(model: Inspection) -> Misfit:
    """Return the misfit of a model with a part of its attention factor in its weights.

    The model that it should be merged with has no part of that factor in its weights.
    """
    message = (
        "has a part of its attention factor or query scale in its weights, and the other has"
        " none there"
    )
    return Misfit(name=model.source.reference, about="folded", message=message, repair=undo(model))


def _misfits_of_extended_models(models: Iterable[Inspection]) -> Iterator[Misfit]:
    """Yield a misfit for each model that ropeconv extended after its training, as receipts say."""
    for model in models:
        if model.first is None or _same_rope(model.first, model.spec):
            continue
        message = (
            f"was extended after training, from {describe(model.first.form)} to"
            f" {describe(model.spec.form)}; merge what was trained, and extend the merge"
        )
        yield Misfit(name=model.source.reference, about="rope", message=message, repair=undo(model))


def _misfit_of_training(base: Inspection, other: Inspection, message: str) -> Misfit:
    """Return why two models with different RoPE cannot be merged, and what would repair that.

    Models that were trained with different RoPE need training again. A scaling that was only added
    to config.json can be removed by a command.

    Args:
        base: The base of the merge.
        other: The other model.
        message: The properties in which they differ, in words: "differs from the base in ...".
    """
    # another rope_theta: the weights were trained with it
    name = other.source.reference
    base_rope = base.first_spec
    other_rope = other.first_spec
    if base_rope.rope_theta != other_rope.rope_theta:
        message += "; their weights were trained with different bases (rope_theta)"
        return Misfit(name=name, about="rope", message=message, repair=TRAIN_AT_ONE_BASE)

    # a scaling that people add without training, such as YaRN: commands remove it
    commands_to_remove_scaling = []
    differ_in_scaling_only = _same_rope(base_rope.unscaled(), other_rope.unscaled())
    if differ_in_scaling_only:
        commands_to_remove_scaling = _commands_without_scaling(base, other)

    # any other scaling, such as that of Llama 3.1: the weights were trained with it
    if not commands_to_remove_scaling:
        return Misfit(name=name, about="rope", message=message, repair=TRAIN_AT_ONE_ROPE)

    removal = " and ".join(f"`{command}`" for command in commands_to_remove_scaling)
    verb = "takes" if len(commands_to_remove_scaling) == 1 else "take"
    repair = (
        f"if its scaling was only added to the settings after training, {removal} {verb} it off;"
        f" otherwise {TRAIN_AT_ONE_ROPE}"
    )
    return Misfit(name=name, about="rope", message=message, repair=repair)


def _commands_without_scaling(base: Inspection, other: Inspection) -> list[str]:
    """Return the commands that take off the scaling of two models, one for each that has one.

    The list is empty where a model has a scaling that no command takes off.
    """
    commands = []
    for model in (base, other):
        if not model.first_spec.scaled:
            continue
        command = _removing_command(model)
        if not command:
            return []
        commands.append(command)
    return commands


def _removing_command(model: Inspection) -> str:
    """Return the command that takes off a scaling which may have been added without training.

    It is empty for a scaling that models are trained with, such as that of Llama 3.1. It is also
    empty where no command gives the model its unscaled RoPE.
    """
    may_be_added_later = isinstance(model.spec.form, SCALINGS_WITHOUT_TRAINING)
    if not may_be_added_later or marked_as_trained(model):
        return ""
    return command_to(model.spec.unscaled(), model)


def _same_rope(first: RopeSpec, second: RopeSpec) -> bool:
    """Whether two models compute the same frequencies and factors."""
    return not difference(first.current(), first, second)


def undo(model: Inspection) -> str:
    """Return how an output of `ropeconv apply` gets back the RoPE that it had before.

    It is the command `ropeconv restore MODEL`. For an output whose weights were changed too, which
    `restore` refuses, it is "take its source again, " and the place of the source.

    Args:
        model: The output, inspected.
    """
    restore = command_line("restore", model.source.reference)
    if not isinstance(model.source, Source | GgufSource):
        return restore
    try:
        original = receipt_of(model.source).original
    except BadSource:
        return restore
    if original is None:
        return restore

    # `restore` puts the settings back, and refuses an output whose weights were changed too, since
    # rounding has lost the original ones
    weights_changed = False
    if original.gguf:
        weights_changed = bool(original.gguf.changed)
    elif original.folder:
        weights_changed = bool(original.folder.multiplied)
    if weights_changed:
        return f"take its source again, {original.source.described}"
    return restore


def command_to(spec: RopeSpec, model: Inspection) -> str:
    """Return the command that gives a model another RoPE; empty where no command does.

    For example `ropeconv apply MODEL --yarn 4 --context 131072`, or `ropeconv restore MODEL`.

    Args:
        spec: The wanted RoPE.
        model: The model, which has another RoPE now.
    """
    # ropeconv has extended the model: `restore` gives it the RoPE of before (`first`) again
    reference = model.source.reference
    if model.first is not None and _same_rope(model.first, spec):
        return command_line("restore", reference)

    # The options of `apply`, which starts from the RoPE before any extension. A scaling such as
    # YaRN (`form`) may name its own original context; None leaves --original-context out.
    rope_before = model.first_spec
    method = _method_of(spec)
    original_context = getattr(spec.form, "original_context", spec.original_context)
    if original_context == rope_before.original_context:
        original_context = None

    # Compute the frequencies of each command, and return the first command with the wanted ones.
    # Most methods compute their attention factor (None); others need --attention-factor.
    for attention_factor in (None, spec.attention_factor):
        try:
            recipe = Recipe(
                method=method,
                context=spec.context,
                original_context=original_context,
                attention_factor=attention_factor,
            )
            rope_at_start = recipe.start(rope_before)
            schedule = complete_recipe(recipe, model).schedule(rope_at_start)
            differs_in = difference(schedule, rope_at_start, spec)  # such as "frequencies"
        except RopeconvError:  # the method does not apply to this model
            continue
        if differs_in:
            continue
        arguments = [reference]
        # such as ["--yarn", "4"]; None only for methods with lists of numbers
        arguments += flags(recipe) or []
        if model.extended:
            arguments.append("--replace")
        return command_line("apply", *arguments)
    return ""


def _method_of(spec: RopeSpec) -> Method:
    """Return the method that gives a model a RoPE: its scaling, or else its base.

    For a YaRN model it is YaRN with the factor and the betas of the model, for example.
    """
    form = simplify_crossed(spec.form, spec.rotary_dim)
    if not isinstance(form, Plain):
        for method in (Linear(1.0), YarnMethod(1.0), Llama3Method(1.0)):
            # `widen` returns the method with the settings of this scaling, its factor times 1.0. It
            # returns None for the scaling of another method.
            with_settings_of_model = method.widen(form, 1.0)
            if with_settings_of_model is not None:
                return with_settings_of_model
    return Theta(spec.rope_theta)


def _size_misfits(base: Source, other: Source, matches_tokens_by_name: bool) -> list[Misfit]:
    """Return differences of widths, and of vocabularies unless mergekit aligns them by name.

    Args:
        base: The base of the merge.
        other: Another model of it.
        matches_tokens_by_name: Whether the file has `tokenizer` or `tokenizer_source`, with which
            mergekit sorts the rows of embeddings by their tokens.
    """
    width = _size_misfit("hidden_size", base, other, about="sizes", repair=LEAVE_OUT)
    if width is not None:
        return [width]
    if matches_tokens_by_name:
        return []
    vocabulary = _size_misfit(
        "vocab_size", base, other, about="vocabulary", repair=ALIGN_TOKENIZERS
    )
    if vocabulary is not None:
        return [vocabulary]

    # Embeddings of one size can belong to different tokens: mergekit would average the row of
    # "cat" with that of "dog", without an error.
    ids = token_ids(base)
    other_ids = token_ids(other)
    if not ids or not other_ids:
        return []
    in_both = ids.keys() & other_ids.keys()
    in_one = ids.keys() ^ other_ids.keys()
    moved = [token for token in in_both if ids[token] != other_ids[token]]
    count = len(moved) + len(in_one)
    if not count:
        return []
    verb = "has" if count == 1 else "have"
    message = f"{counted(count, 'token')} of its tokenizer {verb} another id in the base, or none"
    return [
        Misfit(name=other.reference, about="vocabulary", message=message, repair=ALIGN_TOKENIZERS)
    ]


def _size_misfit(key: str, base: Source, other: Source, about: str, repair: str) -> Misfit | None:
    """Return the misfit of two models in a size of their config.json; None where it is equal.

    Args:
        key: The key, such as hidden_size.
        base: The base of the merge.
        other: Another model of it.
        about: The kind of the misfit.
        repair: The advice to the user.
    """
    # the sizes of text models, wherever a config has them; draft models are compared by them too
    size = draft_sizes(base.config())[key]
    other_size = draft_sizes(other.config())[key]
    is_known = size is not None and other_size is not None
    if not is_known or size == other_size:
        return None
    message = (
        f"has {key} {other_size}, and the base {size}; mergekit stops with 'Tensor size mismatch'"
    )
    return Misfit(name=other.reference, about=about, message=message, repair=repair)


def token_ids(source: Source) -> dict[str, int]:
    """Return the id of every token, such as {"the": 262, ...}; empty without a tokenizer.json."""
    text = source.text(TOKENIZER)
    if not text:
        return {}
    data = jsontext.parse(text, TOKENIZER, LONGEST)

    # the format of the tokenizers library
    ids: dict[str, Any] = {}
    model = data.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, dict):  # BPE and WordPiece: {"the": 262, ...}
        ids |= vocab
    elif isinstance(vocab, list):  # Unigram: [["the", -3.2], ...], where the index is the id
        for number, pair in enumerate(vocab):
            if isinstance(pair, list) and pair:
                ids[str(pair[0])] = number

    # tokens such as <|im_start|> are beside the vocabulary
    added = data.get("added_tokens")
    if isinstance(added, list):
        for token in added:
            if isinstance(token, dict):
                ids[str(token.get("content"))] = token.get("id")
    return ids


def _receipt(model: Inspection) -> Receipt | None:
    """Return the receipt of an output of ropeconv; None for other models."""
    if not isinstance(model.source, Source):
        return None
    return valid_receipt(model.source)


def _folded_tensors(model: Inspection | None) -> set[str]:
    """Return the tensors into which an output of ropeconv has factors folded."""
    if model is None:
        return set()
    receipt = _receipt(model)
    if receipt is None or receipt.original is None or receipt.original.folder is None:
        return set()
    return set(receipt.original.folder.multiplied)


def _adapter_misfits(adapter: Adapter, base: Inspection) -> tuple[list[Misfit], str]:
    """Return why an adapter cannot be applied to a model, and a note for the user.

    Args:
        adapter: A PEFT adapter.
        base: The model that it should be applied to.

    Returns:
        The reasons, none where it can be applied; and a sentence about what is not known or should
        be tested, empty for none.
    """
    # the adapter has tensors that the base lacks: it was made for another model
    name = adapter.source.reference
    misplaced = misplaced_tensor(adapter, base)
    if misplaced:
        repair = _advise_own_base(adapter)
        return [Misfit(name=name, about="tensors", message=misplaced, repair=repair)], ""

    # `ropeconv apply` has multiplied the attention factor into the weights of one model only: of
    # the base, or of the model on which the adapter was trained
    misfits = list(_folded_in_one_model_only(adapter, base))

    # the adapter was trained on the base, before ropeconv extended it
    if _was_trained_before_extension(adapter, base):
        note = (
            f"{name} was trained before ropeconv extended its base to {base.source.reference};"
            " evaluate the two together."
        )
        return misfits, note

    # the adapter was trained on another model: compare its RoPE, if the model can be read
    trained_on = adapter.trained_on
    if trained_on is None:
        place = adapter.base or "its base, which it does not name"
        note = f"{name} was trained on {place}, which cannot be read here; its RoPE is not known."
        return misfits, note
    misfits += _misfits_of_another_rope(adapter, trained_on, base)

    # models of one shape and RoPE may have other weights, which no comparison of configs shows
    note = ""
    if isinstance(base.source, Source):
        note = other_base(adapter, base.source)
    if note:
        note = f"{note[0].upper()}{note[1:]}."
    return misfits, note


def _was_trained_before_extension(adapter: Adapter, base: Inspection) -> bool:
    """Return whether an adapter was trained on the model that ropeconv extended to a base."""
    trained_on = adapter.trained_on
    if trained_on is None:
        # the model cannot be read here, but the adapter has its name, and the receipt of the base
        # has the name of the model that was extended
        name, _, _ = adapter.base.partition("@")  # without the revision
        return _was_made_from(base, name)
    return base.first is not None and _same_rope(base.first, trained_on.spec)


def _advise_own_base(adapter: Adapter) -> str:
    """Return the repair of an adapter that does not fit: "apply it over Qwen/Qwen3-8B", say."""
    return f"apply it over {adapter.base or 'its own base'}"


def _misfits_of_another_rope(
    adapter: Adapter, trained_on: Inspection, base: Inspection
) -> Iterator[Misfit]:
    """Yield a misfit where an adapter was trained on a model with another RoPE than the base has.

    Args:
        adapter: The adapter.
        trained_on: The model that it was trained on.
        base: The model that it should be applied to.
    """
    name = adapter.source.reference
    compared = side_by_side(base, trained_on)
    if not compared.differs:
        return
    message = (
        f"was trained on a model that differs from the base in {compared.differences}; PEFT loads"
        " it without a warning"
    )
    # the advice to apply the adapter to the model that it was trained on
    repair = _advise_own_base(adapter)

    # no option of ropeconv changes which dimensions or layers rotate
    if PROPERTIES_OF_STRUCTURE & set(compared.differs):
        yield Misfit(name=name, about="structure", message=message, repair=repair)
        return

    # better advice for a base with the same weights: a command that gives it the RoPE of the
    # training, where there is one
    if _same_weights(adapter, base):
        command = command_to(trained_on.spec, base)
        repair = command or repair
    yield Misfit(name=name, about="rope", message=message, repair=repair)


def _was_made_from(base: Inspection, name: str) -> bool:
    """Whether ropeconv extended the model of this name to a base."""
    receipt = _receipt(base)
    if base.first is None or receipt is None or not name:
        return False
    names = set()
    for record in (receipt.first, receipt.source):
        names |= {record.reference, record.repository, record.name}
    return name in names


def _same_weights(adapter: Adapter, base: Inspection) -> bool:
    """Whether an adapter is known to have been trained on the weights of a base, with another RoPE.

    It is known in two cases: ropeconv made the model of the training from the base, or the adapter
    names the base, and has a config.json with the RoPE of its training beside it.
    """
    trained_on = adapter.trained_on
    if trained_on is None:
        return False
    if trained_on.first is not None and _same_rope(trained_on.first, base.first_spec):
        return True
    return bool(adapter.base) and adapter.base == base.source.reference


def _folded_in_one_model_only(adapter: Adapter, base: Inspection) -> Iterator[Misfit]:
    """Yield a misfit if an adapter was trained on weights without a factor that the base has.

    `ropeconv apply` can multiply (fold) an attention factor such as 1.2 into the weights of queries
    and keys. An adapter that was trained on a weight W does not suit 1.2 W. The reverse case is a
    misfit too.

    Args:
        adapter: A PEFT adapter.
        base: The model that it should be applied to.
    """
    was_trained_on_base = adapter.base == base.source.reference
    if was_trained_on_base:
        return

    # The tensors with a factor, such as {"model.layers.0.self_attn.k_proj.weight", ...}. If the
    # model of the training cannot be read (None), it counts as a model without factors.
    trained_on = adapter.trained_on
    folded_in_base = _folded_tensors(base)
    folded_in_training = _folded_tensors(trained_on)
    folded_in_one_only = folded_in_base ^ folded_in_training

    # the misfit concerns only tensors that the adapter changes; all, if these are not known
    affected_tensors = folded_in_one_only
    if adapter.sizes:
        affected_tensors = folded_in_one_only & set(adapter.sizes)
    if not affected_tensors:
        return

    # the message names the model with the factors
    folded_model = base
    if not folded_in_base and trained_on is not None:
        folded_model = trained_on
    message = (
        "changes weights that have factors of the attention in"
        f" {folded_model.source.reference} only"
    )
    yield Misfit(
        name=adapter.source.reference,
        about="folded",
        message=message,
        repair=undo(folded_model),
    )
