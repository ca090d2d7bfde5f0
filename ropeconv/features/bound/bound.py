"""`ropeconv.bound`: the smallest base for a length."""

from collections.abc import Callable

from ropeconv.rope.bound.answer import Bound
from ropeconv.rope.bound.answer import bound as compute_bound
from ropeconv.rope.lengths import parse_tokens
from ropeconv.verbs.arguments import check_arguments
from ropeconv.verbs.given_model import head_size


@check_arguments
def bound(
    length: int | str,
    rotary_dim: int | None = None,
    head_dim: int | None = None,
    windows: bool | None = None,
    proof: list[tuple[float, float, int]] | None = None,
    tell: Callable[[str], None] = lambda message: None,
) -> Bound:
    """Return the smallest base that keeps near tokens preferred up to a length.

    The bound of Men et al. 2024, https://arxiv.org/abs/2405.14591: sum_i cos(m theta_i) + (d - r)/2
    must not be negative for any distance m.

    Args:
        length: Tokens, or a text such as "128k".
        rotary_dim: Dimensions r of a head that rotate; None for all.
        head_dim: Dimensions d of a head; None for 128.
        windows: Look for the first interval of bases that is 1 % wide, and the last base that
            violates the bound; None where that is quick.
        proof: A list to which (from ln b, to ln b, distance) is appended for each interval of bases
            that the distance rules out.
        tell: Is called with sentences about the progress of long searches.

    Raises:
        RecipeError: For lengths beyond 2^27.
        UsageError: For dimensions that do not fit together.
    """
    width, rotary = head_size(head_dim or rotary_dim, rotary_dim)
    return compute_bound(
        parse_tokens(str(length)),
        rotary_dim=rotary,
        head_dim=width,
        windows=windows,
        proof=proof,
        tell=tell,
    )
