"""Imports what requests need, so that each of their processes has it from its start.

huggingface_hub is none of that: it reads the environment when it is imported, and every request has its own.
"""

from __future__ import annotations

from contextlib import suppress
from importlib import import_module

for _name in (
    "ropeconv.ui.worker", "ropeconv.evaluate.advised", "ropeconv.bake.repairs", "ropeconv.pictures.of_model",
    "ropeconv.receipts.commands", "ropeconv.views.advice", "ropeconv.views.inspection", "ropeconv.views.outcome",
    "ropeconv.views.plan", "ropeconv.views.validation", "ropeconv.views.evaluation", "matplotlib.figure",
    "matplotlib.backends.backend_svg",
):  # fmt: skip
    with suppress(ImportError):  # the request says what is missing
        import_module(_name)
