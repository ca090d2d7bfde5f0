"""apply: writes an output, or finds it whole from a run that was killed before it could say so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...bake import apply
from ...verify import verify_output
from ...verify.earlier import earlier_output
from ..unit import Unit
from .task import Tools, task


@task("apply")
def apply_unit(unit: Unit, tools: Tools) -> dict[str, Any]:
    """Writes the output of a unit. Raises as `make_plan`, `apply` and `verify_output` do."""
    Path(unit.out).parent.mkdir(parents=True, exist_ok=True)
    plan = unit.plan()
    found = {"path": unit.out, "bytes": plan.bytes, "encoding": plan.result.encoding}
    earlier = earlier_output(plan)
    if earlier is not None:
        verify_output(earlier)
        return {**found, "earlier": True}
    done = apply(plan, probe=tools.probe)
    return {**found, "checked": done.check is not None, "reason": done.reason}
