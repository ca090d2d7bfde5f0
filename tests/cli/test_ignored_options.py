"""No option is accepted and ignored: beside every other option of a command it changes the result, or it is refused."""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from ropeconv.cli import errors
from ropeconv.cli.app import app

from ..support.extent import sample
from ..support.gguf_files import write
from ..support.in_process import command as run_here
from ..support.models import make

TIMES = re.compile(rb"[\d.]+ (s|min|h)\b|\"seconds\": [\d.]+")
VALUES: dict[str, str | tuple[str, ...]] = {
    "--alpha": "2", "--at": "512", "--attention-factor": "1.3", "--base-model": "me/base", "--beta": "16",
    "--beta-fast": "4", "--beta-slow": "2", "--by-parts": "4", "--carrier": "llama",
    "--certificate": "proof.txt", "--chunk": "16", "--commit-message": "new", "--context": "512",
    "--dataset": "me/text:train", "--depths": "3", "--device": "cpu", "--device-map": "auto", "--dtype": "bfloat16",
    "--dual-chunk": "drop",
    "--dynamic": ("yarn:4", "--at", "512"), "--encoding": "factors", "--fail-if": "yarn:4 > base @1T",
    "--family": "mistral", "--field": "body", "--fold-dtype": "f32", "--for": "trl",
    "--head-dim": "64", "--held-windows": "3", "--high-freq-factor": "3", "--inside": "0.5", "--inv-freq": "list.json",
    "--journal": "other.jsonl", "--length": "96", "--lengths": "1T", "--linear": "2", "--llama3": "2",
    "--log-n": "clamped", "--log-n-length": "32", "--longrope": "factors.json", "--low-freq-factor": "2",
    "--measure": "position", "--measured": "result.json", "--methods": "base,linear:2", "--mixed": "2",
    "--mixed-exponent": "0.7", "--model": "me/other", "--mscale": "0.7", "--mscale-all-dim": "0.7",
    "--needles": "0.5", "--ntk": "2", "--ntk-fixed": "2", "--ntk-old": "2", "--on": "2", "--original-context": "48",
    "--out": "elsewhere", "--outtype": "f16", "--piecewise": "10000,500000,16", "--plot": "plot.svg",
    "--port": "8000", "--pre": "llama-bpe", "--push": "me/new", "--quantized-by": "me", "--recipe": "recipe.json",
    "--reference": "config", "--regularise": "0.1", "--report": "report.html", "--revision": "other",
    "--rotary-dim": "32", "--runtime": "vllm", "--seed": "5", "--server": "http://127.0.0.1:9", "--start": "linear",
    "--space": "me/space", "--steps": "128,256", "--targets": "4", "--temperature-intercept": "1.1",
    "--temperature-slope": "0.2", "--text": "other.txt", "--theta": "20000", "--theta-bound": "512",
    "--theta-for": "512", "--to": "gguf", "--token": "secret", "--tokens": "96",
    "--up-to": "100", "--validate": "cpu", "--windows": "3", "--workers": "2", "--yarn": "2", "--budget": "2h",
    "--against": "model",
}  # fmt: skip


TEXT = ("--text", "text.txt", "--windows", "2", "--journal", "j.jsonl")
MODES: dict[str, tuple[str, ...]] = {
    "schedule of a method": ("schedule", "--yarn", "4", "--original-context", "64"),
    "bases of a training in steps": ("schedule", "--steps", "8192,16k"),
    "bound of a length": ("bound", "5000", "--head-dim", "48"),
    "bound of a model": ("bound", "model"),
    "bound of a method": ("bound", "model", "--yarn", "4"),
    "bound of numbers": ("bound", "--original-context", "128"),
    "plot of a method": ("plot", "model", "--yarn", "4", "--json"),
    "inspect": ("inspect", "model"),
    "inspect GGUF": ("inspect", "model.gguf"),
    "compare": ("compare", "model", "model.gguf"),
    "compare GGUF": ("compare", "model.gguf", "model.gguf"),
    "advise": ("advise", "model", "--context", "256"),
    "runtimes": ("runtimes",),
    "plan of a folder": ("apply", "model", "--yarn", "4", "--dry-run"),
    "plan of a GGUF file": ("apply", "model.gguf", "--yarn", "4", "--to", "gguf", "--dry-run"),
}
SLOW: dict[str, tuple[str, ...]] = {
    "folder": ("apply", "model", "--yarn", "4", "-o", "out"),
    "conversion": ("apply", "model", "--yarn", "4", "--to", "gguf", "-o", "out.gguf"),
    "validate": ("validate", "baked", "--against", "model"),
    "validate GGUF": ("validate", "baked.gguf", "--against", "source.gguf"),
    "restore": ("restore", "baked", "-o", "back"),
    "losses": ("eval", "model", "--methods", "base,yarn:4", "--lengths", "1T,2T", "--targets", "8", *TEXT),
    "retrieval": ("eval", "model", "--lengths", "4T", "--measure", "passkey", "--depths", "2", *TEXT),
    "GGUF": ("eval", "source.gguf", "--methods", "base,yarn:4", "--lengths", "1T,2T", "--targets", "8", *TEXT),
    "factors": ("tune", "model", "--context", "128", "--targets", "8", "--steps", "1", *TEXT),
}
"""Command lines that run a model, which takes ten minutes."""
PERMISSIONS = {
    "--force", "--replace", "--all-files", "--allow-hard-links", "--ignore-receipt", "--trust-remote-code", "--fresh",
    "--exit-code", "--fail-if", "--budget",
}  # fmt: skip
"""Options that allow or forbid something, which need not occur."""
WAYS = {"--quiet", "--device", "--device-map", "--dtype", "--no-fsync", "--workers", "--link", "--checksum"}
"""Options that say how something is done, and not what."""
OF_EXECUTION = {"--validate", "--ollama", "--out", "--report", "--plot"}
"""Options that a dry run accepts, since it stands for the run without --dry-run."""


