"""validate: compares an output with its plan, and its logits with those of a reference made from its source."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...engines.transformers.device import out_of_memory
from ...errors import Disagreement
from ...validate.checkpoint import validate_checkpoint
from ...validate.checks.before_forward import check_before_forward
from ...validate.comparison import Comparison
from ...validate.gguf import check_gguf, validate_gguf
from ...validate.rule.validation import Validation
from ...validate.settings import Settings
from ...verify import verify_output
from ..unit import Unit
from .task import Tools, task


@task("validate")
def validate_unit(unit: Unit, tools: Tools) -> dict[str, Any]:
    """Validates the output of a unit. Raises Disagreement where it does not compute the schedule."""
    comparison, settings = Comparison.open(Path(unit.out), unit.source), Settings(**unit.settings)
    gguf = comparison.baked.suffix == ".gguf"
    if gguf:
        check_gguf(comparison, settings)
    else:
        settings.place()
    files = verify_output(comparison)
    if not gguf:
        check_before_forward(comparison, False, weights=False)
    run = validate_gguf if gguf else validate_checkpoint
    result: Validation = out_of_memory(lambda: run(comparison, settings))
    comparison.record(result.to_dict() | {"files": files.to_dict()})
    if not result.agrees:
        raise Disagreement(result.sentence)
    return {"runtime": result.runtime, "sentence": result.sentence}
