"""`--allow-untested`: a refusal for what no one has tested becomes a plan, and no other refusal
does.
"""

import json
from itertools import product
from pathlib import Path

import pytest

from ropeconv.convert.encoding import ENCODINGS, CheckpointResult, EncodeRequest, select
from ropeconv.errors import UnsupportedBake
from ropeconv.hub.base_model import BaseModel
from ropeconv.hub.card import card
from ropeconv.hub.upload_set import UploadSet
from ropeconv.inspection.receipts.storage import read_receipt
from ropeconv.models.config import sample_config
from ropeconv.models.registry import by_name
from ropeconv.rope.errors import RopeconvError
from ropeconv.runtimes.gguf_readers import find_any, reader_names
from ropeconv.runtimes.runtime import RUNS, find, runtimes

from ..support.baking import LINEAR, MIXED, NTK, YARN, apply, make_plan, recipe_of
from ..support.extent import few
from ..support.gguf_files import write
from ..support.in_process import command
from .made_requests import CONFIG, request

FLAG = "--allow-untested"
RECIPES = {
    "linear": LINEAR,
    "mixed": MIXED,
    "ntk": NTK,
    "yarn": YARN,
    "llama3": recipe_of("llama3", 4.0),
    "loud": recipe_of("mixed", 4.0, attention_factor=1.2),
    "log-n": recipe_of("linear", 4.0, log_n="clamped"),
}
NAMES = [*dict.fromkeys(row.name for row in runtimes())]
FAMILIES = sorted(name for name, family in by_name().items() if family.keys.theta)
MATRIX = list(product(FAMILIES, NAMES, RECIPES, ("auto", "native", "factors")))


def attempts(asked: EncodeRequest, encoding: str) -> list[CheckpointResult]:
    """What each encoding that may be taken makes of a request, without a selection."""
    results = []
    for name in ENCODINGS if encoding == "auto" else (encoding,):
        try:
            results.append(ENCODINGS[name].encode(asked))
        except RopeconvError:
            continue
    return results


def refusal(asked: EncodeRequest) -> str:
    """Why nothing is selected; empty where something is."""
    try:
        select(asked)
    except RopeconvError as problem:
        return str(problem)
    return ""


@pytest.mark.parametrize("case", few(MATRIX, 60), ids=str)
def test_exactly_the_refusals_for_what_is_untested_become_plans(
    case: tuple[str, str, str, str],
) -> None:
    family, name, method, encoding = case
    config = sample_config(by_name()[family])
    options = {"runtimes": (name,), "encoding": encoding, "allow_approximate": method == "log-n"}
    try:
        asked = request(RECIPES[method], config, {}, **options)
        allowing = request(RECIPES[method], config, {}, allow_untested=True, **options)
    except RopeconvError:
        pytest.skip("the family has no such schedule")
    reason = refusal(asked)
    row = find(name)[-1]
    statuses = {result.verdict_of(row).status for result in attempts(allowing, encoding)}
    if not reason:
        result = select(allowing)
        assert result.verdict_of(row).status == select(asked).verdict_of(row).status
        assert result.verdict_of(row).status in RUNS
        return
    if row.display_name not in reason:
        assert FLAG not in reason, "the family itself cannot have it, whatever the runtime does"
    elif "unknown" in statuses:
        assert FLAG in reason
        result = select(allowing)
        assert result.verdict_of(row).status == "unknown"
        assert any(FLAG in note for note in result.notes)
    else:
        assert FLAG not in reason
        assert FLAG not in refusal(allowing)
        assert refusal(allowing)


def test_the_matrix_has_both_kinds_of_refusal() -> None:
    """A sample of one day may lack one of them."""
    of = {name: sample_config(by_name()[name]) for name in ("gpt_neox", "dbrx")}
    assert FLAG in refusal(request(YARN, of["dbrx"], runtimes=("sglang",)))
    assert FLAG not in refusal(request(MIXED, of["gpt_neox"], runtimes=("candle",)))
    assert refusal(request(MIXED, of["gpt_neox"], runtimes=("candle",)))


def test_what_one_of_several_runtimes_does_wrong_is_not_accepted() -> None:
    config = sample_config(by_name()["dbrx"])
    assert find("mistralrs")
    alone = request(YARN, config, runtimes=("sglang",), allow_untested=True)
    assert select(alone).verdict_of(find("sglang")[-1]).status == "unknown"
    wrong = next(
        name
        for name in NAMES
        if {result.verdict_of(find(name)[-1]).status for result in attempts(alone, "auto")}
        <= {"refused", "differs", "ignored", "unsupported"}
    )
    both = refusal(request(YARN, config, runtimes=("sglang", wrong), allow_untested=True))
    assert both
    assert FLAG not in both


