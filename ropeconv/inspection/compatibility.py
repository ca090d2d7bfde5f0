"""Whether models can be merged, and adapters applied over them: the differences that matter, each with its repair.

mergekit averages weights and reads no RoPE setting. The merge gets the config.json of `base_model`, and without one
that of any model: it takes the first of a set of strings, whose order changes from run to run (mergekit 0.1.5,
mergekit/merge.py:293-296, config.py:122-142; executed). Its file has `models`, `slices`, `modules` or experts, each
with a base and with LoRA adapters. A reference is `PATH[@REVISION][+LORA[@REVISION]]`, or an object of these
(mergekit/common.py:37-205, config.py:76-142, moe/config.py:12-46).
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import msgspec

from ..errors import BadSource, UsageError
from ..formats import jsontext
from ..formats.files import LONGEST, expanded, read_text
from ..formats.jsontext import JsonObject
from ..models.gguf import GgufSource
from ..models.open import open_source
from ..models.reference import names_gguf
from ..models.source import Source
from ..rope.errors import RopeconvError, command_line, counted, shown
from ..rope.forms import Plain
from ..rope.methods.bases import Theta
from ..rope.methods.interpolation import Linear, Llama3Method, YarnMethod
from ..rope.recipe import Recipe, flags
from ..runtimes.drafts import draft_sizes
from ..runtimes.verdict import difference
from .adapter import Adapter, misplaced_tensor, read_adapter
from .inspection import Inspection, inspect_source
from .receipts.folder import stated
from .receipts.receipt import Receipt
from .side_by_side import side_by_side

TOKENIZER = "tokenizer.json"
STRUCTURE = {"rotary_dim", "mla", "layout", "layers"}
LEAVE_OUT = "leave it out"
ALIGN = "add `tokenizer: {source: union}` to the YAML"
SUFFIXES = (".yaml", ".yml")
NAMES = ("base_model", "model", "source_model")
LISTS = ("models", "slices", "sources", "experts", "shared_experts")


@dataclass(frozen=True)
class Merge:
    """A mergekit file.

    models: paths or Hub ids, the base first. adapters: pairs of a model and an adapter on it. base: that of
    `base_model`, empty without it. sliced: whether it takes ranges of layers. aligned: whether it matches tokens.
    """

    models: tuple[str, ...]
    adapters: tuple[tuple[str, str], ...]
    base: str
    sliced: bool
    aligned: bool


def is_merge(reference: str) -> bool:
    """Whether a reference is the path of a YAML file."""
    return reference.endswith(SUFFIXES) and expanded(reference).is_file()


def read_merge(path: Path) -> Merge:
    """Read a mergekit file. Raises BadSource for a file that is not YAML, or names no models."""
    try:
        data = msgspec.yaml.decode(read_text(path, path.name))
    except (msgspec.DecodeError, ValueError, RecursionError) as problem:  # ValueError: of a date or number
        raise BadSource(f"{path} is not one YAML document ({str(problem).splitlines()[0]}); correct it") from None
    data = data if isinstance(data, dict) else {}
    pairs = list(dict.fromkeys(_named(value, path) for value in _references(data, set())))
    if not pairs:
        raise BadSource(f"{path} names no models, so it is not a file of mergekit; give its models, slices or experts")
    first = [_named(data["base_model"], path)] if data.get("base_model") else []
    return Merge(
        models=tuple(dict.fromkeys(model for model, _ in [*first, *pairs])),
        adapters=tuple((model, lora) for model, lora in pairs if lora),
        base=first[0][0] if first else "",
        sliced=bool(data.get("slices") or data.get("modules")),
        aligned=bool(data.get("tokenizer") or data.get("tokenizer_source")),
    )


def _references(node: object, visited: set[int]) -> Iterator[object]:
    """Yields what stands for a model in a part of a file. visited: parts, which an alias of YAML can repeat."""
    if not isinstance(node, dict) or id(node) in visited:
        return
    visited.add(id(node))
    yield from (node[name] for name in NAMES if node.get(name))
    modules = node.get("modules")
    parts = [part for name in LISTS if isinstance(node.get(name), list) for part in node[name]]
    for part in (*parts, *(modules.values() if isinstance(modules, dict) else ())):
        yield from _references(part, visited)


def _named(value: object, path: Path) -> tuple[str, str]:
    """The model and the adapter of a reference, empty without one. Raises BadSource for anything else."""
    parts = value if isinstance(value, dict) else {}
    places = [_place(parts.get(key)) for key in ("model", "lora") if key == "model" or parts.get(key)]
    names = value.split("+") if isinstance(value, str) else places
    if len(names) > 2 or not all(names):
        raise BadSource(f"{path} names the model {shown(value)}; write it as PATH, or as PATH+ADAPTER")
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

    name: of the model or adapter. about: rope, structure, folded, context, vocabulary, sizes, family, format, tensors.
    """

    name: str
    about: str
    message: str
    repair: str


