"""Which encoding is selected for the runtimes that are named, the reason for each, and the way out
where none fits.
"""

import re
from typing import Any

import pytest

from ropeconv.convert.encoding import ENCODINGS, CheckpointResult, nothing_fits, select
from ropeconv.convert.gguf_encoding import GGUF_ENCODINGS
from ropeconv.errors import UnsupportedBake, UsageError
from ropeconv.models.config import sample_config
from ropeconv.models.registry import by_name
from ropeconv.options import encoding_names
from ropeconv.rope.recipe import Recipe
from ropeconv.rope.schedule import Schedule
from ropeconv.runtimes.runtime import GOOD, find, runtimes
from ropeconv.runtimes.verdict import Verdict, without_config

from ..support.baking import MIXED, NTK, YARN, recipe_of
from .made_requests import CONFIG, request

TRANSFORMERS, VLLM, MLX_LM = (
    find(name)[-1].display_name for name in ("transformers", "vllm", "mlx-lm")
)
LOUD = recipe_of("mixed", 4.0, attention_factor=1.2)
LOG_N = recipe_of("yarn", 4.0, log_n="clamped")


def of(name: str) -> dict[str, Any]:
    return sample_config(by_name()[name])


def considered(recipe: Recipe, **more: Any) -> dict[str, str]:
    """The reason for every encoding, the selected one with a star."""
    choices = select(request(recipe, **more)).considered
    return {
        f"*{choice.encoding}" if choice.selected else choice.encoding: choice.reason
        for choice in choices
    }


def test_why_an_encoding_was_selected_and_the_others_were_not() -> None:
    plain = considered(YARN)
    assert plain.pop("*native").startswith(f"exact in {TRANSFORMERS};")
    assert plain.pop("factors").startswith(
        f"not plainer, and no better in the versions of {TRANSFORMERS};"
    )
    others = {name: plain[name] for name in ("weights", "ministral3", "buffers")}
    assert all(reason.startswith("not needed") for reason in others.values())
    both = considered(YARN, runtimes=("vllm", "mlx-lm"))
    assert both["*native"].startswith(f"exact in {VLLM} and {MLX_LM};")
    assert re.match(f"{re.escape(MLX_LM)}: .* 1.0000, not 1.1386", both["factors"])
    folded = considered(LOUD, runtimes=("mlx-lm",))
    assert folded["*weights"].startswith(f"rounded in {MLX_LM};")
    assert "no rope type" in folded["native"]
    log_n = considered(recipe_of("yarn", 4.0, log_n="full"))
    assert (
        log_n["weights"] == log_n["native"] == "its stock class does not scale queries by position"
    )
    assert log_n["*ministral3"].startswith(f"exact in {TRANSFORMERS};")


@pytest.mark.parametrize("name", ["keys", "tensor", "carrier", "nope"])
def test_names_of_encodings(name: str) -> None:
    words = {"nope": "--encoding nope is not known; choose auto, native, factors, .*buffers"}
    with pytest.raises(
        UsageError, match=words.get(name, f"--encoding {name} goes with GGUF; add --to gguf")
    ):
        select(request(YARN, encoding=name))


def test_all_stands_for_every_runtime_that_has_the_model() -> None:
    selection = select(request(NTK, of("qwen3_next"), runtimes=("all",)))
    having = [
        row
        for row in runtimes()
        if row.current and without_config(row, by_name()["qwen3_next"]) is None
    ]
    assert len(having) > 5
    assert {selection.verdict_of(find(row.name)[-1]).status for row in having} <= set(GOOD)


@pytest.mark.parametrize(
    ("config", "recipe", "options", "encoding", "exact"),
    [
        (
            CONFIG,
            MIXED,
            {"runtimes": ("vllm", "mlx-lm", "exllamav3")},
            "factors",
            ("vllm", "mlx-lm", "exllamav3"),
        ),
        (
            of("phi4_multimodal"),
            recipe_of("linear", 4.0),
            {"encoding": "factors"},
            "factors",
            ("transformers",),
        ),
        # its class reads the attention factor beside the factors
        (of("phi4_multimodal"), YARN, {"encoding": "factors"}, "factors", ("transformers",)),
        (CONFIG, LOG_N, {"encoding": "ministral3", "allow_approximate": True}, "ministral3", ()),
        # the default runtime is the first that loads the weights
        (
            CONFIG | {"quantization_config": {"group_size": 64, "bits": 4}},
            YARN,
            {},
            "native",
            ("mlx-lm",),
        ),
        (
            CONFIG | {"quantization_config": {"quant_method": "modelopt"}},
            YARN,
            {},
            "native",
            ("vllm",),
        ),
        # attention_factor 1 beside the mscale pair would switch the scale of logits off in vLLM
        (
            of("deepseek_v3"),
            recipe_of("yarn", 4.0, 32.0, 1.0, True, 1.0, 1.0),
            {},
            "native",
            ("vllm",),
        ),
    ],
)
def test_what_is_selected(
    config: dict[str, Any],
    recipe: Recipe,
    options: dict[str, Any],
    encoding: str,
    exact: tuple[str, ...],
) -> None:
    selection = select(request(recipe, config, **options))
    assert selection.encoding == encoding
    assert all(selection.verdict_of(find(name)[-1]).status == "exact" for name in exact)


