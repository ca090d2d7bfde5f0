"""Extracts what readers of GGUF load from their sources, tag by tag, and compares it with
`runtimes/readers/*.toml`.

    scripts/lab readers ollama FOLDER                   # a git folder with every tag
    scripts/lab readers ik-llama-cpp FOLDER 2026.4=b382ebd84~1 2026.8=8337e4cd3
    scripts/lab readers koboldcpp FOLDER 1.76=v1.76

It writes `tests/data/gguf_readers.json`: per reader and architecture, from which version on it
reads which metadata keys and rope tensors. Of Ollama these are the architectures that its own
engine always runs, of forks of llama.cpp all.
"""

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path

from ropeconv.runtimes.gguf_readers import Reader, ReaderStatement, gguf_readers
from ropeconv.runtimes.runtime import version_key

OUT = Path(__file__).parents[2] / "tests" / "data" / "gguf_readers.json"
Names = dict[str, list[str]]
"""Metadata keys and tensors by general.architecture."""
Digest = dict[str, dict[str, list[str] | None]]
"""What is read by architecture and by the first version that reads so; None where it does not run
the architecture.
"""
READ = re.compile(r'^(?!\s*//).*?\bc\.\w+\("((?:rope|attention\.temperature)[\w.]*)"', re.M)
TENSOR = re.compile(r'^(?!\s*//).*?gguf:"(rope_(?:freqs|factors)\w*)', re.M)
REGISTERED = re.compile(r'model\.Register\("([\w-]+)"')
CREATED = re.compile(
    r"^(?!\s*//).*?LLM_TENSOR_(ROPE_FREQS|ROPE_FACTORS_LONG|ROPE_FACTORS_SHORT),", re.M
)
NEEDED = {
    "theta": "rope.freq_base",
    "linear": "rope.scaling.factor",
    "yarn": "rope.scaling.original_context_length",
    "attn_factor": "rope.scaling.attn_factor",
    "log_multiplier": "rope.scaling.yarn_log_multiplier",
    "temperature_scale": "attention.temperature_scale",
    "window_theta": "rope.freq_base_swa",
    "rope_freqs": "rope_freqs",
    "factors": "rope_factors_long",
}
"""What a reader must read to compute a feature."""
TENSORS = ("rope_freqs", "factors")


def ollama(files: Mapping[str, str]) -> Names:
    """What the model files of Ollama's own engine read. files: its sources by path."""
    if ".OllamaEngineRequired()" not in files["llm/server.go"]:
        return {}  # it runs everything in llama-server
    always = re.findall(
        r'"([\w-]+)"',
        files["fs/ggml/ggml.go"]
        .partition("OllamaEngineRequired() bool {")[2]
        .partition("\n}\n")[0],
    )
    read: dict[str, set[str]] = {arch: set() for arch in always}
    folders = {path.rpartition("/")[0] for path in files if path.startswith("model/models/")}
    for folder in folders:
        siblings = {path: text for path, text in files.items() if path.rpartition("/")[0] == folder}
        archs = {
            arch for text in siblings.values() for arch in REGISTERED.findall(text)
        } & read.keys()
        for path, text in siblings.items():
            if not re.search(r"embed|vision|audio|_test", path):
                for arch in archs:
                    read[arch] |= {*READ.findall(text), *TENSOR.findall(text)}
    return {arch: sorted(names) for arch, names in read.items() if names}


def fork(files: Mapping[str, str]) -> Names:
    """The rope tensors that a fork of llama.cpp creates for each architecture that it names. files:
    those of src/.
    """
    text = "\n".join(files.values())
    table = text.partition("LLM_ARCH_NAMES = {")[2].partition("};")[0]
    names = dict(re.findall(r'\{\s*LLM_ARCH_(\w+),\s*"([^"]+)"', table))
    names.pop("UNKNOWN", None)
    created: dict[str, set[str]] = {arch: set() for arch in names.values()}
    functions = dict(
        re.findall(
            r"^bool create_tensors_helper::(create_\w+)\([^)]*\) \{(.*?)^\}",
            text,
            flags=re.M | re.S,
        )
    )
    for labels, body in _cases(text):
        called = re.search(r"(create_\w+_tensors)\(tn", body)
        tensors = CREATED.findall(functions.get(called[1], "") if called else body)
        for label in labels:
            if label in names:
                created[names[label]] |= {tensor.lower() for tensor in tensors}
    return {arch: sorted(tensors) for arch, tensors in created.items()}


def _cases(text: str) -> Iterator[tuple[list[str], str]]:
    """The architectures of each group of cases, and the statements behind them."""
    group = r"((?:^\s*case LLM_ARCH_\w+:[^\n]*\n)+)(.*?)(?=^\s*case LLM_ARCH_|^\}|^\s*default:)"
    for labels, body in re.findall(group, text, flags=re.M | re.S):
        yield re.findall(r"LLM_ARCH_(\w+):", labels), labels + body


