"""Logits of mlx-lm on whole baked checkpoints beside those of transformers, for every family it loads.

200 tokens, trained length 64, YaRN 4, float32. The checkpoint as transformers reads it is the reference, and the
unscaled checkpoint the control: a runtime that ignores the scaling is as near to that as others are to the reference.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ropeconv.engines.transformers.load import load_stock
from ropeconv.errors import RopeconvError
from ropeconv.families.config import detect
from ropeconv.rope.methods import REGISTRY
from ropeconv.rope.recipe import Recipe
from ropeconv.runtimes.evidence import ModelRecord, Record
from tests.support.baking import apply, make_plan
from tests.support.models import FAMILIES, VOCABULARY, make

from .environment import PROGRAMS
from .execute import environment, variables
from .records import save
from .runtimes.mlx_lm import RUNTIME

TOKENS, NEAR, FAR = 200, 2e-2, 0.1
"""NEAR and FAR are standard deviations of the logits."""
NAME = f"{RUNTIME.name}-logits"
HOW = "200 tokens of tiny checkpoints (trained length 64, YaRN 4, float32) against transformers' own logits"
ERRORS = {"not supported.": "unsupported", "SystemExit": "unsupported", "parameters not in model": "unknown"}
"""Statuses by a part of the message: experts as transformers 5 writes them are another matter than RoPE."""
TIED = {"tie_word_embeddings": True}
CHANGES: dict[str, dict[str, Any]] = {
    "cohere": TIED, "cohere2": TIED, "gemma": TIED, "gpt_neox": {"intermediate_size": 512},
    "gemma2": {**TIED, "sliding_window": 4096},
    "gemma3_text": {
        "num_hidden_layers": 6, "sliding_window_pattern": 6,
        "layer_types": ["sliding_attention"] * 5 + ["full_attention"],
    },
}  # fmt: skip
"""What mlx-lm needs of a checkpoint to load it: it ties embeddings, and counts layers, whatever the config says."""
KEYS: dict[str, dict[str, Any]] = {
    "apertus": {"mlp_bias": False, "post_norm": False, "qk_norm": True}, "minimax_m2": {"shared_intermediate_size": 0},
    "exaone4": {"sliding_window_pattern": "LLG"}, "cohere2": {"sliding_window_pattern": 3},
    "qwen3_next": {"full_attention_interval": 2},
}  # fmt: skip
"""Keys of published configs that transformers 5 does not write."""


def main() -> int:
    """Writes the record of the newest version."""
    version = RUNTIME.quick[-1]
    models = dict(_families(version))
    save(Record(NAME, version, date.today().isoformat(), HOW, models))
    return 0


def _families(version: str) -> Iterator[tuple[str, ModelRecord]]:
    """Yields the name of a family and its record."""
    tokens = torch.randint(4, VOCABULARY, (TOKENS,), generator=torch.Generator().manual_seed(0)).tolist()
    for model_type in FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            source = make(model_type, Path(folder) / "source", **CHANGES.get(model_type, {}))
            config = json.loads((source / "config.json").read_text()) | KEYS.get(model_type, {})
            (source / "config.json").write_text(json.dumps(config))
            try:
                plan = make_plan(source, Recipe(REGISTRY["yarn"](4.0)), Path(folder) / "baked", encoding="native")
            except RopeconvError:
                continue
            baked = apply(plan)
            status, detail = _compare(version, source, baked, tokens, Path(folder))
        print(f"{model_type}: {status}, {detail}", flush=True)
        yield detect(config).name, ModelRecord(digest="", rope_types=("yarn",), most=status, detail=detail)


def _compare(version: str, source: Path, baked: Path, tokens: list[int], folder: Path) -> tuple[str, str]:
    """The status of a baked checkpoint in mlx-lm, and the numbers or the message."""
    place = environment(RUNTIME, version)
    questions, answers = folder / "questions.jsonl", folder / "answers.jsonl"
    questions.write_text(json.dumps({"id": "baked", "path": str(baked), "tokens": tokens}) + "\n")
    command = [str(place.python), str(PROGRAMS / "mlx_lm_logits.py"), str(questions), str(answers)]
    subprocess.run(command, check=True, env=variables(place), capture_output=True)
    answer = json.loads(answers.read_text())
    if "error" in answer:
        message = f"{answer['stage']}: {answer['error'].splitlines()[0]}"
        return next((status for words, status in ERRORS.items() if words in message), "refused"), message
    found = np.load(answer["logits"])
    scaled, unscaled = (_of_transformers(path, tokens) for path in (baked, source))
    unit = float(scaled.std())
    from_scaled, from_unscaled, apart = (
        float(np.abs(one - other[:, : one.shape[1]]).max()) / unit
        for one, other in ((scaled, found), (unscaled, found), (scaled, unscaled))
    )
    detail = f"{from_scaled:.1e} from the scaled logits, {from_unscaled:.1e} from the unscaled ones"
    if apart < FAR:
        return "unknown", f"the control is too near: {apart:.1e}"
    if from_scaled < NEAR:
        return "exact", detail
    return ("ignored" if from_unscaled < NEAR else "differs"), detail


def _of_transformers(path: Path, tokens: list[int]) -> Any:
    with torch.no_grad():
        return load_stock(path, "cpu")(input_ids=torch.tensor([tokens]), use_cache=False).logits[0].float().numpy()


if __name__ == "__main__":
    sys.exit(main())