@pytest.mark.parametrize(
    ("config", "recipe", "options", "words"),
    [
        (
            CONFIG,
            LOUD,
            {"runtimes": ("vllm", "mlx-lm"), "tensors": {}},
            "mlx-lm .* with factors: it uses the attention factor 1.0000, not 1.2",
        ),
        # without `runtimes` an output is for transformers
        (
            CONFIG,
            LOG_N,
            {"encoding": "native"},
            "log-n clamped cannot be baked for the keys of llama",
        ),
        (
            of("qwen3_moe"),
            YARN,
            {"encoding": "native", "runtimes": ("mlx-lm",)},
            "it computes other frequencies",
        ),
        # a base is no way out of a base
        (
            of("falcon"),
            NTK,
            {"runtimes": ("mlx-lm",)},
            r"it does not support this model; name a runtime that computes",
        ),
        (
            CONFIG | {"quantization_config": {"group_size": 64}},
            YARN,
            {"runtimes": ("vllm",)},
            "--runtime mlx-lm does",
        ),
        (
            CONFIG | {"quantization_config": {"group_size": 64}},
            YARN,
            {"runtimes": ("transformers",)},
            "not load mlx",
        ),
        (
            CONFIG,
            YARN,
            {"runtimes": ("ktransformers",)},
            "llama is untested.*ropeconv validate OUTPUT --server URL",
        ),
        (CONFIG, LOG_N, {"encoding": "ministral3"}, "or use --encoding buffers$"),
        (
            CONFIG,
            LOG_N,
            {"runtimes": ("vllm",), "tensors": {}},
            "or name a runtime that supports --encoding buffers$",
        ),
    ],
)
def test_what_is_refused(
    config: dict[str, Any], recipe: Recipe, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(UnsupportedBake, match=words):
        select(request(recipe, config, **options))


def result(encoding: str, statuses: dict[str, Any]) -> CheckpointResult:
    """A result that transformers reads exactly. statuses: of others, whose reasons name
    ENCODING.
    """
    verdicts = []
    for name, status in ({"transformers": "exact"} | statuses).items():
        row = find(name)[-1]
        reason = "" if status in ("exact", "unknown") else f"of {encoding}"
        verdicts.append(Verdict(row.key, row.display_name, status, reason, "here", row.last))
    template = request(MIXED)
    return CheckpointResult(
        encoding,
        tuple(verdicts),
        config={},
        family=template.family,
        in_config=template.schedule,
        written_as=encoding,
        context=256,
    )


def nothing(
    results: list[CheckpointResult], recipe: Recipe | Schedule, *named: str, **more: Any
) -> tuple[str, str]:
    """The reasons and the way out of the error."""
    problem = nothing_fits(
        results, more.pop("refusals", {}), request(recipe, runtimes=named, **more)
    )
    return problem.reason, problem.alternatives


BASE = "take a base, which is read exactly (--ntk 4), or "
PLAIN = "name a runtime that computes it (--runtime transfo"


@pytest.mark.parametrize(
    ("status", "recipe", "named", "config", "words"),
    [
        ("differs", MIXED, ("vllm",), CONFIG, BASE + PLAIN),
        (
            "differs",
            MIXED,
            ("vllm", "mlx-lm"),
            CONFIG,
            f"{BASE}name one of them, and bake a second output for the others",
        ),
        (
            "unknown",
            MIXED,
            ("vllm",),
            CONFIG,
            (
                "pass --allow-untested, which writes it with native all the same, or leave vllm"
                " out, and measure"
            ),
        ),
        ("differs", NTK, ("vllm",), CONFIG, PLAIN),
        ("differs", MIXED, ("ktransformers",), CONFIG, PLAIN),
    ],
)
def test_the_way_out_where_nothing_fits(
    status: str, recipe: Any, named: tuple[str, ...], config: dict[str, Any], words: str
) -> None:
    checkpoint_result = result("native", dict.fromkeys(named, status))
    assert nothing([checkpoint_result], recipe, *named, config=config)[1].startswith(words)


def test_the_command_line_lists_every_encoding_by_the_names_of_files() -> None:
    """`--help` does not import them."""
    assert set(encoding_names()) == {"auto", *ENCODINGS, *GGUF_ENCODINGS, "carrier"}
