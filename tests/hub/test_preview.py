"""`--dry-run` of a publication: what goes up, what is copied, licence and card; and nothing is done."""

from __future__ import annotations

import json
from pathlib import Path

from ..support.hub_writing import WritingHub
from .conftest import BAKE, Push, card_of


def test_a_plan_is_previewed_and_nothing_is_sent(push: Push, hub: WritingHub, tmp_path: Path) -> None:
    shown = push(f"{BAKE} --push me/tiny-1k --dry-run").stdout
    assert ("me/tiny-1k" in hub.repos, hub.received) == (False, 0)
    assert {path.name for path in tmp_path.iterdir()} <= {"model", "hub", "home"}
    for words in (
        "Repository me/tiny-1k (new, public)", "config.json", "upload",
        f"copied from base/tiny at {hub.commit('base/tiny')[:7]}",
        "Base model: base/tiny. Licence: llama3.1", 'asks for "Built with Llama"', "README.md:\n", "## Runtime support",
        "ropeconv apply base/tiny --yarn 16",
    ):  # fmt: skip
        assert words in shown, words
    found = json.loads(push(f"{BAKE} --push me/tiny-1k --dry-run --json").stdout)["publication"]
    assert (found["exists"], found["private"], found["blocked"], found["license"]) == (False, False, None, "llama3.1")
    assert {file["name"] for file in found["copies"]} >= {"model.safetensors", "LICENSE"}
    assert {file["name"] for file in found["uploads"]} >= {"config.json", "ropeconv.json", "README.md"}
    push(f"{BAKE} --push me/tiny-1k -q")
    made = {path.name for path in hub.repos["me/tiny-1k"].iterdir()}
    assert made - {".gitattributes"} == {file["name"] for key in ("uploads", "copies") for file in found[key]}
    assert found["card"] == card_of(hub, "me/tiny-1k")
