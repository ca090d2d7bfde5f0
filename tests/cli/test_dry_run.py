"""A dry run and its run never disagree: sources, targets and missing packages, crossed; outcomes
compared.
"""

import json
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ..bake.test_companions import head_of
from ..conftest import CONFIGS
from ..models.test_meta import release
from ..support import in_process
from ..support.adapters import lora
from ..support.extent import sample
from ..support.gguf_files import write
from ..support.hub_server import talk_to
from ..support.hub_writing import WritingHub, serving_writes
from ..support.in_process import Done, command
from ..support.llamacpp import checkpoint
from ..support.models import make

ALL_SLIDING: dict[str, Any] = {
    "architectures": ["Gemma3ForCausalLM"],
    "model_type": "gemma3_text",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "vocab_size": 320,
    "max_position_embeddings": 32768,
    "sliding_window": 512,
    "layer_types": ["sliding_attention"] * 2,
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
    "query_pre_attn_scalar": 32,
}
"""No layer sees the whole context, as in tiny models of trainers."""

SOURCES = (
    "llama",
    "config.json",
    "small.gguf",
    "meta",
    "pickled",
    "sliding.json",
    "sliding.gguf",
    "scaled",
    "gpt2",
    "cut",
    "no-rope.json",
    "head",
    "nowhere",
)
TARGETS = (
    "--yarn 4",
    "--mixed 4",
    "--yarn 4 --link",
    "--yarn 4 --encoding weights",
    "--yarn 4 --to gguf --outtype f16",
    "--yarn 4 --to gguf --outtype q4_k_m",
    "--yarn 4 --to gguf --ollama",
    "--yarn 4 --to safetensors --to gguf --outtype f16 --outtype q8_0",
    "--yarn 4 --to safetensors",
    "--yarn 4 --in-place",
    "--yarn 4 --replace",
    "--yarn 4 --on-top",
    "--as-is",
    "--as-is --context 1k",
    "--yarn 4 --all-files --checksum",
    "--yarn 4 --adapter lora",
    "--yarn 4 --draft head",
    "--yarn 4 --push me/new",
    "--yarn 4 --to gguf --outtype f16 --push me/new",
    "--yarn 4 --to gguf --outtype q8_0 --outtype f16 --push me/new",
)
MISSING = ("", "torch", "transformers", "llama_cpp", "sentencepiece")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with every source."""
    root = tmp_path_factory.mktemp("sources")
    checkpoint("llama", root / "llama")
    (root / "llama" / "README.md").write_text("---\nlicense: mit\n---\n# A model\n")
    shutil.copy(root / "llama" / "config.json", root / "config.json")
    write(root / "small.gguf")
    release(root / "meta")
    shutil.copytree(root / "llama", root / "pickled")
    (root / "pickled" / "model.safetensors").rename(root / "pickled" / "pytorch_model.bin")
    (root / "sliding.json").write_text(json.dumps(ALL_SLIDING))
    write(root / "sliding.gguf", "gemma3", {"attention.sliding_window": 16})
    config = json.loads((CONFIGS / "meta-llama--Meta-Llama-3.1-8B.json").read_text())
    make(
        "llama",
        root / "scaled",
        rope_scaling=config["rope_scaling"],
        max_position_embeddings=131072,
    )
    shutil.copytree(root / "llama", root / "gpt2")
    (root / "gpt2" / "config.json").write_text(
        json.dumps({"model_type": "gpt2", "n_embd": 64, "n_head": 4})
    )
    shutil.copytree(root / "llama", root / "cut")
    weights = root / "cut" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    (root / "no-rope.json").write_text(json.dumps({"model_type": "mamba", "hidden_size": 64}))
    head_of(root / "llama", root / "head")
    lora(root / "llama", root / "lora")
    return root


@dataclass(frozen=True)
class Case:
    """One command. missing: the package that is not installed."""

    source: str
    target: str
    missing: str = ""

    def __str__(self) -> str:
        return f"{self.source} {self.target}" + (
            f", without {self.missing}" if self.missing else ""
        )


EVERYTHING = [Case(source, target) for source in SOURCES for target in TARGETS]
WITHOUT = [
    Case(source, target, missing)
    for source in ("llama", "small.gguf", "meta")
    for target in (TARGETS[0], TARGETS[4], TARGETS[5], TARGETS[8], TARGETS[17])
    for missing in MISSING[1:]
]
ALWAYS = [
    Case("sliding.json", TARGETS[0]),
    Case("sliding.gguf", TARGETS[0]),
    Case("sliding.json", "--as-is"),
    Case("meta", TARGETS[0], "torch"),
    Case("meta", TARGETS[4], "torch"),
    Case("llama", TARGETS[5], "llama_cpp"),
    Case("llama", TARGETS[17]),
    Case("llama", TARGETS[19]),
    Case("small.gguf", TARGETS[17]),
]
CASES = [*ALWAYS, *sample([case for case in (*EVERYTHING, *WITHOUT) if case not in ALWAYS], 25)]


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WritingHub]:
    """A Hub without repositories."""
    with serving_writes(tmp_path / "hub") as running:
        talk_to(running, tmp_path / "home" / "hub", monkeypatch)
        monkeypatch.setattr("ropeconv.hub.publish.WAITS", (0.0, 0.0))
        yield running


def hide(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a package be as if it were not installed, also for `command`, which then skips other
    tests.
    """
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.setattr(in_process, "skip_where_advised", lambda text: None)


