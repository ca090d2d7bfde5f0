"""Runs over every position: in chunks with a cache, of a text, interrupted, and the evidence they leave."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from ropeconv.engines import Progress
from ropeconv.engines.transformers.backbone import hidden_states, keep_head, logits
from ropeconv.engines.transformers.device import device_spec, out_of_memory
from ropeconv.engines.transformers.load import load_stock
from ropeconv.errors import BadSource, RopeconvError
from ropeconv.rope.methods import REGISTRY as METHODS
from ropeconv.rope.recipe import Recipe
from ropeconv.validate.checkpoint import validate_checkpoint
from ropeconv.validate.comparison import Comparison
from ropeconv.validate.rule.measures import compare_logits, in_blocks, measure
from ropeconv.validate.sampling.positions import spread_buckets
from ropeconv.validate.sampling.tokens import synthetic
from ropeconv.validate.settings import Settings

from ..conftest import Run
from ..support.baking import apply, make_plan, validate
from ..support.llamacpp import checkpoint
from ..support.models import make

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def baked(source: Path, out: Path, method: str = "yarn", **options: object) -> Path:
    return apply(make_plan(source, Recipe(METHODS[method](16.0)), out, **options))


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "cohere", "granite", "mixtral", "gpt_neox"])
def test_two_halves_are_the_whole(tmp_path: Path, model_type: str) -> None:
    """Backbone in chunks, and the head alone without its layers: the model's own logits, with caps and scales."""
    model = load_stock(make(model_type, tmp_path / "model"), "cpu")
    ids = synthetic(96, 300, 0)
    with torch.no_grad():
        whole = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float()
    kept = [0, 5, 40, 41, 95]
    for chunk in (96, 33):
        found = hidden_states(model, ids, list(range(96)), kept, chunk)
        torch.testing.assert_close(logits(model, found), whole[kept], rtol=2e-4, atol=2e-4)
    size = sum(parameter.numel() for parameter in model.parameters())
    torch.testing.assert_close(logits(keep_head(model), found), whole[kept], rtol=2e-4, atol=2e-4)
    assert sum(parameter.numel() for parameter in model.parameters()) < size / 2


def test_measures_against_float64() -> None:
    generator = torch.Generator().manual_seed(0)
    one = 3 * torch.randn((50, 320), generator=generator)
    for distance in (1.0, 1e-2, 1e-4):
        other = one + distance * torch.randn((50, 320), generator=generator)
        targets = torch.randint(320, (50,), generator=generator)
        found = measure(one, other, targets)
        p, q = (torch.log_softmax(values.double(), -1) for values in (one, other))
        kl = (p.exp() * (p - q)).sum(-1)
        torch.testing.assert_close(found.kl, kl, rtol=2e-3, atol=1e-13)
        torch.testing.assert_close(found.loss_other.double(), -q[range(50), targets], rtol=1e-5, atol=1e-5)
        blocks = in_blocks(lambda rows, o=other, t=targets: measure(one[rows], o[rows], t[rows]), 50, 1 << 24)
        torch.testing.assert_close(blocks.kl, found.kl)
    same = compare_logits(one, one)
    assert (same.kl_max, same.top1, same.top5) == (0, 1, 1)


def test_synthetic_tokens_repeat_far_back() -> None:
    ids = np.array(synthetic(4096, 32000, 1))
    assert synthetic(4096, 32000, 1) == ids.tolist() != synthetic(4096, 32000, 2)
    windows = {tuple(ids[i : i + 8]) for i in range(0, 1024)}
    again = [i for i in range(2048, 4088) if tuple(ids[i : i + 8]) in windows]
    assert len(again) > 100


def test_positions_of_every_doubling() -> None:
    runs = spread_buckets(64, 1000, 100)
    assert [run.name for run in runs] == ["0-63", "64-127", "128-255", "256-511", "512-999"]
    assert [len(run.positions) for run in runs] == [64, 64, 100, 100, 100]
    assert runs[-1].positions[-1] == 999
    assert all(len(set(run.positions)) == len(run.positions) for run in runs)


