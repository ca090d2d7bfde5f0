"""Jobs: every combination once, with names that tell outputs apart, and keys over what decides a
result.
"""

from pathlib import Path

import msgspec
import pytest

from ropeconv.errors import UsageError
from ropeconv.features.run.jobs import Job, NamedSource, jobs_of
from ropeconv.features.run.plan_file import read_plan

from ...support.run_plans import plan_text
from .plans import EVAL

TO = '[push]\nto = "%s"\n'
PUSH = TO % "me/{name}-{recipe}-{target}"
SOURCES = [NamedSource("/m/a", "a", "1"), NamedSource("o/b@c", "b", "c")]


def planned(
    folder: Path, plan: str, sources: list[NamedSource] = SOURCES, text: str = "words"
) -> list[Job]:
    (folder / "plan.toml").write_text(plan)
    (folder / "text.txt").write_text(text)
    return jobs_of(read_plan(folder / "plan.toml"), sources, folder, folder / "plan")


def test_every_combination_once(tmp_path: Path) -> None:
    targets = '[[targets]]\n[[targets]]\nname = "q8"\nto = "gguf"\nouttype = "q8_0"\n'
    jobs = planned(tmp_path, plan_text("push validate apply eval", targets + PUSH + EVAL))
    shown = [
        ([unit.task for unit in job], job[0].source.name, Path(job[0].out).name) for job in jobs
    ]
    chain = ["apply", "validate", "push"]
    assert shown == [
        triple
        for name in "ab"
        for triple in (
            (chain, name, f"{name}-yarn4"),
            (chain, name, f"{name}-yarn4-q8.gguf"),
            (chain, name, f"{name}-mixed4"),
            (chain, name, f"{name}-mixed4-q8.gguf"),
            (["eval"], name, f"{name}.json"),
        )
    ]
    assert [job[2].settings["to"] for job in jobs[:2]] == ["me/a-yarn4", "me/a-yarn4-q8"]
    assert [recipe.name for recipe in jobs[4][0].recipes] == ["base", "yarn:4", "mixed:4"]
    assert len({unit.key for job in jobs for unit in job}) == 2 * (4 * 3 + 1)


def test_a_key_changes_with_what_decides_the_result(tmp_path: Path) -> None:
    first = planned(tmp_path, plan_text("apply push", PUSH))[0][0]
    same = planned(tmp_path, plan_text("apply push", PUSH))[0][0]
    assert (same, same.key) == (first, first.key)
    again = msgspec.json.decode(msgspec.json.encode(first), type=type(first))
    assert again.key == first.key
    for change in (
        {"source": SOURCES[1]},
        {"task": "push"},
        {"out": "x"},
        {"settings": {"a": 1}},
        {"family": "llama"},
    ):
        assert msgspec.structs.replace(first, **change).key != first.key
    before = planned(tmp_path, plan_text("eval", EVAL))[0][0]
    assert planned(tmp_path, plan_text("eval", EVAL), text="other words")[0][0].key != before.key


def test_a_key_changes_with_the_files_that_a_target_names(tmp_path: Path) -> None:
    script = tmp_path / "llama.cpp" / "convert_hf_to_gguf.py"
    script.parent.mkdir()
    keys = set()
    for matrix, code in (("one", "a"), ("another", "a"), ("another", "b")):
        (tmp_path / "im.dat").write_text(matrix)
        script.write_text(code)
        targets = '[[targets]]\nto = "gguf"\nimatrix = "im.dat"\nconverter = "llama.cpp"\n'
        for unit in planned(tmp_path, plan_text("apply validate", targets), SOURCES[:1])[0]:
            keys.add(unit.key)
    assert len(keys) == 2 * 3

    # a file that is missing is an error of `apply`, and of this unit alone
    (tmp_path / "im.dat").unlink()
    assert planned(tmp_path, plan_text("apply", targets))[0][0].digests.keys() == {"converter"}


@pytest.mark.parametrize(
    "setting",
    ['device = "cuda:5"', "length = 4096", "chunk = 7", 'dtype = "float16"', "layer_by_layer=true"],
)
def test_a_setting_of_validate_without_effect_is_refused(tmp_path: Path, setting: str) -> None:
    gguf = '[[targets]]\nname = "g"\nto = "gguf"\n'
    more = f"[validate]\nseed = 3\ntokens = 64\n{setting}\n"
    key = setting.split("=")[0].strip()
    with pytest.raises(UsageError, match=f"validate.{key}"):
        planned(tmp_path, plan_text("apply validate", gguf + more))

    # beside a folder, it is for the folder alone
    folder, file, *_ = planned(tmp_path, plan_text("apply validate", "[[targets]]\n" + gguf + more))
    assert key in folder[1].settings
    assert file[1].settings == {"seed": 3, "tokens": 64}


def test_who_publishes_a_quantisation_is_named_in_it(tmp_path: Path) -> None:
    """In the same words before and behind the publication, and never against what the plan says."""
    outtypes = {"": None, "f": "f16", "q": "q8_0", "k": "q4_k_m", "s": "q8_0"}
    targets = "".join(
        f'[[targets]]\nname = "{name}"\nto = "gguf"\n'
        + (f'outtype = "{outtype}"\n' if outtype else "")
        for name, outtype in outtypes.items()
    )
    targets += 'quantized_by = "somebody"\n'
    for tasks, owner in (("apply push", "me"), ("apply", None)):
        jobs = planned(tmp_path, plan_text(tasks, targets + PUSH, recipes='"yarn:4"'), SOURCES[:1])
        named = [{unit.target.quantized_by for unit in job if unit.target} for job in jobs]
        assert named == [{None}, {None}, {owner}, {owner}, {"somebody"}]


@pytest.mark.parametrize(
    ("plan", "sources", "message"),
    [
        (
            plan_text("apply push", TO % "me/{recipe}"),
            SOURCES,
            "2 outputs would go to me/yarn4; add {name}, {recipe} or",
        ),
        (
            plan_text("push", TO % "me/{model}"),
            SOURCES,
            "push.to has {model}; the names are {name}, {recipe}",
        ),
        (
            plan_text("push", TO % "{name}-{recipe}"),
            SOURCES,
            "a-yarn4 is not a repository; write owner/name",
        ),
        (
            plan_text("apply", '[[targets]]\n[[targets]]\nname = "yarn4"\n', recipes='"yarn:4"'),
            [NamedSource("/m/a", "a"), NamedSource("/n/a-yarn4", "a-yarn4")],
            "2 outputs would be .*a-yarn4-yarn4; give targets names",
        ),
    ],
)
def test_two_outputs_never_have_one_place(
    tmp_path: Path, plan: str, sources: list[NamedSource], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        planned(tmp_path, plan, sources)
