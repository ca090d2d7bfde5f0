"""`ropeconv.compare`: how the RoPE of two models differs."""

from ropeconv.inspection.inspection import Inspection, inspect_source
from ropeconv.verbs.arguments import check_arguments, source_of

from .side_by_side import RopeDifference, side_by_side


@check_arguments
def compare(first: object, second: object, family: str = "") -> RopeDifference:
    """Compare the RoPE of two models. Parameters and errors are those of `inspect`."""
    return side_by_side(_inspect_rope(first, family), _inspect_rope(second, family))


def _inspect_rope(model: object, family: str) -> Inspection:
    """Inspect a model for a comparison, which is about what it computes."""
    if isinstance(model, Inspection):
        return model
    source = source_of("inspect", model, family)
    source.as_draft = True
    return inspect_source(source)