def options(command: str) -> Iterator[tuple[str, list[str]]]:
    """Every option of a command, with a value that differs from its default."""
    group: Any = typer.main.get_command(app)
    for param in group.commands[command].params:
        if param.param_type_name != "option":
            continue
        flag = next(spelling for spelling in reversed(param.opts) if spelling.startswith("--"))
        if param.is_flag:
            yield flag, [*param.secondary_opts, flag][:1]
        else:
            value = VALUES[flag]
            yield flag, [flag, *(value if isinstance(value, tuple) else (value,))]


def observe(command: list[str], folder: Path) -> tuple[int, str, dict[str, str]]:
    """Exit code, output without times, and the files that a command left, which are removed again."""
    out, before = io.StringIO(), set(folder.rglob("*"))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = errors.run(lambda **how: app(command, **how))
    files = {}
    for path in sorted(set(folder.rglob("*")) - before, reverse=True):
        if path.is_file():
            content = path.read_bytes()
            files[str(path.relative_to(folder))] = hashlib.sha256(TIMES.sub(b"", content)).hexdigest()
            path.unlink()
        else:
            path.rmdir()
    return code, TIMES.sub(b"", out.getvalue().encode()).decode(), files


def ignored(command: list[str], accepted: set[str], folder: Path) -> list[str]:
    """The options that a command accepts beside its others, and that change nothing."""
    plain = observe(command, folder)
    assert plain[0] in (0, 3), plain
    found = []
    for flag, spelled in options(command[0]):
        if flag not in {*command, *accepted} and (done := observe([*command, *spelled], folder))[0] in (0, 3):
            found += [flag] if done == plain else []
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint, a GGUF file, texts, and the files that options name."""
    folder = tmp_path_factory.mktemp("options")
    make("llama", folder / "model")
    write(folder / "model.gguf")
    text = " ".join(f"{word} {word[::-1]}" for word in Path(__file__).read_text().split())
    (folder / "text.txt").write_text(text)
    (folder / "other.txt").write_text(text[::-1])
    (folder / "list.json").write_text(json.dumps([0.9**k for k in range(32)]))
    (folder / "factors.json").write_text(json.dumps({"long_factor": [2.0] * 32, "short_factor": [1.0] * 32}))
    (folder / "recipe.json").write_text(json.dumps({"method": "linear", "parameters": {"factor": 3.0}}))
    return folder


@pytest.mark.parametrize("mode", sample(list(MODES), 4))
def test_no_option_is_accepted_and_ignored(mode: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = list(MODES[mode])
    monkeypatch.chdir(folder)
    accepted = PERMISSIONS | WAYS | (OF_EXECUTION if "--dry-run" in command else set())
    assert ignored(command, accepted, folder) == []


@pytest.fixture(scope="module")
def baked(folder: Path) -> Path:
    """The same folder with a tokenizer, outputs of `apply`, and their source in GGUF."""
    from ..support.llamacpp import tokenizer_json

    (folder / "model" / "tokenizer.json").write_text(tokenizer_json())
    settings = {"bos_token": "<s>", "eos_token": "</s>", "tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "model" / "tokenizer_config.json").write_text(json.dumps(settings))
    run_here(folder, "apply", "model", "--yarn", "4", "-o", "baked", code=0)
    run_here(folder, "apply", "model", "--as-is", "--to", "gguf", "-o", "source.gguf", code=0)
    run_here(folder, "apply", "source.gguf", "--yarn", "4", "-o", "baked.gguf", code=0)
    return folder


@pytest.mark.nightly
@pytest.mark.parametrize("mode", SLOW)
def test_no_option_of_what_runs_a_model_is_ignored(mode: str, baked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(baked)
    assert ignored(list(SLOW[mode]), PERMISSIONS | WAYS, baked) == []


def test_an_ignored_option_would_be_noticed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setattr("ropeconv.cli.bound.bound_command.rules", {})
    assert ignored(["bound", "5000", "--head-dim", "48"], PERMISSIONS | WAYS, folder) == ["--up-to", "--weights"]


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        ("schedule --theta 1e4 --context 32k --steps 8k,16k", "--context"),
        ("bound --theta 5e5 --yarn 4 --linear 4 --alpha 2", "--alpha"),
        ("eval model --text text.txt --field body", "--field"),
        ("eval model --text text.txt --depths 3", "--depths"),
        ("eval model --text text.txt --measure passkey --targets 3", "--targets"),
        ("eval --server http://127.0.0.1:9 --text text.txt --chunk 16", "--chunk"),
        ("tune model --context 256 --text text.txt --over yarn --regularise 0.1", "--regularise"),
        ("validate out.gguf --against model.gguf --chunk 16", "--chunk"),
        ("validate out.gguf --against model.gguf --dtype float16", "--dtype"),
        ("validate out --against model --text text.txt --seed 0", "--seed"),
    ],
)
def test_an_option_without_effect_is_refused_before_anything_is_read(
    command: str, flag: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert errors.run(lambda **how: app(command.split(), **how)) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith(f"ropeconv: {flag} ")
