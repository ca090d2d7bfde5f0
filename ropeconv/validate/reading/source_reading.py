"""SourceReading: the source of a comparison in all variants, with the control and the noise floor."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ...engines.transformers import DeviceSpec, TransformersEngine
from ...engines.transformers.attention_scores import attention_modules
from ...engines.transformers.indexers import indexers
from ...engines.transformers.load import fits_in_gpu, load_widened
from ..rule.measures import Measures, in_blocks, measure, spread_of
from ..rule.states import measure_states
from ..rule.validation import NOISE, SAME_KERNELS, noise_floor, tolerance
from ..sampling.token_runs import TokenRun, token_runs
from .hidden_states import ComparisonSpec, HiddenStates, read_noise_run, read_source

FAINT = 1.02  # by which attention scores are multiplied, for a fault that is small
SPREAD_POSITIONS = 64  # of each run, for the spread of the logits


@dataclass(frozen=True)
class Control:
    """What a spread run tells about the test itself: KL from the reference in nats.

    kl: mean, of the unscaled source. faint: mean, of the reference with attention scores 2 % larger; infinite where a
    model has no softmax scale. noise: the noise floor. allowed: the tolerance. worst_noise: the largest KL of a noise
    run at one position.
    """

    kl: float
    faint: float
    noise: float
    allowed: float
    worst_noise: float


@dataclass(frozen=True)
class SourceReading:
    """The source, read once in all variants that a comparison needs.

    spec: what is compared, and how. at: device and precision. runs: the tokens. states: the hidden states. head: the
    source, for its head. widened: whether a noise run in float32 is among the states. temperature: by which logits are
    divided for the KL. changes: phrases on what was chosen otherwise than the settings say. read_tokens: how
    many were read up to now. indexed: whether an indexer chooses the keys that attention sees.
    """

    spec: ComparisonSpec
    at: DeviceSpec
    runs: list[TokenRun]
    states: HiddenStates
    head: TransformersEngine
    widened: bool
    temperature: float = 1.0
    changes: tuple[str, ...] = ()
    read_tokens: int = 0
    indexed: bool = False

    @classmethod
    def read(
        cls, spec: ComparisonSpec, folder: Path, at: DeviceSpec, changes: tuple[str, ...] = (), before: int = 0
    ) -> SourceReading:
        """Loads the source and reads it.

        spec: what is compared. folder: of the source. at: device and precision. changes: as in the class. before:
        tokens that have been read already, for the progress.
        """
        case, settings, progress = spec.comparison, spec.settings, spec.progress
        engine = TransformersEngine.load(folder, at, chunk=settings.chunk)
        runs = token_runs(settings, case.schedule, engine.vocabulary, folder)
        times = {"spread": 6 + settings.config_reference + (at.dtype != "float32"), "whole": 2}
        work = sum(len(run.ids) * times[run.kind] for run in runs)
        progress.total(before + work)
        progress.note(f"Running {work:,} tokens on {at.device} in {at.dtype}: control, reference, noise floor, baked.")
        fault = replace(spec, score_factor=FAINT * spec.score_factor)
        samples = [run for run in runs if run.kind == "spread"] if attention_modules(engine.model) else []
        faint = [fault.patched(engine, run) for run in samples]
        states = read_source(engine, spec, runs, at.dtype)
        states.faint, indexed = faint, bool(indexers(engine.model))
        head, widened = engine.without_layers(), at.dtype != "float32" and fits_in_gpu(case.checkpoint, 4)
        if widened:
            loaded = TransformersEngine(load_widened(folder, at), settings.chunk)
            states.noise_runs.append(read_noise_run(loaded, spec, runs))
        elif at.dtype != "float32":
            progress.note("There is no room for the source in float32, so the noise floor is without it.")
        return cls(
            spec, at, runs, states, head, widened, changes=changes, read_tokens=before + work, indexed=indexed
        )  # fmt: skip

    @property
    def is_stopped(self) -> bool:
        """Whether it was stopped before its end."""
        return any(len(read) < len(run.kept) for run, read in zip(self.runs, self.states.reference, strict=True))

    def normalised(self) -> SourceReading:
        """The same reading with logits divided by their own spread for the KL; of hidden states the same reading."""
        if not self.head.has_logits:
            return self
        blocks = [
            self.head.head(read[:SPREAD_POSITIONS])
            for run, read in zip(self.runs, self.states.reference, strict=True)
            if run.kind == "spread"
        ]
        spread = math.sqrt(sum(spread_of(logits) ** 2 for logits in blocks) / len(blocks))
        said = f"logits divided by their spread of {spread:.2g}"
        return replace(self, temperature=spread, changes=(*self.changes, said))

    @cached_property
    def controls(self) -> list[Control]:
        """The control of each spread run, which come first among the runs."""
        found, noise, states = [], 0.0, self.states  # does not fall with the position
        folded = bool(self.spec.comparison.rounded_weights(self.at.dtype))
        part = 1.0 if folded else 1 / NOISE  # folded keys round to other numbers in low precision
        for number, (run, read) in enumerate(zip(self.runs, states.control, strict=False)):

            def kl(other: TransformersEngine, read: Any, number: int = number) -> Any:
                wanted, targets = self.states.reference[number], self.runs[number].targets()
                return self.measured(self.head, wanted, other, read, targets).kl

            apart = [kl(own or self.head, other[number]) for own, other in states.noise_runs]
            floors = [run_kl.quantile(0.95).item() for run_kl in apart]
            worst = max((run_kl.max().item() for run_kl in apart), default=0.0)
            noise = max(noise, noise_floor(*states.by_precision(floors), part))
            faint = kl(self.head, states.faint[number]).mean().item() if states.faint else math.inf
            allowed = tolerance(run.positions[-1], noise, SAME_KERNELS, faint)
            found.append(Control(kl(self.head, read).mean().item(), faint, noise, allowed, worst))
        return found

    @property
    def power(self) -> float:
        """The KL of the control over the one that is allowed, where it is smallest beyond the trained context."""
        return min(control.kl / control.allowed for control in self.controls[1:] or self.controls)

    @property
    def detail(self) -> float:
        """The KL of a faint fault over the one that is allowed, as `power`: small where attention is one-hot."""
        return min(control.faint / control.allowed for control in self.controls[1:] or self.controls)

    def measured(
        self, head: TransformersEngine, wanted: Any, other: TransformersEngine, read: Any, targets: Any
    ) -> Measures:
        """Measures between two sets of hidden states.

        head: gives logits to the states `wanted`. other: gives logits to the states `read`. targets: the next tokens.
        """
        count = min(len(wanted), len(read), len(targets))

        def part(rows: slice) -> Measures:
            if not head.has_logits:
                return measure_states(wanted[rows], read[rows])
            return measure(head.head(wanted[rows]), other.head(read[rows]), targets[rows], self.temperature)

        return in_blocks(part, count, head.vocabulary)
