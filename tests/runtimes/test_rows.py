"""Rows of the table of runtimes: where a family begins, whose word counts, and how a verdict says that it is known."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ropeconv.families.family import Family
from ropeconv.rope.errors import RecipeError
from ropeconv.rope.forms import LongRope, Yarn
from ropeconv.rope.schedule import Schedule
from ropeconv.runtimes import evidence as evidence_module
from ropeconv.runtimes import verdict as verdict_module
from ropeconv.runtimes.evidence import Evidence, ModelRecord, Record, evidence
from ropeconv.runtimes.find import find, newest
from ropeconv.runtimes.runtime import Runtime, runtimes
from ropeconv.runtimes.verdict import Verdict, judge, judge_code, rows_for, without_config

from .test_verdicts import BEFORE, CONFIG, LLAMA, ROPE, SCHEDULE, judged, runtime

UNSUPPORTED = [{"names": ["llama"], "unsupported": "never"}]


def family(**changes: Any) -> Family:
    return msgspec.structs.replace(LLAMA, **changes)


def row(first: str, last: str = "", **changes: Any) -> Runtime:
    return msgspec.structs.replace(runtime(**changes), version=first, through=last)


@pytest.mark.parametrize(
    ("since", "expected"),
    [
        ("1.1", ["1.2-1.4"]), ("1.2", ["1.2-1.4"]), ("1.3", ["1.2", "1.3-1.4"]), ("1.4", ["1.2-1.3", "1.4"]),
        ("1.5", ["1.2-1.4"]), ("", ["1.2-1.4"]),
    ],
)  # fmt: skip
def test_a_row_is_cut_where_a_family_begins(monkeypatch: pytest.MonkeyPatch, since: str, expected: list[str]) -> None:
    begins = {"made": since} if since else {}
    monkeypatch.setattr(verdict_module, "runtimes", lambda: (row("1.2", "1.4"),))
    assert [one.display_name for one in rows_for(family(since=begins))] == [f"Made {one}" for one in expected]
    monkeypatch.setattr(verdict_module, "runtimes", lambda: (row("1.2", "1.4", families=UNSUPPORTED),))
    assert len(rows_for(family(since=begins))) == 1, "no rules of the row, so no first version"


@pytest.mark.parametrize(("since", "known"), [("1.4", True), ("1.5", False), ("2.0", False)])
def test_versions_before_a_family_do_not_know_it(since: str, known: bool) -> None:
    found = without_config(row("1.2", "1.4"), family(since={"made": since}))
    said = ("unsupported", f"it does not know llama before {since}", "family")
    assert (found and (found.status, found.reason, found.source)) == (None if known else said)
    assert without_config(row("1.2", "1.4"), family(since={"another": since})) is None


def test_a_family_of_a_user_is_read_as_its_file_says_in_the_newest_transformers_alone() -> None:
    own = family(name="own", origin="own.toml", since={})
    assert without_config(newest("transformers"), own) is None
    for other in (find("transformers@4.48")[0], newest("vllm")):
        found = without_config(other, own)
        assert found is not None
        assert (found.status, found.reason, found.grade) == ("unknown", "nobody has looked at own in it", "")


def test_what_was_run_says_nothing_of_families_that_are_assumed_or_of_a_user() -> None:
    """Llama itself was executed in the newest transformers."""
    config = {**CONFIG, "rope_scaling": ROPE}

    def verdict(of: Family, by: Runtime = newest("transformers")) -> Verdict:
        return judge(config, of, SCHEDULE, BEFORE, by)

    assert (verdict(LLAMA).grade, verdict(LLAMA).reason) == ("run", "")
    assumed = verdict(family(assumed="mystery"))
    assert (assumed.status, assumed.reason, assumed.grade) == ("exact", "where it runs mystery as llama", "")
    assert verdict(family(origin="own.toml")).grade == ""
    said = verdict(family(assumed="mystery"), runtime(types={"linear": {"window": "says less"}}))
    assert said.reason == "where it runs mystery as llama; says less"


@pytest.mark.parametrize(
    ("code", "reason", "families", "expected"),
    [
        ("exact", "", None, ("exact", "with trust_remote_code")),
        ("exact", "with a flag", None, ("exact", "with a flag")),
        ("refused", "", None, ("refused", "it does not run code of a checkpoint")),
        ("refused", "", UNSUPPORTED, ("refused", "it does not run code of a checkpoint")),
        ("exact", "", UNSUPPORTED, ("unsupported", "never")),
        ("unknown", "", None, ("unknown", "nobody has looked whether it runs the code of a checkpoint")),
    ],
)
def test_code_of_a_checkpoint_needs_a_runtime_that_has_its_layers(
    monkeypatch: pytest.MonkeyPatch, code: str, reason: str, families: Any, expected: tuple[str, str]
) -> None:
    made = runtime(families, custom_code=code, custom_code_reason=reason)
    monkeypatch.setattr(verdict_module, "runtimes", lambda: (made,))
    (found,) = judge_code(LLAMA)
    assert (found.status, found.reason) == expected


def test_a_verdict_is_stated_where_its_rules_are() -> None:
    """At the rope type, else at the rule set, else at the family, else at the row."""
    at_type, at_set = {"types": {"linear": {"source": "type"}}}, {"source": "set"}
    assert judged(runtime(**at_type, **at_set))[2] == "type"
    assert [judged(runtime(**one))[2] for one in (at_type, at_set, {})] == ["type", "set", "family"]
    unsaid = [{"names": ["llama"], "rules": "generic"}]
    assert judged(runtime(unsaid))[2] == "row"


def test_a_base_that_a_required_dictionary_holds() -> None:
    """Where the base is read from the dictionary, a required key may be there or at the top level."""
    either, top = (runtime(theta=theta, required={"factor": "refused"}) for theta in ("dict", "top"))
    assert (judged(either)[0], judged(top)[0]) == ("exact", "refused")
    absent = runtime(theta="dict", required={"alpha": "refused"})
    assert judged(absent)[:2] == ("refused", "it fails without alpha")


def test_a_ramp_over_another_length_is_named() -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "attention_factor": 1.0}
    form = Yarn(10000.0, 4.0, 64)
    wanted = Schedule(form.inv_freq(8), 1.0, 256, 64, form)
    once, longer, other = (
        runtime(types={"yarn": {"attention_factor": ["attention_factor"], **more}})
        for more in ({}, {"times_original": 16}, {"betas": False, "factor": "max/original"})
    )
    assert judged(once, wanted, rope)[:2] == ("exact", "")
    assert judged(longer, wanted, rope)[1].startswith(
        "it computes YaRN's ramp over 16 times the trained length: it computes other frequencies (yarn"
    )
    changed = judged(other, wanted, {**rope, "original_max_position_embeddings": 32})
    assert (changed[0], changed[1][:35]) == ("differs", "it computes other frequencies (yarn")


def test_a_formula_at_one_token_is_refused_where_it_is_always_evaluated() -> None:
    form = LongRope(10000.0, (2.0,) * 4, (2.0,) * 4, 64)
    wanted = Schedule(form.inv_freq(8), 1.0, 256, 64, form)
    rope = {"rope_type": "longrope", "short_factor": [2.0] * 4, "long_factor": [2.0] * 4, "attention_factor": 1.0}
    for always, original, status in ((True, 1, "refused"), (True, 2, "exact"), (False, 1, "exact")):
        rules = {"formula_always": always, "attention_factor": ["attention_factor"]}
        found = judged(
            runtime(types={"longrope": rules}), wanted, {**rope, "original_max_position_embeddings": original}
        )
        assert found[0] == status
        if status == "refused":
            assert found[1] == "it divides by the logarithm of original_max_position_embeddings, here 0"


# Records


def test_the_record_of_the_last_version_that_a_row_covers(monkeypatch: pytest.MonkeyPatch) -> None:
    def record(version: str, name: str = "made", **models: ModelRecord) -> Record:
        return Record(name, version, f"date of {version}", "how", models)

    llama = ModelRecord("d", ("yarn",), "exact")
    made = (
        record("1.0", llama=llama, phi3=ModelRecord("d", ("yarn",), "exact", date="its own")),
        record("1.1", llama=llama),
        record("1.2", qwen2=ModelRecord("d", (), "unsupported")),
        record("1.3", llama=llama),
        record("1.1", "other", gemma=llama),
    )
    monkeypatch.setattr(evidence_module, "records", lambda: made)
    by = row("1.0", "1.2", families=[{"names": ["llama", "gemma"], "rules": "generic"}])
    assert evidence(by, "llama") == evidence(by, "llama", "yarn") == Evidence("run", "1.1, date of 1.1")
    assert evidence(by, "llama", "linear") == Evidence("read"), "a rope type that the record has not"
    assert evidence(by, "phi3", "yarn") == Evidence("run", "1.0, its own")
    assert evidence(by, "qwen2", "yarn") == evidence(by, "qwen2") == Evidence("run", "1.2, date of 1.2")
    assert evidence(by, "gemma") == Evidence("read"), "it was another runtime"
    assert evidence(by, "olmo") == Evidence("")


def test_names_of_runtimes_that_are_not_known() -> None:
    with pytest.raises(RecipeError, match=r"llama-cpp \(or llama.cpp, gguf\).*, ollama, koboldcpp$"):
        find("nope", ("ollama", "koboldcpp"))
    assert [one.key for one in find("all")] == [one.key for one in runtimes() if one.current]
    with pytest.raises(RecipeError, match="--runtime all@1: no such runtime is known"):
        find("all@1")
