"""Imports and caches what requests need, so that each of their processes has it from its start.

huggingface_hub is none of that: it reads the environment when it is imported, and every request has
its own.
"""

import json
import tempfile
from contextlib import suppress
from pathlib import Path

import gguf  # noqa: F401

from ropeconv.rope.errors import RopeconvError


def _warm() -> None:
    """Answer the largest page once, for any model.

    Each request is a fork of this process, which so has all modules and tables that it needs.
    """
    from ropeconv.models.config import sample_config
    from ropeconv.models.registry import families

    from .forms import CompareForm
    from .sheet import HtmlSheet, TaskContext
    from .tasks import TASKS

    family = next(family for family in families() if family.name == "llama")
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder, "config.json")
        config.write_text(json.dumps(sample_config(family)))
        sheet = HtmlSheet()
        form = CompareForm(upload=str(config), context="4")
        TASKS["compare"](form, TaskContext(tell=lambda message: None), sheet)
        sheet.html()


with suppress(RopeconvError, OSError):  # what is missing is said where it is asked for
    _warm()
