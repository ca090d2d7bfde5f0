"""Saved recipes, of every method."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from random import Random
from typing import Any

from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import MODIFIERS

from ..folders import small_config
from ..formats import Commands, register
from ..json_mutations import Raw, changed, text_of

SEEDS: tuple[dict[str, Any], ...] = (
    {"method": "yarn", "parameters": {"factor": 4.0, "beta_fast": 32.0, "beta_slow": 1.0}, "context": 256},
    {"method": "linear", "parameters": {"factor": "1k"}, "attention_factor": 1.1},
    {"method": "theta", "parameters": {"base": 1e6}, "temperature_slope": 0.1, "temperature_intercept": 1.0},
    {"method": "theta-for", "parameters": {"target": 1024}},
    {"method": "longrope", "parameters": {"long_factor": [2.0] * 8, "short_factor": [1.0] * 8}, "context": 256},
    {"method": "inv-freq", "parameters": {"inv_freq": [0.5] * 8}},
    {"method": "piecewise", "parameters": {"spec": "8@4"}},
    {"method": "dynamic", "parameters": {"kind": "ntk:2", "at": 256}},
    {"method": "mixed", "parameters": {"factor": 4.0}, "log_n": "clamped", "log_n_length": 32},
    {"method": "as-is", "parameters": {"on": True}},
    {"ropeconv": "0.1", "schema": 2, "recipe": {"method": "yarn", "parameters": {"factor": 4.0}}},
)
KEYS = (*MODIFIERS, "method", "parameters", *(f.name for m in REGISTRY.values() for f in dataclasses.fields(m)))
VALUES = (
    *REGISTRY,
    "128k",
    "1M",
    "9" * 400 + "k",
    "ntk:1e9",
    "yarn:2",
    "4@2",
    "9" * 400,
    "9" * 5000 + "@1",
    Raw("4"),
    "full",
)
COMMANDS: Commands = [
    ["apply", "config.json", "--recipe", "recipe.json", "--dry-run"],
    ["apply", "config.json", "--recipe", "recipe.json", "-o", "out"],
    ["apply", "config.json", "--recipe", "recipe.json", "--context", "512", "--dry-run", "--json"],
    ["apply", "config.json", "--recipe", "recipe.json", "--on-top", "--dry-run"],
    ["schedule", "--recipe", "recipe.json", "--head-dim", "16"],
    ["schedule", "--recipe", "recipe.json", "--head-dim", "16", "--json"],
    ["bound", "--recipe", "recipe.json", "--head-dim", "16"],
]


@register("recipe")
def write(random: Random, folder: Path) -> Commands:
    (folder / "config.json").write_text(json.dumps(small_config()))
    made = changed(random, random.choice(SEEDS), KEYS, VALUES)
    (folder / "recipe.json").write_bytes(text_of(random, made))
    return random.sample(COMMANDS, 2)
