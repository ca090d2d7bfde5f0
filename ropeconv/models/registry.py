"""The families of the package, from `data/*.toml`, and those of the user.

They are found by name, by model type, and by likeness (`best_family`).
"""

import difflib
import math
import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec
import tomli

from ..environment import user_folder
from ..errors import BadSource, UsageError
from ..formats.files import expand_home, open_regular
from ..formats.package_data import package_data, package_files
from ..rope.errors import RopeconvError
from ..rope.features import load_features
from .family import Family, WeightNames
from .layers import layer_prefix
from .schema import LARGEST, LARGEST_SIZE, Config, check_config, first_present, text_config
from .unread_keys import unread_rope_keys, unread_sizes
from .wrappers import transformers_finds_text_model, wrapper_of

VARIABLE = "ROPECONV_FAMILIES"
LONGEST = 64 << 10
"""Bytes of a file; those of the package have up to 3,000."""
MOST_FILES = 1_000
OWN = ("origin", "assumed", "derived", "not_derived")
"""Fields that ropeconv fills."""


def user_families(packaged: Iterable[Family]) -> tuple[Family, ...]:
    """Read the families that the user describes in files; none where their folder is absent.

    The folder is $ROPECONV_FAMILIES, else `ropeconv/families` below the folder of settings.

    Args:
        packaged: The families of the package, whose names and model types no file may have.

    Raises:
        BadSource: For a file that is not the description of a family, and for names that are there
            twice.
    """
    try:
        directory = family_folder()
    except RopeconvError:  # there is no home
        return ()
    if not directory.is_dir():
        if os.environ.get(VARIABLE):
            raise BadSource(
                f"{VARIABLE} names {directory}, which is not a folder; create it, or unset the"
                " variable"
            )
        return ()
    return _read_folder(directory, packaged, "the package")


def family_folder() -> Path:
    """The folder of the families of the user, which may be absent.

    Raises:
        RopeconvError: The user has no home.
    """
    named = os.environ.get(VARIABLE)
    if named:
        return expand_home(named)
    return user_folder("config") / "families"


def feature_families(packaged: Iterable[Family]) -> tuple[Family, ...]:
    """Return the families of the installed features, which are optional plugins of ropeconv.

    A feature may have a folder with descriptions of families, which `feature.families` names.

    Args:
        packaged: The families of the package, whose names and model types no file may have.

    Raises:
        BadSource: As `user_families` does.
    """
    known_families = list(packaged)
    families_of_features: list[Family] = []
    for feature in load_features().values():
        if feature.families is None:
            continue
        # for the message "FILE describes the family 'x', which another one already defines"
        owner = "another one"
        new_families = _read_folder(feature.families, known_families, owner)
        known_families += new_families
        families_of_features += new_families
    return tuple(families_of_features)


