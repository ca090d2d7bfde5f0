"""No option is accepted and ignored: beside every other option of a command it changes the result,
or it is refused.
"""

import contextlib
import hashlib
import io
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ropeconv.cli import process as errors
from ropeconv.cli.app import GROUPS, complete_app, find

from ..support.extent import sample
from ..support.gguf_files import write
from ..support.models import make
from .conftest import Refuses

TIMES = re.compile(rb"[\d.]+ (s|min|h)\b|\"seconds\": [\d.]+")
VALUES: dict[str, str | tuple[str, ...]] = {
    "--adapter": "lora",
    "--alpha": "2",
    "--at": "512",
    "--attention-factor": "1.3",
    "--beta": "16",
    "--beta-fast": "4",
    "--beta-slow": "2",
    "--by-parts": "4",
    "--cache-type": "q8_0",
    "--carrier": "llama",
    "--certificate": "proof.txt",
    "--context": "512",
    "--converter": "llama.cpp",
    "--draft": "draft",
    "--draft-original-context": "32",
    "--dual-chunk": "drop",
    "--dynamic": ("yarn:4", "--at", "512"),
    "--encoding": "factors",
    "--family": "mistral",
    "--fold-into": "q",
    "--head-dim": "64",
    "--high-freq-factor": "3",
    "--imatrix": "model.imatrix.gguf",
    "--inv-freq": "list.json",
    "--linear": "2",
    "--llama3": "2",
    "--log-n": "clamped",
    "--log-n-length": "32",
    "--longrope": "factors.json",
    "--low-freq-factor": "2",
    "--measured": "result.json",
    "--memory": "1GB",
    "--mixed": "2",
    "--mixed-exponent": "0.7",
    "--mscale": "0.7",
    "--mscale-all-dim": "0.7",
    "--ntk": "2",
    "--ntk-fixed": "2",
    "--ntk-old": "2",
    "--original-context": "48",
    "--out": "elsewhere",
    "--output-tensor-type": "q8_0",
    "--outtype": "f16",
    "--piecewise": "10000,500000,16",
    "--pre": "llama-bpe",
    "--push": "me/new",
    "--python": sys.executable,
    "--quantized-by": "me",
    "--recipe": "recipe.json",
    "--rotary-dim": "32",
    "--runtime": "vllm",
    "--split-max-size": "2G",
    "--temperature-intercept": "1.1",
    "--temperature-slope": "0.2",
    "--tensor-type": "attn_v=q8_0",
    "--theta": "20000",
    "--theta-bound": "512",
    "--theta-for": "512",
    "--to": "gguf",
    "--token-embedding-type": "q8_0",
    "--up-to": "100",
    "--validate": "cpu",
    "--windows": "3",
    "--yarn": "2",
}

MODES: dict[str, tuple[str, ...]] = {
    "frequencies of a method": ("plot", "--yarn", "4", "--original-context", "64", "--json"),
    "bound of a length": ("bound", "5000", "--head-dim", "48"),
    "bound of a model": ("bound", "model"),
    "bound of a method": ("bound", "model", "--yarn", "4"),
    "bound of numbers": ("bound", "--original-context", "128"),
    "plot of a method": ("plot", "model", "--yarn", "4", "--json"),
    "inspect": ("inspect", "model"),
    "inspect GGUF": ("inspect", "model.gguf"),
    "compare": ("compare", "model", "model.gguf", "--explain"),
    "compare GGUF": ("compare", "model.gguf", "model.gguf"),
    "advise": ("advise", "model", "--context", "256"),
    "runtimes": ("list", "runtimes"),
    "plan of a folder": ("apply", "model", "--yarn", "4", "--dry-run"),
    "plan of a GGUF file": ("apply", "model.gguf", "--yarn", "4", "--to", "gguf", "--dry-run"),
}
PERMISSIONS = {
    "--force",
    "--replace",
    "--all-files",
    "--ignore-receipt",
    "--trust-remote-code",
    "--fresh",
    "--exit-code",
    "--fail-if",
    "--budget",
    "--allow-untested",
    "--allow-approximate",
}
"""Options that allow or forbid something, which need not occur."""
WAYS = {
    "--quiet",
    "--device",
    "--device-map",
    "--dtype",
    "--no-fsync",
    "--no-check",
    "--workers",
    "--link",
    "--checksum",
}
"""Options that say how something is done, and not what."""
OF_EXECUTION = {"--validate", "--ollama", "--out", "--report", "--plot"}
"""Options that a dry run accepts, since it stands for the run without --dry-run."""


