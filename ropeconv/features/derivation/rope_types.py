"""Which RoPE settings a class accepts, and what it computes from them: the table [writing].

The experiment writes settings of each RoPE type into the config, with the base `PROBE_BASE`, and
measures the frequencies. Only types of which ropeconv reads the same frequencies are written for
the family; `derivation.py` compares them.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from .asked_model import Config, part_of
from .config_changes import is_nested, set_only, set_rope_type
from .frequency_numbers import first_rotation
from .model_runs import ModelRuns
from .rotation import Attention

if TYPE_CHECKING:
    from ropeconv.models.family import RopeType

ORIGINAL_CONTEXT = 64
"""The original context of scalings that are tried, in tokens."""


def describe_writing(runs: ModelRuns, rotating: Attention) -> Config:
    """Return the table [writing] of a family file: what the class accepts in a config.

    {"nested": True} for a class with a RoPE dictionary for each layer type. {"head_dim": False} for
    a class that does not read the key head_dim. {} for most classes.

    Args:
        runs: The model, which can be built from a changed config and run again.
        rotating: How the first layer that sees the whole context rotates queries and keys, as
            measured.
    """
    facts: Config = {}
    if is_nested(runs.text):
        facts["nested"] = True
    # in latent attention, head_dim is not the width of the part that rotates
    if runs.is_latent or not _accepts_head_dim(runs, rotating):
        facts["head_dim"] = False
    return facts


def try_rope_types(runs: ModelRuns, rotating: Attention) -> list[dict[str, Any]]:
    """Return the frequencies that a class computes for each RoPE type, such as "yarn".

    Args:
        runs: The model, which can be built from a changed config and run again.
        rotating: How the first layer that sees the whole context rotates queries and keys, as
            measured.

    Returns:
        {"kind": "yarn", "config": {...}, "inv_freq": [...]} for each type that the class accepts:
        the type, the config.json with settings of this type, and the frequencies of the first layer
        that rotates.
    """
    tried: list[dict[str, Any]] = []
    for rope_type, settings in settings_to_try(rotating).items():  # "yarn", {"factor": 4.0, ...}
        # run the model with the settings in its config
        write_settings = set_rope_type(runs.text, rope_type, settings)
        layers = runs.measure_changed(write_settings)
        rotation = first_rotation(layers)
        if rotation is None:  # the class does not run with these settings
            continue

        # the config.json of that run: the text part is below a key such as "text_config", or all
        config_json = copy.deepcopy(runs.subject.config_json)
        text_part = part_of(config_json, runs.subject.text_path)
        write_settings(text_part)
        inv_freq = list(rotation.inv_freq)
        tried.append({"kind": rope_type, "config": config_json, "inv_freq": inv_freq})
    return tried


def settings_to_try(rotating: Attention) -> dict[RopeType, Config]:
    """Return RoPE settings of each type, such as "yarn", with which a class is tried.

    Each has all keys that the type needs but the base, and an attention factor of 1 where the type
    has one.

    Args:
        rotating: The attention of the first global layer, which says how many factors longrope has.
    """
    assert rotating.queries is not None
    pairs = len(rotating.queries.inv_freq)
    # a different factor for each pair, to see that the class divides the right one
    factors = [1.0 + index / pairs for index in range(pairs)]
    original = {"original_max_position_embeddings": ORIGINAL_CONTEXT}
    return {
        "default": {},
        "linear": {"factor": 4.0},
        "dynamic": {"factor": 4.0},
        "yarn": {"factor": 4.0, "attention_factor": 1.0, **original},
        "longrope": {
            "factor": 4.0,
            "short_factor": factors,
            "long_factor": factors,
            "attention_factor": 1.0,
            **original,
        },
        "llama3": {"factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, **original},
    }


def _accepts_head_dim(runs: ModelRuns, rotating: Attention) -> bool:
    """Whether the class runs a config that states the width that its heads have."""
    layers = runs.measure_changed(set_only("head_dim", rotating.width))
    for attention in layers or ():
        if attention is not None:  # the first layer with attention
            return attention.width == rotating.width
    return False