def files_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


def complaint(done: Done) -> list[str]:
    return [line for line in done.stderr.splitlines() if line.startswith("ropeconv: ")]


def outputs(document: dict[str, Any]) -> list[dict[str, Any]]:
    return list(document["outputs"]) if "outputs" in document else [document]


SAME = (
    "out",
    "recipe",
    "encoding",
    "schedule",
    "runtimes",
    "warnings",
    "fine_tuning",
    "notes",
    "skipped",
)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_run_does_what_its_plan_said(
    case: Case, models: Path, hub: WritingHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "work"
    shutil.copytree(models, work)
    if case.missing:
        hide(case.missing, monkeypatch)
    elif case.source not in ("sliding.json", "llama") or case.target != TARGETS[0]:
        monkeypatch.setitem(sys.modules, "transformers", None)  # whose import takes seconds
    words = ("apply", case.source, *case.target.split())
    before = files_in(work)

    planned = command(work, *words, "--dry-run", "--json")
    assert (files_in(work), hub.repos) == (before, {}), "a dry run writes nothing"
    done = command(work, *words, "--json")

    assert done.returncode == planned.returncode, (planned.stderr, done.stderr)
    assert complaint(planned) == complaint(done)
    if not planned.stdout:
        assert (files_in(work), hub.repos) == (before, {}), "what is refused writes nothing"
        return
    plan = json.loads(planned.stdout)
    run = json.loads(done.stdout)
    written = set[str]()
    for first, second in zip(outputs(plan), outputs(run), strict=True):
        assert {name: first[name] for name in SAME} == {name: second[name] for name in SAME}
        folder = first["encoding"] in ("native", "factors", "weights", "buffers", "ministral3")
        names = {file["name"] for file in first["files"]}
        out = Path(first["out"])
        written |= {str(out / name) for name in (*names, "ropeconv.json")} if folder else names
    if "publication" in plan:
        (repository,) = hub.repos.values()
        names = {upload["name"] for upload in plan["publication"]["uploads"]}
        names |= {copy["name"] for copy in plan["publication"]["copies"]}
        assert files_in(repository) - {".gitattributes"} == names
        assert f"{len(plan['publication']['uploads'])} files" in done.stderr
        written = written & files_in(work)
    new = {name for name in files_in(work) - before if not name.endswith(".Modelfile")}
    extra = {name for name in new if "adapter" in name or "draft" in name}
    assert new - extra == written - before - extra


def test_the_check_finds_a_disagreement(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A package that goes missing after the plan."""
    shutil.copytree(models, tmp_path / "work")
    words = ("apply", "meta", "--yarn", "4")
    monkeypatch.setitem(sys.modules, "transformers", None)
    planned = command(tmp_path / "work", *words, "--dry-run")
    hide("torch", monkeypatch)
    done = command(tmp_path / "work", *words)
    assert (planned.returncode, done.returncode) == (0, 1)
    assert "needs torch" in done.stderr
