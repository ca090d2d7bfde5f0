"""A plan that is published from a temporary folder, which holds only files that are not copied unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace

from ..bake import Applied, CheckpointPlan, apply
from ..engines.probe import Probe
from ..formats.copying import Advance
from ..formats.scratch import scratch
from .upload_set import UploadSet, from_plan


def _silent(done: int) -> None:
    pass


@contextmanager
def staged(
    plan: CheckpointPlan,
    probe: Probe | None = None,
    checksum: bool = False,
    writing: AbstractContextManager[Advance] | None = None,
) -> Iterator[tuple[Applied, UploadSet]]:
    """The output of a plan in a temporary folder, and the upload set of it, while it is entered.

    plan: what to write. probe: a running one; None starts one where transformers is installed. checksum: hash copied
    files too. writing: gives the function that is called with the bytes written since the last call, and ends before
    the output is yielded. Raises as `apply` does.
    """
    with scratch() as folder:
        plan = replace(plan, out=folder / plan.out.name)
        with writing or nullcontext(_silent) as advance:
            done = apply(plan, staged=True, checksum=checksum, fsync=False, advance=advance, probe=probe)
        yield done, from_plan(plan, done.path)
