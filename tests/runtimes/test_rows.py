"""Rows of the table of runtimes: where a family begins, whose word counts, and how a verdict says
that it is known.
"""

from typing import Any

import msgspec
import pytest

from ropeconv.models.family import Family
from ropeconv.rope.errors import RecipeError
from ropeconv.runtimes import evidence as evidence_module
from ropeconv.runtimes import verdict as verdict_module
from ropeconv.runtimes.evidence import Evidence, evidence
from ropeconv.runtimes.lab_file import ModelRecord, Record, refused_families
from ropeconv.runtimes.runtime import (
    NOT_THERE,
    RowFile,
    Runtime,
    find,
    newest,
    rows_of,
    runtimes,
)
from ropeconv.runtimes.verdict import Verdict, judge, judge_code, rows_for, without_config

from .test_verdicts import BEFORE, CONFIG, LLAMA, ROPE, SCHEDULE, runtime

UNSUPPORTED = [{"names": ["llama"], "unsupported": "never"}]


def family(**changes: Any) -> Family:
    return msgspec.structs.replace(LLAMA, **changes)


def row(first: str, last: str = "", **changes: Any) -> Runtime:
    return msgspec.structs.replace(runtime(**changes), version=first, through=last)


@pytest.mark.parametrize(
    ("since", "expected"),
    [
        ("1.1", ["1.2-1.4"]),
        ("1.2", ["1.2-1.4"]),
        ("1.3", ["1.2", "1.3-1.4"]),
        ("1.4", ["1.2-1.3", "1.4"]),
        ("1.5", ["1.2-1.4"]),
        ("", ["1.2-1.4"]),
    ],
)
def test_a_row_is_cut_where_a_family_begins(
    monkeypatch: pytest.MonkeyPatch, since: str, expected: list[str]
) -> None:
    begins = {"made": since} if since else {}
    monkeypatch.setattr(verdict_module, "runtimes", lambda: (row("1.2", "1.4"),))
    assert [part.display_name for part in rows_for(family(since=begins))] == [
        f"Made {span}" for span in expected
    ]
    monkeypatch.setattr(
        verdict_module, "runtimes", lambda: (row("1.2", "1.4", families=UNSUPPORTED),)
    )
    assert len(rows_for(family(since=begins))) == 1, "no rules of the row, so no first version"


def test_a_family_of_a_user_is_read_as_its_file_says_in_the_newest_transformers_alone() -> None:
    user_family = family(name="own", origin="own.toml", since={})
    assert without_config(newest("transformers"), user_family) is None
    for other in (find("transformers@4.48")[0], newest("vllm")):
        verdict = without_config(other, user_family)
        assert verdict is not None
        assert (verdict.status, verdict.reason, verdict.grade) == ("unknown", "own is untested", "")


def test_what_was_run_says_nothing_of_families_that_are_assumed_or_of_a_user() -> None:
    """Llama itself was executed in the newest transformers."""
    config = {**CONFIG, "rope_scaling": ROPE}

    def verdict(of: Family, by: Runtime = newest("transformers")) -> Verdict:
        return judge(config, of, SCHEDULE, BEFORE, by)

    assert (verdict(LLAMA).grade, verdict(LLAMA).reason) == ("run", "")
    assumed = verdict(family(assumed="mystery"))
    assert (assumed.status, assumed.reason, assumed.grade) == (
        "exact",
        "if it runs mystery as llama",
        "",
    )
    assert verdict(family(origin="own.toml")).grade == ""
    limited = verdict(family(assumed="mystery"), runtime(types={"linear": {"window": "says less"}}))
    assert limited.reason == "if it runs mystery as llama; says less"


@pytest.mark.parametrize(
    ("code", "reason", "families", "expected"),
    [
        ("exact", "", None, ("exact", "with trust_remote_code")),
        ("exact", "with a flag", None, ("exact", "with a flag")),
        ("refused", "", None, ("refused", "it does not run the code of a checkpoint")),
        ("refused", "", UNSUPPORTED, ("refused", "it does not run the code of a checkpoint")),
        ("exact", "", UNSUPPORTED, ("unsupported", "never")),
        ("unknown", "", None, ("unknown", "untested: running the code of a checkpoint")),
    ],
)
def test_code_of_a_checkpoint_needs_a_runtime_that_has_its_layers(
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    reason: str,
    families: Any,
    expected: tuple[str, str],
) -> None:
    only_runtime = runtime(families, custom_code=code, custom_code_reason=reason)
    monkeypatch.setattr(verdict_module, "runtimes", lambda: (only_runtime,))
    (verdict,) = judge_code(LLAMA, {})
    assert (verdict.status, verdict.reason) == expected


