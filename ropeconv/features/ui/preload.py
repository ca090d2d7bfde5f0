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
    """Answer the page that needs most once, so that the answers to users come sooner.

    Each request runs in a fork of this process, which then has imported all modules and read all
    tables. Any model will do: it is a sample config of a Llama, and the answer is thrown away.
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
        form = CompareForm(upload=str(config), context="4")  # 4 times the context
        TASKS["compare"](form, TaskContext(tell=lambda message: None), sheet)
        sheet.html()


with suppress(RopeconvError, OSError):  # what is missing is said where it is asked for
    _warm()
