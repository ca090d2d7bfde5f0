"""The family whose config keys and tensors fit those of an unknown model type best, as a suggestion."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from functools import cache
from importlib.resources import files
from itertools import count

from ..formats.package_data import package_data
from .family import Family, WeightNames
from .layers import layer_prefix
from .registry import LAYOUTS, by_name, families
from .schema import Config, first_present, text_config

NOT_OF_MODELS = frozenset(
    "_name_or_path architectures attn_implementation auto_map bos_token_id dtype eos_token_id max_position_embeddings "
    "model_type pad_token_id quantization_config rope_parameters torch_dtype transformers_version use_cache".split()
)
"""Keys that say nothing about a family: those of every config, and of what made the file."""
GOOD = 0.75
"""The share of the keys of the config that the class of a family must have."""
NAMED = 0.5
"""The same for a family whose class the config names."""
UNHEARD = 1.0
"""The most that a key counts which the class does not have; keys that it has count up to 4."""
ABSENT = 0.2
"""How much a key counts that the class has and the config leaves out, since it may have its default."""
ALIKE = 0.4
"""The share of the keys of the class, weighted so, that the config must have."""
NEAR = 0.05
"""Families whose shares differ by less are told apart by how common they are."""
COMMON = (
    "llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "phi3", "gpt_neox", "mixtral", "qwen2_moe",
    "qwen3_moe", "olmo2", "granite", "cohere", "deepseek_v3", "glm4", "starcoder2", "stablelm",
)  # fmt: skip
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
    """The keys of the config class of each family, by its name: `config_keys.json`, which `scripts/families` writes."""
    data = package_data(files("ropeconv.models") / "config_keys.json", dict[str, tuple[str, ...]])
    return {name: frozenset(keys) - NOT_OF_MODELS for name, keys in data.items()}


@cache
def _key_weights() -> dict[str, float]:
    """How much each key counts: more where fewer families have it."""
    by_family = config_keys()
    counts = Counter(key for keys in by_family.values() for key in keys)
    return {key: math.log((1 + len(by_family)) / count) + 0.1 for key, count in counts.items()}


def suggestion(config: Config, shapes: Shapes) -> str:
    """Return advice on an unknown model type: the family that fits best, or the list of families."""
    best = best_family(config, shapes)
    if not best:
        return (
            "`ropeconv list families` lists the known ones, and docs/families.md says how to describe another in a file"
        )
    family = by_name()[best]
    evidence = "fields and tensors" if shapes else "fields"
    return (
        f"its {evidence} are those of {family.display_name}: pass --family {best} to treat it as that, where "
        f"{LAYOUTS[family.layout]}, and `ropeconv inspect` shows what else that assumes"
    )


def best_family(config: Config, shapes: Shapes | None = None) -> str:
    """The name of the family whose keys are most like those of a config; empty where none is like them.

    Keys that few families have count more. Where the keys of several fit, a class that the config names decides, then
    the tensors, then how many keys fit, then how common a family is.
    """
    text = text_config(config)
    part = config if text is None else text
    class_keys, keys = config_keys(), set(part) - NOT_OF_MODELS
    classes = _classes(config) | _classes(part)
    candidates = [family.name for family in families() if family.name in class_keys and not family.refuse]
    declared = [name for name in candidates if not classes.isdisjoint(map(_plain, by_name()[name].model_types))]
    alike = {name: _shared(keys, class_keys[name]) for name in declared or candidates}
    least = NAMED if declared else GOOD
    similar = [name for name, (of_config, of_class) in alike.items() if of_config >= least and of_class >= ALIKE]
    misfits = {name: _misfits(part, by_name()[name], shapes or {}) for name in similar}
    fitting = [name for name in similar if misfits[name] == min(misfits.values()) < MOST_MISFITS]
    most = max((alike[name][0] for name in fitting), default=0.0)
    rank = dict(zip(COMMON, count(), strict=False))

    def place(name: str) -> tuple[int, bool, float]:
        return rank.get(name, len(rank)), by_name()[name].layout != "half", -alike[name][1]

    return min((name for name in fitting if alike[name][0] >= most - NEAR), key=place, default="")


def _shared(of_config: Set[str], of_class: Set[str]) -> tuple[float, float]:
    """The weight of the shared keys over that of all keys of the config, and over that of all keys of the class."""
    weight = _key_weights()
    shared = sum(weight[key] for key in of_class & of_config)
    foreign = sum(min(weight.get(key, UNHEARD), UNHEARD) for key in of_config - of_class)
    absent = ABSENT * sum(weight[key] for key in of_class - of_config)
    return (shared / (shared + foreign), shared / (shared + absent)) if shared else (0.0, 0.0)


def _misfits(part: Config, family: Family, shapes: Shapes) -> int:
    """How many tensors of a layer are not as in a family. part: the text part of the config."""
    if not shapes:
        return 0
    weights = family.weights
    prefix = next(filter(None, (layer_prefix(layer, family, shapes) for layer in range(LAYERS))), None)
    projections = list(filter(None, (weights.fused, weights.q, weights.k)))
    if prefix is None or any(f"{prefix}{name}.weight" not in shapes for name in projections):
        return MOST_MISFITS
    rows = {name: shapes[f"{prefix}{name}.weight"][:1] for name in projections}
    misfits = _misfit_norms(weights, prefix, rows.get(weights.q, ()), shapes)
    misfits += not weights.bias and any(f"{prefix}{name}.bias" in shapes for name in projections)
    misfits += bool(weights.input) != any(f"{prefix}{name}.weight" in shapes for name in weights.input_norm)
    plain = weights.q and weights.k and not (family.mla or weights.q_gate or weights.keys_and_values)
    heads, kv_heads = (first_present(part, keys) for keys in (family.keys.heads, family.keys.kv_heads))
    if plain and all(rows.values()) and isinstance(heads, int) and isinstance(kv_heads, int):
        misfits += rows[weights.q][0] * kv_heads != rows[weights.k][0] * heads
    return misfits


def _misfit_norms(weights: WeightNames, prefix: str, query_rows: Sequence[int], shapes: Shapes) -> int:
    """How many norms of queries and keys are not as in a family. query_rows: the first dimension of their matrix."""
    norms = {name: shapes.get(f"{prefix}{name}.weight") for name in (weights.q_norm, weights.k_norm) if name}
    misfits = sum(shape is None for shape in norms.values())
    misfits += not norms and any(name.startswith(prefix) and NORM.search(name) for name in shapes)
    of_query = norms.get(weights.q_norm)
    if of_query and query_rows:
        misfits += (tuple(of_query[:1]) == tuple(query_rows)) != (weights.norm == "rms-all-heads")
    return misfits


def _classes(config: Config) -> set[str]:
    """The names of the classes in `architectures`, as model types are written without their underscores."""
    classes = config.get("architectures")
    names = classes if isinstance(classes, list) else []
    return {_plain(CLASS.sub("", name)) for name in names if isinstance(name, str)}


def _plain(name: str) -> str:
    return name.replace("_", "").replace("-", "").lower()
