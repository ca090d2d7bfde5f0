"""SourceReading: the source of a comparison in all variants, with the control and the noise floor."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..engines.transformers import DeviceSpec, TransformersEngine
from ..engines.transformers.attention_scores import attention_modules
from ..engines.transformers.load import fits_in_gpu, load_widened
from .hidden_states import ComparisonSpec, HiddenStates, read_noise_run, read_source
from .rule.measures import Measures, in_blocks, measure, spread_of
from .rule.validation import NOISE, SAME_KERNELS, noise_floor, tolerance
from .sampling.token_runs import TokenRun, token_runs

FAINT = 1.02  # by which attention scores are multiplied, for a fault that is small
SPREAD_POSITIONS = 64  # of each run, for the spread of the logits


@dataclass(frozen=True)
class SourceReading:
    """The source, read once in all variants that a comparison needs.

    spec: what is compared, and how. at: device and precision. runs: the tokens. states: the hidden states. head: the
    source, for its head. widened: whether a noise run in float32 is among the states. temperature: by which logits are
    divided for the KL. changes: phrases on what was chosen otherwise than the settings say. read_tokens: how
    many were read up to now.
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
        runs = token_runs(settings, case.schedule, engine.model.get_input_embeddings().weight.shape[0], folder)
        times = {"spread": 6 + settings.config_reference + (at.dtype != "float32"), "whole": 2}
        work = sum(len(run.ids) * times[run.kind] for run in runs)
        progress.total(before + work)
        progress.note(f"Running {work:,} tokens on {at.device} in {at.dtype}: control, reference, noise floor, baked.")
        fault = replace(spec, score_factor=FAINT * spec.score_factor)
        samples = [run for run in runs if run.kind == "spread"] if attention_modules(engine.model) else []
        faint = [fault.patched(engine, run) for run in samples]
        states = read_source(engine, spec, runs, at.dtype)
        states.faint = faint
        head, widened = engine.without_layers(), at.dtype != "float32" and fits_in_gpu(case.checkpoint, 4)
        if widened:
            loaded = TransformersEngine(load_widened(folder, at), settings.chunk)
            states.noise_runs.append(read_noise_run(loaded, spec, runs))
        elif at.dtype != "float32":
            progress.note("There is no room for the source in float32, so the noise floor is without it.")
        return cls(spec, at, runs, states, head, widened, changes=changes, read_tokens=before + work)

    def normalised(self) -> SourceReading:
        """The same reading with logits divided by their own spread for the KL."""
        blocks = [
            self.head.head(read[:SPREAD_POSITIONS])
            for run, read in zip(self.runs, self.states.reference, strict=True)
            if run.kind == "spread"
        ]
        spread = math.sqrt(sum(spread_of(logits) ** 2 for logits in blocks) / len(blocks))
        said = f"logits divided by their spread of {spread:.2g}"
        return replace(self, temperature=spread, changes=(*self.changes, said))

    @cached_property
    def controls(self) -> list[tuple[float, float]]:
        """The mean KL of the control and the noise floor, per spread run, in nats."""
        found, noise = [], 0.0  # does not fall with the position
        folded = bool(self.spec.comparison.rounded_weights(self.at.dtype))
        part = 1.0 if folded else 1 / NOISE  # folded keys round to other numbers in low precision
        for number, run in enumerate(self.runs):
            if run.kind != "spread":
                continue
            wanted, targets = self.states.reference[number], run.targets()
            control = self.measured(self.head, wanted, self.head, self.states.control[number], targets)
            floors = [
                self.measured(self.head, wanted, own or self.head, read[number], targets).kl.quantile(0.95).item()
                for own, read in self.states.noise_runs
            ]
            noise = max(noise, noise_floor(*self.states.by_precision(floors), part))
            found.append((control.kl.mean().item(), noise))
        return found

    @property
    def power(self) -> float:
        """The KL of the control over the one that is allowed, where it is smallest beyond the trained context."""
        return self._least([control for control, _ in self.controls])

    @cached_property
    def detail(self) -> float:
        """The KL of a faint fault over the one that is allowed, as `power`: small where attention is one-hot."""
        if not self.states.faint:
            return math.inf
        pairs = zip(self.runs, self.states.reference, self.states.faint, strict=False)
        found = [self.measured(self.head, a, self.head, b, run.targets()).kl.mean().item() for run, a, b in pairs]
        return self._least(found)

    def _least(self, found: list[float]) -> float:
        """The smallest ratio of a KL in nats, one per spread run, to the one that is allowed beyond the context."""
        ratios = [
            kl / tolerance(run.positions[-1], noise, SAME_KERNELS)
            for run, kl, (_, noise) in zip(self.runs, found, self.controls, strict=False)
        ]
        return min(ratios[1:] or ratios)

    def measured(
        self, head: TransformersEngine, wanted: Any, other: TransformersEngine, read: Any, targets: Any
    ) -> Measures:
        """Measures between two sets of hidden states.

        head: gives logits to the states `wanted`. other: gives logits to the states `read`. targets: the next tokens.
        """
        count = min(len(wanted), len(read), len(targets))

        def part(rows: slice) -> Measures:
            return measure(head.head(wanted[rows]), other.head(read[rows]), targets[rows], self.temperature)

        return in_blocks(part, count, head.vocabulary)
