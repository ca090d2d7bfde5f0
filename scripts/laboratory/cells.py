"""Cells of the lab: a model, a method and an encoding; the config that a runtime gets, and what it
has to compute.
"""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ropeconv.convert.encoding import ENCODINGS, CheckpointResult, EncodeRequest
from ropeconv.convert.target import Target
from ropeconv.models.config import detect
from ropeconv.models.family import Family
from ropeconv.rope.errors import RecipeError, RopeconvError
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.schedule import Schedule
from ropeconv.rope.spec import RopeSpec
from ropeconv.runtimes.read_config import read_spec

from .sources import published_configs, tiny_configs, wrapper_configs

AS_IS, SOURCE = "as-is", "source"

NOT_IN_RECORDS = ("ramp",)
"""Encodings that are younger than the records, whose digests are about the cells of the others."""


def methods(spec: RopeSpec) -> dict[str, Recipe]:
    """Return the recipes of the lab by name.

    Args:
        spec: The unscaled RoPE of the model.
    """
    length = spec.original_context
    pairs = spec.rotary_dim // 2
    short = tuple(1.0 + i / pairs for i in range(pairs))
    long = tuple(1.0 + 3 * (i / pairs) ** 2 for i in range(pairs))
    return {
        "theta": Recipe(REGISTRY["theta"](8 * spec.rope_theta), context=4 * length),
        "linear": Recipe(REGISTRY["linear"](4.0)),
        "ntk": Recipe(REGISTRY["ntk"](4.0)),
        "ntk-old": Recipe(REGISTRY["ntk-old"](4.0)),
        "ntk-fixed": Recipe(REGISTRY["ntk-fixed"](4.0)),
        "mixed": Recipe(REGISTRY["mixed"](4.0)),
        "mixed, attention factor": Recipe(REGISTRY["mixed"](4.0), attention_factor=1.2),
        "by-parts": Recipe(REGISTRY["by-parts"](4.0)),
        "yarn": Recipe(REGISTRY["yarn"](4.0)),
        "yarn, no attention factor": Recipe(REGISTRY["yarn"](4.0), attention_factor=1.0),
        "yarn, attention factor": Recipe(REGISTRY["yarn"](4.0), attention_factor=1.3),
        "yarn, betas": Recipe(REGISTRY["yarn"](4.0, beta_fast=16.0, beta_slow=2.0)),
        "yarn, no truncation": Recipe(REGISTRY["yarn"](4.0, truncate=False)),
        "llama3": Recipe(REGISTRY["llama3"](4.0)),
        "longrope": Recipe(REGISTRY["longrope"](long, short), context=4 * length),
        "dynamic yarn": Recipe(REGISTRY["dynamic"]("yarn:4", 3 * length)),
        AS_IS: Recipe(REGISTRY["as-is"]()),
    }


PUBLISHED = (AS_IS, "theta", "linear", "mixed", "yarn", "llama3")
"""The methods that published configs are given; the tiny ones get all."""

SAMPLE = (
    SOURCE,
    "theta / native",
    "linear / native",
    "yarn / native",
    "llama3 / native",
    "longrope / native",
    "mixed / factors",
)
"""The cells of a sample: one for each rope type."""


@dataclass(frozen=True)
class Cell:
    """One question to a runtime: what does it compute from this config?"""

    model: str
    """A family, for its tiny config, or the stem of a published config."""

    method: str
    """A name of `methods`, such as "yarn, betas"."""

    encoding: str
    """A value of `--encoding`; empty for the source itself."""

    config: dict[str, Any]
    """The whole config.json."""

    schedule: Schedule
    """The frequencies and factors that are to be computed."""

    before: RopeSpec
    """The RoPE of the source."""

    family: Family
    """The family that reads the config."""

    result: CheckpointResult | None = None
    """The result of the encoding; None for the source itself."""

    @property
    def name(self) -> str:
        """The method and encoding, as the records have them."""
        return f"{self.method} / {self.encoding}" if self.encoding else self.method

    @property
    def key(self) -> str:
        """A digest of the config, by which programs answer."""
        return config_key(self.config)

    @property
    def question(self) -> dict[str, Any]:
        """The question as `programs/protocol.py` explains it."""
        return {
            "id": self.key,
            "label": f"{self.model}: {self.name}",
            "config": self.config,
            "trained": self.schedule.original_context,
            "context": self.schedule.context,
        }


def config_key(config: dict[str, Any]) -> str:
    """A digest of a config."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()[:16]


def sources(tiny: bool = True, published: bool = True) -> dict[str, dict[str, Any]]:
    """The configs of the lab by name."""
    forms: dict[str, dict[str, Any]] = {}
    if tiny:
        forms |= dict(tiny_configs()) | dict(wrapper_configs())
    if published:
        forms |= dict(published_configs())
    return forms


def cells(model: str, config: dict[str, Any]) -> Iterator[Cell]:
    """Yield every cell of a model: a method, and an encoding in which config.json can hold it.

    The first cell is the config unchanged. A model in another shape of publication than its family,
    such as a wrapper, has the cells of the methods in `PUBLISHED` only.

    Args:
        model: The name of the model, which is that of its family or of a wrapper.
        config: Its config.json.
    """
    family = detect(config)
    if family.refuse:
        return
    current = read_spec(config, family)
    base = current.unscaled() if current.scaled else current
    yield Cell(model, SOURCE, "", config, current.current(), current, family)
    for method, recipe in methods(base).items():
        if model != family.name and method not in PUBLISHED:
            continue
        spec = current if method == AS_IS else base
        try:
            schedule = recipe.schedule(spec)
        except (RecipeError, RopeconvError):  # this model cannot have the method
            continue
        for name, encoding in ENCODINGS.items():
            if not encoding.config_only or name in NOT_IN_RECORDS:
                continue
            target = Target(encoding=name, replace=method != AS_IS)
            try:
                result = encoding.encode(EncodeRequest(schedule, spec, family, config, target))
            except (RopeconvError, RecipeError):  # this encoding cannot hold it
                continue
            yield Cell(model, method, name, result.config, schedule, spec, result.family, result)
