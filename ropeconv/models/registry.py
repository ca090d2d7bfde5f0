"""The families of the package, from `data/*.toml`, and those of the user: by name, by model type,
and by likeness.
"""

import difflib
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import cache
from itertools import count
from pathlib import Path

import msgspec
import tomli

from ..errors import BadSource, UsageError
from ..formats.files import expanded, open_regular
from ..formats.package_data import package_data, package_files
from .family import Family, WeightNames
from .layers import layer_prefix
from .schema import Config, first_present, text_config
from .wrappers import is_where_transformers_reads, wrapper_of

VARIABLE = "ROPECONV_FAMILIES"
LONGEST = 64 << 10
"""Bytes of a file; those of the package have up to 3,000."""
MOST_FILES = 1_000
OWN = ("origin", "assumed")
"""Fields that ropeconv fills."""


def user_families(packaged: Iterable[Family]) -> tuple[Family, ...]:
    """The families of the user, by the names of their files; none where the folder is not there.

    The folder is $ROPECONV_FAMILIES, else `ropeconv/families` below the folder of settings.

    Args:
        packaged: The families of the package, whose names and model types no file may have.

    Raises:
        BadSource: For a file that is not the description of a family, and for names that are there
            twice.
    """
    path = os.environ.get(VARIABLE)
    base = os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config"
    directory = expanded(path) if path else Path(base) / "ropeconv" / "families"
    if not directory.is_dir():
        if path:
            raise BadSource(
                f"{VARIABLE} names {directory}, which is not a folder; create it, or unset the"
                " variable"
            )
        return ()
    paths = sorted(path for path in directory.iterdir() if path.suffix == ".toml")
    if len(paths) > MOST_FILES:
        raise BadSource(
            f"{directory} has more than {MOST_FILES:,} families; move some of them away"
        )
    owners = {name: "the package" for family in packaged for name in _names(family)}
    loaded = []
    for file in paths:
        family = read_family(file)
        for name in _names(family):
            if name in owners:
                raise BadSource(
                    f"{file} describes {name}, which {owners[name]} already defines; choose another"
                    " name and other model_types, then pass --family"
                )
            owners[name] = str(file)
        loaded.append(family)
    return tuple(loaded)


def read_family(path: Path) -> Family:
    """The family that a file describes. Raises BadSource, with the file and the field, if it is
    invalid.
    """
    try:
        with open_regular(path) as file:
            data = file.read(LONGEST + 1)
    except OSError as problem:
        raise BadSource(
            f"{path} cannot be read ({problem.strerror}); correct or remove it"
        ) from None
    if len(data) > LONGEST:
        raise BadSource(f"{path} is longer than {LONGEST:,} bytes; correct or remove it")
    try:
        fields = tomli.loads(data.decode())
        family = msgspec.convert(fields, Family)
    except (ValueError, msgspec.ValidationError, RecursionError) as problem:
        raise BadSource(
            f"{path} is not a family description: {problem}; correct or remove it"
        ) from None
    wrong = next((key for key in OWN if key in fields), "") or _wrong(family)
    if wrong:
        raise BadSource(
            f"{path} is not a family description: `{wrong}` is invalid; correct or remove it"
        )
    return msgspec.structs.replace(family, origin=str(path))


def _wrong(family: Family) -> str:
    """The first field whose value no model has; empty for a family that can be used."""
    defaults = family.defaults
    parts = (family.weights.q and family.weights.k) or family.weights.fused
    sizes = (
        defaults.context,
        defaults.head_dim,
        defaults.hidden,
        defaults.layers,
        defaults.heads,
        defaults.kv_heads,
    )
    wrong = {
        "name": not family.name.replace("_", "").replace("-", "").replace(".", "").isalnum(),
        "weights": not (family.refuse or parts),
        "weights.layer": not all(
            _places_layer(pattern, family.layers.blocks) for pattern in family.weights.layer
        ),
        "defaults": any(size is not None and not 0 < size < 1 << 31 for size in sizes),
        "defaults.theta": not all(
            1 < base < 1e30 for base in (defaults.theta, defaults.local_theta or 2.0)
        ),
        "defaults.partial_rotary_factor": not 0 < defaults.partial_rotary_factor <= 1,
        "layers.interval": family.layers.interval < 0,
        "layers.blocks": family.layers.blocks < 1,
    }
    return next((field for field, bad in wrong.items() if bad), "")


