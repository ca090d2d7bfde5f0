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
SHARE = "partial_rotary_factor"
SCALED_FROM = ("yarn", "llama3", "longrope")
"""Types whose scaling starts from ORIGINAL."""


HEADS_OF_CLASS = frozenset({"hy_v4"})
"""MLA families whose class gives num_key_value_heads the number of query heads, whatever it is."""


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

    rope_theta = 10000.0 beside rope_parameters = {"rope_theta": 1000000.0} is one for "the base".

    Args:
        part: The part of config.json about the text model.
        family: The family of the model.
        head_dim: The width of a head.
    """
    dictionaries = _dictionaries(part, family)
    for setting, statements in (
        ("the base", _bases(part, family, dictionaries)),
        ("the dimensions that rotate", _rotating(part, family, dictionaries, head_dim)),
        ("the rope type", _types(dictionaries)),
        ("the trained context", _originals(part, family, dictionaries)),
    ):
        yield from _differing(setting, statements)

    # every other key that both dictionaries have, rope_scaling and rope_parameters
    if len(dictionaries) < 2:
        return
    first_name, second_name = dictionaries
    first = dictionaries[first_name]
    second = dictionaries[second_name]
    compared_above = {"rope_type", "type", "rope_theta", SHARE, ORIGINAL}
    for key in first:
        if key in second and key not in compared_above:
            statements = [
                Statement(f"{first_name}.{key}", first[key], first[key]),
                Statement(f"{second_name}.{key}", second[key], second[key]),
            ]
            yield from _differing(key, statements)


def _differing(setting: str, statements: list[Statement]) -> Iterator[Contradiction]:
    """Yield the contradiction between the first statement and the first one that differs."""
    for statement in statements[1:]:
        if statement.meaning != statements[0].meaning:
            yield Contradiction(setting, statements[0], statement)
            return


def _dictionaries(part: Config, family: Family) -> dict[str, Config]:
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


def _before_top_level(dictionaries: dict[str, Config], family: Family) -> dict[str, Config]:
    """The dictionaries whose values win over those of the top level."""
    # convert_rope_params_to_dict of transformers 5.23 has `rope_scaling or self.rope_parameters`.
    # Classes with a dictionary for each layer type update the one of all global layers instead.
    if family.writing.nested:
        return dictionaries
    return dict(list(dictionaries.items())[:1])


def _bases(part: Config, family: Family, dictionaries: dict[str, Config]) -> list[Statement]:
    """All places where a config states the base, first the one that its class in transformers uses.

    {"rope_theta": 10000.0, "rope_parameters": {"rope_theta": 1000000.0}} gives the statement of
    rope_parameters and then that of the top level.

    Args:
        part: The part of config.json about the text model.
        family: The family of the model, which knows the names of the base.
        dictionaries: The content of rope_scaling and rope_parameters, if the config has them.
    """
    # the class uses a dictionary before a key of the top level, but of two dictionaries only one
    before_top = _before_top_level(dictionaries, family)
    in_first: list[Statement] = []
    in_others: list[Statement] = []
    for name, settings in dictionaries.items():
        base = settings.get("rope_theta")
        if not _is_number(base):
            continue
        statement = Statement(f"{name}.rope_theta", base, float(base))
        if name in before_top:
            in_first.append(statement)
        else:
            in_others.append(statement)

    at_top = []
    for key in family.keys.theta:
        base = part.get(key)
        if _is_number(base):
            at_top.append(Statement(key, base, float(base)))
    return in_first + at_top + in_others


def _rotating(
    part: Config, family: Family, dictionaries: dict[str, Config], head_dim: int
) -> list[Statement]:
    """All places where a config states how many dimensions of a head rotate.

    A config states them as a share of the head (partial_rotary_factor = 0.5), or as a number. The
    first place is the one that its class in transformers uses.

    Args:
        part: The part of config.json about the text model.
        family: The family of the model, which knows the names of these keys.
        dictionaries: The content of rope_scaling and rope_parameters, if the config has them.
        head_dim: The width of a head.
    """
    if not family.keys.partial:  # all dimensions rotate
        return []
    # the class uses a dictionary before a key of the top level, but of two dictionaries only one
    before_top = _before_top_level(dictionaries, family)
    in_first: list[Statement] = []
    in_others: list[Statement] = []
    for name, settings in dictionaries.items():
        share = settings.get(SHARE)
        if not _is_number(share):
            continue
        statement = Statement(f"{name}.{SHARE}", share, int(head_dim * share))
        if name in before_top:
            in_first.append(statement)
        else:
            in_others.append(statement)

    at_top = []
    for key in family.keys.partial:
        share = part.get(key)
        if _is_number(share):
            at_top.append(Statement(key, share, int(head_dim * share)))
    for key in family.keys.rotary_dim:
        dimensions = part.get(key)
        if _is_number(dimensions):
            at_top.append(Statement(key, dimensions, dimensions))
    return in_first + at_top + in_others


def _types(dictionaries: dict[str, Config]) -> list[Statement]:
    """The rope types: `rope_type` or, in older files, `type`."""
    statements = []
    for name, settings in dictionaries.items():
        for key in ("rope_type", "type"):
            kind = settings.get(key)
            if kind is not None:
                meaning = NOT_A_SCALING.get(kind, kind)
                statements.append(Statement(f"{name}.{key}", kind, meaning))
    return statements


def _originals(part: Config, family: Family, dictionaries: dict[str, Config]) -> list[Statement]:
    """The lengths that a scaling starts from, first that of the class."""
    statements = []
    at_top = part.get(ORIGINAL)
    kinds = {settings.get("rope_type", settings.get("type")) for settings in dictionaries.values()}
    is_scaled = not kinds.isdisjoint(SCALED_FROM)
    if _is_number(at_top) and is_scaled and not family.writing.pinned_original:
        statements.append(Statement(ORIGINAL, at_top, at_top))
    for name, settings in dictionaries.items():
        inside = settings.get(ORIGINAL)
        if _is_number(inside):
            statements.append(Statement(f"{name}.{ORIGINAL}", inside, inside))
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
    """Return why transformers cannot run a model with MLA for its head counts; empty if it can.

    Args:
        part: The part of config.json about the text model.
        family: The family of the model.
    """
    # the classes of other packages do not read num_key_value_heads
    is_of_transformers = family.source.startswith("transformers models/")
    if not family.mla or not is_of_transformers or family.name in HEADS_OF_CLASS:
        return ""
    heads = positive_int(part, family.keys.heads, family.defaults.heads)
    if heads is None:
        return ""
    return fewer_heads_of_keys(heads, kv_heads(part, family, heads))


def fewer_heads_of_keys(heads: int, heads_of_keys: int) -> str:
    """Return the message of an error for an MLA model whose heads share keys; empty if they do not.

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
