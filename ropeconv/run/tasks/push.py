"""push: publishes an output, or without one a plan from a temporary folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ...bake import CheckpointPlan, apply
from ...formats.scratch import scratch
from ...hub.publish import publish
from ...hub.publish_options import PublishOptions
from ...hub.staged import staged
from ...hub.upload_set import UploadSet, from_folder, from_gguf
from ...receipts import read_receipt
from ...receipts.files import check_files
from ..unit import Unit
from .task import Tools, task


@task("push")
def push_unit(unit: Unit, tools: Tools) -> dict[str, Any]:
    """Publishes the output of a unit. Raises as `publish` does; what is there from an earlier run is completed."""
    given = {name: value for name, value in unit.settings.items() if name not in ("to", "kept")}
    how, notes = PublishOptions(repo_id=unit.settings["to"], **given), list[str]()

    def send(what: UploadSet) -> dict[str, Any]:
        url = publish(what, how, lambda message: notes.append(message) if message else None)
        uploaded = sum(what.size(name) for name in what.adds)
        return {"url": url, "uploaded": uploaded, "copied": len(what.copies), "notes": notes}

    path = Path(unit.out)
    if unit.settings["kept"]:
        if path.suffix == ".gguf":
            return send(from_gguf(path))
        check_files(path, read_receipt(path))
        return send(from_folder(path))
    plan = unit.plan()
    if isinstance(plan, CheckpointPlan):
        with staged(plan, tools.probe) as (_, what):
            return send(what)
    with scratch() as folder:
        return send(from_gguf(apply(unit.plan(folder / path.name), fsync=False).path))