def _places_layer(pattern: str, blocks: int) -> bool:
    """Whether a prefix has the number of the layer once, and that of the attention block where
    there are several.
    """
    remainder = pattern.replace("{layer}", "0").replace("{block}", "0")
    counts = (pattern.count("{layer}"), pattern.count("{block}"))
    return counts == (1, int(blocks > 1)) and not set("{}") & set(remainder)


def _names(family: Family) -> tuple[str, ...]:
    return (
        f"the family {family.name!r}",
        *(f"the model_type {name!r}" for name in family.model_types),
    )


@cache
def packaged() -> tuple[Family, ...]:
    """The families of the package, sorted by name."""
    loaded = [package_data(entry, Family) for entry in package_files("models/data", ".toml")]
    return tuple(sorted(loaded, key=lambda family: family.name))


@cache
def families() -> tuple[Family, ...]:
    """All families, of the package and of the user, sorted by name.

    Raises:
        BadSource: For a wrong file of the user.
    """
    return tuple(sorted((*packaged(), *user_families(packaged())), key=lambda family: family.name))


@cache
def by_name() -> dict[str, Family]:
    """All families by their name."""
    return {family.name: family for family in families()}


@cache
def by_model_type() -> dict[str, Family]:
    """All families by the `model_type` of a config."""
    return {model_type: family for family in families() for model_type in family.model_types}