def _read_folder(directory: Path, known: Iterable[Family], owner: str) -> tuple[Family, ...]:
    """Read the families that the files of a folder describe, one in each .toml file.

    Args:
        directory: The folder.
        known: Families whose names and model types no file may have.
        owner: The place where those are defined, for messages, such as "the package".

    Raises:
        BadSource: As `user_families` does.
    """
    paths = sorted(path for path in directory.iterdir() if path.suffix == ".toml")
    if len(paths) > MOST_FILES:
        raise BadSource(
            f"{directory} has more than {MOST_FILES:,} families; move some of them away"
        )

    owners = {}
    for family in known:
        for name in _names(family):
            owners[name] = owner

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
    """Read the description of a family of models from a TOML file.

    Raises:
        BadSource: With the file and the field, if it is invalid.
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

    # fields that ropeconv sets when it loads a family, and values that no family can have
    set_by_ropeconv = [key for key in OWN if key in fields]
    wrong = set_by_ropeconv[0] if set_by_ropeconv else _invalid_field(family)
    if wrong:
        raise BadSource(
            f"{path} is not a family description: `{wrong}` is invalid; correct or remove it"
        )
    return msgspec.structs.replace(family, origin=str(path))


def _invalid_field(family: Family) -> str:
    """Return the first field of a family's description with an impossible value, e.g. "weights".

    It is empty for a description that can be used. Types were checked by msgspec; these are rules
    that types cannot express.
    """
    if not re.sub(r"[-_.]", "", family.name).isalnum():
        return "name"

    # The names of tensors. Queries and keys are two projections, or one that has the values too; a
    # family that ropeconv refuses needs none.
    weights = family.weights
    has_projections = (weights.q and weights.k) or weights.fused
    if not has_projections and not family.refuse:
        return "weights"
    # prefixes such as "model.layers.{layer}.", with {block} too for several blocks in a layer
    layers = family.layers
    if not all(_is_layer_prefix(pattern, layers.blocks) for pattern in weights.layer):
        return "weights.layer"

    # Sizes and bases have the same limits in a config.json (models/schema.py): sizes are below
    # 2^31, and bases below 1e30.
    defaults = family.defaults
    sizes = (
        defaults.context,
        defaults.head_dim,
        defaults.hidden,
        defaults.layers,
        defaults.heads,
        defaults.kv_heads,
    )
    for size in sizes:
        if size is not None and not 0 < size < LARGEST_SIZE:
            return "defaults"
    bases = [defaults.theta]
    if defaults.local_theta:  # only families with local layers have one
        bases.append(defaults.local_theta)
    for base in bases:
        if not 1 < base < LARGEST:
            return "defaults.theta"

    if not 0 < defaults.partial_rotary_factor <= 1:
        return "defaults.partial_rotary_factor"
    if layers.interval < 0:  # 0 for families whose layers are all alike
        return "layers.interval"
    if layers.blocks < 1:
        return "layers.blocks"
    return ""


def _is_layer_prefix(pattern: str, blocks: int) -> bool:
    """Whether a prefix names the layer once, and the attention block where there are several."""
    if pattern.count("{layer}") != 1:
        return False
    if pattern.count("{block}") != int(blocks > 1):
        return False
    remainder = pattern.replace("{layer}", "0").replace("{block}", "0")
    return "{" not in remainder and "}" not in remainder


def _names(family: Family) -> list[str]:
    """The names that only one family may have, as messages call them."""
    names = [f"the family {family.name!r}"]
    names += [f"the model_type {name!r}" for name in family.model_types]
    return names


@cache
def package_families() -> tuple[Family, ...]:
    """The families of the package, sorted by name."""
    loaded = [package_data(entry, Family) for entry in package_files("models/data", ".toml")]
    return tuple(sorted(loaded, key=lambda family: family.name))


@cache
def families() -> tuple[Family, ...]:
    """All families, of the package, of features and of the user, sorted by name.

    Raises:
        BadSource: For a wrong file of the user or of a feature.
    """
    installed = (*package_families(), *feature_families(package_families()))
    loaded = (*installed, *user_families(installed))
    return tuple(sorted(loaded, key=lambda family: family.name))


@cache
def by_name() -> dict[str, Family]:
    """All families by their name."""
    return {family.name: family for family in families()}


@cache
def by_model_type() -> dict[str, Family]:
    """All families by the `model_type` of a config."""
    types = {}
    for family in families():
        for model_type in family.model_types:
            types[model_type] = family
    return types


class RefusedType(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Model types that are refused for one reason."""

    reason: str
    """The rest of the sentence after "model_type NAME" in the message."""

    model_types: tuple[str, ...]


@cache
def refused_types() -> dict[str, str]:
    """Why each model type without a family is refused, by its name."""
    table = package_data("models/refused.toml", dict[str, tuple[RefusedType, ...]])
    reasons = {}
    for group in table["refused"]:
        for model_type in group.model_types:
            reasons[model_type] = group.reason
    return reasons


CONFIG_WITHOUT_TYPE = "a config without model_type"
LAYOUTS = {"half": "pairs (i, i + r/2) rotate", "interleaved": "pairs (2i, 2i + 1) rotate"}
KINDS = {
    "global": "rotates",
    "local": "rotates by its own base and is not extended",
    "none": "does not rotate",
}


