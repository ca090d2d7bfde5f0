"""The verbs in Python: what they take, what they return, and that every mistake is a sentence."""

import importlib
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers
from huggingface_hub import constants

import ropeconv
from ropeconv import METHODS, Recipe, RopeconvError, Target
from ropeconv.errors import UsageError
from ropeconv.inspection.receipts.receipt import SourceRecord
from ropeconv.verbs.validation import _source_for

from .support.llamacpp import tokenizer_json

GOOD: dict[str, Callable[[Path, Any], Any]] = {
    "apply, a str": lambda model, _: ropeconv.apply(str(model), yarn=4),
    "apply, a Path and out": lambda model, _: ropeconv.apply(model, linear=2.0, out="other"),
    "apply, a Source": lambda model, _: ropeconv.apply(ropeconv.open_source(str(model)), ntk="4"),
    "apply, a loaded model": lambda _, load: ropeconv.apply(load(), yarn=4, beta_fast=16),
    "apply, a Plan": lambda model, _: ropeconv.apply(
        ropeconv.apply(model, yarn=4, dry_run=True), link=True
    ),
    "apply, a Recipe": lambda model, _: ropeconv.apply(
        model, Recipe(METHODS["yarn"](4.0)), runtime=["vllm"]
    ),
    "apply, lengths": lambda model, _: ropeconv.apply(
        model, theta_for=4096, context="4k", runtime="transformers"
    ),
    "apply, only a length": lambda model, _: ropeconv.apply(
        model, context="1k", original_context=256, to="safetensors"
    ),
    "advise, a Path and a length": lambda model, _: ropeconv.advise(model, "1k"),
    "inspect, a str": lambda model, _: ropeconv.inspect(str(model)),
    "inspect, a Source": lambda model, _: ropeconv.inspect(ropeconv.open_source(model)),
    "inspect, a loaded model": lambda _, load: ropeconv.inspect(load()),
    "inspect, an Output": lambda model, _: ropeconv.inspect(ropeconv.apply(model, yarn=4)),
    "compare, a Path and a model": lambda model, load: ropeconv.compare(model, load()),
    "compare, inspections": lambda model, _: ropeconv.compare(
        ropeconv.inspect(model), ropeconv.inspect(model)
    ),
    "patch, a loaded model": lambda _, load: ropeconv.patch(load(), yarn=4),
    "restore, an Output": lambda model, _: ropeconv.restore(
        ropeconv.apply(model, yarn=4), out="again"
    ),
    "validate, an Output": lambda model, _: ropeconv.validate(
        ropeconv.apply(model, yarn=4), device="cpu"
    ),
    "validate, a dtype of torch": lambda model, _: ropeconv.validate(
        ropeconv.apply(model, yarn=4), device=torch.device("cpu"), dtype=torch.float32
    ),
    "validate, two strings": lambda model, _: ropeconv.validate(
        str(ropeconv.apply(model, yarn=4).path), str(model), device="cpu", length="128"
    ),
}
WRONG: dict[str, tuple[Callable[[Path, Any], Any], str]] = {
    "apply, no method": (lambda model, _: ropeconv.apply(model), "needs a method, such as yarn=4"),
    "apply, only a long length": (
        lambda m, _: ropeconv.apply(m, context="8k"),
        "yarn needs fine-tuning",
    ),
    "apply, a method by name": (
        lambda m, _: ropeconv.apply(m, method="yarn", factor=4),
        "such as yarn=4",
    ),
    "apply, frequencies": (
        lambda m, _: ropeconv.apply(m, inv_freq=[1.0]),
        r"inv_freq has 1 number",
    ),
    "Recipe, a name": (lambda *_: Recipe("yarn"), "such as METHODS\\[.*and got 'yarn'"),
    "apply, two methods": (
        lambda m, _: ropeconv.apply(m, yarn=4, linear=2),
        "two methods; choose one",
    ),
    "apply, a near name": (
        lambda m, _: ropeconv.apply(m, yarm=4),
        "no keyword yarm; did you mean yarn?",
    ),
    "apply, a far name": (
        lambda m, _: ropeconv.apply(m, yarn=4, q0=1),
        "help\\(ropeconv.apply\\) lists them",
    ),
    "apply, a wrong value": (
        lambda m, _: ropeconv.apply(m, yarn=[4]),
        r"yarn=\[4\] is not a number or a text",
    ),
    "apply, a wrong text": (lambda m, _: ropeconv.apply(m, yarn="four"), "neither"),
    "apply, a wrong number": (
        lambda m, _: ropeconv.apply(m, theta="1e6"),
        "theta='1e6' is not a number",
    ),
    "apply, a wrong switch": (
        lambda m, _: ropeconv.apply(m, as_is=1),
        "as_is=1 is not True or False",
    ),
    "apply, a wrong context": (
        lambda m, _: ropeconv.apply(m, yarn=4, context={}),
        "context={} is not a number",
    ),
    "apply, a wrong recipe": (
        lambda m, _: ropeconv.apply(m, {"yarn": 4}),
        "needs a Recipe or the path of one",
    ),
    "apply, a recipe and more": (
        lambda m, _: ropeconv.apply(m, Recipe(METHODS["yarn"](4.0)), context=9),
        "got a rec",
    ),
    "apply, two formats": (
        lambda m, _: ropeconv.apply(m, yarn=4, to=["gguf"]),
        "is not 'safetensors' or 'gguf'",
    ),
    "apply, a wrong runtime": (
        lambda m, _: ropeconv.apply(m, yarn=4, runtime=7),
        "runtime=7 is not a text",
    ),
    "apply, None": (
        lambda *_: ropeconv.apply(None, yarn=4),
        "needs a path, an id on the Hub, .* and got None",
    ),
    "apply of a plan with a method": (
        lambda m, _: ropeconv.apply(ropeconv.apply(m, yarn=4, dry_run=True), yarn=2),
        "of a plan does not accept yarn",
    ),
    "advise, a short context": (
        lambda m, _: ropeconv.advise(m, 9),
        "--context 9 is within the trained",
    ),
    "inspect, a number": (lambda *_: ropeconv.inspect(7), "and got 7"),
    "inspect, a plan": (
        lambda m, _: ropeconv.inspect(ropeconv.apply(m, yarn=4, dry_run=True)),
        "not written yet",
    ),
    "compare, a list": (lambda m, _: ropeconv.compare(m, [m]), "and got a list"),
    "patch, a path": (
        lambda m, _: ropeconv.patch(str(m), yarn=4),
        "patch\\(\\) needs a loaded model, and got '",
    ),
    "patch, nothing": (lambda _, load: ropeconv.patch(load()), "patch\\(\\) needs a method"),
    "patch, an output option": (
        lambda _, load: ropeconv.patch(load(), yarn=4, out="x"),
        "no keyword out",
    ),
    "restore, a source": (lambda m, _: ropeconv.restore(m), "ropeconv.json"),
    "validate, a source": (lambda m, _: ropeconv.validate(m), "not an output of ropeconv"),
    "validate, a local one": (
        lambda m, _: ropeconv.validate([ropeconv.apply(m, yarn=4).path, m.rename("moved")][0]),
        "pass against='PATH'",
    ),
    "validate, a near name": (
        lambda m, _: ropeconv.validate(m, m, lenght=4),
        "did you mean length?",
    ),
    "evaluate, a wrong text": (
        lambda m, _: ropeconv.evaluate(m, "base", 3),
        "text=3 is not the path of a text",
    ),
    "evaluate, wrong methods": (
        lambda m, _: ropeconv.evaluate(m, 4, "book.txt"),
        "methods=4 is not a text",
    ),
    "evaluate, a near name": (
        lambda m, _: ropeconv.evaluate(m, "base", "b", length=1),
        "did you mean lengths?",
    ),
    "apply, a wrong family": (
        lambda m, _: ropeconv.apply(m, yarn=4, family=3),
        "family=3 is not a text",
    ),
    "apply, a wrong flag": (
        lambda m, _: ropeconv.apply(m, yarn=4, link="no"),
        "link='no' is not True or False",
    ),
    "apply, a wrong reporter": (
        lambda m, _: ropeconv.apply(m, yarn=4, reporter=3),
        "reporter=3 is not a Reporter",
    ),
    "restore, a wrong out": (
        lambda m, _: ropeconv.restore(m, out=3),
        "out=3 is not a text or a path",
    ),
    "evaluate, a wrong number": (
        lambda m, _: ropeconv.evaluate(m, "base", "b", windows="8"),
        "not a whole number",
    ),
    "validate, a wrong number": (
        lambda m, _: ropeconv.validate(m, m, tokens="9"),
        "tokens='9' is not a whole number",
    ),
    "apply, a wrong out": (
        lambda m, _: ropeconv.apply(m, yarn=4, out=3),
        "out=3 is not a text or a path",
    ),
    "apply, push to a name": (
        lambda m, _: ropeconv.apply(m, yarn=4, push="x"),
        "write owner/name",
    ),
    "evaluate, no such text": (
        lambda m, _: ropeconv.evaluate(m, "base", "none.txt"),
        "none.txt",
    ),
}