# Records


def test_the_record_of_the_last_version_that_a_row_covers(monkeypatch: pytest.MonkeyPatch) -> None:
    def record(version: str, name: str = "made", **models: ModelRecord) -> Record:
        return Record(name, version, f"date of {version}", "how", models)

    llama = ModelRecord("d", ("yarn",), "exact")
    records = [
        record("1.0", llama=llama, phi3=ModelRecord("d", ("yarn",), "exact", date="its own")),
        record("1.1", llama=llama),
        record("1.2", qwen2=ModelRecord("d", (), "unsupported")),
        record("1.3", llama=llama),
        record("1.1", "other", gemma=llama),
    ]

    def records_of(name: str) -> list[Record]:
        return [known for known in records if known.runtime == name]

    monkeypatch.setattr(evidence_module, "runtime_records", records_of)
    evidence_module.executed_models.cache_clear()
    by = row("1.0", "1.2", families=[{"names": ["llama", "gemma"], "rules": "generic"}])
    assert (
        evidence(by, "llama")
        == evidence(by, "llama", "yarn")
        == Evidence("run", "1.1, date of 1.1")
    )
    assert evidence(by, "llama", "linear") == Evidence("read"), (
        "a rope type that the record has not"
    )
    assert evidence(by, "phi3", "yarn") == Evidence("run", "1.0, its own")
    assert (
        evidence(by, "qwen2", "yarn")
        == evidence(by, "qwen2")
        == Evidence("run", "1.2, date of 1.2")
    )
    assert evidence(by, "gemma") == Evidence("read"), "it was another runtime"
    assert evidence(by, "olmo") == Evidence("")


def test_names_of_runtimes_that_are_not_known() -> None:
    with pytest.raises(RecipeError, match="llama-cpp, .*, ollama, koboldcpp"):
        find("nope", ("ollama", "koboldcpp"))
    assert [entry.key for entry in find("all")] == [
        entry.key for entry in runtimes() if entry.current
    ]
    with pytest.raises(RecipeError, match="--runtime all@1: "):
        find("all@1")
    with pytest.raises(
        RecipeError,
        match="--runtime oMLX@0.6: .*mlx-lm .*mlx-vlm",
    ):
        find("oMLX@0.6")
    with pytest.raises(RecipeError, match="llama-cpp and ONNX graphs in onnxruntime-genai"):
        find("lemonade")


RULES = {"generic": {"schemas": ["rope_scaling"], "theta": "top"}}
FILE = RowFile(
    "made",
    "Made",
    (
        {
            "version": "2.0",
            "through": "2.4",
            "source": "its code",
            "rules": RULES,
            "families": [
                {"names": ["llama", "phi3"], "rules": "generic"},
                {"names": ["mistral"], "unsupported": "it was removed"},
            ],
        },
        {"version": "1.0", "inherits": "2.0"},
    ),
)


def stated(refused: dict[str, dict[str, bool]], key: str) -> dict[str, str]:
    """What a row says of families: why they are unsupported, or their rules; empty for nothing."""
    row = rows_of(FILE, refused)[key]
    words = {}
    for name in ("llama", "mistral", "gemma", "glm"):
        statement = row.statement(name)
        words[name] = (statement.unsupported or statement.rules) if statement else ""
    return words


def test_a_family_that_the_lab_saw_refused_needs_no_statement() -> None:
    silent = {"llama": "generic", "mistral": "it was removed", "gemma": "", "glm": ""}
    assert stated({}, "made@2.0") == stated({}, "made@1.0") == silent

    # the file counts where it says something, and the newest version that ran the family
    refused = {
        "3.0": {"glm": True},
        "2.3": {"llama": True, "mistral": True, "gemma": True},
        "2.1": {"gemma": False, "glm": False},
    }
    assert stated(refused, "made@2.0") == silent | {"gemma": NOT_THERE}
    assert stated(refused, "made@1.0") == silent | {"gemma": NOT_THERE}, "as the row it inherits"
    assert stated({"2.4": {"gemma": False}} | refused, "made@2.0") == silent

    # a row has its own versions before those of the row that it inherits from
    assert stated(refused | {"1.0": {"gemma": False, "glm": True}}, "made@1.0") == silent | {
        "glm": NOT_THERE
    }


def test_a_family_is_refused_where_all_of_its_models_are() -> None:
    """In the records: TGI has no Gemma 3n, and exllamav3 has some Llama with its image models."""
    (by_family,) = refused_families("tgi").values()
    assert by_family["gemma3n"]
    assert not by_family["llama"]
    newest_row = newest("tgi").statement("gemma3n")
    assert newest_row is not None
    assert newest_row.unsupported == NOT_THERE
