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
"""The key or tensor that a reader must read to compute a feature."""
TENSORS = ("rope_freqs", "factors")


def ollama(files: Mapping[str, str]) -> Names:
    """Return the keys and tensors that the model files of Ollama's own engine read.

    Args:
        files: The sources of Ollama by path.

    Returns:
        The names by architecture, for those that this engine always runs; empty for versions that
        run everything in llama-server.
    """
    if ".OllamaEngineRequired()" not in files["llm/server.go"]:
        return {}
    _, _, body = files["fs/ggml/ggml.go"].partition("OllamaEngineRequired() bool {")
    body, _, _ = body.partition("\n}\n")
    read: dict[str, set[str]] = {arch: set() for arch in re.findall(r'"([\w-]+)"', body)}

    # each folder of a model registers its architectures, in one of its files
    by_folder: dict[str, dict[str, str]] = {}
    for path, text in files.items():
        folder, _, _ = path.rpartition("/")
        if path.startswith("model/models/"):
            by_folder.setdefault(folder, {})[path] = text
    for siblings in by_folder.values():
        archs = set()
        for text in siblings.values():
            archs |= read.keys() & set(REGISTERED.findall(text))
        for path, text in siblings.items():
            if re.search(r"embed|vision|audio|_test", path):
                continue
            for arch in archs:
                read[arch] |= {*READ.findall(text), *TENSOR.findall(text)}
    return {arch: sorted(names) for arch, names in read.items() if names}


def fork(files: Mapping[str, str]) -> Names:
    """Return the rope tensors that a fork of llama.cpp creates, for each architecture it names.

    Args:
        files: Its sources in src/ by path.
    """
    text = "\n".join(files.values())

    # the names of architectures by their constants
    _, _, table = text.partition("LLM_ARCH_NAMES = {")
    table, _, _ = table.partition("};")
    names = dict(re.findall(r'\{\s*LLM_ARCH_(\w+),\s*"([^"]+)"', table))
    names.pop("UNKNOWN", None)

    # some forks create the tensors of an architecture in a function of its own
    functions = dict(
        re.findall(
            r"^bool create_tensors_helper::(create_\w+)\([^)]*\) \{(.*?)^\}",
            text,
            flags=re.M | re.S,
        )
    )
    created: dict[str, set[str]] = {arch: set() for arch in names.values()}
    for labels, body in _cases(text):
        called = re.search(r"(create_\w+_tensors)\(tn", body)
        source = functions.get(called[1], "") if called else body
        tensors = {tensor.lower() for tensor in CREATED.findall(source)}
        for label in labels:
            if label in names:
                created[names[label]] |= tensors
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
"""For each reader the function that extracts its names, and the paths that it reads."""


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
    """Yield a sentence for each statement that the sources contradict.

    Args:
        rows: The rows of one reader in the table.
        changes: The names that it reads, by architecture and the first version that reads so.
    """
    own_engine = rows[0].name == "ollama"
    for row in rows:
        for arch, versions in changes.items():
            for start, end in pairwise([*versions, "9999"]):
                for statement in row.statements:
                    if arch not in statement.archs or not _overlap(row, statement, start, end):
                        continue
                    read = versions[start]
                    yield from _contradiction(row, arch, statement, start, read, own_engine)


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
    """Yield how a statement on an architecture contradicts what a version reads.

    Args:
        row: The row of the table.
        arch: The architecture.
        statement: Its status for some features, such as "exact" for rope_freqs.
        version: The version.
        read: The keys and tensors that it reads; None where it does not run the architecture.
        own_engine: Whether the reader has model files of its own, which name all keys that they
            read. Forks of llama.cpp name only tensors.
    """
    where = f"{row.key} on {arch}, {'/'.join(statement.features)}: {statement.status}"
    is_exact = statement.status == "exact"
    is_refused = statement.status == "refused"
    if read is None:
        if is_exact and not own_engine:
            yield f"{where}, and {version} does not have the architecture"
        return
    if statement.features == ("*",) and is_refused:
        yield f"{where}, and {version} has the architecture"
    for feature in statement.features:
        needed = NEEDED.get(feature)
        is_tensor = feature in TENSORS
        if needed is None or (not own_engine and not is_tensor):
            continue
        if is_exact and needed not in read:
            yield f"{where}, and {version} does not read {needed}"
        if is_refused and is_tensor and needed in read:
            yield f"{where}, and {version} reads {needed}"


def main() -> int:
    """Extract one reader and write it; return 1 where a statement contradicts it."""
    name, folder, *named = sys.argv[1:]
    rows = [row for row in gguf_readers() if row.name == name]
    extract, paths = SOURCES[name]
    commits = dict(pair.split("=") for pair in named) or tags(Path(folder), rows)
    read = {}
    for version, commit in commits.items():
        read[version] = extract(files_at(Path(folder), commit, paths))

    # the others stay; a line for each architecture
    stored = json.loads(OUT.read_text("utf-8")) if OUT.exists() else {}
    stored[name] = digest(read)
    parts = []
    for reader, changes in sorted(stored.items()):
        parts.append(f'"{reader}": {{\n{_lines(changes)}\n}}')
    OUT.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")

    problems = list(contradictions(rows, stored[name]))
    print(f"{name}: {len(stored[name])} architectures in {len(read)} versions")
    for problem in problems:
        print(problem)
    return 1 if problems else 0


def _lines(changes: Digest) -> str:
    return ",\n".join(
        f" {json.dumps(arch)}: {json.dumps(versions)}" for arch, versions in changes.items()
    )


if __name__ == "__main__":
    sys.exit(main())
