"""What pages ask for, by name: a function each, which shows its answer on a sheet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..desk import Desk
from ..sheet import HtmlSheet
from .bake import plan, publish, write
from .compare import compare
from .inspect import inspect
from .results import results

Task = Callable[[Any, Desk, HtmlSheet], None]
TASKS: dict[str, Task] = {
    "inspect": inspect, "compare": compare, "plan": plan, "write": write, "publish": publish, "results": results,
}  # fmt: skip
