"""verify_output: compares an output with the plan that its recipe and its source give."""

from __future__ import annotations

from ..bake import CheckpointPlan
from ..encode import all_encodings
from ..formats.copying import Advance
from ..receipts.files import check_files
from ..sources import GgufSource, Source
from ..validate.checks.files import check_same_model, check_tokenizer
from ..validate.checks.trust import needs_trust
from ..validate.comparison import Comparison
from .again import plan_again, unlike_plan
from .folder import FolderCheck
from .gguf import GgufCheck, is_gguf
from .verified import Found, Options, Verified


def verify_output(
    comparison: Comparison,
    options: Options | None = None,
    advance: Advance = lambda done: None,
) -> Verified:
    """Compares every file of an output with what its recipe and its source give. Nothing in the output is run.

    comparison: the output and its source. options: how. advance: called with the bytes of weights that were compared
    since the last call.

    Raises BadSource where files are not those of the receipt, where the output brings code of others, and where recipe
    and source give no such output; Disagreement where a file is not what they give, or cannot be compared.
    """
    options, baked = options or Options(), comparison.baked
    found = Found(options)
    if baked.suffix != ".gguf":
        if not options.edited:
            check_files(baked, comparison.receipt, weights=False)
        needs_trust(baked, options.code)
        _check_source(comparison)
    plan = plan_again(comparison)
    for key in unlike_plan(plan, comparison.receipt):
        found.differs(f"its receipt has another {key}")
    if is_gguf(plan):
        said, given = comparison.receipt.source, comparison.source
        elsewhere = (said.kind, said.reference) != (given.kind, given.reference if said.reference else None)
        GgufCheck(GgufSource(baked).file, plan, found, elsewhere, advance).run()
    elif isinstance(plan, CheckpointPlan):
        FolderCheck(baked, plan, found, advance).run()
    return found.result(baked)


def _check_source(comparison: Comparison) -> None:
    """Raises BadSource where the source is another model, which is more to the point than its first difference."""
    source, encoding = comparison.source, all_encodings().get(comparison.receipt.encoding)
    if isinstance(source, Source) and source.kind != "config" and encoding is not None:
        check_same_model(comparison.baked, source, encoding)
        check_tokenizer(comparison.baked, source)
