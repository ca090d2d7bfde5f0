"""A plan is checked as a whole before anything is read, and its sources are found; mistakes end in
a sentence.
"""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import get_type_hints

import huggingface_hub
import pytest

import ropeconv
from ropeconv.convert.target import Target
from ropeconv.errors import UsageError
from ropeconv.features.run.jobs import named_sources
from ropeconv.features.run.plan_file import RunPlan, _table_class, read_plan
from ropeconv.models.hub import HubSource
from ropeconv.options import TargetOptions
from scripts.gather_pages import ROOT

from ...conftest import run_in
from ...support.baking import YARN
from ...support.hub_writing import WritingHub, serving_writes
from ...support.run_plans import models, plan_text
from .plans import EVAL

PUSH = '[push]\nto = "me/{name}-{recipe}"\n'


def read(folder: Path, text: str) -> RunPlan:
    path = folder / "plan.toml"
    path.write_text(text)
    return read_plan(path)


def test_a_whole_plan(tmp_path: Path) -> None:
    more = (
        '[[targets]]\n[[targets]]\nname = "q8"\nto = "gguf"\nouttype = "q8_0"\n'
        + PUSH
        + EVAL
        + '[limits]\njobs = 3\nhours = 2\nbytes = "1.5GB"\n[executor]\non = "local"\n'
    )
    plan = read(tmp_path, plan_text("apply push eval", more))
    assert plan.most_bytes == 1_500_000_000
    assert [target.target(tmp_path / "x").outtype for target in plan.targets] == [None, "q8_0"]
    assert plan.eval is not None
    assert plan.eval.sizes().lengths == "1/2T,1T,4T"


def test_paths_are_relative_to_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    (tmp_path / "best.json").write_text(json.dumps(YARN.to_dict()))
    more = '[[targets]]\nto = "gguf"\nimatrix = "a.dat"\nconverter = "llama"\n'
    plan = read(tmp_path, plan_text("apply", more, recipes='"recipe:best.json"'))
    (target,) = plan.targets
    assert target.imatrix == tmp_path.resolve() / "a.dat"
    assert target.converter == tmp_path.resolve() / "llama"
    (row,) = plan.rows(tmp_path)
    assert (row.name, row.recipe) == ("recipe:best.json", YARN)


def test_the_page_has_every_key_of_every_table() -> None:
    page = (ROOT / "docs" / "running.md").read_text("utf-8")
    table = page.partition("\n| key | what it is |\n")[2].partition("\n\n")[0]
    cells = {}
    for line in table.splitlines()[1:]:
        name, words = line.strip("| ").split(" | ", 1)
        cells[name.strip("`[]")] = set(re.findall(r"`(\w+)`", words))
    assert cells.keys() == get_type_hints(RunPlan).keys()
    for name, hint in get_type_hints(RunPlan).items():
        kind = _table_class(hint)
        if kind is not None:
            # a target has all options of `apply`, which docs/commands.md lists
            of_apply = get_type_hints(TargetOptions).keys() if name == "targets" else set()
            assert get_type_hints(kind).keys() - cells[name] - of_apply == set(), name


