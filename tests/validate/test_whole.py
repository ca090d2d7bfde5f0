"""Runs over every position: in chunks with a cache, of a text, interrupted, and the evidence they
leave.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from ropeconv.engines.engine import Progress
from ropeconv.engines.transformers.load import DeviceSpec, advice_on_memory
from ropeconv.errors import BadSource
from ropeconv.rope.errors import RopeconvError
from ropeconv.rope.recipe import Recipe
from ropeconv.validate.checkpoint import validate_checkpoint
from ropeconv.validate.comparison import Comparison, Settings
from ropeconv.validate.validation import in_blocks, measure

from ..support.baking import apply, make_plan, recipe_of, replaced, validate
from ..support.in_process import command
from ..support.llamacpp import checkpoint, figures
from ..support.models import make

VALIDATE = ("validate", "out", "--against", "model", "--tokens", 64)


def baked(source: Path, out: Path, recipe: Recipe | None = None, **options: object) -> Path:
    return apply(make_plan(source, recipe or recipe_of("yarn", 16.0), out, **options))


def test_measures_against_float64() -> None:
    generator = torch.Generator().manual_seed(0)
    reference = 3 * torch.randn((50, 320), generator=generator)
    for distance in (1.0, 1e-2, 1e-4):
        other = reference + distance * torch.randn((50, 320), generator=generator)
        targets = torch.randint(320, (50,), generator=generator)
        result = measure(reference, other, targets)
        p, q = (torch.log_softmax(values.double(), -1) for values in (reference, other))
        torch.testing.assert_close(result.kl, (p.exp() * (p - q)).sum(-1), rtol=2e-3, atol=1e-13)
        torch.testing.assert_close(
            result.loss_other.double(), -q[range(50), targets], rtol=1e-5, atol=1e-5
        )
        blocks = in_blocks(
            lambda rows, o=other, t=targets: measure(reference[rows], o[rows], t[rows]), 50, 1 << 24
        )
        torch.testing.assert_close(blocks.kl, result.kl)
    same = figures(reference, reference)
    assert (same.kl_max, same.top1, same.top5) == (0, 1, 1)


def test_every_position(tmp_path: Path) -> None:
    source = make("gemma3_text", tmp_path / "source")
    result = validate(baked(source, tmp_path / "out"), source, length=1024, chunk=300, tokens=128)
    assert result.agrees, result.sentence
    whole = [bucket for bucket in result.buckets if bucket.run == "whole"]
    assert [bucket.last for bucket in whole] == [63, 127, 255, 511, 1023]
    assert all(bucket.control_kl > 1000 * bucket.kl_95 for bucket in whole)
    assert all(abs(bucket.loss_reference - bucket.loss_baked) < 1e-3 for bucket in whole)
    assert [position for position, _ in result.curve][-1] == 1023
    assert result.speed.keys() == {"reference", "baked"}


def test_longrope_in_chunks(llama: Path, tmp_path: Path) -> None:
    """Lists change with the chunk that passes the trained length, in the reference as in the stock
    class.
    """
    recipe = recipe_of("longrope", (4.0,) * 32, (2.0,) * 32, context=1024)
    assert validate(
        baked(llama, tmp_path / "out", recipe), llama, length=512, chunk=50, tokens=128
    ).agrees


def test_a_text(tmp_path: Path) -> None:
    baked(checkpoint("llama", tmp_path / "model"), tmp_path / "out")
    text = tmp_path / "text.txt"
    given = (
        *VALIDATE,
        "--length",
        256,
        "--chunk",
        100,
        "--text",
        "text.txt",
    )
    assert "cannot be read" in command(tmp_path, *given, code=1).stderr
    for short, has in (("", "0 tokens"), ("a", "1 token")):
        text.write_text(short)
        advice = f"text.txt has {has}, and 256 are needed; give a longer text, or leave --text out"
        assert advice in command(tmp_path, *given, code=1).stderr
    text.write_text(Path(__file__).read_text())
    command(tmp_path, *given, code=0)


def test_a_length_beyond_the_context_and_unknown_devices_are_refused(
    llama: Path, tmp_path: Path
) -> None:
    with pytest.raises(BadSource, match="1024 tokens; .*--length"):
        validate(baked(llama, tmp_path / "out"), llama, length=2048)
    for device, dtype, message in (
        ("cuda:7", "auto", "'cuda:7'"),
        ("cpu", "int8", "unknown dtype 'int8'"),
    ):
        with pytest.raises(RopeconvError, match=message):
            DeviceSpec(device, dtype).resolve()

    advice = "--chunk or --length, --dtype bfloat16, or --device-map"
    with pytest.raises(RopeconvError, match=advice), advice_on_memory():
        raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")


def test_another_tokenizer_is_noticed(tmp_path: Path) -> None:
    source = checkpoint("llama", tmp_path / "model")
    baked(source, tmp_path / "out")
    replaced(source / "tokenizer.json", "<unk>", "<unknown>")
    assert "tokenizer.json has model.vocab" in command(tmp_path, *VALIDATE, code=3).stderr


@pytest.mark.parametrize(
    ("model_type", "changes", "message"),
    [
        ("mistral", {}, "its receipt has another family"),
        ("llama", {"vocab_size": 384}, "config.json has vocab_size = 320, where 384"),
        ("llama", {"num_hidden_layers": 3}, "config.json has num_hidden_layers = 2, where 3"),
    ],
)
def test_another_model_with_the_same_rope_is_noticed(
    model_type: str, changes: dict[str, Any], message: str, llama: Path, tmp_path: Path
) -> None:
    baked(llama, tmp_path / "out")
    make(model_type, tmp_path / "other", **changes)
    assert message in command(tmp_path, "validate", "out", "--against", "other", code=3).stderr


def test_a_run_that_is_stopped_is_judged_as_far_as_it_came(llama: Path, tmp_path: Path) -> None:
    out = baked(llama, tmp_path / "out")
    presses = iter([False, False, True])
    settings = Settings(length=1024, chunk=100, tokens=64)
    progress = Progress(stopped=lambda: next(presses, False))
    result = validate_checkpoint(Comparison.open(out, str(llama)), settings, progress)
    assert result.partial
    assert result.agrees
    assert "stopped" in result.sentence
    assert [position for position, _ in result.curve][-1] == 299
    assert [bucket.last for bucket in result.buckets if bucket.run == "whole"] == [
        63,
        127,
        255,
        299,
    ]


def test_evidence_is_a_page_that_loads_nothing_and_a_picture(llama: Path, tmp_path: Path) -> None:
    baked(llama, tmp_path / "out")
    command(
        tmp_path,
        *VALIDATE,
        "--length",
        1024,
        "--report",
        "report.html",
        "--plot",
        "plots.png",
        code=0,
    )
    page = (tmp_path / "report.html").read_text()
    for words in (
        "PASS: matches the reference at every position",
        "512-1,023",
        "noise floor",
        "--report report.html",
        "KL divergence by position",
    ):
        assert words in page
    assert not re.search(
        r"""(src|href|xlink:href|url|@import)\s*[=( ]\s*["']?(https?:)?//""", page
    ), "it loads nothing"
    addresses = set(re.findall(r"https?://[^\s<>\"')]+", page))
    assert all(
        url.startswith(("http://www.w3.org/", "https://arxiv.org/abs/")) for url in addresses
    ), addresses
    assert "<script" not in page
    assert (tmp_path / "plots.png").read_bytes().startswith(b"\x89PNG")


def test_apply_validates_on_request(llama: Path, tmp_path: Path) -> None:
    def validated(device: str, code: int) -> Any:
        return command(
            tmp_path, "apply", "model", "--yarn", 4, "-o", device, "--validate", device, code=code
        )

    assert "PASS: " in validated("cpu", 0).stdout
    assert json.loads((tmp_path / "cpu" / "ropeconv.json").read_text())["validation"]["agrees"]
    assert "Validated" not in validated("off", 0).stdout
    validated("tpu", 2)
    refusal = command(
        tmp_path,
        "apply",
        "model/config.json",
        "--yarn",
        4,
        "-o",
        "tpu",
        "--validate",
        "cpu",
        code=2,
    )
    assert "no weights" in refusal.stderr
    assert not (tmp_path / "tpu").exists()


def test_an_output_without_weights_is_refused(llama: Path, tmp_path: Path) -> None:
    command(tmp_path, "apply", "model/config.json", "--yarn", 4, "-o", "out", "-q", code=0)
    assert "no weights" in command(tmp_path, *VALIDATE, code=1).stderr


def test_an_output_is_not_its_own_reference(llama: Path, tmp_path: Path) -> None:
    baked(llama, tmp_path / "out")
    refusal = command(tmp_path, "validate", "out", "--against", "out/../out", code=2)
    assert (
        "out/../out is the output itself, which agrees with whatever it is; name its source"
        in refusal.stderr
    )


def test_a_result_that_cannot_be_stored_is_shown(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def record(self: Comparison, result: object, server: str = "") -> None:
        raise PermissionError(13, "Permission denied", str(self.baked))

    baked(llama, tmp_path / "out")
    monkeypatch.setattr(Comparison, "record", record)
    done = command(tmp_path, *VALIDATE, "--report", "report.html", code=0)
    assert "Permission denied" in done.stderr
    assert "PASS" in done.stdout
    assert (tmp_path / "report.html").exists()