def test_the_runtime_to_leave_out_is_the_one_that_computes_no_encoding() -> None:
    """vLLM computes the native encoding of YaRN, and torchtitan none."""
    assert select(request(YARN, CONFIG, runtimes=("vllm",))).encoding == "native"
    assert refusal(request(YARN, CONFIG, runtimes=("torchtitan",)))
    both = refusal(request(YARN, CONFIG, runtimes=("vllm", "torchtitan")))
    assert "leave torchtitan out" in both
    assert "leave vllm out" not in both


def test_a_runtime_that_was_tested_is_preferred_to_one_that_was_not() -> None:
    """For the same recipe, with and without the word, the same is selected where anything is
    exact.
    """
    plain = select(request(YARN, CONFIG, runtimes=("vllm",)))
    allowed = select(request(YARN, CONFIG, runtimes=("vllm",), allow_untested=True))
    assert allowed.encoding == plain.encoding
    assert any("was not needed" in note for note in allowed.notes)


@pytest.fixture
def untested(tmp_path: Path) -> Path:
    """A config of a family that SGLang has, and whose attention no one has run there."""
    path = tmp_path / "config.json"
    path.write_text(json.dumps(sample_config(by_name()["dbrx"])))
    return path


def test_plan_receipt_card_and_json_say_what_was_accepted(untested: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedBake, match=FLAG):
        make_plan(untested, YARN, tmp_path / "out", runtimes=("sglang",))
    plan = make_plan(untested, YARN, tmp_path / "out", runtimes=("sglang",), allow_untested=True)
    assert any(FLAG in warning and "SGLang" in warning for warning in plan.warnings)
    assert any(FLAG in warning for warning in plan.to_dict()["warnings"])

    receipt = read_receipt(apply(plan))
    assert receipt.target.allow_untested
    assert {row.status for row in receipt.runtimes if row.runtime == find("sglang")[-1].key} == {
        "unknown"
    }
    words = card(UploadSet({}, receipt, 8192), "me/model", BaseModel())
    assert f"for {find('sglang')[-1].display_name} with `{FLAG}`" in words

    plain = make_plan(untested, YARN, tmp_path / "plain", runtimes=("transformers",))
    assert FLAG not in card(
        UploadSet({}, read_receipt(apply(plain)), 8192), "me/model", BaseModel()
    )


@pytest.mark.parametrize("runtime", ["vllm", "sglang"])
def test_overrides_are_printed_for_what_is_untested(runtime: str, tmp_path: Path) -> None:
    """dbrx needs a kernel in SGLang, mimo_v2_flash other sizes in vLLM than the lab has."""
    text = sample_config(by_name()["dbrx" if runtime == "sglang" else "mimo_v2_flash"])
    (tmp_path / "config.json").write_text(json.dumps(text))
    words = [
        "apply",
        str(tmp_path / "config.json"),
        "--linear",
        "4",
        "--to",
        "overrides",
        "--runtime",
        runtime,
    ]
    refused = command(tmp_path, *words)
    assert refused.returncode == 1
    assert FLAG in refused.stderr
    allowed = command(tmp_path, *words, FLAG, "--json")
    assert allowed.returncode == 0, allowed.stderr
    document = json.loads(allowed.stdout)
    assert "rope_parameters" in json.dumps(document["overrides"])
    assert any(FLAG in warning for warning in document["warnings"])


@pytest.mark.parametrize("reader", reader_names())
def test_readers_of_gguf(reader: str, tmp_path: Path) -> None:
    """The same for programs that read GGUF: what one ignores stays refused."""
    source = write(tmp_path / "m.gguf", "gemma3")
    for method, encoding in product(("mixed", "yarn", "linear"), ("auto", "keys", "tensor")):
        options = {"runtimes": (reader,), "encoding": encoding}
        recipe = recipe_of(method, 4.0)
        try:
            make_plan(source, recipe, tmp_path / "out.gguf", **options)
        except UnsupportedBake as problem:
            allowed = FLAG in str(problem)
        except RopeconvError:
            continue
        else:
            continue
        if allowed:
            plan = make_plan(source, recipe, tmp_path / "out.gguf", allow_untested=True, **options)
            assert plan.result.verdict_by(find_any(reader)[-1]).status == "unknown"
            assert any(FLAG in warning for warning in plan.warnings)
        else:
            with pytest.raises(UnsupportedBake):
                make_plan(source, recipe, tmp_path / "out.gguf", allow_untested=True, **options)


def test_some_reader_of_gguf_is_untested_and_one_refuses(tmp_path: Path) -> None:
    source = write(tmp_path / "m.gguf", "gemma3")
    kinds = set()
    for reader, recipe in product(reader_names(), (MIXED, YARN)):
        try:
            make_plan(source, recipe, tmp_path / "out.gguf", runtimes=(reader,))
        except UnsupportedBake as problem:
            kinds.add(FLAG in str(problem))
    assert kinds == {True, False}
