"""Reads lists of numbers from JSON, .npy and .safetensors files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import UsageError


def read_lists(path: Path) -> dict[str, list[float]]:
    """The lists of numbers in a file, by name; a single list without a name gets all names that methods look for.

    Raises UsageError when the file cannot be read or holds no such list.
    """
    try:
        data = _load(path)
    except FileNotFoundError:
        raise UsageError(f"{path} does not exist; give a .json, .npy or .safetensors file") from None
    except (OSError, ValueError, KeyError) as problem:
        raise UsageError(f"{path} cannot be read as a list of numbers ({problem})") from None
    if isinstance(data, list):
        data = {"inv_freq": data, "long_factor": data}
    lists = {key: value for key, value in data.items() if isinstance(value, list)} if isinstance(data, dict) else {}
    if not lists:
        raise UsageError(f"{path} holds no list of numbers; write one list, or an object of lists")
    return lists


def _load(path: Path) -> Any:
    if path.suffix == ".npy":
        import numpy as np

        return np.load(path, allow_pickle=False).astype(np.float64).ravel().tolist()
    if path.suffix == ".safetensors":
        import numpy as np
        from safetensors.numpy import load_file

        return {name: tensor.astype(np.float64).ravel().tolist() for name, tensor in load_file(path).items()}
    return json.loads(path.read_text("utf-8"))
