"""The schema of rule sets: how a model file of a runtime reads the RoPE of a config."""

from __future__ import annotations

from typing import Literal

import msgspec

from ..families.gguf import Need

Status = Literal["exact", "rounded", "approximate", "differs", "ignored", "refused", "unsupported", "unknown"]
"""Statuses of a verdict, best first; `runtimes.verdict.judge` explains each."""
GOOD: tuple[Status, ...] = ("exact", "rounded")
RUNS: tuple[Status, ...] = (*GOOD, "approximate")
SILENT: tuple[Status, ...] = ("differs", "ignored")
WRONG: tuple[Status, ...] = (*SILENT, "refused")

Source = Literal["attention_factor", "mscale", "short_mscale", "formula", "1"]


class TypeRules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How one `rope_type` is read.

    status, reason: an outcome that holds whatever the numbers are; empty where the config is read by the rest.
    beyond_trained: whether that holds only where the context is longer than the trained one.
    read_as: another rope type whose rules hold for the keys of this one.
    required, forbidden: keys of the RoPE dictionary without which, and with which, it is refused.
    original: "key" (original_max_position_embeddings, else the declared context) or "max" (the declared context).
    times_original: what it is multiplied by for the ramp of yarn.
    alpha: whether the key alpha makes dynamic a fixed base, theta alpha^(r/(r-2)) (Hunyuan).
    factor: "key" or "max/original".
    attention_factor: its sources in order of precedence; "1" means that it is 1.
    times_attn_factor: whether the key attn_factor multiplies it.
    betas: whether these keys are read. truncate: whether that key is, "read-flat" beside the layer types only.
    partial: the status of models that do not rotate the whole head, empty where they are fine.
    half_only: the status for interleaved pairs, empty where they are fine.
    formula_always: whether the formula, which divides by ln(original), is evaluated even where the attention factor has
    another source.
    lists: which of two factor lists is used, "trained" (the long one in forward passes that go beyond the trained
    length), "long" or "short" (always that one), "window" (the long one for every position, where the window that it is
    started with is longer than the trained length, else the short one), "mixed" (by position inside one sequence), or
    "refused" where they differ.
    whole_base: whether the base is cut to a whole number.
    query_beta: whether queries are scaled by position under this type, in families that do so.
    window: a remark on the default context window where that is not the declared context.
    source: where the rules are stated.
    """

    status: Literal["", "differs", "ignored", "refused", "unsupported", "unknown"] = ""
    reason: str = ""
    beyond_trained: bool = False
    read_as: str = ""
    required: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()
    original: Literal["key", "max"] = "key"
    times_original: int = 1
    alpha: bool = False
    factor: Literal["key", "max/original"] = "key"
    attention_factor: tuple[Source, ...] = ("1",)
    times_attn_factor: bool = False
    betas: bool = True
    truncate: Literal["read", "read-flat", "ignored"] = "read"
    partial: Literal["", "differs", "refused"] = ""
    half_only: Literal["", "differs", "refused"] = ""
    formula_always: bool = False
    lists: Literal["trained", "long", "short", "window", "mixed", "refused"] = "trained"
    whole_base: bool = False
    query_beta: bool = True
    window: str = ""
    source: str = ""


class RuleSet(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a group of model files reads the RoPE of a config.

    schemas: the dictionaries that they read; the first that is present counts.
    theta: where they read the base, "top" (the top-level key only), "dict" (the dictionary, else the top level),
    "nested" (the dictionary only), or a number where the base is fixed.
    status, reason: an outcome that holds for every config.
    required: keys without which they fail or compute something else. need: values without which they fail.
    types: rules per rope type. type_key: the key of the rope type that they prefer.
    other: the status for a rope type without rules, and other_reason why.
    query_beta: where they read the slope of query scaling by position, "rope" (the RoPE dictionary), "top"
    (`llama_4_scaling` at the top level) or nowhere.
    query_length: where it is not 0, the length of that is the top-level original_max_position_embeddings, else this
    number of tokens.
    softmax_scale: what scales the logits of MLA, "mscale_all_dim", the same "unless-one" is the attention_factor, any
    "factor" with or without that key, or "none".
    local: what window layers rotate with, their "own" base, the "same-theta" as the others without scaling, or the
    "same" as the others.
    own_text_config: the status of a config that has a text_config and the model type of that (as Ministral 3 was
    published), and own_text_config_reason why.
    source: where it is stated.
    """

    schemas: tuple[Literal["rope_scaling", "rope_parameters"], ...]
    theta: Literal["top", "dict", "nested"] | float
    status: Literal["", "differs", "ignored", "refused", "unsupported"] = ""
    reason: str = ""
    required: dict[str, Literal["refused", "differs"]] = {}
    need: tuple[Need, ...] = ()
    types: dict[str, TypeRules] = {}
    type_key: Literal["type", "rope_type"] = "rope_type"
    other: Literal["ignored", "refused", "unknown"] = "unknown"
    other_reason: str = ""
    query_beta: Literal["rope", "top", ""] = ""
    query_length: int = 0
    softmax_scale: Literal["mscale_all_dim", "unless-one", "factor", "none"] = "mscale_all_dim"
    local: Literal["own", "same-theta", "same"] = "own"
    own_text_config: Literal["", "refused", "unknown"] = ""
    own_text_config_reason: str = ""
    source: str = ""

    @property
    def nested(self) -> bool:
        """Whether `rope_parameters` per layer type is read."""
        return "rope_parameters" in self.schemas


class FamilyStatement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a runtime does with some model families: the rule set that their model files follow, or that it has none.

    names: of the families. model_types: of the config as a whole, where only those are meant (a text model alone, or
    one beside a vision model). rules: the rule set. unsupported: why it cannot run them at all. unknown: what
    nobody has looked at yet. source: where that is stated.
    """

    names: tuple[str, ...]
    model_types: tuple[str, ...] = ()
    rules: str = ""
    unsupported: str = ""
    unknown: str = ""
    source: str = ""


class KeyStatement(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a runtime does with a config key that changes what its attention computes.

    names: of the keys. families: those whose model files read them; empty for those that the extracted keys say.
    status, reason: the outcome where one of them is in a config. source: where that is stated.
    """

    names: tuple[str, ...]
    status: Literal["differs", "ignored", "refused", "unknown"]
    reason: str
    families: tuple[str, ...] = ()
    source: str = ""