SOURCES = {
    "ollama": (ollama, ("fs/ggml/ggml.go", "llm/server.go", "model/models")),
    "ik-llama-cpp": (fork, ("src",)),
    "koboldcpp": (fork, ("src/llama.cpp",)),
}
"""What extracts each reader, and from which paths."""


def files_at(folder: Path, commit: str, paths: tuple[str, ...]) -> dict[str, str]:
    """The sources below some paths at a commit, by path."""

    def git(*arguments: str) -> bytes:
        return subprocess.run(
            ["git", "-C", folder, *arguments], check=True, capture_output=True
        ).stdout

    listed = git("ls-tree", "-r", "--name-only", commit, *paths).decode().splitlines()
    sources = [path for path in listed if path.endswith((".go", ".cpp", ".h"))]
    return {path: git("show", f"{commit}:{path}").decode("utf-8", "replace") for path in sources}


def tags(folder: Path, rows: list[Reader]) -> dict[str, str]:
    """The released versions in the rows of a reader, and their tags."""
    listed = subprocess.run(
        ["git", "-C", folder, "tag"], check=True, capture_output=True, text=True
    ).stdout.split()
    versions = {tag.removeprefix("v"): tag for tag in listed if re.fullmatch(r"v[\d.]+", tag)}
    return {
        release: versions[release]
        for release in sorted(versions, key=version_key)
        if any(row.covers(release) for row in rows)
    }


def digest(read: Mapping[str, Names]) -> Digest:
    """What is read by architecture, at the versions where it changes. read: by version, the oldest
    first.
    """
    archs = sorted({arch for names in read.values() for arch in names})
    changes: Digest = {arch: {} for arch in archs}
    for version, names in read.items():
        for arch, known in changes.items():
            last = next(reversed(known.values()), None)
            if last != names.get(arch) or (not known and arch in names):
                known[version] = names.get(arch)
    return changes


def contradictions(rows: list[Reader], changes: Digest) -> Iterator[str]:
    """Yield a sentence for each statement that the sources contradict. rows: of one reader."""
    own_engine = rows[0].name == "ollama"
    for row in rows:
        for arch, versions in changes.items():
            for start, end in pairwise([*versions, "9999"]):
                for statement in row.statements:
                    if arch in statement.archs and _overlap(row, statement, start, end):
                        yield from _contradiction(
                            row, arch, statement, start, versions[start], own_engine
                        )


def _overlap(row: Reader, statement: ReaderStatement, start: str, end: str) -> bool:
    """Whether a statement is about a version from `start` until before `end`."""

    def padded(version: str, rest: int) -> tuple[int, ...]:
        return (*version_key(version), rest, rest)[:3]

    first = max(padded(row.version, 0), padded(statement.since, 0), padded(start, 0))
    last = min(padded(row.last, 9999), padded(statement.until or row.last, 9999))
    return first <= last and first < padded(end, 0)


def _contradiction(
    row: Reader,
    arch: str,
    statement: ReaderStatement,
    version: str,
    read: list[str] | None,
    own_engine: bool,
) -> Iterator[str]:
    where = f"{row.key} on {arch}, {'/'.join(statement.features)}: {statement.status}"
    if read is None:
        if statement.status == "exact" and not own_engine:
            yield f"{where}, and {version} does not have the architecture"
        return
    if statement.features == ("*",) and statement.status == "refused":
        yield f"{where}, and {version} has the architecture"
    for feature in statement.features:
        needed = NEEDED.get(feature)
        if needed is None or (not own_engine and feature not in TENSORS):
            continue
        if statement.status == "exact" and needed not in read:
            yield f"{where}, and {version} does not read {needed}"
        if statement.status == "refused" and feature in TENSORS and needed in read:
            yield f"{where}, and {version} reads {needed}"


def main() -> int:
    """Extracts one reader and writes it. Returns 1 where a statement contradicts it."""
    name, folder, *named = sys.argv[1:]
    rows = [row for row in gguf_readers() if row.name == name]
    extract, paths = SOURCES[name]
    commits = dict(pair.split("=") for pair in named) or tags(Path(folder), rows)
    read = {
        version: extract(files_at(Path(folder), commit, paths))
        for version, commit in commits.items()
    }
    stored = json.loads(OUT.read_text("utf-8")) if OUT.exists() else {}
    stored[name] = digest(read)
    lines = (
        f'"{release}": {{\n{_lines(changes)}\n}}' for release, changes in sorted(stored.items())
    )
    OUT.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    problems = [*contradictions(rows, stored[name])]
    print(
        "\n".join([f"{name}: {len(stored[name])} architectures in {len(read)} versions", *problems])
    )
    return int(bool(problems))


def _lines(changes: Digest) -> str:
    return ",\n".join(
        f" {json.dumps(arch)}: {json.dumps(versions)}" for arch, versions in changes.items()
    )


if __name__ == "__main__":
    sys.exit(main())