@dataclass(frozen=True)
class Compatibility:
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

    def to_dict(self) -> JsonObject:
        """Return the result as JSON-ready data; keys stay within a schema."""
        return {
            "fits": self.fits,
            "sentence": self.sentence,
            "base": self.base.source.reference,
            "models": [model.source.reference for model in self.models],
            "adapters": [{**adapter.to_dict(), "over": over.source.reference} for adapter, over in self.adapters],
            "misfits": [asdict(misfit) for misfit in self.misfits],
            "notes": list(self.notes),
        }


def opened(given: Sequence[str], family: str = "") -> tuple[list[Inspection], Pairs, Merge | None]:
    """Open what a command line names, or a file of mergekit: the models, the adapters, and that file.

    Adapters go over the first model, without one over their own base, and in a file of mergekit over theirs. family: of
    the checkpoints. Raises UsageError for a single model, and BadSource as `inspect_source` does.
    """
    merge, names = None, given
    if any(map(is_merge, given)):
        if len(given) > 1:
            raise UsageError("a YAML file names all models of a merge; leave the others out")
        merge = read_merge(expanded(given[0]))
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
            raise BadSource(f"{names[0]} is an adapter, and its base {base} cannot be read; name a model too")
        models.append(trained)
    pairs = [(adapter, models[0]) for adapter in adapters]
    for name, lora in merge.adapters if merge else ():
        adapter = read_adapter(open_source(lora))
        if adapter is None:
            raise BadSource(f"{lora} in {given[0]} is not a PEFT adapter; write only the model")
        pairs.append((adapter, models[names.index(name)]))
    if len(models) + len(pairs) < 2 and merge is None:
        raise UsageError("compare needs two models, an adapter, or a YAML file of mergekit; name another one")
    return models, pairs, merge


