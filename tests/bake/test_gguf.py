"""Plans of GGUF files, also in shards, and how an output is run."""

import json
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ropeconv.bake import execution
from ropeconv.bake.gguf import ExportPlan, GgufPlan
from ropeconv.bake.next_steps import run_commands
from ropeconv.formats.disk import sha256
from ropeconv.models.config import sample_config
from ropeconv.models.registry import by_name
from ropeconv.reporting import Advance, SilentReporter
from ropeconv.rope.recipe import Recipe

from ..conftest import CONFIGS
from ..support.baking import MIXED, YARN, apply, make_plan
from ..support.corruptions import edit
from ..support.gguf_files import TRAINED, contents, write

CONFIG = CONFIGS / "meta-llama--Llama-2-7b-hf.json"


@pytest.mark.parametrize(
    ("arch", "recipe", "options", "changed"),
    [("llama", YARN, {}, 0), ("qwen2", MIXED, {"carrier": "llama"}, 1)],
)
def test_shards_without_a_change_are_copied(
    tmp_path: Path, arch: str, recipe: Recipe, options: dict[str, str], changed: int
) -> None:
    """The header of the first has the keys; of the others only those with changed tensors are
    written anew.
    """
    write(tmp_path / "model.gguf", arch, split=1)
    shards = sorted(tmp_path.glob("model-*.gguf"))
    plan = make_plan(shards[0], recipe, tmp_path / "out.gguf", **options)
    assert plan.out == tmp_path / "out-00001-of-00004.gguf"
    assert [file.name for file in plan.files] == [
        f"out-{number:05}-of-00004.gguf" for number in range(1, 5)
    ]
    patched = [bool(changed and "blk.0.attn_q.weight" in contents(shard)) for shard in shards[1:]]
    assert sum(patched) == changed
    assert [file.action for file in plan.files] == [
        "patch",
        *("patch" if flag else "copy" for flag in patched),
    ]
    origins = [None if flag else shard for flag, shard in zip(patched, shards[1:], strict=True)]
    assert [plan.origin(file) for file in plan.files] == [None, *origins]


# How an output is run


@pytest.fixture
def plan(tmp_path: Path) -> GgufPlan:
    return make_plan(write(tmp_path / "model.gguf"), YARN, tmp_path / "Long.gguf")


def test_commands_have_the_context_and_quoted_paths(plan: GgufPlan, llama: Path) -> None:
    serve = f"llama-server -m '/a b/Long.gguf' -c {4 * TRAINED}"
    assert run_commands(plan, Path("/a b/Long.gguf")) == [serve]
    assert run_commands(plan, Path("/a b/Long.gguf"), Path("x y")) == [
        "ollama create long -f 'x y' && ollama run long"
    ]
    assert run_commands(make_plan(llama, YARN), Path("/a b/out")) == [
        "vllm serve '/a b/out' --max-model-len 256"
    ]


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("out x", "out-x"),
        ("Näme+(1)", "n-me-1"),
        ("-a..b", "a-b"),
        ("模型", "model"),
        ("Q8_0.v1", "q8_0.v1"),
    ],
)
def test_ollama_gets_a_name_that_it_accepts(plan: GgufPlan, stem: str, name: str) -> None:
    (line,) = run_commands(plan, Path(f"{stem}.gguf"), Path(f"{stem}.Modelfile"))
    words = ["ollama", "create", name, "-f", f"{stem}.Modelfile", "&&", "ollama", "run", name]
    assert shlex.split(line) == words


def test_the_command_is_of_a_runtime_that_supports_the_output(tmp_path: Path) -> None:
    """A config alone has none."""
    (tmp_path / "config.json").write_text(json.dumps(sample_config(by_name()["evolla"])))
    unknown = make_plan(tmp_path / "config.json", YARN)
    unknown.source.kind = "folder"
    assert "exact" in {verdict.status for verdict in unknown.result.verdicts}
    assert run_commands(unknown, Path("out")) == ["transformers serve out"]
    assert run_commands(make_plan(CONFIG, YARN), tmp_path) == []


@pytest.mark.parametrize(
    ("runtime", "command"),
    [
        ("mlx-lm", "mlx_lm.server --model out"),
        ("sglang", "sglang serve --model-path out --context-length 256"),
        ("transformers", "transformers serve out"),
        ("vllm", "vllm serve out --max-model-len 256"),
        ("tgi", "text-generation-launcher --model-id out --max-total-tokens 256"),
        (
            "exllamav3",
            "python main.py --model-dir . --model-name out --max-seq-len 256  # in TabbyAPI",
        ),
    ],
)
def test_a_named_runtime_has_its_own_command(llama: Path, runtime: str, command: str) -> None:
    assert run_commands(make_plan(llama, YARN, runtimes=(runtime,)), Path("out")) == [command]


# Plans of conversions to GGUF: sizes, bytes, what is read, and what is said; against gguf-py's
# reader


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from ..support.llamacpp import checkpoint

    return checkpoint("llama", tmp_path_factory.mktemp("source") / "Tiny-Llama")


def planned(
    source: Path, recipe: Recipe = MIXED, out: Path | None = None, **options: Any
) -> ExportPlan:
    export_plan = make_plan(source, recipe, out, to="gguf", **options)
    assert isinstance(export_plan, ExportPlan)
    return export_plan


class CountingReporter(SilentReporter):
    """Adds up the bytes of all progress."""

    done = 0

    @contextmanager
    def progress(self, title: str, total: int) -> Iterator[Advance]:
        def advance(done: int) -> None:
            self.done += done

        yield advance


@pytest.mark.parametrize("outtype", ["f32", "f16", "q8_0"])
def test_a_file_has_the_planned_size_and_all_of_it_is_counted(
    model: Path, tmp_path: Path, outtype: str
) -> None:
    plan = planned(model, out=tmp_path / "a.gguf", outtype=outtype)
    reporter = CountingReporter()
    (file,) = plan.files
    assert (file.name, file.action, file.estimated) == ("a.gguf", "convert", False)
    apply(plan, reporter=reporter)
    assert (tmp_path / "a.gguf").stat().st_size == file.size == plan.bytes
    divisors = 4 * len(plan.schedule.inv_freq)
    assert file.size - reporter.done in range(
        divisors + 64
    )  # the few divisors of the method are not


def test_only_files_that_a_receipt_lists_are_hashed(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed = list[Path]()
    monkeypatch.setattr(execution, "sha256", lambda path: hashed.append(path) or sha256(path))
    apply(planned(model, out=tmp_path / "a.gguf"))
    assert not hashed
    apply(make_plan(model, MIXED, tmp_path / "folder"))
    assert hashed, "the control"


def test_a_vision_part_that_stays_behind_is_said(model: Path, tmp_path: Path) -> None:
    assert not any("vision" in warning for warning in planned(model).warnings)
    folder = shutil.copytree(model, tmp_path / "Tiny-Llama")
    edit(folder, "config.json", lambda config: config.update(vision_config={}))
    assert any(
        warning.startswith("only the language model") for warning in planned(folder).warnings
    )
