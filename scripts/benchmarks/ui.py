"""Seconds from a press to the answer on each page of `ropeconv ui`, for repositories of one and of many shards.

The Hub is one of this machine, the browser is Chromium; medians of --runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from tests.support.browser import browser
from tests.support.hub_server import running
from tests.support.hub_writing import WritingHub, writing
from tests.ui.visitor import Visitor, served

from .measure import sparse_safetensors
from .run import CONFIG


class FastHub(WritingHub):
    """A Hub that knows its files without reading them again, as the real one does."""

    def row(self, repo: str, path: Path) -> dict[str, Any]:
        if path not in self.rows:
            self.rows[path] = super().row(repo, path)
        return self.rows[path]

    rows: dict[Path, dict[str, Any]] = {}


WIDTH = {"q": 64, "k": 32, "v": 32, "o": 64}


def hub_of(root: Path) -> AbstractContextManager[FastHub]:
    hub = FastHub(root)
    return running(hub, writing(hub))


def repository(folder: Path, shards: int) -> None:
    """A Llama with a layer in each shard."""
    folder.mkdir(parents=True)
    weight_map = {}
    for number in range(shards):
        name = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        layer = f"model.layers.{number}"
        tensors = {f"{layer}.self_attn.{kind}_proj.weight": (rows, 64) for kind, rows in WIDTH.items()}
        tensors |= {f"{layer}.mlp.{kind}_proj.weight": (128, 64) for kind in ("gate", "up")}
        tensors[f"{layer}.mlp.down_proj.weight"] = (64, 128)
        tensors |= {f"{layer}.{kind}_layernorm.weight": (64,) for kind in ("input", "post_attention")}
        if number == 0:
            tensors |= {"model.embed_tokens.weight": (320, 64), "lm_head.weight": (320, 64), "model.norm.weight": (64,)}
        sparse_safetensors(folder / name, tensors)
        weight_map |= dict.fromkeys(tensors, name)
    (folder / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": shards}))
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shards", type=int, default=1000)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root, hub_of(Path(root, "hub")) as hub:
        folder = Path(root)
        for shards in (1, options.shards):
            repository(folder / f"s{shards}", shards)
            hub.repos[f"them/s{shards}"] = folder / f"s{shards}"
        environment = hub.environment(folder / "home") | {"HF_TOKEN": "hf_x"}
        (folder / "site").mkdir()
        with served(folder / "site", environment) as (address, _), browser(folder / "profile") as opened:
            visitor = Visitor(opened, address)
            for shards in (1, options.shards):
                source = f"them/s{shards}"
                bake = {"source": source, "method": "yarn", "value": "4"}
                asked = {
                    "inspect": ("", {"source": source}, "ask"),
                    "compare": ("compare", {"source": source, "context": "32k"}, "ask"),
                    "plan": ("bake", bake, "plan"),
                    "plan with a publication": ("bake", bake | {"repo_id": f"me/{shards}"}, "plan"),
                }
                for name, (page, typed, button) in asked.items():
                    visitor.open(page, **typed)
                    visitor.answer()
                    taken = []
                    for _ in range(options.runs):
                        begun = time.monotonic()
                        visitor.ask(button)
                        taken.append(time.monotonic() - begun)
                    shown = ", ".join(f"{one:.2f}" for one in sorted(taken))
                    print(f"{shards:5} shards, {name}: median {statistics.median(taken):.2f} s ({shown})", flush=True)
            begun = time.monotonic()
            visitor.open("runtimes")
            visitor.answer()
            print(f"runtimes, opened: {time.monotonic() - begun:.2f} s")
