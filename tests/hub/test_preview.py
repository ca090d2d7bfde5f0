"""`--dry-run` of a publication: what goes up, what is copied, licence and card; and nothing is done."""

from __future__ import annotations

import json
from pathlib import Path

from ..support.hub_writing import WritingHub
from .test_push import Push, hub, push  # noqa: F401


def test_a_plan_is_previewed_and_nothing_is_sent(push: Push, hub: WritingHub, tmp_path: Path) -> None:  # noqa: F811
    done = push("apply", "base/tiny", "--yarn", "16", "--push", "me/tiny-1k", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert "me/tiny-1k" not in hub.repos
    assert hub.received == 0
    assert {path.name for path in tmp_path.iterdir()} <= {"model", "hub", "home"}
    for words in (
        "Repository me/tiny-1k (new, public)", "config.json", "upload",
        f"copied from base/tiny at {hub.commit('base/tiny')[:7]}",
        "Base model: base/tiny. Licence: llama3.1", 'asks for "Built with Llama"', "README.md:\n", "## Runtime support",
        "ropeconv apply base/tiny --yarn 16",
    ):  # fmt: skip
        assert words in done.stdout, words
    data = json.loads(push("apply", "base/tiny", "--yarn", "16", "--push", "me/tiny-1k", "--dry-run", "--json").stdout)
    found = data["publication"]
    assert (found["exists"], found["private"], found["blocked"], found["license"]) == (False, False, None, "llama3.1")
    assert {file["name"] for file in found["copies"]} >= {"model.safetensors", "LICENSE"}
    assert {file["name"] for file in found["uploads"]} >= {"config.json", "ropeconv.json", "README.md"}
    done = push("apply", "base/tiny", "--yarn", "16", "--push", "me/tiny-1k", "-q")
    assert done.returncode == 0, done.stderr
    made = {
        path.relative_to(hub.repos["me/tiny-1k"]).as_posix()
        for path in hub.repos["me/tiny-1k"].rglob("*")
        if path.is_file()
    }
    assert made - {".gitattributes"} == {file["name"] for key in ("uploads", "copies") for file in found[key]}
    assert found["card"] == (hub.repos["me/tiny-1k"] / "README.md").read_text()


def test_an_output_is_previewed(push: Push, hub: WritingHub) -> None:  # noqa: F811
    assert push("apply", "model", "--yarn", "16", "-o", "out", "-q").returncode == 0
    done = push("push", "out", "me/local", "--dry-run", "--base-model", "base/tiny", "--private")
    assert done.returncode == 0, done.stderr
    assert "Repository me/local (new, private)" in done.stdout
    assert "Base model: base/tiny. Licence: llama3.1" in done.stdout
    assert "base_model: base/tiny" in done.stdout
    assert "me/local" not in hub.repos
    assert push("push", "out", "me/local", "-q", "--base-model", "base/tiny").returncode == 0
    assert "base_model: base/tiny" in (hub.repos["me/local"] / "README.md").read_text()
    assert json.loads(push("push", "out", "me/local", "--dry-run", "--json").stdout)["blocked"] is None, "the same"
    assert push("apply", "model", "--yarn", "8", "-o", "other", "-q").returncode == 0
    done = push("push", "other", "me/local", "--dry-run", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["exists"], found["private"]) == (True, None)
    assert "pass --exist-ok" in found["blocked"]
    assert push("push", "out", "me/local", "--base-model", "nonsense").returncode == 2


def test_pictures_of_a_validation_are_previewed(push: Push, hub: WritingHub) -> None:  # noqa: F811
    assert push("apply", "model", "--yarn", "16", "-o", "out", "-q", "--validate", "cpu").returncode == 0
    shown = json.loads(push("push", "out", "me/local", "--dry-run", "--json").stdout)
    assert push("push", "out", "me/local", "-q").returncode == 0
    assert {one["name"] for one in shown["uploads"]} == {path.name for path in hub.repos["me/local"].glob("[!.]*")}
    assert "validation.png" in {one["name"] for one in shown["uploads"]}


def test_a_card_of_somebody_else_stays_in_a_preview_too(push: Push, hub: WritingHub) -> None:  # noqa: F811
    given = ("apply", "base/tiny", "--yarn", "16", "--push", "me/a", "--exist-ok")
    assert push(*given, "-q").returncode == 0
    (hub.repos["me/a"] / "README.md").write_text("# Mine\n")
    hub.version["me/a"] += 1
    assert "README.md stays as it is." in push(*given, "--dry-run").stdout
    assert "README.md:\n" in push(*given, "--dry-run", "--overwrite-card").stdout


def test_a_licence_that_forbids_derivatives_stops_a_preview_too(push: Push, hub: WritingHub, llama: Path) -> None:  # noqa: F811
    (llama / "README.md").write_text("---\nlicense: cc-by-nd-4.0\n---\n")
    hub.version["base/tiny"] = 1
    done = push("apply", "base/tiny", "--yarn", "16", "--push", "me/a", "--dry-run")
    assert (done.returncode, "nothing made from base/tiny may be published" in done.stderr) == (1, True)
