"""apply: writes an output, or finds it whole from a run that was killed before it could say so."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ...bake import apply
from ...bake.writing.place import is_empty
from ...errors import BadSource, Disagreement
from ...verify import verify_output
from ...verify.earlier import earlier_output
from ..journal import stamp
from ..unit import Unit
from .task import Tools, task


@task("apply")
def apply_unit(unit: Unit, tools: Tools) -> dict[str, Any]:
    """Writes the output of a unit.

    Raises as `make_plan` and `apply` do, and BadSource or Disagreement where something else has its place.
    """
    Path(unit.out).parent.mkdir(parents=True, exist_ok=True)
    plan = unit.plan()
    found = {"path": str(plan.out), "bytes": plan.bytes, "encoding": plan.result.encoding}
    earlier = earlier_output(plan)
    if earlier is not None:
        try:
            verify_output(earlier)
        except (BadSource, Disagreement) as problem:
            what = str(problem).partition("; run apply again")[0]
            raise type(problem)(f"{what}; move it away and run the plan again, which writes it anew") from None
        return {**found, "earlier": True, "stamp": stamp(plan.out)}
    if os.path.lexists(plan.out) and not is_empty(plan.out):
        raise BadSource(
            f"{plan.out} is there and is not what this unit writes; move it away, or give the plan another `out`"
        )
    done = apply(plan, probe=tools.probe)
    return {**found, "checked": done.check is not None, "reason": done.reason, "stamp": stamp(plan.out)}
