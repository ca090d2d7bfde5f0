"""The loop that the programs of all engines share. It needs numpy."""

import json
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Logits = Callable[[list[int]], Any]


def answer(
    version: Callable[[], str], open_model: Callable[[Path], Logits], once: bool = False
) -> None:
    """Write the logits of each packet that the command line names, or the error.

    Args:
        version: Returns names and versions.
        open_model: Returns the function from token ids to logits [T, V] for the folder of a packet.
        once: Whether a process can load one model only, and ends after it.
    """
    if sys.argv[1:] == ["--version"]:
        print(version())
        return
    out = Path(sys.argv[1])
    for packet in map(Path, sys.argv[2:]):
        name = f"{packet.parent.name}-{packet.name}"
        try:
            prompts = json.loads((packet / "packet.json").read_text(encoding="utf-8"))["prompts"]
            logits = open_model(packet)
            arrays = {prompt["name"]: np.asarray(logits(prompt["ids"])) for prompt in prompts}
        except Exception as problem:
            traceback.print_exc()
            (out / f"{name}.error").write_text(f"{type(problem).__name__}: {problem}")
        else:
            np.savez(out / f"{name}.part.npz", **arrays)
            (out / f"{name}.part.npz").rename(out / f"{name}.npz")
        if once:
            return