class RefusedType(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Model types that are refused for one reason."""

    reason: str
    """what follows "model_type NAME" in the message."""

    model_types: tuple[str, ...]


@cache
def refused() -> dict[str, str]:
    """Why each model type is refused that no family has, by its name."""
    table = package_data("models/refused.toml", dict[str, tuple[RefusedType, ...]])
    return {
        model_type: group.reason for group in table["refused"] for model_type in group.model_types
    }


NAMELESS = "a config without model_type"
LAYOUTS = {"half": "pairs (i, i + r/2) rotate", "interleaved": "pairs (2i, 2i + 1) rotate"}
KINDS = {
    "global": "rotates",
    "local": "rotates by its own base and is not extended",
    "none": "does not rotate",
}


def assumed_family(config: Config, name: str) -> Family:
    """The family of that name, as one that has the model type of a config too.

    Raises:
        UsageError: For another name.
    """
    family = by_name().get(name)
    if family is None:
        near = difflib.get_close_matches(name, by_name(), 3)
        meant = (
            f"did you mean {' or '.join(near)}" if near else "`ropeconv list families` lists them"
        )
        raise UsageError(
            f"--family {name} is not known; {meant}, or describe it in a file (docs/families.md)"
        )
    model_type = str(
        (text_config(config) or {}).get("model_type") or config.get("model_type") or ""
    )
    if model_type in family.model_types:
        wrapper = wrapper_of(config, family)
        if (
            wrapper is None
            or wrapper in family.model_types
            or is_where_transformers_reads(config, family, wrapper)
        ):
            return family
        return msgspec.structs.replace(family, assumed=wrapper or NAMELESS)
    return msgspec.structs.replace(
        family, model_types=(*family.model_types, model_type), assumed=model_type
    )


def _rotating_layers(family: Family) -> str:
    """Which layers of a family rotate, in words."""
    layers = family.layers
    if layers.types:
        kinds = [f"{name} {KINDS[kind]}" for name, kind in layers.types.items()]
        return f"a layer of type {' and '.join(kinds)}"
    if layers.flags:
        return f"the layers that {layers.flags} flags rotate"
    return "every layer rotates"


def assumption(family: Family) -> str:
    """A sentence on what is assumed about a model that is treated as this family; empty for a model
    that is of it.
    """
    if not family.assumed:
        return ""
    keys = family.keys
    weights = family.weights
    window = family.window
    width = family.defaults.head_dim or f"{keys.hidden[0]} / {keys.heads[0]}"
    facts = [
        f"its RoPE is that of {family.display_name}",
        LAYOUTS[family.layout] + (", multi-head latent attention" if family.mla else ""),
        f"head_dim from {', '.join(keys.head_dim)}, else {width}",
        _rotating_layers(family),
        f"queries and keys from {weights.fused or f'{weights.q} and {weights.k}'}",
    ]
    if weights.q_norm:
        facts.append(f"norms of them are {weights.q_norm} and {weights.k_norm} ({weights.norm})")
    if window.key:
        facts.append(f"a window in {window.key}")
    return f"model_type {family.assumed!r} is treated as {family.name}: {'; '.join(facts)}"


NOT_OF_MODELS = frozenset(
    "_name_or_path architectures attn_implementation auto_map bos_token_id dtype eos_token_id"
    " max_position_embeddings model_type pad_token_id quantization_config rope_parameters"
    " torch_dtype transformers_version use_cache".split()
)
"""Keys that say nothing about a family: those of every config, and of what made the file."""
GOOD = 0.75
"""The share of the keys of the config that the class of a family must have."""
NAMED = 0.5
"""The same for a family whose class the config names."""
UNHEARD = 1.0
"""The most that a key counts which the class does not have; keys that it has count up to 4."""
ABSENT = 0.2
"""How much a key counts that the class has and the config leaves out, since it may have its
default.
"""
ALIKE = 0.4
"""The share of the keys of the class, weighted so, that the config must have."""
NEAR = 0.05
"""Families whose shares differ by less are told apart by how common they are."""
COMMON = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma",
    "gemma2",
    "gemma3",
    "phi3",
    "gpt_neox",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "olmo2",
    "granite",
    "cohere",
    "deepseek_v3",
    "glm4",
    "starcoder2",
    "stablelm",
)
"""The families that other models are most often built like, the most common first."""
LAYERS = 8
"""The first layers, one of which has attention in every family."""
MOST_MISFITS = 100
"""That of a family whose projections are not among the tensors."""
NORM = re.compile(r"\b[qk]_(layer)?norm\.weight$")
Shapes = Mapping[str, Sequence[int]]
"""The shape of each tensor by its name; an empty one where it is not known."""
CLASS = re.compile(r"(For\w+|LMHeadModel|Model)$")


@cache
def config_keys() -> dict[str, frozenset[str]]:
    """The keys of the config class of each family, by its name: `config_keys.json`, which
    `scripts/families` writes.
    """
    data = package_data("models/config_keys.json", dict[str, frozenset[str]])
    return {name: keys - NOT_OF_MODELS for name, keys in data.items()}


@cache
def _key_weights() -> dict[str, float]:
    """How much each key counts: more where fewer families have it."""
    by_family = config_keys()
    counts = Counter(key for keys in by_family.values() for key in keys)
    return {key: math.log((1 + len(by_family)) / count) + 0.1 for key, count in counts.items()}


def suggestion(config: Config, shapes: Shapes) -> str:
    """Return advice on an unknown model type: the family that fits best, or the list of
    families.
    """
    best = best_family(config, shapes)
    if not best:
        return (
            "`ropeconv list families` lists the known ones, and docs/families.md says how to"
            " describe another in a file"
        )
    family = by_name()[best]
    evidence = "fields and tensors" if shapes else "fields"
    return (
        f"its {evidence} are those of {family.display_name}: pass --family {best} to treat it as"
        f" that, where {LAYOUTS[family.layout]}, and `ropeconv inspect` shows what else that"
        " assumes"
    )


def best_family(config: Config, shapes: Shapes | None = None) -> str:
    """The name of the family whose keys are most like those of a config; empty where none is like
    them.

    Keys that few families have count more. Where the keys of several fit, a class that the config
    names decides, then the tensors, then how many keys fit, then how common a family is.
    """
    text = text_config(config)
    part = config if text is None else text
    class_keys = config_keys()
    keys = set(part) - NOT_OF_MODELS
    classes = _classes(config) | _classes(part)
    candidates = [
        family.name for family in families() if family.name in class_keys and not family.refuse
    ]
    declared = [
        name
        for name in candidates
        if not classes.isdisjoint(map(_plain, by_name()[name].model_types))
    ]
    alike = {name: _shared(keys, class_keys[name]) for name in declared or candidates}
    least = NAMED if declared else GOOD
    similar = [
        name
        for name, (of_config, of_class) in alike.items()
        if of_config >= least and of_class >= ALIKE
    ]
    misfits = {name: _misfits(part, by_name()[name], shapes or {}) for name in similar}
    fitting = [name for name in similar if misfits[name] == min(misfits.values()) < MOST_MISFITS]
    most = max((alike[name][0] for name in fitting), default=0.0)
    rank = dict(zip(COMMON, count(), strict=False))

    def place(name: str) -> tuple[int, bool, float]:
        return rank.get(name, len(rank)), by_name()[name].layout != "half", -alike[name][1]

    return min((name for name in fitting if alike[name][0] >= most - NEAR), key=place, default="")


def _shared(of_config: Set[str], of_class: Set[str]) -> tuple[float, float]:
    """The weight of the shared keys over that of all keys of the config, and over that of all keys
    of the class.
    """
    weight = _key_weights()
    shared = sum(weight[key] for key in of_class & of_config)
    foreign = sum(min(weight.get(key, UNHEARD), UNHEARD) for key in of_config - of_class)
    absent = ABSENT * sum(weight[key] for key in of_class - of_config)
    return (shared / (shared + foreign), shared / (shared + absent)) if shared else (0.0, 0.0)


def _misfits(part: Config, family: Family, shapes: Shapes) -> int:
    """How many tensors of a layer are not as in a family.

    Args:
        part: The text part of the config.
    """
    if not shapes:
        return 0
    weights = family.weights
    prefix = next(
        filter(None, (layer_prefix(layer, family, shapes) for layer in range(LAYERS))), None
    )
    projections = list(filter(None, (weights.fused, weights.q, weights.k)))
    if prefix is None or any(f"{prefix}{name}.weight" not in shapes for name in projections):
        return MOST_MISFITS
    rows = {name: shapes[f"{prefix}{name}.weight"][:1] for name in projections}
    misfits = _misfit_norms(weights, prefix, rows.get(weights.q, ()), shapes)
    misfits += not weights.bias and any(f"{prefix}{name}.bias" in shapes for name in projections)
    misfits += bool(weights.input) != any(
        f"{prefix}{name}.weight" in shapes for name in weights.input_norm
    )
    plain = (
        weights.q and weights.k and not (family.mla or weights.q_gate or weights.keys_and_values)
    )
    heads, kv_heads = (
        first_present(part, keys) for keys in (family.keys.heads, family.keys.kv_heads)
    )
    if plain and all(rows.values()) and isinstance(heads, int) and isinstance(kv_heads, int):
        misfits += rows[weights.q][0] * kv_heads != rows[weights.k][0] * heads
    return misfits


def _misfit_norms(
    weights: WeightNames, prefix: str, query_rows: Sequence[int], shapes: Shapes
) -> int:
    """How many norms of queries and keys are not as in a family.

    Args:
        query_rows: The first dimension of their matrix.
    """
    norms = {
        name: shapes.get(f"{prefix}{name}.weight")
        for name in (weights.q_norm, weights.k_norm)
        if name
    }
    misfits = sum(shape is None for shape in norms.values())
    misfits += not norms and any(name.startswith(prefix) and NORM.search(name) for name in shapes)
    of_query = norms.get(weights.q_norm)
    if of_query and query_rows:
        misfits += (tuple(of_query[:1]) == tuple(query_rows)) != (weights.norm == "rms-all-heads")
    return misfits


def _classes(config: Config) -> set[str]:
    """The names of the classes in `architectures`, as model types are written without their
    underscores.
    """
    classes = config.get("architectures")
    names = classes if isinstance(classes, list) else []
    return {_plain(CLASS.sub("", name)) for name in names if isinstance(name, str)}


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()
