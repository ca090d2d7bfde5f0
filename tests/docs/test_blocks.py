"""Every block of code in README.md and docs/ can be pasted: in the order of its page it runs, on
small models.

A page is pasted from its first block to its last into an empty folder. `hf download` brings small
models, and a Hub of this process has those that are named by their owner. A line that needs a GPU,
a server or hours is in `NOT_RUN` with its reason, and its options are checked.
"""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from ropeconv.features.evaluation.cases import parse_lengths
from scripts.gather_pages import ROOT
from scripts.pages.transcripts import OF_WEIGHTS, PAGES, TUTORIAL

from ..support.commands import commands_of, parse_problem, script_problem
from ..support.extent import sample
from ..support.hub_server import running, talk_to
from ..support.hub_writing import WritingHub, writing
from ..support.in_process import command
from ..support.pasting import (
    PUBLISHED,
    UNKNOWN_TRAINED,
    Block,
    Machine,
    blocks,
    machine,
    make_model,
)

NAMES = ("README.md", *(f"docs/{path.name}" for path in sorted((ROOT / "docs").glob("*.md"))))
OF_THE_HELP = "docs/commands.md"
"""A page that follows from the help, whose examples tests/docs/test_examples.py runs."""
LANGUAGES = ("sh", "console", "python", "toml", "json", "math", "text")
SERVERS = {"vllm": "serve", "sglang": "serve", "llama-server": "-m", "ropeconv": "ui"}
"""Programs that do not end, by their first word."""
NOTED = ("pip", "ollama", "mlx_lm.generate", "mlx_lm.convert", *SERVERS)
"""Programs that need a network or an engine: they read their words and do nothing."""
NOT_RUN = {
    r"--server": "a running server: tests/features/servers",
    r"check_rope\.py --url": "a running server: tests/features/vectors",
    r"^ropeconv ui": "it does not end: tests/features/ui",
    r"^ropeconv update-data": "a network: tests/features/updates",
    r"^ropeconv probe vllm": "vLLM: tests/engines/test_runtime_probes.py",
    r"^ropeconv tune|--recipe tuned\.json": "a GPU, or hours: tests/features/evaluation/tune",
    r"^ropeconv run plan\.toml( +#.*| --verify.*)$": "hours: tests/features/run",
    r"--converter": "llama.cpp's converter: tests/convert/to_gguf/test_stock.py",
    r"^ropeconv imatrix|--imatrix": "a long text: tests/features/imatrix",
    r"^ropeconv evidence add": "a checkout: tests/features/evaluation/test_evidence_command.py",
    r"--draft": "an EAGLE head: tests/bake/test_companions.py",
    r"new-model": "the reader's own model: tests/features/derivation",
    r"scripts[/.]": "a checkout: tests/docs/test_every_command.py",
}
"""Lines of shell that are only parsed, and where the tests of these are."""
NOT_RUN_PYTHON = {"ropeconv.tune": "a GPU", "tune_model": "a GPU, or hours"}
"""Blocks of Python that are only compiled."""
LIGHTER = {
    "--lengths 1/4T,1T,2T,4T": "--lengths 64",
    "--lengths 1/4T,1T": "--lengths 64",
    "--lengths 1T,4T": "--lengths 64,256",
    "--length 4T": "--length 256",
    "--lengths 1T --measure passkey": "--lengths 256 --measure passkey",
    "--length 64k": "--length 256",
    'lengths="1T,2T"': 'lengths="64,128"',
    "np.geomspace(1, 1e-5, 64)": "np.geomspace(1, 1e-5, 32)",
}
"""Replaced for a run: 131,072 tokens take minutes here, and heads have 64 dimensions."""


def of_page(page: str) -> list[Block]:
    return list(blocks((ROOT / page).read_text("utf-8"), page))


def lines(block: Block) -> list[str]:
    """The lines of shell of a block, continued ones joined."""
    joined = re.sub(r"\s*\\\n\s*", " ", block.program)
    return [line for line in joined.splitlines() if line.strip()]


