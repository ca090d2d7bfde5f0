"""Packets of all methods and architectures in one folder, with an index."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

import ropeconv
from ropeconv.features.vectors.tiny import TRAINED, shape_of, shapes
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.forms import base_inv_freq
from ropeconv.rope.methods.method import REGISTRY
from ropeconv.rope.recipe import Recipe, parse_recipe

CONTEXT = 8 * TRAINED
"""The length that every packet declares, in tokens."""


def longrope(pairs: int) -> Recipe:
    """Return two lists of factors, which differ."""
    method = REGISTRY["longrope"](
        long_factor=tuple(np.linspace(1, 12, pairs).round(3).tolist()),
        short_factor=tuple(np.linspace(1, 2, pairs).round(3).tolist()),
    )
    return Recipe(method, context=CONTEXT)


def inv_freq(pairs: int) -> Recipe:
    """Return frequencies that no formula gives."""
    divisors = 1 + 7 * np.linspace(0, 1, pairs) ** 3
    frequencies = base_inv_freq(10_000.0, 2 * pairs) / divisors
    return Recipe(REGISTRY["inv-freq"](tuple(frequencies.tolist())), context=CONTEXT)


def piecewise(pairs: int) -> Recipe:
    """Return two bases, split at five eighths of the pairs."""
    return parse_recipe(f"piecewise:8@{pairs * 5 // 8}")


TEXTS = {
    "theta": f"theta:5e7:context={CONTEXT}",
    "theta-for": f"theta-for:{CONTEXT}",
    "theta-bound": f"theta-bound:{CONTEXT}",
    "linear": "linear:8",
    "ntk": "ntk:8",
    "ntk-old": "ntk-old:8",
    "ntk-fixed": "ntk-fixed:8",
    "mixed": "mixed:8",
    "by-parts": "by-parts:8",
    "yarn": "yarn:8",
    "llama3": "llama3:8",
    "dynamic": f"dynamic:ntk:8:at={CONTEXT}",
}
"""The recipe of each method, as texts."""
BY_PAIRS: dict[str, Callable[[int], Recipe]] = {
    "longrope": longrope,
    "inv-freq": inv_freq,
    "piecewise": piecewise,
}
"""The recipes of methods that depend on the number of rotating pairs."""


def method_names() -> list[str]:
    """Return the names of all methods that extend a model."""
    return [name for name in REGISTRY if name != "as-is"]


def family_names() -> list[str]:
    """Return the names of all architectures."""
    return list(shapes().families)


def recipe_of(text: str, family: str) -> Recipe:
    """Return the recipe of a method name, or of a text such as "yarn:8"."""
    if text in BY_PAIRS:
        settings = shape_of(family).settings
        share = settings.get("partial_rotary_factor", settings.get("rotary_pct", 1.0))
        return BY_PAIRS[text](int(32 * float(str(share))))
    return parse_recipe(TEXTS.get(text, text))


def build_all(folder: Path, families: Sequence[str], methods: Sequence[str]) -> None:
    """Write the packets, and index.json with their sizes and with the reasons of those refused."""
    index: dict[str, dict[str, object]] = {}
    for family in families:
        for method in methods:
            name = f"{family}/{method.partition(':')[0]}"
            try:
                packet = ropeconv.vectors(family, recipe_of(method, family), folder / name)
            except RopeconvError as problem:
                index[name] = {"refused": str(problem)}
                print(f"{name}: refused, {problem}", flush=True)
                continue
            index[name] = {
                "title": packet.title,
                "bytes": packet.bytes,
                "mistakes": len(packet.candidates) - 1,
                "no_gguf": packet.no_gguf,
            }
            print(f"{name}: {packet.bytes / 1e6:.1f} MB", flush=True)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "index.json").write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def label(packet: Path) -> str:
    """Return the name of a packet in the folder of the answers."""
    return f"{packet.parent.name}-{packet.name}"
