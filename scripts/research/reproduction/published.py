"""What was published, with its sources. Numbers that are not at hand are not here."""

SU = "Su 2023, https://kexue.fm/archives/9706 and https://kexue.fm/archives/9708"
SU_BASE = "Su 2024, https://kexue.fm/archives/10122"
MEN = "Men et al. 2024, https://arxiv.org/abs/2405.14591"
PENG = "Peng et al. 2023, https://arxiv.org/abs/2309.00071"
LAW = (
    "Liu et al. 2024, https://arxiv.org/abs/2310.05209; Gradient 2024,"
    " https://gradient.ai/blog/scaling-rotational-embeddings-for-long-context-language-models"
)

ACCURACY: dict[str, tuple[float, float, float]] = {
    "base": (49.41, 24.17, 23.16),
    "linear": (49.41, 15.04, 13.54),
    "ntk-old": (49.41, 51.28, 39.27),
    "ntk-fixed": (49.41, 51.86, 39.61),
    "mixed 0.625": (49.41, 53.09, 40.12),
    "ntk-fixed, log-n clamped": (49.41, 55.94, 41.11),
    "mixed 0.625, log-n clamped": (49.41, 59.11, 42.38),
    "base, log-n trained": (49.40, 24.60, 24.02),
    "linear, log-n trained": (49.40, 14.99, 16.51),
    "ntk-old, log-n trained": (49.40, 61.71, 43.75),
    "ntk-fixed, log-n trained": (49.40, 62.85, 44.14),
    "mixed 0.625, log-n trained": (49.40, 68.91, 45.41),
}
"""Next-token accuracy in percent, of a model of 100 million parameters (gated attention units)
trained with 512 tokens, at 512 tokens, at 4,096 of repeated text and at 4,096 of text, all methods
with factor 8: Su 2023.
"""

XIONG = "Xiong et al. 2023, https://arxiv.org/abs/2309.16039"

SLOPES = {"Llama": 0.1, "Mistral": 0.07}
"""a in the attention factor a ln s + 1: Peng et al. 2023."""


def difference(first: str, second: str, column: int) -> float | None:
    """The published difference of two rows of `ACCURACY`, in percentage points; None where a row
    was not published.
    """
    if first not in ACCURACY or second not in ACCURACY:
        return None
    return ACCURACY[first][column] - ACCURACY[second][column]
