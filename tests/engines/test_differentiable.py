"""Losses with a gradient: against finite differences, against the engine, and the model is as it
was afterwards.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from ropeconv.engines.transformers import differentiable
from ropeconv.engines.transformers.engine import TransformersEngine
from ropeconv.engines.transformers.load import load_stock
from ropeconv.engines.transformers.patch import patch
from ropeconv.inspection.inspection import inspect_config
from ropeconv.models.open import open_source
from ropeconv.rope.errors import RopeconvError

from ..support.extent import sample
from ..support.models import make

IDS = np.random.default_rng(0).integers(3, 300, 160).tolist()
TARGETS = list(range(80, 160))


def loaded(family: str, folder: Path) -> tuple[Any, Any]:
    make(family, folder)
    spec = inspect_config(open_source(str(folder))).spec  # type: ignore[arg-type]
    return load_stock(folder, "cpu"), spec


def mean_loss(
    model: Any, spec: Any, inv_freq: Any, attention_factor: Any, backward: bool = False
) -> Any:
    with differentiable.differentiable(model, spec.unscaled().current(), spec) as engine:
        engine.use(inv_freq, attention_factor)
        loss = engine.losses(IDS, TARGETS).double().mean()
        if backward:
            loss.backward()
        return loss.detach()


@pytest.mark.parametrize(
    "family", ["llama", *sample(["qwen3", "glm4", "gpt_neox", "deepseek_v3", "llama4_text"], 1)]
)
def test_gradients_are_those_of_finite_differences(family: str, tmp_path: Path) -> None:
    """By the logarithms of the frequencies, along directions in which the phases of all pairs move
    alike, since a step that float32 resolves in a slow pair is many radians in a fast one; and by
    that of the attention factor.
    """
    model, spec = loaded(family, tmp_path / family)
    inv_freq = spec.unscaled().current().inv_freq
    base = torch.from_numpy(inv_freq)
    draw = np.random.default_rng(0)
    logs = torch.zeros(len(base), dtype=torch.float64, requires_grad=True)
    log_factor = torch.zeros((), dtype=torch.float64, requires_grad=True)
    mean_loss(model, spec, base * logs.exp(), log_factor.exp(), backward=True)
    assert logs.grad is not None
    assert log_factor.grad is not None

    def central(at: Any, step: float = 3e-4) -> float:
        return float((at(step) - at(-step)) / (2 * step))

    along = torch.from_numpy(
        draw.choice([-1.0, 1.0], len(base)) * np.minimum(1, 1 / (len(IDS) * inv_freq))
    )
    derivative = central(
        lambda by: mean_loss(model, spec, base * (by * along).exp(), torch.tensor(1.0))
    )
    assert float(logs.grad @ along) == pytest.approx(derivative, rel=0.03, abs=4e-3)
    derivative = central(lambda by: mean_loss(model, spec, base, torch.tensor(by).exp()))
    assert float(log_factor.grad) == pytest.approx(derivative, rel=0.03, abs=4e-3)


def test_losses_are_those_of_the_engine(tmp_path: Path) -> None:
    model, spec = loaded("llama", tmp_path / "llama")
    schedule = replace(
        spec.unscaled().current(), inv_freq=spec.current().inv_freq / 3, attention_factor=1.2
    )
    engine = TransformersEngine(model)
    undo = patch(model, schedule, spec.mla)
    stock = engine.token_losses(IDS, TARGETS).loss
    undo()
    with differentiable.differentiable(model, spec.current(), spec) as gradient_engine:
        gradient_engine.use(torch.from_numpy(schedule.inv_freq), torch.tensor(1.2))
        ours = gradient_engine.losses(IDS, TARGETS).detach().numpy()
        gradient_engine.use(torch.from_numpy(schedule.inv_freq * 1.01), torch.tensor(1.2))
        other = gradient_engine.losses(IDS, TARGETS).detach().numpy()
    assert np.abs(ours - stock).max() < 1e-4 < np.abs(other - stock).max()


def test_activations_that_are_computed_again_give_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, spec = loaded("llama", tmp_path / "llama")
    base = torch.from_numpy(spec.current().inv_freq)
    gradients = []
    passes = []
    model.model.layers[0].mlp.register_forward_pre_hook(lambda *given: passes.append(1))
    for length in (differentiable.CHECKPOINTED, len(IDS)):
        monkeypatch.setattr(differentiable, "CHECKPOINTED", length)
        logs = torch.zeros(len(base), dtype=torch.float64, requires_grad=True)
        mean_loss(model, spec, base * logs.exp(), torch.tensor(1.0), backward=True)
        gradients.append(logs.grad)
    assert len(passes) == 3, "a layer runs once more in the second backward pass"
    assert torch.allclose(*gradients, rtol=1e-4, atol=1e-6)
    assert not any(module.training for module in model.modules())


def test_the_model_is_as_it_was(tmp_path: Path) -> None:
    model, spec = loaded("gemma3_text", tmp_path / "model")
    with torch.no_grad():
        before = model(torch.tensor([IDS])).logits
    with differentiable.differentiable(model, spec.unscaled().current(), spec) as engine:
        engine.use(torch.from_numpy(spec.current().inv_freq) / 2, torch.tensor(2.0))
        assert not any(weight.requires_grad for weight in model.parameters())
    with torch.no_grad():
        assert torch.equal(model(torch.tensor([IDS])).logits, before)
    assert all(weight.requires_grad for weight in model.parameters())


def test_gradients_come_from_kernels_that_give_the_same_again(tmp_path: Path) -> None:
    """On GPUs only: flash attention adds up gradients in another order every time, unless torch is
    told not to.
    """
    model, spec = loaded("llama", tmp_path / "llama")
    assert not torch.are_deterministic_algorithms_enabled()
    with differentiable.differentiable(model, spec.current(), spec):
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled(), (
            "the gradients of attention would vary"
        )
    assert not torch.are_deterministic_algorithms_enabled()


def test_an_operation_that_never_gives_the_same_again_is_refused(tmp_path: Path) -> None:
    model, spec = loaded("llama", tmp_path / "llama")
    with (
        pytest.raises(
            RopeconvError,
            match=r"^put_ gives other numbers every time on this device; use --device cpu$",
        ),
        differentiable.differentiable(model, spec.current(), spec),
    ):
        torch.zeros(2).put_(torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))
    assert not torch.are_deterministic_algorithms_enabled()
