"""The families that the default run of the tests goes through, and how methods are crossed with
them.

A key of the family schema is a branch of ropeconv. REPRESENTATIVES cover every key that more than
three families use, so they are crossed with methods, encodings and runtimes. A key of three
families or fewer is covered by one of SINGLES: such a family gets one case of a matrix, since its
keys are about its own layers or tensors and no method knows them. All other families are in the
sample of the day, and all families with everything in `./scripts/test --all`. Their checkpoints, by
`models.make` or `llamacpp.checkpoint`, are made once and kept in `.cache/models`.
"""

from collections.abc import Collection, Sequence
from itertools import product
from typing import TypeVar

from .extent import ALL, sample
from .models import FAMILIES

T = TypeVar("T")

REPRESENTATIVES = (
    "llama",
    "qwen3",
    "phi3",
    "gemma3_text",
    "gemma4_text",
    "deepseek_v3",
    "glm4_moe",
    "llama4_text",
    "minimax_m2",
    "modernbert",
    "dbrx",
    "t5gemma2",
    "qwen3_5_text",
    "qwen4_exp_text",
    "dots3_note_text",
    "laguna",
)
SINGLES = (
    "apertus",
    "axk2",
    "cohere",
    "cohere_compass_text",
    "falcon",
    "falcon_h1",
    "gpt_neox",
    "granitemoehybrid",
    "hrm_text",
    "hunyuan_v1_moe",
    "hy_v4",
    "jetmoe",
    "kolibri1",
    "ministral3",
    "mistral4",
    "modernbert-decoder",
    "molmo2",
    "nemotron",
    "phimoe",
    "smollm3",
    "stablelm",
    "step3p7",
)


def crossed(cases: Sequence[T], count: int) -> list[tuple[str, T]]:
    """Return some cases with each representative, one with each single family, and a sample of all
    other pairs.

    Args:
        cases: What a family is combined with.
        count: How many cases the representatives have on one day.
    """
    pairs = list(product(FAMILIES, cases))
    if ALL:
        return pairs
    chosen = list(product(REPRESENTATIVES, sample(cases, count)))
    for seed, family in enumerate(SINGLES):
        chosen += [(family, case) for case in sample(cases, 1, seed)]
    others = [pair for pair in pairs if pair[0] not in {*REPRESENTATIVES, *SINGLES}]
    return chosen + sample(others, 0)


def some(families: Collection[str] = FAMILIES) -> list[str]:
    """Return the representatives among families and a tenth of the others; all of them in
    `--all`.
    """
    others = sample([family for family in families if family not in REPRESENTATIVES])
    return [family for family in families if family in REPRESENTATIVES or family in others]
