"""Models with an encoder and a decoder: both halves have to have the same RoPE, since one recipe is about both."""

from __future__ import annotations

from ..errors import BadSource
from ..families import Family
from ..families.config import Config, halves
from ..rope.spec import RopeSpec
from ..runtimes.compare import difference
from ..runtimes.read_config import read_spec

SAME = {
    "head_dim": "the width of a head",
    "rotary_dim": "the dimensions that rotate",
    "original_context": "the trained context",
    "context": "the context",
}
"""What halves have to have in common beside their frequencies, and in words."""


def check_halves(config: Config, family: Family, spec: RopeSpec) -> None:
    """Raises BadSource where a further half has another RoPE than the one that is read.

    config: of the whole model. family: of the model. spec: the RoPE of the half that is read.
    """
    for path, whole in halves(config, family):
        other = read_spec(whole, family)
        found = ((getattr(spec, name), getattr(other, name), words) for name, words in SAME.items())
        why = next((f"{words} is {seen:,} there, not {own:,}" for own, seen, words in found if own != seen), "")
        why = why or difference(spec.current(), spec, other)
        if why:
            raise BadSource(
                f"config.json has another RoPE in {path} than in {family.halves[0]} ({why}), and one recipe changes "
                "both alike; give both the same first"
            )