@pytest.mark.parametrize("chunk", [1024, 300])
@pytest.mark.parametrize("model_type", ["llama", "qwen3", "gemma3_text"])
def test_every_position(tmp_path: Path, model_type: str, chunk: int) -> None:
    source = make(model_type, tmp_path / "source")
    out = baked(source, tmp_path / "out")
    result = validate(out, source, length=1024, chunk=chunk, tokens=128)
    assert result.agrees, result.sentence
    whole = [bucket for bucket in result.buckets if bucket.run == "whole"]
    assert [bucket.last for bucket in whole] == [63, 127, 255, 511, 1023]
    assert all(bucket.control_kl > 1000 * bucket.kl_95 for bucket in whole)
    assert all(abs(bucket.loss_reference - bucket.loss_baked) < 1e-3 for bucket in whole)
    assert [position for position, _ in result.curve][-1] == 1023
    assert result.speed.keys() == {"reference", "baked"}


def test_longrope_in_chunks(tmp_path: Path) -> None:
    """Lists change with the chunk that passes the trained length, in the reference as in the stock class."""
    source = make("llama", tmp_path / "source")
    recipe = Recipe(METHODS["longrope"](tuple([4.0] * 32), tuple([2.0] * 32)), context=1024)
    out = apply(make_plan(source, recipe, tmp_path / "out"))
    assert validate(out, source, length=512, chunk=50, tokens=128).agrees


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("model_type", ["llama", "qwen3", "stablelm", "phi3", "olmo2", "deepseek_v3"])
def test_wrong_folds_are_noticed_and_right_ones_are_not(tmp_path: Path, model_type: str, dtype: str) -> None:
    """Keys by A where A^2 was due, in weights of both widths."""
    import safetensors.torch

    source = make(model_type, tmp_path / "source")
    path = source / "model.safetensors"
    wide = safetensors.torch.load_file(path)
    safetensors.torch.save_file({n: t.to(getattr(torch, dtype)) for n, t in wide.items()}, path, {"format": "pt"})
    out = baked(source, tmp_path / "out", encoding="weights")
    assert validate(out, source, tokens=128).agrees
    attention_factor = json.loads((out / "ropeconv.json").read_text())["schedule"]["attention_factor"]
    fold = make_plan(source, Recipe(METHODS["yarn"](16.0)), encoding="weights").result.fold
    tensors = safetensors.torch.load_file(out / "model.safetensors")
    for scaling in fold.scalings:
        flat = tensors[scaling.tensor].flatten().float()
        for start, stop in scaling.spans:
            flat[start:stop] /= attention_factor
        tensors[scaling.tensor] = flat.reshape(tensors[scaling.tensor].shape).to(tensors[scaling.tensor].dtype)
    safetensors.torch.save_file(tensors, out / "model.safetensors", {"format": "pt"})
    assert not validate(out, source, tokens=128).agrees


def test_a_folded_tensor_is_compared_byte_by_byte(run: Run, tmp_path: Path) -> None:
    """Every row of a head that rotates in part, where only the rotated ones were due: one tensor, no forward pass."""
    import safetensors.torch

    make("glm", tmp_path / "model")
    assert run("apply", "model", "--yarn", "16", "--encoding", "weights", "-o", "out", "-q").returncode == 0
    assert run("validate", "out", "--against", "model", "-q").returncode == 0
    path = tmp_path / "out" / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    tensors["model.layers.1.self_attn.k_proj.weight"][-1] *= 1.6
    safetensors.torch.save_file(tensors, path, {"format": "pt"})
    done = run("validate", "out", "--against", "model", "-q", "--ignore-receipt")
    assert (done.returncode, "k_proj.weight of model.safetensors differs" in done.stderr) == (3, True)