def compatibility(models: Sequence[Inspection], adapters: Pairs = (), merge: Merge | None = None) -> Compatibility:
    """Compare models with the first one, the base of a merge, and adapters each with the model that it goes over."""
    base, *others = models
    ggufs = [model.source.reference for model in models if others and isinstance(model.source, GgufSource)]
    misfits = [
        Misfit(name, "format", "is a GGUF file, and mergekit loads checkpoints",
               command_line("apply", name, "--as-is", "--to", "safetensors"))
        for name in ggufs
    ]  # fmt: skip
    misfits += [misfit for other in others for misfit in _merged(base, other, merge)]
    notes = []
    if merge is not None and not merge.base and any(misfit.about in ("rope", "context") for misfit in misfits):
        notes.append(
            "The YAML names no base_model, so mergekit takes the RoPE of any of the models, another one from run to "
            "run; name one."
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
        message = f"is of the family {other.name}, and the base of {base.name}; mergekit refuses that"
        yield Misfit(name, "family", message, LEAVE_OUT)
        return
    if not (merge and merge.sliced) and len(other.spec.layers) != len(base.spec.layers):
        message = f"has {len(other.spec.layers)} layers, and the base {len(base.spec.layers)}"
        yield Misfit(name, "sizes", message, "choose ranges of layers with `slices`, or leave it out")
    yield from (misfits := list(_rope(base, other)))
    if other.spec.context > base.spec.context and not {misfit.about for misfit in misfits} & {"rope", "structure"}:
        message = f"declares {other.spec.context:,} tokens, and the merge gets the {base.spec.context:,} of the base"
        repair = command_line("apply", base.source.reference, "--as-is", "--context", other.spec.context)
        yield Misfit(name, "context", message, repair)
    if isinstance(base.source, Source) and isinstance(other.source, Source):
        yield from _sizes(base.source, other.source, bool(merge and merge.aligned))


def _rope(base: Inspection, other: Inspection) -> Iterator[Misfit]:
    """Yield the difference between the RoPE of a model and that of the base."""
    name, compared = other.source.reference, side_by_side(base, other)
    message = f"differs from the base in {compared.differences}"
    if STRUCTURE & set(compared.differs):
        yield Misfit(name, "structure", message, LEAVE_OUT)
        return
    if compared.differs:
        if base.first_spec.rope_theta != other.first_spec.rope_theta:
            message += "; its weights were trained with another rope_theta"
        yield Misfit(name, "rope", message, command_to(base, other) or LEAVE_OUT)
    if compared.first.folded != compared.second.folded:
        folded = compared.first if compared.first.folded else compared.second
        place = folded.inspection.source.reference
        message = "has a part of its attention factor or query scale in its weights, and the other has none there"
        yield Misfit(place, "folded", message, command_line("restore", place))


def command_to(base: Inspection, other: Inspection) -> str:
    """Return the command that gives a model the RoPE of the base; empty where none does, by its own schedule."""
    source, spec = other.source.reference, base.spec
    if other.first is not None and not difference(other.first.current(), other.first, spec):
        return command_line("restore", source)
    kinds = () if isinstance(spec.form, Plain) else (Linear(1.0), YarnMethod(1.0), Llama3Method(1.0))
    method = next(filter(None, (kind.widened(spec.form, 1.0) for kind in kinds)), Theta(spec.rope_theta))
    trained = other.first_spec.original_context
    original = getattr(spec.form, "original_context", spec.original_context)
    for factor in (None, spec.attention_factor):
        with suppress(RopeconvError):
            recipe = Recipe(method, spec.context, None if original == trained else original, factor)
            start = recipe.start(other.first_spec)
            if not difference(recipe.schedule(start), start, spec):
                replaced = ["--replace"] if other.extended else []
                return command_line("apply", source, *(flags(recipe) or ()), *replaced)
    return ""


def _sizes(base: Source, other: Source, aligned: bool) -> Iterator[Misfit]:
    """Yield differences of widths and vocabularies. aligned: whether mergekit matches tokens by name."""
    left, right = draft_sizes(base.config()), draft_sizes(other.config())
    for key, about, repair in (("hidden_size", "sizes", LEAVE_OUT), ("vocab_size", "vocabulary", ALIGN)):
        if left[key] != right[key] and None not in (left[key], right[key]) and not (aligned and about == "vocabulary"):
            message = f"has {key} {right[key]}, and the base {left[key]}; mergekit stops with 'Tensor size mismatch'"
            yield Misfit(other.reference, about, message, repair)
            return
    ids, others = token_ids(base), token_ids(other)
    moved = [token for token in ids.keys() & others.keys() if ids[token] != others[token]]
    count = len(moved) + len(ids.keys() ^ others.keys())
    if ids and others and count and not aligned:
        message = f"{counted(count, 'token')} of its tokenizer {'has' if count == 1 else 'have'} another id in the base"
        yield Misfit(other.reference, "vocabulary", f"{message}, or none", ALIGN)


def token_ids(source: Source) -> dict[str, int]:
    """Return the id of every token of tokenizer.json; empty without one."""
    text = source.text(TOKENIZER)
    data = jsontext.parse(text, TOKENIZER, LONGEST) if text else {}
    model, added = data.get("model"), data.get("added_tokens")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, list):  # Unigram: pairs of token and score
        vocab = {str(pair[0]): number for number, pair in enumerate(vocab) if isinstance(pair, list) and pair}
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
    name, over, trained = adapter.source.reference, base.source.reference, adapter.trained_on
    misplaced = misplaced_tensor(adapter, base)
    if misplaced:
        return [Misfit(name, "tensors", misplaced, f"apply it over {adapter.base or 'its own base'}")], ""
    misfits = list(_folded_apart(adapter, base))
    if trained is None:
        receipt, named = _receipt(base), adapter.base.partition("@")[0]
        sources = (receipt.first, receipt.source) if receipt and named else ()
        known = {name for record in sources for name in (record.reference, record.repository, record.name)}
        if base.first is None or named not in known:
            place = adapter.base or "its base, which it does not name"
            return misfits, f"{name} was trained on {place}, which cannot be read here; its RoPE is not known."
    elif base.first is None or difference(base.first.current(), base.first, trained.spec):
        for misfit in _rope(base, trained):
            if misfit.about != "folded":
                command = command_to(trained, base) if misfit.about == "rope" else ""
                repair = command or f"apply it over {adapter.base or 'its own base'}"
                message = f"was trained on a model that {misfit.message}; PEFT loads it without a warning"
                misfits.append(Misfit(name, misfit.about, message, repair))
        return misfits, ""
    return misfits, f"{name} was trained before ropeconv extended its base to {over}; evaluate the two together."


def _folded_apart(adapter: Adapter, base: Inspection) -> Iterator[Misfit]:
    """Yield that factors are folded into weights of only one of two models: the base and that of the training."""
    trained = adapter.trained_on
    folded = _folded(base) ^ _folded(trained)
    if adapter.base != base.source.reference and folded & (set(adapter.sizes) or folded):
        place = (base if trained is None or _folded(base) else trained).source.reference
        message = f"changes weights that have factors of the attention in {place} only"
        yield Misfit(adapter.source.reference, "folded", message, command_line("restore", place))