@pytest.fixture
def model(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny Llama, in a folder of the test's own, where outputs without a name go."""
    monkeypatch.chdir(tmp_path)
    return llama


@pytest.fixture
def load(model: Path) -> Callable[[], Any]:
    return lambda: transformers.AutoModelForCausalLM.from_pretrained(model)


@pytest.mark.parametrize("call", GOOD)
def test_a_natural_call_works(call: str, model: Path, load: Callable[[], Any]) -> None:
    result = GOOD[call](model, load)
    if isinstance(result, ropeconv.Output):
        assert result.path.exists()
        assert str(result.path) in repr(result)
    if hasattr(result, "_repr_html_"):
        assert len(repr(result).splitlines()) < 20
        assert result._repr_html_().startswith("<table>")
    assert getattr(result, "agrees", True)


@pytest.mark.parametrize(
    "changes",
    [{"rope_theta": 777777.0}, {"rope_type": "linear", "factor": 2.0}, {}],
    ids=["another base", "a scaling", "another length"],
)
def test_a_loaded_model_with_another_rope_does_not_stand_for_its_files(
    changes: dict[str, Any], model: Path, load: Callable[[], Any]
) -> None:
    assert ropeconv.plan(load(), linear=2).before == ropeconv.plan(model, linear=2).before
    config = transformers.AutoConfig.from_pretrained(model)
    config.rope_parameters = {**config.rope_parameters, **changes}
    if not changes:
        config.max_position_embeddings *= 2
    other = transformers.AutoModelForCausalLM.from_pretrained(model, config=config)
    for verb in (ropeconv.inspect, lambda given: ropeconv.plan(given, linear=2)):
        with pytest.raises(UsageError, match="other RoPE settings"):
            verb(other)


def test_a_loaded_model_of_another_revision_does_not_stand_for_the_newest(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache without the Hub that has two revisions, which differ in their weights only."""
    commits = {"main": "a" * 40, "v2": "b" * 40}
    cached = tmp_path / "cache" / "models--base--tiny"
    (cached / "refs").mkdir(parents=True)
    for revision, commit in commits.items():
        (cached / "refs" / revision).write_text(commit)
        shutil.copytree(model, cached / "snapshots" / commit)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cached.parent))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)

    def loaded(revision: str) -> Any:
        """transformers 4 keeps the commit in the config, and 5.23 does not."""
        found = transformers.AutoModelForCausalLM.from_pretrained(
            "base/tiny", revision=revision, cache_dir=cached.parent
        )
        found.config._commit_hash = commits[revision]
        return found

    assert ropeconv.inspect(loaded("main")).source.commit == commits["main"]
    with pytest.raises(UsageError, match=f"base/tiny@{commits['v2']}"):
        ropeconv.inspect(loaded("v2"))


def test_a_model_with_an_adapter_does_not_stand_for_its_base(load: Callable[[], Any]) -> None:
    peft = pytest.importorskip("peft")
    adapted = peft.get_peft_model(load(), peft.LoraConfig(target_modules=["q_proj"]))
    for given in (adapted, adapted.base_model.model):
        with pytest.raises(UsageError, match="adapter="):
            ropeconv.plan(given, linear=2)
    assert ropeconv.plan(adapted.unload(), linear=2).warnings is not None


@pytest.mark.parametrize("call", WRONG)
def test_a_mistake_is_a_sentence(
    call: str, model: Path, load: Callable[[], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(
        "XDG_STATE_HOME", str(tmp_path / "state")
    )  # other tests have copies of this model
    mistake, sentence = WRONG[call]
    with pytest.raises(RopeconvError, match=sentence):
        mistake(model, load)


def test_the_keywords_are_those_of_the_command(model: Path) -> None:
    given = {
        "runtime": "vllm",
        "to": "safetensors",
        "encoding": "factors",
        "out": "~/a",
        "all_files": True,
    }
    target = ropeconv.apply(model, mixed=4, dry_run=True, **given).target
    out = Path.home() / "a"
    assert target == Target(
        to="safetensors", encoding="factors", out=out, runtimes=("vllm",), all_files=True
    )


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("me/a", "me/a@c0"),
        ("me/a@v1", "me/a@c0"),
        ("me/a/b.gguf", "me/a@c0/b.gguf"),
        ("me/a@v1/b.gguf", "me/a@c0/b.gguf"),
    ],
)
def test_a_source_on_the_hub_is_found_by_its_commit(
    reference: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = SourceRecord("a", "gguf" if "gguf" in reference else "hub", reference, "c0")
    places = importlib.import_module("ropeconv.inspection.receipts.places")
    monkeypatch.setattr(places, "read_receipt", lambda baked: SimpleNamespace(source=record))
    assert _source_for("out", Path("out"), None) == expected


def test_a_package_does_not_take_the_place_of_a_verb() -> None:
    for name in ("validate.comparison", "validate"):
        importlib.import_module(f"ropeconv.{name}")
        assert callable(ropeconv.validate)


def blocks() -> list[str]:
    """The ten tasks of docs/python.md."""
    text = (Path(__file__).parents[1] / "docs" / "python.md").read_text()
    tasks = text.partition("## Ten tasks")[2].partition("\n## ")[0]
    return re.findall(r"```python\n(.*?)```", tasks, re.DOTALL)


def test_the_ten_tasks_of_the_docs_run(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    llama.rename(tmp_path / "Llama-2-7b-hf")
    (tmp_path / "Llama-2-7b-hf" / "tokenizer.json").write_text(tokenizer_json())
    (tmp_path / "book.txt").write_text("the cat sat on the mat " * 4000)
    assert len(blocks()) == 10
    names: dict[str, Any] = {}
    for block in blocks():
        assert len([line for line in block.splitlines() if line]) <= 4, block
        exec(compile(block, block, "exec"), names)