def test_low_precision(tmp_path: Path) -> None:
    """The noise floor grows with the precision, and a right bake stays below it."""
    source = make("qwen3", tmp_path / "source")
    out = baked(source, tmp_path / "out", "mixed")
    wide, low = (validate(out, source, tokens=128, dtype=dtype) for dtype in ("float32", "bfloat16"))
    assert wide.agrees
    assert low.agrees, low.sentence
    assert low.buckets[-1].noise_kl > 100 * wide.buckets[-1].noise_kl
    assert wide.precision_kl == 0
    assert low.buckets[-1].kl_mean < low.precision_kl < low.buckets[-1].control_kl / 10


def test_a_text(run: Run, tmp_path: Path) -> None:
    checkpoint("llama", tmp_path / "model")
    assert run("apply", "model", "--yarn", "4", "-o", "out", "-q").returncode == 0
    (tmp_path / "text.txt").write_text(Path(__file__).read_text())
    given = ("validate", "out", "--against", "model", "--tokens", "64", "--length", "256", "--chunk", "100")
    done = run(*given, "--text", "text.txt", "--json", "-q")
    assert done.returncode == 0, done.stderr
    (tmp_path / "text.txt").write_text("short")
    short = run(*given, "--text", "text.txt")
    assert (short.returncode, "give a longer --text" in short.stderr) == (1, True)
    missing = run(*given, "--text", "no.txt")
    assert (missing.returncode, "cannot be read" in missing.stderr) == (1, True)


def test_bad_input(tmp_path: Path) -> None:
    source = make("llama", tmp_path / "source")
    out = baked(source, tmp_path / "out")
    with pytest.raises(BadSource, match="is beyond it"):
        validate(out, source, length=2048)
    with pytest.raises(
        RopeconvError, match="unknown device 'cuda:7'; available: " if not torch.cuda.is_available() else ""
    ):
        device_spec("cuda:7")
    with pytest.raises(RopeconvError, match="unknown dtype 'int8'"):
        device_spec("cpu", "int8")

    def full() -> None:
        raise RuntimeError("CUDA out of memory. Tried to allocate 20.00 GiB")

    with pytest.raises(RopeconvError, match="--chunk or --length, --dtype bfloat16, or --device-map"):
        out_of_memory(full)


def test_another_tokenizer_is_noticed(run: Run, tmp_path: Path) -> None:
    checkpoint("llama", tmp_path / "model")
    assert run("apply", "model", "--yarn", "4", "-o", "out", "-q").returncode == 0
    path = tmp_path / "model" / "tokenizer.json"
    path.write_text(path.read_text().replace("<unk>", "<unknown>"))
    done = run("validate", "out", "--against", "model", "-q")
    assert (done.returncode, "is not the tokenizer of" in done.stderr) == (1, True)


def test_another_model_is_noticed(run: Run, tmp_path: Path) -> None:
    """The same RoPE in another architecture, of other sizes, of another vocabulary, and with a layer more."""
    make("llama", tmp_path / "model")
    assert run("apply", "model", "--yarn", "16", "-o", "out", "-q").returncode == 0
    for name, model_type, changes, said in (
        ("mistral", "mistral", {}, "out is a llama and mistral a mistral"),
        ("wide", "llama", {"intermediate_size": 128}, "is [128, 96] in out and [128, 128] in wide"),
        ("words", "llama", {"vocab_size": 384}, "is [320, 128] in out and [384, 128] in words"),
        ("deep", "llama", {"num_hidden_layers": 3}, "out has no model.layers.2"),
    ):
        make(model_type, tmp_path / name, **changes)
        done = run("validate", "out", "--against", name, "-q")
        assert (done.returncode, said in done.stderr) == (1, True), done.stderr


def test_a_run_that_is_stopped_is_judged_as_far_as_it_came(tmp_path: Path) -> None:
    source = make("llama", tmp_path / "source")
    out = baked(source, tmp_path / "out")
    presses = iter([False, False, True])
    settings, progress = Settings(length=1024, chunk=100, tokens=64), Progress(stopped=lambda: next(presses, False))
    result = validate_checkpoint(Comparison.open(out, str(source)), settings, progress)
    assert result.partial
    assert result.agrees
    assert result.sentence.endswith("It was stopped before its end.")
    assert [position for position, _ in result.curve][-1] == 299
    assert [bucket.last for bucket in result.buckets if bucket.run == "whole"] == [63, 127, 255, 299]


