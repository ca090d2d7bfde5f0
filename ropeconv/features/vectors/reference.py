"""Expected logits in float64, from a class of transformers that is patched with a schedule.

The stock RoPE is never used: `patch` overwrites the frequencies and the attention factor. Classes
compute cos, sin, norms and softmax in float32 whatever their weights are, so `InDouble` makes every
cast to float32 one to float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor, float32, float64
from torch.overrides import TorchFunctionMode

from ropeconv.engines.transformers.load import DeviceSpec, load_stock
from ropeconv.engines.transformers.patch import nudge, patch, rotary_modules
from ropeconv.features.identify.identifying import Subject
from ropeconv.features.identify.mistakes import CandidateSchedule
from ropeconv.features.identify.structure import CannotChange

from .check_rope import Array, PromptIds, distance, log_softmax

if TYPE_CHECKING:
    from transformers import PreTrainedModel

PRECISIONS = ("float32", "float16", "bfloat16")
"""Those of engines whose rounding is measured."""


class InDouble(TorchFunctionMode):  # type: ignore[misc]
    """Makes every cast to float32 a cast to float64, inside a `with` block."""

    def __torch_function__(
        self,
        function: Any,
        types: Any,
        arguments: tuple[Any, ...] = (),
        keywords: dict[str, Any] | None = None,
    ) -> Any:
        """Run a function of torch in float64; torch calls this for each one in the mode.

        Classes of transformers cast by `x.float()`, or name the dtype, as `x.to(torch.float32)` and
        `softmax(x, dtype=torch.float32)` do. Both become float64.
        """
        if function is Tensor.float:
            tensor = arguments[0]
            return tensor.double()

        def widen(value: Any) -> Any:
            return float64 if value is float32 else value

        wide_arguments = [widen(value) for value in arguments]
        wide_keywords = {name: widen(value) for name, value in (keywords or {}).items()}
        return function(*wide_arguments, **wide_keywords)


class Reference:
    """A tiny model that computes candidates."""

    def __init__(self, folder: Path, subject: Subject) -> None:
        """Load the model.

        Args:
            folder: The checkpoint before the extension.
            subject: The same, with the recipe.
        """
        self.folder = folder
        self.subject = subject
        self.model = _load(folder, "float32").double()

    def logits(self, candidate: CandidateSchedule, prompts: Sequence[PromptIds]) -> Array:
        """Return what a candidate computes in float64, [compared positions, vocabulary].

        Raises:
            CannotChange: The model cannot compute the candidate.
        """
        try:
            with InDouble():
                return self._run(self.model, candidate, prompts)
        except RuntimeError as problem:
            # torch raises it for a class that rotates a fixed number of dimensions
            raise CannotChange(str(problem)) from None

    def noise(
        self, right: CandidateSchedule, prompts: Sequence[PromptIds], expected: Array
    ) -> dict[str, float]:
        """Return how far a right engine may be from the expected logits, because it rounds.

        Args:
            right: The right RoPE.
            prompts: All prompts of the packet.
            expected: The logits with the right RoPE, computed in float64.

        Returns:
            The largest distance in each precision, such as {"float32": 1e-6, "bfloat16": 3e-3}.
        """
        # right engines may compute frequencies that differ by 2 ulp, as validation allows
        nudged = CandidateSchedule(right.name, right.words, nudge(right.schedule))
        expected_log_probs = log_softmax(expected)
        noise_by_precision = {}
        for precision in PRECISIONS:
            model = _load(self.folder, precision)
            largest = 0.0
            for candidate in (right, nudged):
                log_probs = log_softmax(self._run(model, candidate, prompts))
                largest = max(largest, distance(log_probs, expected_log_probs))
            noise_by_precision[precision] = largest
        return noise_by_precision

    def _run(
        self, model: PreTrainedModel, candidate: CandidateSchedule, prompts: Sequence[PromptIds]
    ) -> Array:
        """Return the logits that a model computes with the RoPE of a candidate.

        Args:
            model: The tiny model, which computes in the precision of its weights.
            candidate: The right RoPE, or a known mistake.
            prompts: The prompts, with the positions that are compared.

        Returns:
            float64 [compared positions, vocabulary].
        """
        import torch

        # How queries are scaled by their position, as the model does it. A mistake may be in log-n,
        # the scaling by the logarithm of the position: then as the candidate does it.
        case = self.subject.extension  # the source model and the right schedule
        query_scaling = self.subject.query_scaling
        if candidate.schedule.log_n != case.schedule.log_n:
            query_scaling = candidate.schedule.log_n
        module_with_queries = self.subject.queries  # the end of its name, such as "q_proj"

        # the model is patched until the end of the block, where the stack undoes each patch
        with ExitStack() as stack, torch.no_grad():
            undo = patch(
                model,
                candidate.schedule,
                case.source.mla,
                query_scaling,
                module_with_queries,
            )
            stack.callback(undo)
            # a mistake may also be in the structure, such as the layout of the rotated pairs
            if candidate.change is not None:
                candidate.change(stack, model)

            # `patch` has rounded the frequencies to float32; a model in float64 gets them exactly.
            # With two lists of frequencies, for short and long prompts, this is left out, since the
            # forward pass chooses the list (LongRoPE).
            has_two_lists = candidate.schedule.short_inv_freq is not None
            if model.dtype == float64 and not has_two_lists:
                _set_frequencies(model, candidate)

            rows = []
            for prompt in prompts:
                ids = torch.tensor([prompt.ids])
                logits = model(input_ids=ids, use_cache=False).logits[0, prompt.positions]
                rows.append(logits.double().numpy())
        return np.concatenate(rows)


def _load(folder: Path, dtype: str) -> PreTrainedModel:
    """Return the model of a folder, with experts that compute in every precision."""
    model = load_stock(folder, DeviceSpec("cpu", dtype))
    if hasattr(model, "set_experts_implementation"):
        # its grouped multiplication knows neither float64 nor every CPU
        model.set_experts_implementation("eager")
    return model


def _set_frequencies(model: PreTrainedModel, candidate: CandidateSchedule) -> None:
    """Set frequencies in float64, where `patch` has set them rounded to float32.

    The undoing of the patch replaces the buffers.
    """
    import torch

    inv_freq = torch.from_numpy(candidate.schedule.inv_freq.astype(np.float64))
    for module, prefix in rotary_modules(model):
        for name in (f"{prefix}inv_freq", f"{prefix}original_inv_freq"):
            if hasattr(module, name):
                setattr(module, name, inv_freq.clone())
