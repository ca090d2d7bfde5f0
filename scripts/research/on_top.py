"""Measures methods on top of a scaling that a model was trained with: the table in docs/methods.md.

    python -m scripts.research.on_top [MODELS]

Each model is trained with 128 tokens, then with 512 tokens and a scaling of 4, and measured at
1,024 tokens without further training. Three models take half an hour on one core.
"""

import copy
import sys
from typing import Any

import numpy as np
import torch
from transformers import LlamaForCausalLM

import ropeconv

from .reproduction.measuring import predict
from .reproduction.text import Corpus, corpus, manual
from .reproduction.training import Training, optimise, train

SCALINGS: dict[str, dict[str, Any]] = {
    "llama3": {
        "original_max_position_embeddings": 128,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
    },
    "yarn": {"original_max_position_embeddings": 128},
    "linear": {},
}
INSIDE = slice(256, 511)
BEYOND = slice(512, 1023)
DOCUMENTS = 16


def with_rope(model: Any, parameters: dict[str, Any], length: int) -> Any:
    """A copy of a model with other RoPE parameters. length: tokens that it declares."""
    config = copy.deepcopy(model.config)
    config.rope_parameters = {
        "rope_theta": 1e4,
        **parameters,
    }
    config.max_position_embeddings = length
    changed = LlamaForCausalLM(config)
    changed.load_state_dict(model.state_dict())
    return changed


def trained_longer(
    model: Any,
    kind: str,
    text: Corpus,
    seed: int,
    steps: int = 150,
    rate: float = 1e-3,
    needles: float = 0.0,
) -> Any:
    """Return a model that is trained on with 512 tokens and a scaling of 4.

    Args:
        model: The model, which stays unchanged.
        kind: The rope type of the scaling, such as "yarn".
        text: The tokens to train on.
        seed: That of the windows.
        steps: Steps of AdamW, of 2,048 tokens each.
        rate: The largest learning rate.
        needles: The share of windows that have needles.
    """
    longer = with_rope(model, {"rope_type": kind, "factor": 4.0, **SCALINGS[kind]}, 512).train()
    training = Training(seed=seed, length=512, tokens=2048, steps=steps, rate=rate, needles=needles)
    optimizer = torch.optim.AdamW(longer.parameters(), rate, (0.9, 0.98), weight_decay=0.1)
    draw = np.random.default_rng((seed, 7))
    optimise(longer, optimizer, training, text.train, text.vocabulary, draw)
    return longer.eval()


def measured(longer: Any, text: Corpus) -> dict[str, tuple[float, float]]:
    """Return the losses inside and beyond the trained context in nats per token, by method.

    Args:
        longer: A model with a scaling, as `trained_longer` returns it.
        text: Texts that it has not seen.
    """

    def loss(
        model: Any, method: str = "", factor: float = 2.0, **modifiers: Any
    ) -> tuple[float, float]:
        """Return both losses of a model with a method; without one where its name is empty."""
        recipe = None
        if method:
            data = {"method": method, "parameters": {"factor": factor}, **modifiers}
            recipe = ropeconv.Recipe.from_dict(data)
        losses = predict(model, text.test[:DOCUMENTS], recipe).loss
        return float(losses[:, INSIDE].mean()), float(losses[:, BEYOND].mean())

    rows = {"none": loss(longer)}
    for name in ("yarn", "llama3", "ntk", "linear"):
        rows[f"{name} 2 --on-top"] = loss(longer, name, on_top=True)
    unscaled = with_rope(longer, {"rope_type": "default"}, 128).eval()
    for name in SCALINGS:
        rows[f"{name} 8 --replace"] = loss(unscaled, name, 8.0)
    return rows


def main(models: int = 3) -> None:
    """Trains the models and prints the means over them."""
    text = corpus(manual(), 1025, 24)
    rows: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for seed in range(models):
        plain = train(Training(seed=seed, steps=400), text.train, text.vocabulary)
        for kind in SCALINGS:
            for name, losses in measured(trained_longer(plain, kind, text, seed), text).items():
                rows.setdefault((kind, name), []).append(losses)
    for (kind, name), losses in rows.items():
        inside, beyond = np.mean(losses, axis=0)
        print(f"trained with {kind:8} {name:20} inside {inside:.3f}  beyond {beyond:.3f}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
