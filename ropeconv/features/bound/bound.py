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
    """Return the smallest base (`rope_theta`) that keeps similar tokens preferred up to a length.

    Let a query of d dimensions, of which r rotate with the frequencies theta_i, meet a similar key
    m tokens before it, and a random one. The logit of the similar key is larger, on average, if
    sum_i cos(m theta_i) + (d - r)/2 is positive. The bound of Men et al. 2024,
    https://arxiv.org/abs/2405.14591, is that this sum is not negative for any distance m below the
    length. The bases that keep it are intervals, with gaps between them.

    Args:
        length: Tokens, or a text such as "128k".
        rotary_dim: Dimensions r of a head that rotate; None for all.
        head_dim: Dimensions d of a head; None for 128.
        windows: Look for the first interval of bases that is 1 % wide, and the last base that
            violates the bound. None looks up to 1M tokens for the former, and up to 128k for the
            latter, which takes half a minute each.
        proof: A list to which (ln b1, ln b2, m) is appended for each interval of bases b1 to b2 in
            which the sum at distance m is negative. These intervals have no gaps up to the result.
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
