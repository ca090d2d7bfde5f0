"""Compares what the installed transformers computes from a baked config with the schedule."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from ..errors import Disagreement
from ..rope.forms import Vector
from ..rope.schedule import Schedule
from ..rope.spec import RopeSpec

# ulp of float32 by which a runtime's own arithmetic may miss the exact schedule. Factor lists are searched so that
# it cannot miss by more; the closed forms are evaluated in float32 by every runtime, ramps and powers included.
ULP = {"factors": 2, "native": 64}
AMPLITUDE = 1e-6


@dataclass(frozen=True)
class FrequencyCheck:
    """The result: the version asked, and the largest deviations found."""

    transformers: str
    max_ulp: int
    attention_factor: float

    def to_dict(self) -> dict[str, Any]:
        """JSON-ready."""
        return asdict(self)


class Probe:
    """A transformers installation in a process of its own; it starts at once, so its imports overlap other work."""

    def __init__(self, model_type: str, python: str = sys.executable, env: dict[str, str] | None = None) -> None:
        script = Path(__file__).with_name("probe.py")
        self.process = subprocess.Popen(
            [python, "-W", "ignore", str(script), model_type],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=env,
        )

    @staticmethod
    def available() -> bool:
        """Whether transformers and torch are installed here."""
        return all(importlib.util.find_spec(name) is not None for name in ("torch", "transformers"))

    def ask(self, folder: Path, context: int) -> dict[str, Any]:
        """What it computes from the config in `folder`: {"modules": ...}, or {"error": ...}."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps({"path": str(folder.resolve()), "context": context}) + "\n")
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = ""
        answer: dict[str, Any] = json.loads(line) if line else {"error": "transformers ended without an answer"}
        return answer

    def __enter__(self) -> Probe:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.communicate()


def compare(answer: dict[str, Any], schedule: Schedule, spec: RopeSpec, encoding: str) -> FrequencyCheck:
    """Checks a probe's answer.

    Raises Disagreement when a frequency or the amplitude is off, or the config did not load.
    """
    title = f"transformers {answer.get('transformers', '')}".strip()
    if "error" in answer:
        raise Disagreement(f"{title} does not load the baked config ({answer['error']}); nothing was kept")
    short = schedule.inv_freq if schedule.short_inv_freq is None else schedule.short_inv_freq
    worst, amplitude = 0, 1.0
    for label, found in answer["modules"].items():
        wanted, wanted_short, factor = (schedule.inv_freq, short, schedule.attention_factor)
        if label == "local" and spec.local_form is not None:
            wanted = wanted_short = spec.local_form.inv_freq(spec.rotary_dim)
            factor = 1.0
        for vector, target in ((found["inv_freq"], wanted), (found["short"], wanted_short)):
            distance = ulp_distance(np.asarray(vector), target)
            worst = max(worst, distance)
            if distance > ULP[encoding]:
                raise Disagreement(
                    f"{title} computes other {label} frequencies than the schedule, by up to {distance} ulp of "
                    "float32; nothing was kept"
                )
        if abs(found["amplitude"] - factor) > AMPLITUDE * factor:
            raise Disagreement(
                f"{title} uses the attention factor {found['amplitude']:.7f} on {label} layers, not {factor:.7f}; "
                "nothing was kept"
            )
        amplitude = found["amplitude"] if label == "global" else amplitude
    return FrequencyCheck(answer["transformers"], worst, amplitude)


def ulp_distance(found: Vector, wanted: Vector) -> int:
    """Largest distance of two positive vectors in steps of float32; 2^31 when their lengths differ."""
    if found.shape != wanted.shape:
        return 1 << 31
    left, right = (vector.astype(np.float32).view(np.int32).astype(np.int64) for vector in (found, wanted))
    return int(np.abs(left - right).max())
