"""GGUF files on the Hub: plans read headers by range, outputs fetch the files, and no answer is
believed unchecked.
"""

import json
import tracemalloc
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ropeconv.errors import BadSource
from ropeconv.formats.gguf.edit import RESERVED
from ropeconv.formats.gguf.header import read_header
from ropeconv.models import gguf as hub_shard
from ropeconv.models.gguf import GgufSource, HubGguf
from ropeconv.models.open import open_source
from ropeconv.models.source import RECEIPT

from ..conftest import Run
from ..support.baking import YARN, apply, make_plan, recipe_of
from ..support.extent import sample
from ..support.gguf_files import contents, plain_tensors, write
from ..support.hub_server import Hub, handler, running, talk_to

NAME = "me/tiny/quants/big.gguf"
LARGE = 5 << 20
FREQS = "rope_freqs.weight"
Change = Callable[[int, bytes, dict[str, str]], tuple[int, bytes, dict[str, str]]]


class Hostile(Hub):
    """A Hub that notes the requested ranges, "" for whole files. change: the answer in place of the
    right one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.change: Change | None = None


def hostile(hub: Hostile) -> type[BaseHTTPRequestHandler]:
    class Handler(handler(hub)):  # type: ignore[misc]
        def reply(
            self, status: int, content: bytes, body: bool, headers: dict[str, str] | None = None
        ) -> None:
            if body:
                hub.seen.append(self.headers.get("Range") or "")
            if hub.change is not None and self.headers.get("Range"):
                status, content, headers = hub.change(status, content, dict(headers or {}))
            revision = self.path.split("/resolve/")[-1].split("/")[0]
            if headers and len(revision) == 40:
                headers = {**headers, "X-Repo-Commit": revision}
            super().reply(status, content, body, headers)

    return Handler


def large(path: Path, vocabulary: int = 5_000, **options: Any) -> Path:
    """A file with a header of some hundred kB and tensors of 5 MB, of which a plan reads one that
    is the last.
    """
    numbers = np.random.default_rng(1).standard_normal((LARGE // 4 // 128, 128), dtype=np.float32)
    tensors = {
        **plain_tensors(),
        "blk.0.ffn_up.weight": numbers,
        FREQS: np.linspace(1, 4, 32, dtype=np.float32),
    }
    return write(path, tensors=tensors, vocabulary=vocabulary, **options)


def fetched(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "home").rglob("*.gguf"))


@pytest.fixture
def big_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hostile]:
    """A Hub with one large GGUF file, which this process and commands talk to."""
    (tmp_path / "repo" / "quants").mkdir(parents=True)
    large(tmp_path / "repo" / "quants" / "big.gguf")
    server = Hostile()
    server.repos["me/tiny"] = tmp_path / "repo"
    with running(server, hostile(server)) as ready:
        talk_to(ready, tmp_path / "home" / "hub", monkeypatch)
        yield ready


def same_model(path: Path, other: Path) -> bool:
    """Whether two files have the same bytes but for the receipt, which names another source, and
    its reserve.
    """
    first = read_header(path)
    second = read_header(other)
    differ = {
        key
        for key in first.values | second.values
        if first.values.get(key) != second.values.get(key)
    }
    same = (
        differ <= {RECEIPT, RESERVED}
        and first.tensors == second.tensors
        and contents(path) == contents(other)
    )
    return (
        same and list(first.values) == list(second.values) and first.data_start == second.data_start
    )


COMMANDS = {
    "inspect": ("inspect", NAME, "--json"),
    "apply": ("apply", NAME, "--yarn", "4", "--replace", "--dry-run", "--json"),
    "advise": ("advise", NAME, "--context", "256"),
    "compare": ("compare", NAME, NAME),
    "plot": ("plot", NAME, "--yarn", "4", "-o", "plot.svg"),
}


@pytest.mark.parametrize("name", sample(list(COMMANDS), 1))
def test_what_writes_no_model_reads_only_headers(
    name: str, process: Run, big_hub: Hostile, tmp_path: Path
) -> None:
    command = COMMANDS[name]
    done = process(*command, env=big_hub.environment(tmp_path / "home"))
    assert done.returncode == 0, done.stderr
    assert big_hub.sent["quants/big.gguf"] == command.count(NAME) * (hub_shard.FIRST + 32 * 4)
    assert fetched(tmp_path) == []
    if "--json" in command:
        local = process(
            *(
                str(tmp_path / "repo" / "quants" / "big.gguf") if part == NAME else part
                for part in command
            )
        )
        actual = json.loads(done.stdout)
        expected = json.loads(local.stdout)
        assert actual.pop("source") == {
            "reference": NAME,
            "kind": "gguf",
            "commit": big_hub.commit("me/tiny"),
        }
        assert actual == {key: value for key, value in expected.items() if key != "source"}


def test_shards_are_read_by_range_and_fetched_beside_each_other(
    big_hub: Hostile, tmp_path: Path
) -> None:
    """Each shard is fetched once where it is read, under the branch, so that the cache serves the
    branch offline.
    """
    large(tmp_path / "repo" / "s.gguf", split=2)
    paths = sorted((tmp_path / "repo").glob("s-*.gguf"))
    commit = big_hub.commit("me/tiny")
    reference = f"me/tiny/{paths[0].name}"
    source = open_source(reference)
    plan = make_plan(source, YARN, tmp_path / "out.gguf", replace=True)
    assert [file.size for file in plan.files[1:]] == [path.stat().st_size for path in paths[1:]]
    assert sum(big_hub.sent.values()) <= 3 * hub_shard.FIRST + 128
    assert (fetched(tmp_path), dict(plan.identities)) == ([], {})
    out = apply(plan)
    local = apply(make_plan(paths[0], YARN, tmp_path / "local.gguf", replace=True))
    assert same_model(out, local)
    assert not same_model(local, paths[0])
    assert (tmp_path / "out-00002-of-00003.gguf").read_bytes() == paths[1].read_bytes()
    changed, other = (tmp_path / f"{name}-00003-of-00003.gguf" for name in ("out", "local"))
    assert changed.read_bytes() == other.read_bytes() != paths[2].read_bytes()
    assert json.loads(GgufSource(out).file.get(RECEIPT))["source"] == {
        "name": "s",
        "kind": "gguf",
        "reference": reference,
        "commit": commit,
        "family": "",
        "derived": "",
    }
    assert fetched(tmp_path) == [path.name for path in paths]
    assert isinstance(source, HubGguf)
    assert {path.parent for path in source.file.paths} == {source.path.parent}
    assert source.path.parent.name == commit
    assert [ref.read_text() for ref in (tmp_path / "home").rglob("refs/*")] == [commit]
    big_hub.sent.clear()
    apply(make_plan(reference, recipe_of("yarn", 8.0), tmp_path / "again.gguf", replace=True))
    assert big_hub.sent == {}


def test_a_damaged_header_has_the_sentence_of_a_local_one(big_hub: Hostile, tmp_path: Path) -> None:
    path = tmp_path / "repo" / "bad.gguf"
    whole = (tmp_path / "repo" / "quants" / "big.gguf").read_bytes()
    start = read_header(tmp_path / "repo" / "quants" / "big.gguf").data_start
    damaged = [
        whole[:-100],
        whole[: start // 2],
        whole[:200],
        b"GGUF" + whole[:20],
        b"GG" + whole[2:9],
        whole[:7] * 10,
    ]
    for data in (
        *damaged,
        whole[:16] + b"\xff" * 8 + whole[24:],
        whole[:40] + b"\xff" * 7 + whole[47:],
    ):
        path.write_bytes(data)
        with pytest.raises(BadSource) as local:
            _ = GgufSource(path).file
        with pytest.raises(BadSource) as remote:
            _ = open_source("me/tiny/bad.gguf").file
        assert str(remote.value) == str(local.value)
    assert fetched(tmp_path) == []


RANGES = {
    "no range": None,
    "text as a range": "bytes all of it",
    "another part": "bytes 1-262144/6000000",
    "no size": "bytes 0-262143/*",
    "a size smaller than the part": "bytes 0-262143/7",
    "a size with too many digits": "bytes 0-262143/" + "9" * 5000,
}


def described(text: str | None) -> Change:
    return lambda status, content, headers: (206, content, {"Content-Range": text} if text else {})


ANSWERS: dict[str, Change] = {
    "the whole file": lambda status, content, headers: (200, bytes(LARGE), {}),
    "a part that says it is all": lambda status, content, headers: (200, content, headers),
    "a short body": lambda status, content, headers: (206, content[:-1], headers),
    "a long body": lambda status, content, headers: (206, content * 2, headers),
    "nothing": lambda status, content, headers: (206, b"", headers),
    **{name: described(text) for name, text in RANGES.items()},
}


@pytest.mark.parametrize("name", ANSWERS)
def test_an_answer_that_is_not_what_was_asked_for(
    big_hub: Hostile, tmp_path: Path, name: str
) -> None:
    big_hub.change = ANSWERS[name]
    tracemalloc.start()
    with pytest.raises(
        BadSource,
        match=f"{NAME} (is not the requested part|is longer than 262,144)",
    ):
        _ = open_source(NAME).file
    assert tracemalloc.get_traced_memory()[1] < 100 << 20
    tracemalloc.stop()
    assert fetched(tmp_path) == []
    big_hub.change = None
    assert open_source(NAME).file.name == "big.gguf"


def test_a_file_that_arrives_otherwise_than_it_was_planned(
    big_hub: Hostile, tmp_path: Path
) -> None:
    plan = make_plan(NAME, YARN, tmp_path / "out.gguf", replace=True)
    large(tmp_path / "repo" / "quants" / "big.gguf", 5_001)
    with pytest.raises(BadSource, match=f"{NAME} changed"):
        apply(plan)
    assert not (tmp_path / "out.gguf").exists()


def test_a_branch_that_moves_after_the_plan_is_left_alone(big_hub: Hostile, tmp_path: Path) -> None:
    """The commit of the plan is fetched, and the cache is told nothing about the branch."""
    plan = make_plan(NAME, YARN, tmp_path / "out.gguf", replace=True)
    old = big_hub.commit("me/tiny")
    big_hub.branches.append(old)
    big_hub.commit = lambda repo: "f" * 40  # type: ignore[method-assign]
    apply(plan)
    assert [path.parts[-3] for path in (tmp_path / "home").rglob("big.gguf")] == [old]
    assert not list((tmp_path / "home").rglob("refs/main"))
