"""Whether models can be merged, and adapters applied over them: the differences that matter, each
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
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from ..errors import BadSource, UsageError
from ..formats import jsontext
from ..formats.files import LONGEST, expand_home, read_text
from ..formats.jsontext import JsonObject
from ..models.config import text_part
from ..models.gguf import GgufSource
from ..models.open import open_source
from ..models.reference import names_gguf
from ..models.source import Source
from ..rope.errors import RopeconvError, command_line, counted, shown
from ..rope.forms import DynamicNtk, InterpolatedForm, Plain, Yarn
from ..rope.methods.bases import Theta
from ..rope.methods.interpolation import Linear, Llama3Method, YarnMethod
from ..rope.recipe import Recipe, flags
from ..rope.spec import RopeSpec
from ..rope.summary import Summary, SummaryTable
from ..runtimes.drafts import draft_sizes
from ..runtimes.read_config import rope_dict
from ..runtimes.verdict import describe, difference
from .adapter import Adapter, misplaced_tensor, read_adapter
from .inspection import ConfigInspection, Inspection, inspect_source
from .receipts.folder import stated
from .receipts.receipt import Receipt
from .receipts.storage import receipt_of
from .side_by_side import side_by_side

TOKENIZER = "tokenizer.json"
STRUCTURE = {"rotary_dim", "mla", "layout", "layers"}
LEAVE_OUT = "leave it out"
TRAIN = "they cannot be merged without training at one base"
TRAIN_ROPE = "they cannot be merged without training at one RoPE"
ADDED_LATER = (Yarn, InterpolatedForm, DynamicNtk)
"""Scalings that people add to a config.json without training; Llama 3.1 and LongRoPE models are
trained with theirs.
"""
ALIGN = "add `tokenizer: {source: union}` to the YAML"
SUFFIXES = (".yaml", ".yml")
NAMES = ("base_model", "model", "source_model")
LISTS = ("models", "slices", "sources", "experts", "shared_experts")


@dataclass(frozen=True)
class Merge:
    """A mergekit file.

    models: paths or Hub ids, the base first. adapters: pairs of a model and an adapter on it. base:
    that of `base_model`, empty without it. sliced: whether it takes ranges of layers. aligned:
    whether it matches tokens.
    """

    models: tuple[str, ...]
    adapters: tuple[tuple[str, str], ...]
    base: str
    sliced: bool
    aligned: bool


def is_merge(reference: str) -> bool:
    """Whether a reference is the path of a YAML file."""
    return reference.endswith(SUFFIXES) and expand_home(reference).is_file()


def read_merge(path: Path) -> Merge:
    """Read a mergekit file. Raises BadSource for a file that is not YAML, or names no models."""
    try:
        data = msgspec.yaml.decode(read_text(path, path.name))
    except (
        msgspec.DecodeError,
        ValueError,
        RecursionError,
    ) as problem:  # ValueError: of a date or number
        raise BadSource(
            f"{path} is not one YAML document ({str(problem).splitlines()[0]}); correct it"
        ) from None
    data = data if isinstance(data, dict) else {}
    pairs = list(dict.fromkeys(_named(value, path) for value in _references(data, set())))
    if not pairs:
        raise BadSource(
            f"{path} names no models, so it is not a file of mergekit; give its models, slices or"
            " experts"
        )
    first = [_named(data["base_model"], path)] if data.get("base_model") else []
    return Merge(
        models=tuple(dict.fromkeys(model for model, _ in [*first, *pairs])),
        adapters=tuple((model, lora) for model, lora in pairs if lora),
        base=first[0][0] if first else "",
        sliced=bool(data.get("slices") or data.get("modules")),
        aligned=bool(data.get("tokenizer") or data.get("tokenizer_source")),
    )


def _references(node: object, visited: set[int]) -> Iterator[object]:
    """Yields what stands for a model in a part of a file. visited: parts, which an alias of YAML
    can repeat.
    """
    if not isinstance(node, dict) or id(node) in visited:
        return
    visited.add(id(node))
    yield from (node[name] for name in NAMES if node.get(name))
    modules = node.get("modules")
    parts = [part for name in LISTS if isinstance(node.get(name), list) for part in node[name]]
    for part in (*parts, *(modules.values() if isinstance(modules, dict) else ())):
        yield from _references(part, visited)


def _named(value: object, path: Path) -> tuple[str, str]:
    """The model and the adapter of a reference, empty without one. Raises BadSource for anything
    else.
    """
    parts = value if isinstance(value, dict) else {}
    places = [
        _place(parts.get(key)) for key in ("model", "lora") if key == "model" or parts.get(key)
    ]
    names = value.split("+") if isinstance(value, str) else places
    if len(names) > 2 or not all(names):
        raise BadSource(
            f"{path} names the model {shown(value)}; write it as PATH, or as PATH+ADAPTER"
        )
    return names[0], names[1] if len(names) > 1 else ""


def _place(value: object) -> str:
    """The path with the revision of a ModelPath; empty for anything else."""
    if isinstance(value, dict) and value.get("path"):
        return f"{value['path']}{f'@{revision}' if (revision := value.get('revision')) else ''}"
    return value if isinstance(value, str) else ""


Pairs = Sequence[tuple[Adapter, Inspection]]
"""Adapters, each with the model that it goes over."""


@dataclass(frozen=True)
class Misfit:
    """A difference that keeps a model from being merged, or an adapter from being applied.

    name: of the model or adapter. about: rope, structure, folded, context, vocabulary, sizes,
    family, format, tensors.
    """

    name: str
    about: str
    message: str
    repair: str


@dataclass(frozen=True)
class Compatibility(Summary):
    """Models beside the base of a merge, and adapters, each with the model that it goes over."""

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
        if self.fits and any(adapter.trained_on is None for adapter, _ in self.adapters):
            return f"No difference is known that keeps them from being {verb}."
        if self.fits:
            return f"They can be {verb}."
        return f"They cannot be {verb} unchanged: {counted(len(self.misfits), 'difference')}."

    def summary(self) -> dict[str, str]:
        """Return what is shown, by name."""
        adapters = [
            f"{adapter.source.reference} over {over.source.reference}"
            for adapter, over in self.adapters
        ]
        return {
            "sentence": self.sentence,
            "base": self.base.source.reference,
            "models": "\n".join(model.source.reference for model in self.models),
            "adapters": "\n".join(adapters),
            "notes": "\n".join(self.notes),
        }

    def shown_tables(self) -> list[SummaryTable]:
        """Return a table with a row for each difference."""
        rows = [(misfit.name, misfit.message, misfit.repair) for misfit in self.misfits]
        return [SummaryTable("misfits", ("model", "difference", "repair"), rows)]

    def to_dict(self) -> JsonObject:
        """Return the result as JSON-ready data; keys stay within a schema."""
        return {
            "fits": self.fits,
            "sentence": self.sentence,
            "base": self.base.source.reference,
            "models": [model.source.reference for model in self.models],
            "adapters": [
                {**adapter.to_dict(), "over": over.source.reference}
                for adapter, over in self.adapters
            ],
            "misfits": [asdict(misfit) for misfit in self.misfits],
            "notes": list(self.notes),
        }


def opened(given: Sequence[str], family: str = "") -> tuple[list[Inspection], Pairs, Merge | None]:
    """Open what a command line names, or a file of mergekit: the models, the adapters, and that
    file.

    Adapters go over the first model, without one over their own base, and in a file of mergekit
    over theirs. family: of the checkpoints. Raises UsageError for a single model, and BadSource as
    `inspect_source` does.
    """
    merge, names = None, given
    if any(map(is_merge, given)):
        if len(given) > 1:
            raise UsageError("a YAML file names all models of a merge; leave the others out")
        merge = read_merge(expand_home(given[0]))
        names = merge.models
    sources = [open_source(name, "" if names_gguf(name) else family) for name in names]
    read = [(source, read_adapter(source)) for source in sources]
    adapters = list(filter(None, (adapter for _, adapter in read)))
    models = [inspect_source(source) for source, adapter in read if adapter is None]
    if adapters and merge:
        place = adapters[0].source.reference
        raise BadSource(f"{place} in {given[0]} is an adapter; write it as MODEL+{place}")
    if adapters and not models:
        trained = adapters[0].trained_on
        if trained is None:
            base = shown(adapters[0].base)
            raise BadSource(
                f"{names[0]} is an adapter, and its base {base} cannot be read; name a model too"
            )
        models.append(trained)
    pairs = [(adapter, models[0]) for adapter in adapters]
    for name, lora in merge.adapters if merge else ():
        adapter = read_adapter(open_source(lora))
        if adapter is None:
            raise BadSource(f"{lora} in {given[0]} is not a PEFT adapter; write only the model")
        pairs.append((adapter, models[names.index(name)]))
    if len(models) + len(pairs) < 2 and merge is None:
        raise UsageError(
            "compare needs two models, an adapter, or a YAML file of mergekit; name another one"
        )
    return models, pairs, merge


def compatibility(
    models: Sequence[Inspection], adapters: Pairs = (), merge: Merge | None = None
) -> Compatibility:
    """Compare models with the first one, the base of a merge, and adapters each with the model that
    it goes over.
    """
    base, *others = models
    ggufs = [
        model.source.reference
        for model in models
        if others and isinstance(model.source, GgufSource)
    ]
    misfits = [
        Misfit(
            name,
            "format",
            "is a GGUF file, and mergekit loads checkpoints",
            command_line("apply", name, "--as-is", "--to", "safetensors"),
        )
        for name in ggufs
    ]
    misfits += dict.fromkeys(misfit for other in others for misfit in _merged(base, other, merge))
    notes = []
    if (
        merge is not None
        and not merge.base
        and any(misfit.about in ("rope", "context") for misfit in misfits)
    ):
        notes.append(
            "The YAML names no base_model, so mergekit takes the RoPE of any of the models, another"
            " one from run to run; name one."
        )
    for adapter, over in adapters:
        more, note = _applied(adapter, over)
        misfits += more
        notes += filter(None, (note,))
    return Compatibility(base, tuple(others), tuple(adapters), tuple(misfits), tuple(notes))


def _merged(base: Inspection, other: Inspection, merge: Merge | None) -> Iterator[Misfit]:
    """Yield what keeps a model from being merged with the base."""
    name = other.source.reference
    if other.name != base.name and not isinstance(other.source, GgufSource):
        message = (
            f"is of the family {other.name}, and the base of {base.name}; mergekit refuses that"
        )
        yield Misfit(name, "family", message, LEAVE_OUT)
        return
    if not (merge and merge.sliced) and len(other.spec.layers) != len(base.spec.layers):
        message = f"has {len(other.spec.layers)} layers, and the base {len(base.spec.layers)}"
        yield Misfit(
            name, "sizes", message, "choose ranges of layers with `slices`, or leave it out"
        )
    misfits = list(_rope(base, other))
    yield from misfits
    if other.spec.context > base.spec.context and not {misfit.about for misfit in misfits} & {
        "rope",
        "structure",
    }:
        message = (
            f"declares {other.spec.context:,} tokens, and the merge gets the {base.spec.context:,}"
            " of the base"
        )
        # A base that was trained on fewer tokens gets no longer context from a number in its
        # settings.
        reach = round(getattr(base.spec.form, "factor", 1.0) * base.spec.original_context)
        repair = "evaluate the merge beyond that before it declares more"
        if other.spec.context <= reach:
            repair = command_line(
                "apply", base.source.reference, "--as-is", "--context", other.spec.context
            )
        yield Misfit(name, "context", message, repair)
    if isinstance(base.source, Source) and isinstance(other.source, Source):
        yield from _sizes(base.source, other.source, bool(merge and merge.aligned))


def _rope(base: Inspection, other: Inspection) -> Iterator[Misfit]:
    """Yield the difference between the RoPE of a model and that of the base."""
    name = other.source.reference
    compared = side_by_side(base, other)
    message = f"differs from the base in {compared.differences}"
    if STRUCTURE & set(compared.differs):
        yield Misfit(name, "structure", message, LEAVE_OUT)
        return
    undone = set[str]()
    if compared.differs and _same_rope(base.first_spec, other.first_spec):
        for misfit in _extensions((base, other)):
            undone.add(misfit.name)
            yield misfit
    if compared.differs and not undone:
        yield _trained_apart(base, other, message)
    if compared.first.folded != compared.second.folded:
        folded = compared.first if compared.first.folded else compared.second
        message = (
            "has a part of its attention factor or query scale in its weights, and the other has"
            " none there"
        )
        model = folded.inspection
        if model.source.reference not in undone:
            yield Misfit(model.source.reference, "folded", message, undo(model))


def _extensions(models: Iterable[Inspection]) -> Iterator[Misfit]:
    """Yield the models whose RoPE differs from the one that they were trained with, by their
    receipts.
    """
    for model in models:
        if model.first is None or _same_rope(model.first, model.spec):
            continue
        message = (
            f"was extended after training, from {describe(model.first.form)} to"
            f" {describe(model.spec.form)}; merge what was trained, and extend the merge"
        )
        yield Misfit(model.source.reference, "rope", message, undo(model))


def _trained_apart(base: Inspection, other: Inspection, message: str) -> Misfit:
    """Return the difference of two models that are not known to have been trained with one RoPE."""
    name = other.source.reference
    thetas = [model.first_spec.rope_theta for model in (base, other)]
    if thetas[0] != thetas[1]:
        message += "; their weights were trained with different bases (rope_theta)"
        return Misfit(name, "rope", message, TRAIN)

    # A config that has another scaling on the same base does not say whether the weights were
    # trained with it.
    scaled = [model for model in (base, other) if model.first_spec.scaled]
    plain = [model.first_spec.unscaled() for model in (base, other)]
    addable = all(
        isinstance(model.spec.form, ADDED_LATER) and not _finetuned(model) for model in scaled
    )
    commands = [command_to(model.spec.unscaled(), model) for model in scaled] if addable else []
    if not commands or not all(commands) or not _same_rope(*plain):
        return Misfit(name, "rope", message, TRAIN_ROPE)
    removal = " and ".join(f"`{command}`" for command in commands)
    verb = "takes" if len(commands) == 1 else "take"
    repair = (
        f"if its scaling was only added to the settings after training, {removal} {verb} it off;"
        f" otherwise {TRAIN_ROPE}"
    )
    return Misfit(name, "rope", message, repair)


def _same_rope(first: RopeSpec, second: RopeSpec) -> bool:
    """Whether two models compute the same frequencies and factors."""
    return not difference(first.current(), first, second)


def _finetuned(model: Inspection) -> bool:
    """Whether the settings say that the weights were trained with their scaling, as those of
    Yarn-Llama-2 do.
    """
    if isinstance(model, ConfigInspection) and isinstance(model.source, Source):
        rope, _ = rope_dict(
            text_part(model.source.config(), model.model_family), model.model_family
        )
        return bool(rope.get("finetuned"))
    if isinstance(model.source, GgufSource):
        return bool(model.source.file.get(f"{model.name}.rope.scaling.finetuned"))
    return False


def undo(model: Inspection) -> str:
    """Return what gives the weights of an output of ropeconv the RoPE of their training: a command,
    or words.
    """
    with suppress(BadSource):
        original = (
            receipt_of(model.source).original
            if isinstance(model.source, Source | GgufSource)
            else None
        )
        if original is not None:
            lost = original.folder.multiplied if original.folder else ()
            lost = original.gguf.changed if original.gguf else lost
            if lost:  # `restore` refuses it
                return f"take its source again, {original.source.described}"
    return command_line("restore", model.source.reference)


def command_to(spec: RopeSpec, model: Inspection) -> str:
    """Return the command that gives a model the RoPE of `spec`; empty where none does, by its own
    schedule.
    """
    source = model.source.reference
    if model.first is not None and _same_rope(model.first, spec):
        return command_line("restore", source)
    kinds = (
        () if isinstance(spec.form, Plain) else (Linear(1.0), YarnMethod(1.0), Llama3Method(1.0))
    )
    method = next(
        filter(None, (kind.widen(spec.form, 1.0) for kind in kinds)), Theta(spec.rope_theta)
    )
    trained = model.first_spec.original_context
    original = getattr(spec.form, "original_context", spec.original_context)
    for factor in (None, spec.attention_factor):
        with suppress(RopeconvError):
            recipe = Recipe(method, spec.context, None if original == trained else original, factor)
            start = recipe.start(model.first_spec)
            if not difference(recipe.schedule(start), start, spec):
                replaced = ["--replace"] if model.extended else []
                return command_line("apply", source, *(flags(recipe) or ()), *replaced)
    return ""


def _sizes(base: Source, other: Source, aligned: bool) -> Iterator[Misfit]:
    """Yield differences of widths and vocabularies. aligned: whether mergekit matches tokens by
    name.
    """
    left = draft_sizes(base.config())
    right = draft_sizes(other.config())
    for key, about, repair in (
        ("hidden_size", "sizes", LEAVE_OUT),
        ("vocab_size", "vocabulary", ALIGN),
    ):
        if (
            left[key] != right[key]
            and None not in (left[key], right[key])
            and not (aligned and about == "vocabulary")
        ):
            message = (
                f"has {key} {right[key]}, and the base {left[key]}; mergekit stops with 'Tensor"
                " size mismatch'"
            )
            yield Misfit(other.reference, about, message, repair)
            return
    ids = token_ids(base)
    others = token_ids(other)
    moved = [token for token in ids.keys() & others.keys() if ids[token] != others[token]]
    count = len(moved) + len(ids.keys() ^ others.keys())
    if ids and others and count and not aligned:
        message = (
            f"{counted(count, 'token')} of its tokenizer {'has' if count == 1 else 'have'} another"
            " id in the base"
        )
        yield Misfit(other.reference, "vocabulary", f"{message}, or none", ALIGN)


def token_ids(source: Source) -> dict[str, int]:
    """Return the id of every token of tokenizer.json; empty without one."""
    text = source.text(TOKENIZER)
    data = jsontext.parse(text, TOKENIZER, LONGEST) if text else {}
    model = data.get("model")
    added = data.get("added_tokens")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, list):  # Unigram: pairs of token and score
        vocab = {
            str(pair[0]): number
            for number, pair in enumerate(vocab)
            if isinstance(pair, list) and pair
        }
    ids = dict(vocab) if isinstance(vocab, dict) else {}
    for token in added if isinstance(added, list) else ():
        if isinstance(token, dict):
            ids[str(token.get("content"))] = token.get("id")
    return ids


def _receipt(model: Inspection) -> Receipt | None:
    """The receipt of an output of ropeconv; None for other models."""
    return stated(model.source) if isinstance(model.source, Source) else None


def _folded(model: Inspection | None) -> set[str]:
    """The tensors into which an output of ropeconv has factors folded."""
    receipt = _receipt(model) if model else None
    return set(receipt.fold.tensors) if receipt and receipt.fold else set()


def _applied(adapter: Adapter, base: Inspection) -> tuple[list[Misfit], str]:
    """Return what keeps an adapter from being applied over a base, and a sentence on it."""
    name = adapter.source.reference
    over = base.source.reference
    trained = adapter.trained_on
    misplaced = misplaced_tensor(adapter, base)
    if misplaced:
        return [
            Misfit(name, "tensors", misplaced, f"apply it over {adapter.base or 'its own base'}")
        ], ""
    misfits = list(_folded_apart(adapter, base))
    if trained is None:
        receipt = _receipt(base)
        named = adapter.base.partition("@")[0]
        sources = (receipt.first, receipt.source) if receipt and named else ()
        known = {
            name
            for record in sources
            for name in (record.reference, record.repository, record.name)
        }
        if base.first is None or named not in known:
            place = adapter.base or "its base, which it does not name"
            return (
                misfits,
                f"{name} was trained on {place}, which cannot be read here; its RoPE is not known.",
            )
    elif base.first is None or not _same_rope(base.first, trained.spec):
        compared = side_by_side(base, trained)
        if compared.differs:
            structural = bool(STRUCTURE & set(compared.differs))
            command = (
                ""
                if structural or not _same_weights(adapter, base)
                else command_to(trained.spec, base)
            )
            message = (
                f"was trained on a model that differs from the base in {compared.differences}; PEFT"
                " loads it without a warning"
            )
            repair = command or f"apply it over {adapter.base or 'its own base'}"
            misfits.append(Misfit(name, "structure" if structural else "rope", message, repair))
        return misfits, ""
    return (
        misfits,
        (
            f"{name} was trained before ropeconv extended its base to {over}; evaluate the two"
            " together."
        ),
    )


def _same_weights(adapter: Adapter, base: Inspection) -> bool:
    """Whether an adapter is known to have been trained over the weights of a base, with another
    RoPE.

    That is so if its own base was made from them by ropeconv, or if the adapter names the base:
    then the config.json beside the adapter has the settings of its training.
    """
    trained = adapter.trained_on
    if trained is None:
        return False
    if trained.first is not None and _same_rope(trained.first, base.first_spec):
        return True
    return bool(adapter.base) and adapter.base == base.source.reference


def _folded_apart(adapter: Adapter, base: Inspection) -> Iterator[Misfit]:
    """Yield that factors are folded into weights of only one of two models: the base and that of
    the training.
    """
    trained = adapter.trained_on
    folded = _folded(base) ^ _folded(trained)
    if adapter.base != base.source.reference and folded & (set(adapter.sizes) or folded):
        model = base if trained is None or _folded(base) else trained
        message = (
            f"changes weights that have factors of the attention in {model.source.reference} only"
        )
        yield Misfit(adapter.source.reference, "folded", message, undo(model))
