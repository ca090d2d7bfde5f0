"""Asks mlx-lm on a CPU: builds the model as `mlx_lm.utils.load_model` does, runs it, and watches
what it rotates.

`mlx_watch.py` says how.
"""

from __future__ import annotations

import importlib.util
import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import protocol
from mlx_lm import utils
from mlx_watch import Runner, ask


def build(config: dict[str, Any]) -> Any:
    """The model, through the same steps as `load_model`. Raises Absent and Refused."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(config), encoding="utf-8")
        config = utils.load_config(Path(folder))
    try:
        kind, arguments = utils._get_classes(config=config)
    except ValueError as error:
        name = utils.MODEL_REMAPPING.get(config["model_type"], config["model_type"])
        if importlib.util.find_spec(f"mlx_lm.models.{name}") is None:
            raise protocol.Absent(str(error)) from None
        raise protocol.Refused("config", error) from error
    except SystemExit:  # models/olmo.py ends the process where its package is missing
        raise protocol.Absent(
            f"{config['model_type']} is another model there, and needs a package of its own"
        ) from None
    try:
        settings = arguments.from_dict(config)
    except Exception as error:
        raise protocol.Refused("config", error) from error
    try:
        model = kind(settings)
    except Exception as error:
        raise protocol.Refused("load", error) from error
    model.eval()
    return model


RUNNER = Runner(build, lambda model: list(model.layers), lambda model, tokens: model(tokens))


if __name__ == "__main__":
    protocol.main(partial(ask, RUNNER))