def reason(line: str) -> str:
    """Why a line of shell is not run; empty for one that is."""
    return next((why for pattern, why in NOT_RUN.items() if re.search(pattern, line)), "")


def lighter(program: str) -> str:
    for words, others in LIGHTER.items():
        program = program.replace(words, others)
    return program


def refused(line: str) -> Iterator[str]:
    """Why the real command lines refuse the commands of a line."""
    for words in commands_of(line):
        problem = parse_problem(words[1:]) if words[0] == "ropeconv" else script_problem(words)
        if problem:
            yield f"{line}: {problem}"


def longest_length(line: str) -> int:
    """The tokens of the longest sequence that a line of shell reads on the small models."""
    found = re.search(r"^ropeconv eval (\S+) .*--lengths (\S+)", line)
    if not found:
        return 0
    model, lengths = found.groups()
    known = [keys for part, keys in PUBLISHED.items() if part in model]
    trained = known[0]["max_position_embeddings"] if known else UNKNOWN_TRAINED
    assert isinstance(trained, int)
    return max(parse_lengths(lengths, trained))


def problems(block: Block, machine: Machine) -> Iterator[str]:
    """What happens when a block is pasted; nothing where it does what its page says."""
    if block.saved_as:
        (machine.folder / block.saved_as).write_text(block.body)
    if block.language == "sh":
        yield from (problem for line in lines(block) for problem in refused(line))
        program = lighter("\n".join(line for line in lines(block) if not reason(line)))
        done = machine.shell(program)
        if done.returncode or "No such file" in done.stdout or "not found" in done.stdout:
            yield f"{block}: {done.stdout[-1000:]}"
    elif block.language == "python" and not any(name in block.body for name in NOT_RUN_PYTHON):
        try:
            machine.python(lighter(block.body), str(block))
        except Exception as problem:
            yield f"{block}: {type(problem).__name__}: {problem}"
    elif block.language == "python":
        compile(block.body, str(block), "exec")
    elif block.language == "toml":
        tomllib.loads(block.body)
    elif block.language == "json":
        json.loads(block.body)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The model of `scripts/demo`, with 32,768 tokens, and the GGUF file of it beside it."""
    folder = tmp_path_factory.mktemp("models")
    words = [sys.executable, ROOT / "scripts" / "make_demo_model.py", folder / "demo"]
    subprocess.run(words, check=True, capture_output=True)
    make_model(folder / "demo", folder / "llama", "llama")
    to_gguf = ("--as-is", "--to", "gguf", "--outtype", "q8_0", "-o", "llama.gguf", "--no-check")
    command(folder, "apply", "llama", *to_gguf, code=0)
    return folder / "llama"


@pytest.fixture
def fresh(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """An empty folder of a machine with ropeconv, beside a Hub that has every model."""
    monkeypatch.setenv("ROPECONV_VALIDATE", "off")  # tests/validate runs these for seconds each
    hub = WritingHub(tmp_path / "hub")
    named = " ".join((ROOT / page).read_text("utf-8") for page in NAMES)
    for repo in re.findall(r"(?<![\w./-])((?:Qwen|HuggingFaceTB)/[\w.-]+)", named):
        make_model(model, tmp_path / "published" / repo, repo)
        hub.repos[repo] = tmp_path / "published" / repo
    for repo, file in re.findall(r"(Qwen/[\w.-]+-GGUF)[/ ]([\w.-]+\.gguf)", named):
        shutil.copyfile(model.with_suffix(".gguf"), hub.repos[repo] / file)
    folder = tmp_path / "folder"
    folder.mkdir()
    with running(hub, writing(hub)), machine(folder, model, NOTED) as made:
        talk_to(hub, tmp_path / "cache", monkeypatch)
        yield made


PASTED = [page for page in NAMES if page not in (OF_THE_HELP, "README.md")]
"""Pages that take up to a minute each; a few of them each day, and README.md always."""


@pytest.mark.parametrize("page", ["README.md", *sample(PASTED, 4)])
def test_every_block_of_a_page_can_be_pasted(fresh: Machine, page: str) -> None:
    found = [problem for block in of_page(page) for problem in problems(block, fresh)]
    assert found == []


@pytest.mark.parametrize("page", NAMES)
def test_the_language_of_a_block_says_whether_it_can_be_pasted(page: str) -> None:
    for block in of_page(page):
        typed = re.findall(r"^(?:ropeconv|pip|hf) ", block.body, re.MULTILINE)
        prompts = re.findall(r"^\$ ", block.body, re.MULTILINE)
        assert block.language in LANGUAGES, str(block)
        assert bool(prompts) == (block.language == "console"), str(block)
        if block.language == "text" and page != OF_THE_HELP:
            assert not typed, str(block)


def test_output_that_pages_show_is_compared_elsewhere() -> None:
    compared = {f"docs/{page}".replace("docs/../", "") for page in (*PAGES, TUTORIAL)}
    shown = {block.page for page in NAMES for block in of_page(page) if block.language == "console"}
    assert shown <= compared
    assert OF_WEIGHTS


@pytest.mark.parametrize("page", [page for page in NAMES if page != OF_THE_HELP])
def test_a_program_that_does_not_end_is_the_last_of_its_block(page: str) -> None:
    for block in of_page(page):
        if block.language == "sh":
            words = [line.split() for line in lines(block)]
            endless = [SERVERS.get(line[0]) == line[1] for line in words if len(line) > 1]
            assert not any(endless[:-1]), str(block)


def test_no_line_reads_sequences_that_take_minutes_here() -> None:
    """A sequence of 163,840 tokens takes two minutes of a core on the small model too."""
    for page in PASTED:
        for block in of_page(page):
            if block.language == "sh":
                for line in lines(block):
                    assert reason(line) or longest_length(lighter(line)) <= 16384, str(block)
    long = "ropeconv eval Qwen/Qwen3-8B --methods base,yarn:4 --lengths 1T,4T -o items.jsonl.gz"
    assert longest_length(long) == 4 * UNKNOWN_TRAINED


def test_every_extra_that_is_installed_exists() -> None:
    known = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    text = " ".join((ROOT / page).read_text("utf-8") for page in NAMES)
    named = {
        name for names in re.findall(r"ropeconv\[([\w,-]+)\]", text) for name in names.split(",")
    }
    assert len(named) > 3
    assert named <= known["optional-dependencies"].keys()


def test_every_reason_is_needed_and_names_a_test() -> None:
    typed = [line for page in NAMES for block in of_page(page) for line in lines(block)]
    for pattern, why in NOT_RUN.items():
        assert any(re.search(pattern, line) for line in typed), pattern
        assert (ROOT / why.rpartition(": ")[2]).exists(), why
    text = " ".join((ROOT / page).read_text("utf-8") for page in NAMES)
    assert all(words in text for words in LIGHTER)


@pytest.mark.parametrize(
    ("language", "body", "what"),
    [
        ("sh", "ropeconv apply Qwen3-8B --yarn 4\n", "neither a folder nor a Hub id"),
        ("sh", "ropeconv inspect Qwen/Qwen3-8B --explian\n", "--explian"),
        ("sh", "vllm serve x --max-model-len $LENGTH\n", "LENGTH: unbound variable"),
        ("sh", 'ollama run x "$(cat question.txt)"\n', "No such file"),
        ("sh", "huggingface-cli download Qwen/Qwen3-8B\n", "not found"),
        ("sh", "hf download Qwen/Qwen3-8B --local-folder x\n", "--local-folder"),
        ("sh", "ropeconv ui --prot 8000\n", "--prot"),
        ("python", "ropeconv.inspect(np.ones(2))\n", "NameError"),
    ],
)
def test_a_block_that_cannot_be_pasted_is_found(
    fresh: Machine, language: str, body: str, what: str
) -> None:
    (block,) = blocks(f"```{language}\n{body}```\n", "page.md")
    found = list(problems(block, fresh))
    assert found
    assert what in found[0]