def test_ctrl_c(tmp_path: Path) -> None:
    source = make("llama", tmp_path / "source", num_hidden_layers=8)
    out = apply(make_plan(source, Recipe(METHODS["yarn"](512.0)), tmp_path / "out"))
    command = [sys.executable, "-m", "ropeconv", "validate", str(out), "--against", str(source), "--tokens", "64"]
    process = subprocess.Popen(
        [*command, "--length", "32768", "--chunk", "64", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("Running"):
            break
    time.sleep(6)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=300)
    result = json.loads(output)
    assert process.returncode == 130
    assert result["partial"]


def test_evidence(run: Run, tmp_path: Path) -> None:
    make("llama", tmp_path / "model")
    assert run("apply", "model", "--yarn", "16", "-o", "out", "-q").returncode == 0
    given = ("--tokens", "64", "--length", "1024", "--report", "report.html", "--plot", "plots.png")
    assert run("validate", "out", "--against", "model", *given, "-q").returncode == 0
    page = (tmp_path / "report.html").read_text()
    for words in ("Agrees everywhere", "512-1,023", "noise floor", "--report report.html", "KL from the reference"):
        assert words in page
    assert not re.search(r"""(src|href|xlink:href|url|@import)\s*[=( ]\s*["']?(https?:)?//""", page), "it loads nothing"
    addresses = set(re.findall(r"https?://[^\s<>\"')]+", page))
    assert all(url.startswith(("http://www.w3.org/", "https://arxiv.org/abs/")) for url in addresses), addresses
    assert "<script" not in page
    assert (tmp_path / "plots.png").read_bytes().startswith(b"\x89PNG")
    if CHROMIUM is None:
        pytest.skip("no Chromium here")
    still = ("--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", *still, f"--user-data-dir={tmp_path}/profile"]
    page_url = (tmp_path / "report.html").as_uri()
    subprocess.run(
        [*command, "--screenshot=shot.png", "--window-size=1250,5000", page_url],
        check=True,
        capture_output=True,
        cwd=tmp_path,
    )
    import matplotlib.image

    shot = matplotlib.image.imread(tmp_path / "shot.png")[..., :3]
    assert shot.shape[0] >= 800
    assert shot.std() > 0.05
    blue = (shot[..., 2] > shot[..., 0] + 0.2).sum()
    assert blue > 200, "the curve is not there"


def test_apply_validates_on_request(run: Run, tmp_path: Path) -> None:
    make("llama", tmp_path / "model")
    done = run("apply", "model", "--yarn", "4", "-o", "out", "--validate", "cpu")
    assert done.returncode == 0, done.stderr
    assert "Agrees everywhere" in done.stdout
    assert json.loads((tmp_path / "out" / "ropeconv.json").read_text())["validation"]["agrees"]
    if not torch.cuda.is_available():
        left = run("apply", "model", "--yarn", "8", "-o", "other", "--validate", "auto")
        assert (left.returncode, "Not validated: no GPU is here" in left.stderr) == (0, True)
    assert run("apply", "model", "--yarn", "8", "-o", "third", "--validate", "tpu").returncode == 2
    assert not (tmp_path / "third").exists()


def test_the_gpu_check_at_small_size_on_a_cpu(tmp_path: Path) -> None:
    program = Path(__file__).parents[2] / "scripts" / "gpu_check.py"
    command = [sys.executable, str(program), "--small", "--device", "cpu", "--length", "2048", "--out", "gpu.json"]
    subprocess.run(command, check=True, capture_output=True, cwd=tmp_path)
    found = json.loads((tmp_path / "gpu.json").read_text())
    assert found["runs"]["yarn"]["agrees"]
    assert found["runs"]["mixed"]["agrees"]
    assert {bucket["run"] for bucket in found["runs"]["yarn"]["buckets"]} == {"spread", "whole"}