def options(command: str) -> Iterator[tuple[str, list[str]]]:
    """Every option of a command, with a value that differs from its default."""
    for param in find(command).options:
        flag = param.opts[0]
        if flag == "--help-all":
            continue
        if param.is_flag:
            yield flag, [*param.secondary_opts, flag][:1]
        else:
            value = VALUES[flag]
            yield flag, [flag, *(value if isinstance(value, tuple) else (value,))]


def observe(command: list[str], folder: Path) -> tuple[int, str, dict[str, str]]:
    """Exit code, output without times, and the files that a command left, which are removed
    again.
    """
    out = io.StringIO()
    before = set(folder.rglob("*"))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        code = errors.run(lambda **kwargs: complete_app()(command, **kwargs))
    files = {}
    for path in sorted(set(folder.rglob("*")) - before, reverse=True):
        if path.is_file():
            content = path.read_bytes()
            files[str(path.relative_to(folder))] = hashlib.sha256(
                TIMES.sub(b"", content)
            ).hexdigest()
            path.unlink()
        else:
            path.rmdir()
    return code, TIMES.sub(b"", out.getvalue().encode()).decode(), files


def ignored(command: list[str], accepted: set[str], folder: Path) -> list[str]:
    """The options that a command accepts beside its others, and that change nothing."""
    plain = observe(command, folder)
    assert plain[0] in (0, 3), plain
    flags = []
    words = 2 if command[0] in GROUPS else 1
    for flag, spelled in options(" ".join(command[:words])):
        if flag not in {*command, *accepted} and (done := observe([*command, *spelled], folder))[
            0
        ] in (0, 3):
            flags += [flag] if done == plain else []
    return flags


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint, a GGUF file, texts, and the files that options name."""
    folder = tmp_path_factory.mktemp("options")
    for name in ("model", "draft"):
        make("llama", folder / name)
    write(folder / "model.gguf")
    (folder / "lora").mkdir()
    (folder / "lora" / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    text = " ".join(f"{word} {word[::-1]}" for word in Path(__file__).read_text().split())
    (folder / "text.txt").write_text(text)
    (folder / "other.txt").write_text(text[::-1])
    (folder / "list.json").write_text(json.dumps([0.9**k for k in range(32)]))
    (folder / "factors.json").write_text(
        json.dumps({"long_factor": [2.0] * 32, "short_factor": [1.0] * 32})
    )
    (folder / "recipe.json").write_text(
        json.dumps({"method": "linear", "parameters": {"factor": 3.0}})
    )
    return folder


@pytest.mark.parametrize("mode", sample(list(MODES), 4))
def test_no_option_is_accepted_and_ignored(
    mode: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = list(MODES[mode])
    monkeypatch.chdir(folder)
    accepted = PERMISSIONS | WAYS | (OF_EXECUTION if "--dry-run" in command else set())
    assert ignored(command, accepted, folder) == []


@pytest.mark.parametrize(
    ("command", "flag"),
    [
        ("bound --theta 5e5 --yarn 4 --linear 4 --alpha 2", "--alpha"),
        ("eval model --text text.txt --field body", "--field"),
        ("eval model --text text.txt --depths 3", "--depths"),
        ("eval model --text text.txt --seed 3", "--seed"),
        ("eval model --text text.txt --measure passkey --targets 3", "--targets"),
        ("eval --server http://127.0.0.1:9 --text text.txt --chunk 16", "--chunk"),
        ("validate out.gguf --against model.gguf --chunk 16", "--chunk"),
        ("validate out.gguf --against model.gguf --dtype float16", "--dtype"),
        ("validate out --against model --text text.txt --seed 0", "--seed"),
    ],
)
def test_an_option_without_effect_is_refused_before_anything_is_read(
    command: str, flag: str, refuses: Refuses
) -> None:
    refuses(2, f"ropeconv: {flag} ", *command.split())
