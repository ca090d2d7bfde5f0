"""Contradiction: two places of config.json that state one RoPE setting with two values.

No reader can know with which of them the model was trained. Which one the class computes with was
run with transformers 5.23 (its `config.json`, then the frequencies of the model): `rope_scaling`
is used in place of `rope_parameters`, and takes what it does not state from the top level. Values
of the one that is used win over the top level, except for original_max_position_embeddings;
`rope_type` wins over `type`, and a share over `rotary_dim`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeGuard

from ..models.config import kv_heads, nested_settings
from ..models.family import Family
from ..models.schema import Config, positive_int
from ..rope.errors import shown
from ..runtimes.read_config import NOT_A_SCALING

ORIGINAL = "original_max_position_embeddings"
SCALED_FROM = ("yarn", "llama3", "longrope")
"""Types whose scaling starts from ORIGINAL."""


FAMILIES_WITH_RIGHT_KV_HEADS = frozenset({"hy_v4"})
"""MLA families whose class replaces num_key_value_heads by the number of query heads."""


@dataclass(frozen=True)
class Statement:
    """A value of a setting."""

    place: str
    """Where it is, such as "rope_theta" or "rope_parameters.rope_theta"."""

    value: object
    """As config.json has it."""

    meaning: object
    """The value to compare: dimensions for a share."""


@dataclass(frozen=True)
class Contradiction:
    """Two values of one setting."""

    setting: str
    """The setting in words."""

    obeyed: Statement
    """The one that the class in transformers computes with."""

    other: Statement

    @property
    def sentence(self) -> str:
        """The problem, without its repair."""
        first = f"{self.obeyed.place} = {shown(self.obeyed.value)}"
        second = f"{self.other.place} = {shown(self.other.value)}"
        return (
            f"config.json states {self.setting} twice, {first} and {second}: transformers computes"
            " with the former, and other runtimes may not"
        )


def contradictions(part: Config, family: Family, head_dim: int) -> Iterator[Contradiction]:
    """Yield the RoPE settings that a config states twice, with different values.

    rope_theta = 10000.0 beside rope_parameters = {"rope_theta": 1000000.0} gives a contradiction
    about "the base".

    Args:
        part: The part of config.json about the text model.
        family: The family of the model.
        head_dim: The width of a head.
    """
    # settings that have several keys, or a key at the top level and in a dictionary
    dictionaries = _rope_dictionaries(part, family)
    for setting, statements in (
        ("the base", _base_statements(part, family, dictionaries)),
        ("the dimensions that rotate", _rotating_dims(part, family, dictionaries, head_dim)),
        ("the rope type", _type_statements(dictionaries)),
        ("the trained context", _trained_contexts(part, family, dictionaries)),
    ):
        yield from _differing(setting, statements)

    # all other settings, each a key in both rope_scaling and rope_parameters
    if len(dictionaries) < 2:
        return
    first_name, second_name = dictionaries
    first = dictionaries[first_name]
    second = dictionaries[second_name]
    compared_above = {"rope_type", "type", "rope_theta", "partial_rotary_factor", ORIGINAL}
    for key in first:
        if key not in second or key in compared_above:
            continue
        in_first = Statement(f"{first_name}.{key}", value=first[key], meaning=first[key])
        in_second = Statement(f"{second_name}.{key}", value=second[key], meaning=second[key])
        yield from _differing(key, [in_first, in_second])


def _differing(setting: str, statements: list[Statement]) -> Iterator[Contradiction]:
    """Yield the contradiction between the first statement and the first one that differs."""
    for statement in statements[1:]:
        if statement.meaning != statements[0].meaning:
            yield Contradiction(setting, statements[0], statement)
            return


def _rope_dictionaries(part: Config, family: Family) -> dict[str, Config]:
    """The RoPE dictionaries of the layers that see the whole context, by the name of their key.

    The first one is that of the class, which takes an empty one as none.
    """
    named = {"rope_scaling": part.get("rope_scaling")}
    named["rope_parameters"] = nested_settings(part, family, "global")
    stated = {}
    for name, settings in named.items():
        if isinstance(settings, dict) and settings:
            stated[name] = settings
    return stated


def _dictionaries_of_class(dictionaries: dict[str, Config], family: Family) -> dict[str, Config]:
    """The RoPE dictionaries that the class in transformers reads before the top level."""
    # Most classes read one dictionary, the first: convert_rope_params_to_dict of transformers 5.23
    # has `rope_scaling or self.rope_parameters`. Classes with a dictionary for each layer type
    # update the one of all global layers from the other.
    if family.writing.nested:
        return dictionaries
    first_only = list(dictionaries.items())[:1]
    return dict(first_only)


def _base_statements(
    part: Config, family: Family, dictionaries: dict[str, Config]
) -> list[Statement]:
    """Return every value that a config has for the base, the value that transformers uses first.

    {"rope_theta": 10000.0, "rope_parameters": {"rope_theta": 1000000.0}} gives the value 1000000.0
    and then the value 10000.0.

    Args:
        part: The part of config.json about the text model.
        family: The family of the model, with the names of the key at the top level.
        dictionaries: The content of rope_scaling and rope_parameters, if the config has them.
    """
    # The class in transformers reads some dictionaries. Their values come before the values at the
    # top level, and values in other dictionaries come last.
    read_dictionaries = _dictionaries_of_class(dictionaries, family)
    in_read: list[Statement] = []
    in_unread: list[Statement] = []
    for name, settings in dictionaries.items():
        base = settings.get("rope_theta")
        if not _is_number(base):
            continue
        statement = Statement(f"{name}.rope_theta", base, float(base))
        if name in read_dictionaries:
            in_read.append(statement)
        else:
            in_unread.append(statement)

    at_top = []
    for key in (*family.keys.theta, *family.keys.unread_theta):
        base = part.get(key)
        if _is_number(base):
            at_top.append(Statement(key, base, float(base)))
    return in_read + at_top + in_unread


def _rotating_dims(
    part: Config, family: Family, dictionaries: dict[str, Config], head_dim: int
) -> list[Statement]:
    """Return every value that a config has for the dimensions of a head that rotate.

    The value that transformers uses comes first. A config has a share of the head, such as
    partial_rotary_factor = 0.5, or a number of dimensions. Each value is compared by its `meaning`,
    the number of dimensions.

    Args:
        part: The part of config.json about the text model.
        family: The family of the model, with the names of the keys at the top level.
        dictionaries: The content of rope_scaling and rope_parameters, if the config has them.
        head_dim: The width of a head.
    """
    if not family.keys.partial:  # all dimensions rotate
        return []

    # The class in transformers reads some dictionaries. Their values come before the values at the
    # top level, and values in other dictionaries come last.
    read_dictionaries = _dictionaries_of_class(dictionaries, family)
    in_read: list[Statement] = []
    in_unread: list[Statement] = []
    for name, settings in dictionaries.items():
        share = settings.get("partial_rotary_factor")
        if not _is_number(share):
            continue
        rotating = int(head_dim * share)  # dimensions
        statement = Statement(f"{name}.partial_rotary_factor", value=share, meaning=rotating)
        if name in read_dictionaries:
            in_read.append(statement)
        else:
            in_unread.append(statement)

    at_top = []
    for key in (*family.keys.partial, *family.keys.unread_partial):
        share = part.get(key)
        if _is_number(share):
            at_top.append(Statement(key, value=share, meaning=int(head_dim * share)))
    for key in family.keys.rotary_dim:
        dimensions = part.get(key)
        if _is_number(dimensions):
            at_top.append(Statement(key, value=dimensions, meaning=dimensions))
    return in_read + at_top + in_unread


def _type_statements(dictionaries: dict[str, Config]) -> list[Statement]:
    """The rope types: `rope_type` or, in older files, `type`."""
    statements = []
    for name, settings in dictionaries.items():
        for key in ("rope_type", "type"):
            kind = settings.get(key)
            if kind is not None:
                meaning = NOT_A_SCALING.get(kind, kind)
                statements.append(Statement(f"{name}.{key}", kind, meaning))
    return statements


def _trained_contexts(
    part: Config, family: Family, dictionaries: dict[str, Config]
) -> list[Statement]:
    """Return every value for the length that a scaling starts from.

    The one at the top level of the config comes first, since the class in transformers computes
    with it.

    Args:
        part: The part of config.json about the text model.
        family: The family of the model.
        dictionaries: The content of rope_scaling and rope_parameters, if the config has them.
    """
    statements = []

    # the top level counts for scalings that start from a length, such as YaRN, in classes that read
    # it there
    types = {settings.get("rope_type", settings.get("type")) for settings in dictionaries.values()}
    starts_from_length = not types.isdisjoint(SCALED_FROM)
    at_top = part.get(ORIGINAL)
    if starts_from_length and not family.writing.pinned_original and _is_number(at_top):
        statements.append(Statement(place=ORIGINAL, value=at_top, meaning=at_top))

    for name, settings in dictionaries.items():
        length = settings.get(ORIGINAL)
        if _is_number(length):
            statements.append(Statement(f"{name}.{ORIGINAL}", value=length, meaning=length))
    return statements


def _is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value is a number, which a truth value is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def refusal(found: Contradiction) -> str:
    """Return the message of an error for a contradiction, with its repair."""
    return (
        f"{found.sentence}; remove {found.other.place} from config.json, or"
        f" {found.obeyed.place} if the model was trained with the other"
    )


def refused_heads(part: Config, family: Family) -> str:
    """Return why transformers cannot run a model with fewer key heads than query heads.

    Returns "" for a model that can run. Only models with multi-head latent attention (MLA) fail.

    Args:
        part: The part of config.json about the text model.
        family: The family of the model.
    """
    # models that do not fail: models without MLA, classes outside transformers, which ignore
    # num_key_value_heads, and families whose class in transformers is right
    if not family.mla:
        return ""
    has_class_in_transformers = family.source.startswith("transformers models/")
    if not has_class_in_transformers:
        return ""
    if family.name in FAMILIES_WITH_RIGHT_KV_HEADS:
        return ""

    query_heads = positive_int(part, family.keys.heads, family.defaults.heads)
    if query_heads is None:
        return ""
    key_heads = kv_heads(part, family, query_heads)
    return fewer_heads_of_keys(query_heads, key_heads)


def fewer_heads_of_keys(heads: int, heads_of_keys: int) -> str:
    """Return the message for an MLA model with fewer key heads than query heads; else "".

    With MLA every head has keys of its own, which are made of a latent vector. The classes of
    transformers 5.23 repeat them `heads // heads_of_keys` times all the same
    (modeling_deepseek_v3.py, `repeat_kv`), and then have more keys than queries.

    Args:
        heads: `num_attention_heads`.
        heads_of_keys: `num_key_value_heads`.
    """
    if heads // heads_of_keys < 2:
        return ""
    return (
        f"config.json has {heads} attention heads and num_key_value_heads = {heads_of_keys}, and"
        " with MLA every head has its own keys, so transformers cannot run it; set"
        f" num_key_value_heads to {heads} in config.json"
    )
