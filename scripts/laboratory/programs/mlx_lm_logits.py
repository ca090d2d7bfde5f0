"""Logits of whole checkpoints by mlx-lm, in float32 on a CPU: `python mlx_lm_logits.py QUESTIONS ANSWERS`.

A question is {"id", "path", "tokens"}: a folder with a checkpoint, and token ids. The answer has the same "id" and
"logits", the path of a .npy file beside ANSWERS with one row per token; or "error" and "stage" ("load" or "forward").
The checkpoint goes through `mlx_lm.utils.load_model`, and so through mlx-lm's own renaming of weights.
"""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm.utils import load_model


def logits(path: Path, tokens: list[int]) -> np.ndarray:
    """The logits of every position, in one pass without a cache. Raises RuntimeError, with the stage as argument."""
    try:
        model, _ = load_model(path)
    except (Exception, SystemExit) as error:
        raise RuntimeError("load") from error
    try:
        model.set_dtype(mx.float32)
        found = model(mx.array([tokens]))
        mx.eval(found)
        return np.array(found.astype(mx.float32))[0]
    except Exception as error:
        raise RuntimeError("forward") from error


def main(questions: Path, answers: Path) -> None:
    """Answers the questions of one file in another."""
    mx.set_default_device(mx.cpu)
    with questions.open(encoding="utf-8") as lines, answers.open("w", encoding="utf-8") as out:
        for line in lines:
            question = json.loads(line)
            found: dict[str, Any] = {"id": question["id"]}
            try:
                with contextlib.redirect_stdout(sys.stderr):
                    rows = logits(Path(question["path"]), question["tokens"])
            except RuntimeError as failed:
                cause = failed.__cause__
                found |= {"error": f"{type(cause).__name__}: {cause}"[:400], "stage": str(failed)}
            else:
                path = answers.with_name(f"{answers.stem}-{question['id']}.npy")
                np.save(path, rows)
                found["logits"] = str(path)
            out.write(json.dumps(found) + "\n")
            out.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
