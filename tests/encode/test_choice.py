"""Names of encodings and runtimes, why each encoding was selected or not, and the way out where none fits."""

from __future__ import annotations

from typing import Any

import pytest

from ropeconv.encode import CheckpointResult, all_encodings, select
from ropeconv.encode.checkpoint.config_only import nothing_fits
from ropeconv.errors import UnsupportedBake, UsageError
from ropeconv.families.registry import by_name
from ropeconv.families.sample import sample_config
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.schedule import Schedule
from ropeconv.runtimes import find
from ropeconv.runtimes.verdict import Verdict

from .made_requests import CONFIG, MIXED, NTK, YARN, recipe, request

TRANSFORMERS, VLLM, MLX_LM = (find(name)[-1].display_name for name in ("transformers", "vllm", "mlx-lm"))


def considered(of: Recipe, **more: Any) -> dict[str, str]:
    """The reason for every encoding, the selected one with a star."""
    found = select(request(of, **more)).considered
    return {f"*{one.encoding}" if one.selected else one.encoding: one.reason for one in found}


def test_why_an_encoding_was_selected_and_the_others_were_not() -> None:
    enough = "not needed, a config says it all"
    rest = dict.fromkeys(("weights", "ministral3", "buffers"), enough)
    plain = considered(YARN)
    assert plain.pop("*native").startswith(f"exact in {TRANSFORMERS}; exact in ")
    assert plain.pop("factors").startswith(f"not plainer, and no better in the versions of {TRANSFORMERS}; exact in ")
    assert plain == rest
    both = considered(YARN, runtimes=("vllm", "mlx-lm"))
    assert both["*native"].startswith(f"exact in {VLLM} and {MLX_LM}; exact in ")
    assert both["factors"] == f"{MLX_LM}: it uses the attention factor 1.0000, not 1.1386"
    folded = considered(recipe("mixed", 4.0, attention_factor=1.2), runtimes=("mlx-lm",))
    assert folded.pop("*weights").startswith(f"rounded in {MLX_LM}; exact in 0 of ")
    assert folded == {
        "native": "no rope type has its formula",
        "factors": f"{MLX_LM}: it uses the attention factor 1.0000, not 1.2000",
        "ministral3": "not needed",
        "buffers": "not needed",
    }  # fmt: skip
    log_n = considered(recipe("yarn", 4.0, log_n="full"))
    assert log_n["weights"] == log_n["native"] == "its stock class does not scale queries by position"
    assert log_n["*ministral3"].startswith(f"exact in {TRANSFORMERS}; exact in ")
    assert log_n["buffers"] == "not needed"
    steps = recipe("linear", 4.0, log_n="clamped")
    near = considered(steps, runtimes=("vllm",), tensors={}, allow_approximate=True)
    assert near["*ministral3"].startswith(f"approximate in {VLLM}; exact in 0 of ")
    assert near["buffers"] == "the frequencies become one of the tensors"


def test_names_of_encodings() -> None:
    for name in ("keys", "tensor", "carrier"):
        with pytest.raises(UsageError, match=f"--encoding {name} goes with GGUF; add --to gguf"):
            select(request(YARN, encoding=name))
    with pytest.raises(UsageError, match=r"--encoding nope is not known; choose auto, native, factors, .* or buffers$"):
        select(request(YARN, encoding="nope"))
    for runtimes in ((), ("vllm",), ("transformers", "vllm")):
        named = select(request(YARN, encoding="native", runtimes=runtimes))
        assert (named.encoding, named.considered) == ("native", ())
    with pytest.raises(UnsupportedBake, match="with native: it computes other frequencies"):
        select(request(YARN, sample_config(by_name()["qwen3_moe"]), encoding="native", runtimes=("mlx-lm",)))


def test_all_stands_for_names_where_it_stands() -> None:
    def names(*runtimes: str) -> list[str]:
        return [rows[-1].name for rows in request(YARN, runtimes=runtimes).versions]

    every = names("all")
    assert names() == ["transformers"]
    assert len(every) > 5
    assert names("vllm", "all", "mlx-lm") == ["vllm", *(name for name in every if name != "vllm")]
    assert names("mlx-lm", "vllm", "mlx-lm") == ["mlx-lm", "vllm"]
    assert [row.name for row in request(YARN, runtimes=("vllm", "mlx-lm")).runtimes] == ["vllm", "mlx-lm"]


def test_an_approximation_is_asked_for() -> None:
    clamped = recipe("yarn", 4.0, log_n="clamped")
    with pytest.raises(UnsupportedBake, match="or use --encoding buffers$"):
        select(request(clamped, encoding="ministral3"))
    assert select(request(clamped, encoding="ministral3", allow_approximate=True)).encoding == "ministral3"
    only = {"runtimes": ("vllm",), "tensors": {}}
    with pytest.raises(UnsupportedBake, match="or name a runtime that takes --encoding buffers$"):
        select(request(clamped, **only))
    found = select(request(clamped, **only, allow_approximate=True))
    assert [one.encoding for one in found.considered if one.selected] == ["ministral3"]


