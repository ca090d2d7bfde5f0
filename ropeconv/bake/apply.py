"""Executes a plan, and checks the output before it is moved to its final name."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from ..engines.probe import Probe
from ..formats.copying import Advance
from ..receipts.receipt import CheckRecord
from .check import Decoding, OutputCheck, probe_query
from .checkpoint import CheckpointPlan
from .execute import ApplyOptions, execute_plan
from .export import ExportPlan
from .gguf import GgufPlan
from .in_place import change_in_place
from .plan import Plan


@dataclass(frozen=True)
class Applied:
    """An output that has been written. It can be passed wherever a path is expected.

    path: a folder, or a GGUF file (of several shards the first). check: what the installed transformers computes from a
    checkpoint, None where it was not asked. reason: why it was not asked, or llama.cpp of a conversion, or empty.
    """

    path: Path
    check: CheckRecord | None = None
    reason: str = ""

    def __fspath__(self) -> str:
        return str(self.path)


def apply(
    plan: Plan,
    *,
    link: bool = False,
    force: bool = False,
    checksum: bool = False,
    staged: bool = False,
    fsync: bool = True,
    check: bool = True,
    advance: Advance = lambda done: None,
    probe: Probe | None = None,
) -> Applied:
    """Writes the output of a plan and checks it.

    plan: what to write. link, force, checksum, staged, fsync: as in `ApplyOptions`. check: ask the installed
    transformers what it computes from a checkpoint, and let the installed llama.cpp decode a few tokens with a
    conversion, before the output is moved to its final name. advance: called with the bytes done since the last call.
    probe: one that the caller has started already; None starts one where transformers is installed.

    Raises Disagreement where the installed transformers computes something else than the schedule, RopeconvError where
    llama.cpp does not run a conversion and where the output cannot be written; nothing is kept then.
    """
    options = ApplyOptions(link=link, force=force, checksum=checksum, staged=staged, fsync=fsync)
    if isinstance(plan, GgufPlan) and plan.target.in_place:
        return Applied(change_in_place(plan.source, plan.edit, plan.target.allow_hard_links))
    if isinstance(plan, ExportPlan) and check:
        decoding = Decoding(plan)
        return Applied(execute_plan(plan, options, decoding, advance), reason=decoding.reason)
    if not isinstance(plan, CheckpointPlan) or not check:
        return Applied(execute_plan(plan, options, advance=advance))
    started = Probe() if probe is None and Probe.available() else None
    with started or nullcontext():
        running = probe or started
        checking = OutputCheck(plan, probe_query(plan, running) if running else None)
        path = execute_plan(plan, options, checking, advance)
    return Applied(path, checking.found, checking.reason)