def assumed_family(config: Config, name: str) -> Family:
    """Return the family that the user named with --family.

    The config may have a model type that is unknown, such as "my_llama". The returned family then
    has this type as `assumed`, and verdicts on runtimes say "if it runs my_llama as Llama".

    Args:
        config: The whole config.json.
        name: The name of the family.

    Raises:
        UsageError: For a name that no family has.
    """
    family = by_name().get(name)
    if family is None:
        near = difflib.get_close_matches(name, by_name(), 3)
        meant = "`ropeconv list families` lists them"
        if near:
            meant = f"did you mean {' or '.join(near)}"
        raise UsageError(
            f"--family {name} is not known; {meant}, or describe it in a file (docs/families.md)"
        )

    # 1. {"model_type": "my_llama"}: the text model has a type that the family does not have
    text = text_config(config) or {}
    text_type = str(text.get("model_type") or config.get("model_type") or "")
    if text_type not in family.model_types:
        model_types = (*family.model_types, text_type)
        return msgspec.structs.replace(family, model_types=model_types, assumed=text_type)

    # 2. {"model_type": "llama"}: nothing is assumed
    multimodal_type = wrapper_of(config, family)
    if multimodal_type is None or multimodal_type in family.model_types:
        return family

    # 3. {"model_type": "llava", "text_config": {"model_type": "llama"}}: transformers has a class
    # for the multimodal model, which finds the text model there
    if transformers_finds_text_model(config, family, multimodal_type):
        return family

    # 4. {"model_type": "my_vlm", "text_config": {"model_type": "llama"}}: it is assumed that the
    # class of "my_vlm" runs its text model as the family says
    if not multimodal_type:  # a multimodal config without model_type
        multimodal_type = CONFIG_WITHOUT_TYPE
    return msgspec.structs.replace(family, assumed=multimodal_type)


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
    """Return a sentence on what ropeconv assumes about a model of an unknown type.

    The user may have named its family: "model_type 'my_llama' is treated as llama: its RoPE is that
    of Llama; pairs (i, i + r/2) rotate; head_dim from head_dim, else ...". Or ropeconv has run its
    class: "derived from MyModel 1.0, which was run here: pairs (i, i + r/2) rotate; ...". The
    sentence is empty for a known type.
    """
    assumed_type = family.assumed  # e.g. "my_llama"; empty for a type that the family has
    class_that_was_run = family.derived  # e.g. "MyModel 1.0"; empty if none was run
    if not assumed_type and not class_that_was_run:
        return ""

    # which dimensions of a head rotate
    layout = LAYOUTS[family.layout]
    if family.mla:
        layout += ", multi-head latent attention"
    facts = [layout]

    # the keys of the config that have the width of a head; or its default, a number or a formula
    keys = family.keys
    default_width = family.defaults.head_dim or f"{keys.hidden[0]} / {keys.heads[0]}"
    facts.append(f"head_dim from {', '.join(keys.head_dim)}, else {default_width}")

    # layers and tensors
    weights = family.weights
    projections = weights.fused or f"{weights.q} and {weights.k}"
    facts.append(_rotating_layers(family))
    facts.append(f"queries and keys from {projections}")
    if weights.q_norm:
        facts.append(f"norms of them are {weights.q_norm} and {weights.k_norm} ({weights.norm})")
    window_key = family.window.key
    if window_key:
        facts.append(f"a window in {window_key}")

    if class_that_was_run:
        facts.append(f"base from {', '.join(keys.theta)}")
        if family.not_derived:  # facts that the run did not show
            facts.append(f"not found: {', '.join(family.not_derived)}")
        return f"derived from {class_that_was_run}, which was run here: {'; '.join(facts)}"
    facts.insert(0, f"its RoPE is that of {family.display_name}")
    return f"model_type {assumed_type!r} is treated as {family.name}: {'; '.join(facts)}"


