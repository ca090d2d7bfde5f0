"""Builds and runs models of mlx-lm on a CPU, in an environment that has it.

Each line of the standard input is a request in JSON, which tests/support/mlx_models.py writes. It
is either

    {"shapes": FOLDER}

for the names and shapes of the weights of a model, from its config.json alone, or

    {"logits": FOLDER, "tokens": [...], "ropes": [...], "out": FILE}

for logits at every position, [tokens, vocabulary], as FILE in numpy's format. `ropes` replaces
frequencies: each entry has the base that the model would use, the inv_freq that take its place, and
the factor on what is rotated. Each answer is a line of JSON, with the key `error` where the model
cannot be built or run.
"""

import json
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten
from mlx_lm import utils

real_rope = mx.fast.rope


def shapes(folder: Path) -> dict[str, list[int]]:
    """Return the shapes of the weights that mlx-lm's model of a config has, by name."""
    config = utils.load_config(folder)
    model_class, arguments = utils._get_classes(config=config)
    model = model_class(arguments.from_dict(config))
    return {name: list(value.shape) for name, value in tree_flatten(model.parameters())}


def replace_frequencies(ropes: list[dict[str, Any]]) -> set[float]:
    """Let mx.fast.rope rotate with other frequencies; return a set that fills with bases it saw."""
    seen: set[float] = set()

    def rope(x: mx.array, dims: int, **settings: Any) -> mx.array:
        base = settings.get("base")
        direction = 1.0
        if base is None:  # a list of periods, which Talkie negates: its second entry has the base
            period = float(settings["freqs"][1].item())
            direction = float(np.sign(period))
            base = abs(period) ** (dims / 2)
        for entry in ropes:
            same_base = abs(entry["base"] - base) < 1e-3 * base
            if same_base and 2 * len(entry["inv_freq"]) == dims:
                seen.add(entry["base"])
                # periods in float32; one that is infinite does not rotate
                inverse = direction * np.array(entry["inv_freq"], dtype=np.float64)
                with np.errstate(divide="ignore"):
                    periods = mx.array((1.0 / inverse).astype(np.float32))
                rotated = mx.concatenate([x[..., :dims] * entry["factor"], x[..., dims:]], axis=-1)
                settings = {**settings, "base": None, "scale": 1.0, "freqs": periods}
                return real_rope(rotated, dims, **settings)
        return real_rope(x, dims, **settings)

    mx.fast.rope = rope
    return seen


def logits(request: dict[str, Any]) -> list[float]:
    """Write the logits of a checkpoint; return the bases whose frequencies were replaced."""
    seen = replace_frequencies(request["ropes"])
    model, _ = utils.load_model(Path(request["logits"]))
    output = model(mx.array([request["tokens"]]))
    values = getattr(output, "logits", output)[0].astype(mx.float32)
    np.save(request["out"], np.array(values))
    return sorted(seen)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the answer to a request."""
    try:
        if "shapes" in request:
            return {"shapes": shapes(Path(request["shapes"]))}
        return {"bases": logits(request)}
    except Exception as problem:
        return {"error": f"{type(problem).__name__}: {problem}"}


def main() -> None:
    """Answer requests until the input ends."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # for what models print
    print(json.dumps({"version": f"mlx-lm {version('mlx-lm')}"}), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
