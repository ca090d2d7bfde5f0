"""`validate` up to the first forward pass: what would load a model ends there."""

from __future__ import annotations

from typing import Any, NoReturn

from ropeconv.errors import RopeconvError

STOPPED = "this would load a model; nothing is wrong so far"


def stop(*given: Any, **named: Any) -> NoReturn:
    """Stands in for functions that load models."""
    raise RopeconvError(STOPPED)


def stop_before_forward() -> None:
    """Lets `validate` begin in this process, and end where it would load a model or ask transformers."""
    import torch  # noqa: F401

    from ropeconv.engines import probe
    from ropeconv.engines.llamacpp import llamacpp_engine
    from ropeconv.engines.transformers import TransformersEngine

    probe.Probe.available = staticmethod(lambda: True)  # type: ignore[method-assign]
    probe.Probe.ask = stop  # type: ignore[method-assign,assignment]
    TransformersEngine.load = stop  # type: ignore[method-assign,assignment]
    llamacpp_engine.Process = stop  # type: ignore[assignment,misc]