NOT_OF_MODELS = frozenset(
    "_name_or_path architectures attn_implementation auto_map bos_token_id dtype eos_token_id"
    " max_position_embeddings model_type pad_token_id quantization_config rope_parameters"
    " torch_dtype transformers_version use_cache".split()
)
"""Keys that say nothing about a family: those of every config, and of what made the file."""
LEAST_SHARE_OF_CONFIG = 0.75
"""The share of the keys of the config that the class of a family must have."""
LEAST_SHARE_WITH_NAMED_CLASS = 0.5
"""The same for a family whose class the config names."""
MOST_WEIGHT_OF_FOREIGN_KEY = 1.0
"""The most that a key counts which the class does not have; keys that it has count up to 5."""
WEIGHT_OF_ABSENT_KEY = 0.2
"""How much a key counts that only the class has: the config may leave it at its default."""
LEAST_SHARE_OF_CLASS = 0.4
"""The share of the keys of the class, weighted so, that the config must have."""
SMALL_DIFFERENCE = 0.05
"""Families whose shares differ by less are told apart by how common they are."""
MOST_COMMON_FIRST = (
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
FIRST_LAYERS = 8
"""The first layers, one of which has attention in every family."""
MOST_MISFITS = 100
"""The misfits of a family whose projections are not among the tensors."""
NORM = re.compile(r"\b[qk]_(layer)?norm\.weight$")
Shapes = Mapping[str, Sequence[int]]
"""The shape of each tensor by its name; an empty one where it is not known."""
CLASS = re.compile(r"(For\w+|LMHeadModel|Model)$")


@cache
def config_keys() -> dict[str, frozenset[str]]:
    """The keys of the config class of each family, by its name.

    `scripts/families/` writes them to `config_keys.json`.
    """
    data = package_data("models/config_keys.json", dict[str, frozenset[str]])
    return {name: keys - NOT_OF_MODELS for name, keys in data.items()}


@cache
def _null_keys() -> dict[str, dict[str, str]]:
    """Return what null means to the class of each family, by name and key (`scripts/families/`)."""
    return package_data("models/null_keys.json", dict[str, dict[str, str]])


def null_meaning(family: Family, key: str) -> str:
    """Return what a key that is null means to the class of a family in transformers.

    Returns:
        "refused" where the class fails on null; "unset" where it computes without its default,
        with the hidden size over the heads or with the whole head; "refused-yarn" where it fails
        with yarn and longrope; or "", where null is the same as an absent key, or where that is
        not known.
    """
    if family.origin or family.derived:  # ropeconv does not know the class
        return ""
    return _null_keys().get(family.name, {}).get(key, "")


@cache
def _key_weights() -> dict[str, float]:
    """How much each key counts: more where fewer families have it."""
    by_family = config_keys()
    counts = Counter(key for keys in by_family.values() for key in keys)
    weights = {}
    for key, families_with_it in counts.items():
        weights[key] = math.log((1 + len(by_family)) / families_with_it) + 0.1
    return weights


def suggestion(config: Config, shapes: Shapes) -> str:
    """Return advice on an unknown model type: the family that fits best, or the known ones."""
    best = best_family(config, shapes)
    own_code = ""
    if config.get("auto_map"):
        own_code = (
            "; or read the code that it brings, and run it once: `ropeconv family MODEL"
            " --trust-remote-code --save`"
        )
    return _suggestion(config, shapes, best) + own_code


def _suggestion(config: Config, shapes: Shapes, best: str) -> str:
    """Return advice on a model of an unknown type.

    Mostly it suggests a family: "its fields are those of Llama: pass --family llama to treat it as
    that, where pairs (i, i + r/2) rotate, and ...".

    Args:
        config: Its config.json.
        shapes: The shapes of its tensors; empty where they are not known.
        best: The family that is most like it; empty where none is.
    """
    part = text_config(config) or config
    if not best:
        return _advice_without_family(part)
    family = by_name()[best]
    # a reason is such as "does not read rope_percent of config.json"
    reason_against = _reason_against(config, part, family)
    if reason_against:
        return (
            f"its fields are most like those of {family.display_name}, which {reason_against}, so"
            " no family is suggested; describe the model in a file (docs/families.md)"
        )

    evidence = "fields and tensors" if shapes else "fields"
    layout = LAYOUTS[family.layout]  # e.g. "pairs (i, i + r/2) rotate"
    return (
        f"its {evidence} are those of {family.display_name}: pass --family {best} to treat it as"
        f" that, where {layout}, and `ropeconv inspect MODEL --family {best}`"
        " shows what else that assumes"
    )


def _advice_without_family(part: Config) -> str:
    """Return advice on a model that is like no family, from the text part of its config."""
    advice = (
        "`ropeconv list families` lists the known ones, and docs/families.md says how to describe"
        " another in a file"
    )
    unknown_keys = _unknown_rope_keys(part)
    if not unknown_keys:
        return advice
    return f"no family reads {' and '.join(unknown_keys)} of config.json; {advice}"


def _reason_against(config: Config, part: Config, family: Family) -> str:
    """Return why a family must not be suggested for an unknown model; empty where it may be.

    An example is "does not read rope_percent of config.json".

    Args:
        config: The whole config.json.
        part: The config of its text model: an object in it, or the same as `config`.
        family: The family that the model is most like.
    """
    # 1. the family would ignore a key about RoPE, or a size
    unread = unread_rope_keys(part, family) + unread_sizes(part, family)
    is_multimodal = part is not config
    if is_multimodal:
        # keys for the text model may also be beside it, at the top level, such as mrope_section;
        # keys with a dot are inside of other objects
        unread += [key for key in unread_rope_keys(config, family) if "." not in key]
    if unread:
        return f"does not read {' and '.join(unread)} of config.json"

    # 2. the family would read a value of another type, such as a list in place of a number
    try:
        check_config(config, [part], family)
    except BadSource as problem:
        wrong_value, _, _ = str(problem).partition(";")  # without the advice on how to correct it
        return f"reads values of another kind ({wrong_value})"
    return ""


def _unknown_rope_keys(part: Config) -> list[str]:
    """The keys of a config that are about RoPE and that no family reads, in their order."""
    unread = [unread_rope_keys(part, family) for family in families()]
    return [key for key in unread[0] if all(key in keys for keys in unread)]


def best_family(config: Config, shapes: Shapes | None = None) -> str:
    """Return the name of the family that a model of unknown type is most like; empty for none.

    A message suggests it for --family. It is found by the config keys that both have, of which
    those that few families have count more. Where the keys of several fit, a class that the config
    names decides, then the tensors, then how many keys fit, then how common a family is.

    Args:
        config: The whole config.json.
        shapes: The shape of each tensor by its name; None where they are not known.
    """
    part = text_config(config)
    if part is None:
        part = config
    candidates = []
    for family in families():
        if family.name in config_keys() and not family.refuse:
            candidates.append(family.name)

    # 1. Where the config names the class of some families in `architectures`, only these count, and
    # half of the config's keys must be keys of the class. Else three quarters of them must be, and
    # the config must state everything in which the family differs from Llama.
    named = _with_class(candidates, _classes(config) | _classes(part))
    if named:
        shares = _families_with_common_keys(
            part, named, least_share_of_config=LEAST_SHARE_WITH_NAMED_CLASS
        )
    else:
        stated = [name for name in candidates if _states_differences(part, by_name()[name])]
        shares = _families_with_common_keys(
            part, stated, least_share_of_config=LEAST_SHARE_OF_CONFIG
        )

    # 2. those whose tensors fit best
    fitting = _with_fewest_misfits(part, shares, shapes or {})
    if not fitting:
        return ""

    # 3. those with the most keys, or nearly as many
    most = max(shares[name].share_of_config for name in fitting)
    least = most - SMALL_DIFFERENCE
    near_best = [name for name in fitting if shares[name].share_of_config >= least]

    # 4. the most common one, then one that rotates halves, then the most alike
    def place(name: str) -> tuple[int, bool, float]:
        commonness = (
            MOST_COMMON_FIRST.index(name) if name in MOST_COMMON_FIRST else len(MOST_COMMON_FIRST)
        )
        rotates_neighbours = by_name()[name].layout != "half"
        return commonness, rotates_neighbours, -shares[name].share_of_class

    best = min(near_best, key=place)

    # No key of a config says that neighbours rotate as a pair (i, i + 1), so such a family is only
    # suggested for a class that the config names, or for latent attention, which has keys.
    family = by_name()[best]
    is_only_a_guess = family.layout == "interleaved" and not family.mla and not named
    return "" if is_only_a_guess else best


class _ShareOfCommonKeys(NamedTuple):
    """The shares of the keys that a config and a class have in common; rare keys weigh more."""

    share_of_config: float
    """Their weight over the weight of all keys of the config, from 0 to 1."""

    share_of_class: float
    """Their weight over the weight of all keys of the class, from 0 to 1."""


def _families_with_common_keys(
    part: Config, names: Sequence[str], least_share_of_config: float
) -> dict[str, _ShareOfCommonKeys]:
    """Return the families whose config class has enough keys in common with a config, by name.

    If Llama's class has 95 % of the keys of the config, and the config has 80 % of the keys of the
    class, the result has "llama" with the shares 0.95 and 0.8.

    Args:
        part: The text part of the config.
        names: The families to compare with it.
        least_share_of_config: The share of the config's keys that a class must have.
    """
    keys = set(part) - NOT_OF_MODELS  # without keys of every config, such as torch_dtype
    similar = {}
    for name in names:
        common = _compare_keys(keys, config_keys()[name])
        class_has_enough = common.share_of_config >= least_share_of_config
        config_has_enough = common.share_of_class >= LEAST_SHARE_OF_CLASS  # 0.4
        if class_has_enough and config_has_enough:
            similar[name] = common
    return similar


def _with_fewest_misfits(part: Config, names: Iterable[str], shapes: Shapes) -> list[str]:
    """The families whose tensors are most like those of a model; empty where none are."""
    misfits = {}
    for name in names:
        misfits[name] = _count_misfits(part, by_name()[name], shapes)
    fewest = min(misfits.values(), default=MOST_MISFITS)
    if fewest >= MOST_MISFITS:
        return []
    return [name for name in misfits if misfits[name] == fewest]


def _states_differences(part: Config, family: Family) -> bool:
    """Whether a config has a key for everything in which the RoPE of a family differs from Llama's.

    Only such a family is suggested for an unknown model, since nothing is then left to defaults of
    the family's class.

    Args:
        part: The text part of the config of the unknown model.
        family: The family that may be suggested.
    """
    # ModernBERT is an encoder: the config must have a key that only configs of encoders have
    has_encoder_key = bool(set(part) & _encoder_keys())
    if family.encoder and not has_encoder_key:
        return False

    # Phi rotates a part of each head: a key such as partial_rotary_factor
    rotates_part_of_head = family.defaults.partial_rotary_factor != 1
    if rotates_part_of_head and not _states_rotary_share(part, family):
        return False

    # Gemma 3 and SmolLM3 have several kinds of layers: a key such as layer_types
    kinds = set(family.layers.types.values())
    has_local_layers = "local" in kinds
    has_several_kinds = has_local_layers or "none" in kinds or bool(family.layers.flags)
    if has_several_kinds and not _states_kinds_of_layers(part, family):
        return False

    # Gemma 3 has layers with a base of their own: a key such as rope_local_base_freq
    if has_local_layers:
        return _states_local_base(part, family)
    return True


def _states_rotary_share(part: Config, family: Family) -> bool:
    """Whether a config states which share of each head rotates."""
    keys = (*family.keys.partial, *family.keys.rotary_dim, "partial_rotary_factor")
    if first_present(part, keys) is not None:
        return True
    settings = part.get("rope_parameters")
    return isinstance(settings, dict) and "partial_rotary_factor" in settings


def _states_kinds_of_layers(part: Config, family: Family) -> bool:
    """Whether a config states which layers rotate by the base, by a local one, or not at all."""
    layers = family.layers
    keys = (layers.flags, layers.interval_key, layers.indices, "layer_types")
    return any(part.get(key) for key in keys)


def _states_local_base(part: Config, family: Family) -> bool:
    """Whether a config states the base of layers with a sliding window, such as Gemma 3's."""
    # rope_parameters of transformers 5 has the settings of each layer type
    has_settings_by_type = family.writing.nested and isinstance(part.get("rope_parameters"), dict)
    return has_settings_by_type or first_present(part, family.keys.local_theta) is not None


@cache
def _encoder_keys() -> frozenset[str]:
    """The keys that only classes of encoders have."""
    of_encoders: set[str] = set()
    of_others: set[str] = set()
    for name, keys in config_keys().items():
        family = by_name().get(name)
        if family is not None:
            (of_encoders if family.encoder else of_others).update(keys)
    return frozenset(of_encoders - of_others)


def _with_class(names: Sequence[str], classes: Set[str]) -> list[str]:
    """The families of which a model type belongs to one of the classes, by name."""
    found = []
    for name in names:
        model_types = {_plain(model_type) for model_type in by_name()[name].model_types}
        if classes & model_types:
            found.append(name)
    return found


def _compare_keys(keys_of_config: Set[str], keys_of_class: Set[str]) -> _ShareOfCommonKeys:
    """Return which shares of the keys of a config, and of the keys of a class, both have.

    Args:
        keys_of_config: The keys of the config.
        keys_of_class: The keys that a config class of transformers has.
    """
    # a key weighs from about 0.1, if all families have it, to 5, if only one has it
    weights = _key_weights()
    common = sum(weights[key] for key in keys_of_class & keys_of_config)
    if not common:
        return _ShareOfCommonKeys(share_of_config=0.0, share_of_class=0.0)

    # a key that only the config has weighs at most 1, and 1 if no family has it
    weights_only_in_config = []
    for key in keys_of_config - keys_of_class:
        weight = weights.get(key, MOST_WEIGHT_OF_FOREIGN_KEY)
        weights_only_in_config.append(min(weight, MOST_WEIGHT_OF_FOREIGN_KEY))
    only_in_config = sum(weights_only_in_config)

    # a key that only the class has weighs a fifth: the config may leave it at its default
    absent_weights = [weights[key] for key in keys_of_class - keys_of_config]
    only_in_class = WEIGHT_OF_ABSENT_KEY * sum(absent_weights)
    return _ShareOfCommonKeys(
        share_of_config=common / (common + only_in_config),
        share_of_class=common / (common + only_in_class),
    )


def _count_misfits(part: Config, family: Family, shapes: Shapes) -> int:
    """Count the differences between the tensors of a model's first attention layer and a family's.

    Such differences are missing norms of queries and keys, and unexpected biases. The number tells
    families apart whose config keys are the same. It is MOST_MISFITS (100) where the model does not
    have the projections of the family.

    Args:
        part: The text part of the config.
        family: The family.
        shapes: The shapes of the model's tensors by name; empty where they are not known.
    """
    if not shapes:
        return 0

    # The model must have the projections by their names: a fused one such as "query_key_value", or
    # "q_proj" and "k_proj". `weights` has "" for projections that the family does not have.
    weights = family.weights
    prefix = _first_prefix(family, shapes)  # e.g. "model.layers.0.self_attn."
    if prefix is None:
        return MOST_MISFITS
    projections = [name for name in (weights.fused, weights.q, weights.k) if name]
    for name in projections:
        if f"{prefix}{name}.weight" not in shapes:
            return MOST_MISFITS

    # the rows of the two projections; None for a fused one, and where a shape is not known
    query_shape = shapes.get(f"{prefix}{weights.q}.weight") if weights.q else None
    key_shape = shapes.get(f"{prefix}{weights.k}.weight") if weights.k else None
    query_rows = query_shape[0] if query_shape else None
    key_rows = key_shape[0] if key_shape else None

    # 1. norms of queries and keys
    misfits = _count_misfit_norms(weights, prefix, query_rows, shapes)

    # 2. a bias that the projections of the family do not have
    has_bias = any(f"{prefix}{name}.bias" in shapes for name in projections)
    if has_bias and not weights.bias:
        misfits += 1

    # 3. the norm before the projections, such as input_layernorm, in the model or in the family
    # only: `input_norm` has its possible names, and `input` its kind, "" for none
    model_has_norm = any(f"{prefix}{name}.weight" in shapes for name in weights.input_norm)
    family_has_norm = weights.input != ""
    if model_has_norm != family_has_norm:
        misfits += 1

    # 4. heads of queries and keys of different widths
    if query_rows is None or key_rows is None:
        return misfits
    if not _heads_have_one_width(part, family, query_rows, key_rows):
        misfits += 1
    return misfits


def _heads_have_one_width(part: Config, family: Family, query_rows: int, key_rows: int) -> bool:
    """Return whether heads of queries and keys are equally wide, by the rows of projections.

    With 32 heads and 4096 rows for queries, and 8 heads and 1024 rows for keys, both are 128 wide.
    It is True where the rows or the config do not tell the width.
    """
    # the width is not rows / heads: with latent attention (MLA) rows are compressed, the projection
    # of queries may have the rows of a gate too, and that of keys the rows of values
    weights = family.weights
    queries_have_gate = bool(weights.q_gate)
    keys_have_values = weights.keys_and_values
    if family.mla or queries_have_gate or keys_have_values:
        return True
    heads = first_present(part, family.keys.heads)
    kv_heads = first_present(part, family.keys.kv_heads)
    if not isinstance(heads, int) or not isinstance(kv_heads, int):
        return True
    return query_rows * kv_heads == key_rows * heads  # width = rows / heads, without division


def _first_prefix(family: Family, shapes: Shapes) -> str | None:
    """The prefix of the tensors of the first layer with attention; None without one."""
    for layer in range(FIRST_LAYERS):
        prefix = layer_prefix(layer, family, shapes)
        if prefix:
            return prefix
    return None


def _count_misfit_norms(
    weights: WeightNames, prefix: str, query_rows: int | None, shapes: Shapes
) -> int:
    """Count the differences between the norms of queries and keys of a model and of a family.

    Each norm of the family that the model does not have counts 1. For a family without such norms,
    any norms of the model count 1. Another difference is whether a norm is over all heads or over
    each head.

    Args:
        weights: The names of weights in the family.
        prefix: The beginning of the names in the first layer, e.g. "model.layers.0.self_attn.".
        query_rows: The rows of the projection of queries: heads times the width of a head. None
            where they are not known.
        shapes: The shapes of the model's tensors by name.
    """
    names = [name for name in (weights.q_norm, weights.k_norm) if name]
    if not names:  # the family has no such norm
        has_norm = any(name.startswith(prefix) and NORM.search(name) for name in shapes)
        return 1 if has_norm else 0

    misfits = 0
    for name in names:
        if f"{prefix}{name}.weight" not in shapes:
            misfits += 1

    # The norm of queries is over all heads in Olmo 2 (4096 numbers), and over each head in Qwen 3
    # (128 numbers). The norm of keys is of the same kind.
    query_norm_shape = shapes.get(f"{prefix}{weights.q_norm}.weight")
    if weights.q_norm and query_norm_shape and query_rows is not None:
        is_over_all_heads = query_norm_shape[0] == query_rows
        is_over_all_heads_in_family = weights.norm == "rms-all-heads"
        if is_over_all_heads != is_over_all_heads_in_family:
            misfits += 1
    return misfits


def _classes(config: Config) -> set[str]:
    """The classes in `architectures`, written as model types without underscores."""
    classes = config.get("architectures")
    names = classes if isinstance(classes, list) else []
    return {_plain(CLASS.sub("", name)) for name in names if isinstance(name, str)}


def _plain(name: str) -> str:
    """A name without what distinguishes the spellings of model types and classes."""
    return name.replace("_", "").replace("-", "").lower()