def test_a_target_has_all_that_a_target_of_apply_has(tmp_path: Path) -> None:
    keys = {
        "outtype": "q8_0",
        "pre": "gpt-2",
        "carrier": "llama",
        "assume_arch_keys": True,
        "quantized_by": "me",
        "converter": "/opt/llama.cpp",
    }
    more = '[[targets]]\nto = "gguf"\n' + "".join(
        f"{key} = {json.dumps(value)}\n" for key, value in keys.items()
    )
    expected = {**keys, "converter": Path("/opt/llama.cpp")}
    assert read(tmp_path, plan_text("apply", more)).targets[0].target(tmp_path / "x") == Target(
        **expected, to="gguf", out=tmp_path / "x"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = ", "is not TOML .* correct it"),
        ('sources = ["a"]\nrecipes = ["yarn:4"]\n', "missing required field tasks; correct it"),
        (plan_text("apply", "recipe = 3\n"), "the file has no key 'recipe'; did you mean recipes?"),
        (
            plan_text("apply", "[[targets]]\nouttypes = 1\n"),
            r"\[targets\] has no key 'outtypes'; did you mean outtyp",
        ),
        (
            plan_text("apply", '[limits]\njobs = "a"\n'),
            "expected int, got str in limits.jobs; correct it",
        ),
        (plan_text("aply"), "tasks has 'aply'; choose apply, validate, eval, push"),
        (plan_text("apply", sources=""), "sources is empty; name at least one"),
        (plan_text("apply apply"), "tasks names one twice; name each once"),
        (plan_text("validate"), "validate needs the outputs that apply writes; add apply to tasks"),
        (plan_text("eval"), r"tasks has eval and there is no \[eval\]; add it, with text = "),
        (plan_text("apply", recipes='"base"'), "recipes has base, .* leave it out"),
        (plan_text("apply", recipes='"yarm:4"'), "'yarm:4' is not a method; choose base"),
        (
            plan_text("apply", recipes='"yarn:4", "yarn:4"'),
            "recipes has yarn:4 twice; name each row once",
        ),
        (
            plan_text("apply", "[[targets]]\n[[targets]]\n"),
            "targets have the name '' twice; give each its own",
        ),
        (
            plan_text("apply", '[limits]\nbytes = "many"\n'),
            "limits.bytes is 'many'; write it like 200GB",
        ),
        (
            plan_text("apply", "[limits]\nretries = -1\n"),
            "limits.retries is -1; give a number from 0 to 10,000",
        ),
        (
            plan_text("apply", '[limits]\nunit_timeout = "soon"\n'),
            "limits.unit_timeout: 'soon' is .* write it like",
        ),
        (plan_text("eval", EVAL + 'measures = "grow"\n'), "--measure grow is not known; choose"),
        (plan_text("apply validate", "[validate]\ntokens = 1\n"), "--tokens is 1; give 16"),
        (plan_text("apply validate", "[validate]\nchunk = 0\n"), "--chunk is 0; give 1"),
        (plan_text("apply validate", "[validate]\nlength = -5\n"), "-5"),
        (plan_text("eval", EVAL + "depths = 0\n"), "--depths is 0; give 1"),
        (plan_text("eval", EVAL + "generate = true\n"), "--generate is for questions"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as problem:
        read(tmp_path, text)
    assert str(problem.value).startswith(str(tmp_path / "plan.toml"))
    assert "\n" not in str(problem.value)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return models(tmp_path)


def test_patterns_take_models_alone(place: Path) -> None:
    (place / "models" / "notes").mkdir()
    (place / "models" / "x.gguf").write_bytes(b"GGUF")
    sources = named_sources(["models/*", "models/a"], place)
    assert [source.name for source in sources] == ["a", "b", "c", "x"]
    assert sources[0].reference == str(place / "models" / "a")
    before = named_sources([str(place / "models" / "?")], Path("/"))
    assert before == sources[:3]
    (place / "models" / "b" / "config.json").write_text("{}")
    after = named_sources(["models/?"], place)
    assert [old == new for old, new in zip(before, after, strict=True)] == [
        True,
        False,
        True,
    ], "by their files"


def test_patterns_leave_out_the_outputs_of_the_plan(place: Path) -> None:
    out = place / "plan"
    (place / "models" / "x.gguf").write_bytes(b"GGUF")
    before = named_sources(["./**", "./**/*.gguf"], place, out)
    assert sorted(source.name for source in before) == ["a", "b", "c", "x"]

    # what a run leaves: outputs, and the hidden folder of one that was killed
    ropeconv.apply(place / "models" / "a", yarn=4, out=out / "a-yarn4", validate="off")
    ropeconv.apply(place / "models" / "a", yarn=4, to="gguf", out=out / "a.gguf", validate="off")
    partial = out / ".b-yarn4.ropeconv-partial" / "new"
    shutil.copytree(place / "models" / "b", partial)
    assert named_sources(["./**", "./**/*.gguf"], place, out) == before

    # models of others in the folder stay, and so does an output that is named or another plan's
    shutil.copytree(place / "models" / "b", out / "mine")
    assert len(named_sources(["./**", "./**/*.gguf"], place, out)) == 5
    assert [source.name for source in named_sources(["plan/a-yarn4"], place, out)] == ["a-yarn4"]
    others = named_sources(["plan/a*"], place, place / "other")
    assert [source.name for source in others] == ["a-yarn4", "a"]


def test_a_split_gguf_file_is_one_source(place: Path) -> None:
    for number in (1, 2):
        (place / "models" / f"x-{number:05}-of-00002.gguf").write_bytes(b"GGUF")
    names = [source.name for source in named_sources(["models/*.gguf"], place)]
    assert names == ["x-00001-of-00002"]


def test_nothing_is_an_error_and_one_of_several_is_a_problem(place: Path) -> None:
    with pytest.raises(UsageError, match="'nothing/\\*' matches no"):
        named_sources(["nothing/*"], place)
    good, bad = named_sources(["models/a", "no such thing"], place)
    assert (good.problem, bad.identity) == ("", "")
    assert bad.problem.startswith("no such thing is neither")


# Sources of the Hub, and a publication that a busy Hub slows down


@pytest.fixture
def hub(tmp_path: Path, llama: Path) -> Iterator[WritingHub]:
    (llama / "README.md").write_text("---\nlicense: apache-2.0\n---\n# The base\n")
    with serving_writes(tmp_path / "hub") as running:
        running.repos["base/m1"] = llama
        yield running


def test_a_query_and_a_collection_are_sources(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    queries: list[object] = []

    class Api:
        def __init__(self, **given: object) -> None:
            pass

        def whoami(self) -> dict[str, str]:
            return {"name": "base"}

        def list_models(self, **given: object) -> list[object]:
            queries.append(given)
            return (
                [SimpleNamespace(id="base/m2"), SimpleNamespace(id="base/m1")]
                if given["author"]
                else []
            )

        def get_collection(self, slug: str) -> object:
            queries.append(slug)
            items = [("base/m3", "model"), ("base/data", "dataset"), ("base/m1", "model")]
            return SimpleNamespace(
                items=[SimpleNamespace(item_id=id, item_type=kind) for id, kind in items]
            )

    monkeypatch.setattr(huggingface_hub, "HfApi", Api)
    monkeypatch.setattr(HubSource, "files", lambda self: setattr(self, "commit", "c" * 40) or ())
    sources = named_sources(["author:me search:m tag:x", "collection:base/all-1"], tmp_path)
    assert [source.reference for source in sources] == [
        f"base/{name}@{'c' * 40}" for name in ("m1", "m2", "m3")
    ]
    assert queries == [{"author": "base", "search": "m", "filter": ["x"]}, "base/all-1"]
    with pytest.raises(UsageError, match="'search:none' matches no"):
        named_sources(["search:none"], tmp_path)


def test_a_busy_hub_is_waited_for_as_long_as_it_asks(hub: WritingHub, tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(
        plan_text("push", f"{PUSH}[limits]\njobs = 2\n", '"base/m1"', '"yarn:4"')
    )
    hub.faults["busy"] = 2
    done = run_in(
        tmp_path,
        "run",
        "plan.toml",
        env={**hub.environment(tmp_path / "home"), "HF_TOKEN": "hf_sesame"},
    )
    assert done.returncode == 0, done.stderr + done.stdout
    assert (len(hub.refused), "me/m1-yarn4" in hub.repos) == (2, True)