def test_encodings_are_registered_with_what_they_change() -> None:
    kinds = {name: (one.order, one.max_ulp, one.config_only, one.folds) for name, one in all_encodings().items()}
    assert kinds == {
        "native": (1, 64, True, False), "factors": (2, 2, True, False), "weights": (3, 64, False, True),
        "ministral3": (4, 64, False, False), "buffers": (5, 0, False, False),
    }  # fmt: skip
    types = {name: one.model_type("llama") for name, one in all_encodings().items()}
    assert types == dict.fromkeys(("native", "factors", "weights"), "llama") | {
        "ministral3": "ministral3", "buffers": "llama_stored_rope",
    }  # fmt: skip


def result(encoding: str, statuses: dict[str, Any]) -> CheckpointResult:
    """A result that transformers reads exactly. statuses: of others, whose reasons name ENCODING."""
    verdicts = []
    for name, status in ({"transformers": "exact"} | statuses).items():
        row, reason = find(name)[-1], "" if status in ("exact", "unknown") else f"of {encoding}"
        verdicts.append(Verdict(row.key, row.display_name, status, reason, "here", row.last))
    asked = request(MIXED)
    return CheckpointResult(
        encoding, tuple(verdicts), config={}, family=asked.family, in_config=asked.schedule, written_as=encoding,
        context=256,
    )  # fmt: skip


def nothing(found: list[CheckpointResult], of: Recipe | Schedule, *runtimes: str, **more: Any) -> tuple[str, str]:
    """The reasons and the way out of the error."""
    problem = nothing_fits(found, more.pop("refusals", {}), request(of, runtimes=runtimes, **more))
    return problem.reason, problem.alternatives


def test_the_reasons_where_nothing_fits() -> None:
    one = result("native", {"vllm": "differs", "mlx-lm": "exact"})
    other = result("factors", {"vllm": "exact", "mlx-lm": "unknown"})
    assert nothing([one, other], YARN, "vllm")[0] == "with native: of native"
    assert nothing([one, other], YARN, "vllm", "mlx-lm")[0] == (
        f"they conflict: {VLLM} alone would get factors, {MLX_LM} alone would get native; "
        f"{VLLM} with native: of native; {MLX_LM} with factors: unknown"
    )
    assert "conflict" not in nothing([one], YARN, "vllm", "mlx-lm")[0]
    refusals = {"native": UnsupportedBake("a", "b", "no key", "c"), "factors": UnsupportedBake("a", "b", "no", "d")}
    assert nothing([], YARN, "vllm", refusals=refusals)[0] == "with native: no key; with factors: no"


def test_the_way_out_where_nothing_fits() -> None:
    def way_out(status: str, of: Recipe | Schedule, *runtimes: str, **more: Any) -> str:
        return nothing([result("native", dict.fromkeys(runtimes, status))], of, *runtimes, **more)[1]

    base = "take a base, which is read exactly (--ntk 4), or "
    assert way_out("differs", MIXED, "vllm") == f"{base}name a runtime that reads it (--runtime transformers does)"
    assert way_out("differs", MIXED, "transformers") == f"{base}choose another method"
    assert way_out("differs", MIXED, "vllm", "mlx-lm") == (
        f"{base}name one of them, and bake a second output for the others"
    )
    assert way_out("differs", MIXED, "vllm", "llama.cpp").endswith("which llama.cpp then reads exactly: --to gguf")
    assert way_out("unknown", MIXED, "vllm").startswith("leave vllm out, and measure what it computes with `ropeconv v")
    plain = "name a runtime that reads it (--runtime transformers does)"
    scaled = {**CONFIG, "rope_scaling": {"rope_type": "linear", "factor": 2.0}}
    assert way_out("differs", NTK, "vllm") == plain
    assert way_out("differs", recipe("mixed", 4.0, context=64), "vllm") == plain
    assert way_out("differs", MIXED.schedule(request(MIXED).spec), "vllm", config=scaled) == plain
    assert way_out("differs", MIXED, "vllm", config={**CONFIG, "model_type": "mllama_text_model"}) == plain


def test_two_lists_that_no_encoding_holds_become_one() -> None:
    pair, native = recipe("mixed", 4.0, keep_short=True), UnsupportedBake("a", "b", "c", "give one list")
    assert nothing([], pair, "vllm", refusals={"native": native})[1] == "give one list"
    assert nothing([], MIXED, "vllm", refusals={"native": native})[1] != "give one list"
    assert nothing([], pair, "vllm", refusals={"factors": native})[1] != "give one list"
