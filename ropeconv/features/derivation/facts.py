"""Derive the facts of a model family from the class of a model, by running it.

Read `derive` first. It builds the model of a config without weights, and finds everything that a
family file states by experiments. Nothing is read from source code. Each module has one experiment
and explains it at its beginning:

layer_kinds        which layers rotate, and how their kinds are laid out      [layers]
frequency_keys     which config keys change the frequencies                   [keys]
default_values     what counts where a config does not have these keys        [defaults]
windows            which layers have a sliding window                         [window]
rope_types         which RoPE settings the class accepts                      [writing]
weight_rows        which tensors make queries and keys, in which order        [weights]
frequency_numbers  the frequencies and factors themselves, for the comparison

They use `model_runs` (the model, run in many ways), `projections` (which modules make queries and
keys), `rotation` (how numbers rotate), `observing` (hooks into the model), `norms`, `asked_model`
and `config_changes` (the config), and `weightless` (running a model without weights).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from .asked_model import AskedModel, Config, NotDerivable, first_layers
from .default_values import describe_defaults
from .frequency_keys import describe_keys, find_effective_keys
from .frequency_numbers import measure_numbers, note_unknown_scales
from .layer_kinds import describe_layers, find_kinds, find_widths, types_of_layers
from .model_runs import ModelRuns
from .rope_types import describe_writing, try_rope_types
from .weight_rows import describe_weights, find_layout
from .windows import describe_window


@dataclass
class Answer:
    """The facts that a class shows, and its numbers for one config."""

    family: Config = field(default_factory=dict)
    """The fields of a family file."""

    not_derived: list[str] = field(default_factory=list)
    """Sentences about what could not be found."""

    measured: Config = field(default_factory=dict)
    """The frequencies, layers and factors of this model, as its class computes them."""

    tried: list[Config] = field(default_factory=list)
    """Other RoPE settings, and the frequencies that the class computes from them."""

    effective: list[str] = field(default_factory=list)
    """The keys about RoPE of this config that change the frequencies, one at a time."""


def derive(subject: AskedModel) -> Answer:
    """Run the class of a model without weights, and return the fields of its family file.

    A family file says how a type of models computes RoPE: which config keys have the base and the
    sizes, which layers rotate, and which tensors make queries and keys.

    Args:
        subject: The model: its config.json and its class.

    Raises:
        NotDerivable: The model rotates in a way that no family describes, or not at all.
    """
    # run the model once, to find the modules that make queries and keys
    text = subject.unchanged()  # the config of the text model
    if getattr(text, "is_encoder_decoder", False):
        raise NotDerivable("it has an encoder and a decoder, which are two models")
    runs = ModelRuns(subject, text, first_layer_count=first_layers(text))

    # how each layer rotates, and its kind, such as ["local", "local", "global", ...]
    attention = runs.measure_model(text)
    types = types_of_layers(text, len(attention))
    kinds, rotations = find_kinds(attention, types)
    rotating = attention[kinds.index("global")]  # the first layer that sees the whole context
    assert rotating is not None
    assert rotating.queries is not None
    # from here on, run only the first layers, as many as have every kind
    runs.limit_to_kinds(kinds, find_widths(attention, kinds))

    # One experiment for each table of the file. An experiment that does not find a fact appends a
    # sentence to `not_derived`.
    answer = Answer()
    not_derived = answer.not_derived
    layout = find_layout(runs, rotating)
    keys = describe_keys(runs, rotating, rotations)
    family: Config = {
        "layout": layout,
        "mla": runs.is_latent,
        "keys": keys,
        "defaults": describe_defaults(runs, rotating, keys),
        "layers": describe_layers(types, kinds, subject.text_part, text, not_derived),
        "window": describe_window(runs, types, not_derived),
        "writing": describe_writing(runs, rotating),
        "weights": describe_weights(runs, rotating, not_derived),
        "encoder": runs.sees_later_tokens,
        "still_pairs": 0.0 in rotating.queries.inv_freq,
    }
    # a family file states only what is not usual
    answer.family = {key: value for key, value in family.items() if value not in ({}, False)}
    note_unknown_scales(runs, attention, rotating, not_derived)

    # What the class computes, to compare it with what ropeconv reads by this family: frequencies
    # for each RoPE type, keys that change its RoPE, and its RoPE as numbers.
    answer.tried = try_rope_types(runs, rotating)
    answer.effective = find_effective_keys(runs, attention)
    answer.measured = measure_numbers(runs, rotating, kinds, rotations)
    return answer
