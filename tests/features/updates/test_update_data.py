"""`ropeconv update-data`: later data is fetched, checked, stored whole and used; without it all is
as before.
"""

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ropeconv.errors import BadSource, DamagedPackage, UsageError
from ropeconv.features.updates import download
from ropeconv.features.updates.download import beside
from ropeconv.features.updates.release import MANIFEST, data_name, make_release
from ropeconv.features.updates.update import VARIABLE, reset_data, update_data
from ropeconv.formats.package_data import package_data
from ropeconv.rope.errors import RecipeError, RopeconvError
from ropeconv.runtimes import evidence, gguf_readers, lab_file, runtime
from ropeconv.runtimes.drafts import draft_table
from ropeconv.runtimes.programs import programs
from ropeconv.runtimes.stored import (
    ABOUT,
    FORM,
    SHIPPED,
    About,
    StoredData,
    current_data,
    file_hash,
    read_shipped,
    stored_path,
)

from ...faults.harness import KILLED, ROOT, Fault, Mode, Server
from .releases import (
    DATA,
    LATER,
    ROW,
    ReleaseServer,
    change_manifest,
    later_files,
    serving,
    write_release,
)

NEW = "vllm@99.0"
"""A runtime that only the release knows."""

CACHED = (
    current_data,
    runtime.runtimes,
    runtime._spellings,
    lab_file.lab_file,
    lab_file.runtime_records,
    lab_file.lab_models,
    evidence.records,
    evidence.executed_models,
    evidence._records,
    gguf_readers.gguf_readers,
    programs,
    draft_table,
)


def read_again() -> None:
    """Read the data as a new process does."""
    for function in CACHED:
        function.cache_clear()


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder for the data of a user who has none."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.delenv(VARIABLE, raising=False)
    read_again()
    yield tmp_path / "home"
    read_again()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ReleaseServer]:
    write_release(tmp_path / "release")
    with serving(tmp_path / "release") as running:
        yield running


def knows(name: str) -> bool:
    read_again()
    try:
        return bool(runtime.find(name))
    except RecipeError:
        return False


def used() -> str:
    read_again()
    return current_data().about.version


SHIPPED_VERSION = package_data(SHIPPED / ABOUT, About).version


def nothing_stored() -> bool:
    """Whether the user has no data, and ropeconv continues with its own."""
    return not stored_path().exists() and used() == SHIPPED_VERSION and knows("vllm@0.33")


# What it does


def test_a_later_release_is_stored_and_used(server: ReleaseServer) -> None:
    assert not knows(NEW)
    update = update_data(server.url)
    assert (update.before, update.available) == (SHIPPED_VERSION, LATER)
    assert update.changes == {ABOUT: "changed", "data/vllm.toml": "changed"}
    assert Path(update.stored) == stored_path()
    assert used() == LATER
    assert knows(NEW)

    # the second time there is nothing to fetch
    server.asked.clear()
    again = update_data(server.url)
    assert (again.before, again.stored, again.changes) == (LATER, "", {})
    assert server.asked == [MANIFEST]


def test_all_that_is_read_comes_from_the_stored_data(server: ReleaseServer) -> None:
    """The stored copy of the shipped data gives the same rows, records, readers and programs."""
    shipped = read_everything()
    update_data(server.url)
    read_again()
    stored = read_everything()
    assert len(stored["rows"]) == len(shipped["rows"]) + 1
    del stored["rows"][NEW]
    assert stored == shipped


def read_everything() -> dict[str, Any]:
    return {
        "rows": {row.key: row for row in runtime.runtimes()},
        "records": evidence.records(),
        "keys": [evidence.read_keys(row) for row in runtime.runtimes() if row.key != NEW],
        "models": lab_file.lab_models(),
        "readers": gguf_readers.gguf_readers(),
        "programs": programs(),
        "drafts": draft_table(),
        "names": runtime._spellings(),
    }


def test_check_shows_the_same_changes_and_stores_nothing(server: ReleaseServer) -> None:
    update = update_data(server.url, check=True)
    assert update.is_newer
    assert update.changes == {ABOUT: "changed", "data/vllm.toml": "changed"}
    assert server.asked == [MANIFEST]
    assert nothing_stored()


def test_reset_goes_back_to_what_was_shipped(server: ReleaseServer) -> None:
    assert reset_data() == (SHIPPED_VERSION, False)
    update_data(server.url)
    assert knows(NEW)
    assert reset_data() == (SHIPPED_VERSION, True)
    assert nothing_stored()
    assert not knows(NEW)


def test_a_release_comes_from_a_folder_too(tmp_path: Path) -> None:
    """For a machine without a network."""
    manifest = write_release(tmp_path / "stick")
    assert update_data(str(manifest)).available == LATER
    assert knows(NEW)


def test_the_variable_names_the_place(
    server: ReleaseServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, server.url)
    assert update_data().source == server.url


def test_an_asset_may_be_behind_a_redirection(server: ReleaseServer) -> None:
    """Those of a release on GitHub are."""
    server.moved = server.url.replace(f"release/{MANIFEST}", f"moved/{DATA}")
    update_data(server.url)
    assert server.asked == [MANIFEST, DATA, DATA]
    assert knows(NEW)


# Which data is used


@pytest.mark.parametrize("version", ["2026.11.28", SHIPPED_VERSION])
def test_older_data_is_neither_stored_nor_used(version: str, tmp_path: Path) -> None:
    """A later ropeconv ships with later data than the user has fetched before."""
    manifest = write_release(tmp_path / "release", version)
    assert update_data(str(manifest)).stored == ""
    assert nothing_stored()

    stored_path().parent.mkdir(parents=True)
    stored_path().write_bytes((tmp_path / "release" / data_name(version)).read_bytes())
    assert used() == SHIPPED_VERSION
    assert version in ropeconv(stored_path().parents[1], "--version").stderr
    assert not knows(NEW)
    stored_path().write_bytes(make_release(later_files())[1])
    assert used() == LATER, "the control: later data there is used"


def test_the_number_behind_a_day_counts(tmp_path: Path) -> None:
    for version in (f"{LATER}.9", f"{LATER}.10"):
        assert update_data(str(write_release(tmp_path / "release", version))).stored
        assert used() == version
    assert update_data(str(write_release(tmp_path / "release", f"{LATER}.9"))).stored == ""


def test_data_of_another_form_is_not_used(server: ReleaseServer) -> None:
    """A user who installs an earlier ropeconv again keeps the data of the later one."""
    update_data(server.url)
    data = msgspec.json.decode(stored_path().read_bytes())
    stored_path().write_bytes(msgspec.json.encode(data | {"form": FORM + 1, "more": [1]}))
    assert used() == SHIPPED_VERSION
    assert current_data().note
    assert not knows(NEW)


@pytest.mark.parametrize("damage", ["cut", "changed", "not JSON", "a row"])
def test_damaged_data_of_the_user_is_an_error_that_the_command_repairs(
    damage: str, server: ReleaseServer
) -> None:
    update_data(server.url)
    path = stored_path()
    content = path.read_bytes()
    changed = content.replace(b"a release of the tests", b"a release of the TESTS")
    assert changed != content
    row = msgspec.json.decode(content, type=StoredData)
    text = row.files["data/vllm.toml"] + '[[rows]]\nversion = "1"\ninherits = "none"\n'
    row.files["data/vllm.toml"] = text
    row.hashes["data/vllm.toml"] = file_hash(text)
    damaged = {
        "cut": content[:-1000],
        "changed": changed,
        "not JSON": b"",
        "a row": msgspec.json.encode(row),
    }
    path.write_bytes(damaged[damage])
    read_again()
    with pytest.raises(DamagedPackage, match="update-data") as problem:
        runtime.runtimes()
    assert str(path) in str(problem.value)

    read_again()
    if damage == "a row":  # which is data with right hashes, of the same version
        reset_data()
    assert update_data(server.url).stored
    assert knows(NEW)


# What is refused


def test_no_network_leaves_all_as_it_was(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/{MANIFEST}"
    with pytest.raises(RopeconvError, match="does not answer"):
        update_data(url)
    with pytest.raises(BadSource, match="cannot be read"):
        update_data(str(tmp_path / "nowhere" / MANIFEST))
    assert nothing_stored()


@pytest.mark.parametrize("code", [404, 500])
def test_an_error_of_the_server_is_one(code: int, server: ReleaseServer) -> None:
    server.code = code
    with pytest.raises(RopeconvError, match=str(code)):
        update_data(server.url)
    assert nothing_stored()


def test_a_body_that_ends_early_is_refused(server: ReleaseServer) -> None:
    server.cut = 5000
    with pytest.raises(RopeconvError):
        update_data(server.url)
    assert nothing_stored()
    server.cut = 0
    assert update_data(server.url).stored


def corrupt(folder: Path, case: str) -> str:
    """Damage a release, and return a word of the message."""
    data = folder / DATA
    content = data.read_bytes()
    if case == "shorter":
        data.write_bytes(content[:-1])
        return "bytes"
    if case == "one byte":
        data.write_bytes(content.replace(b"99.0", b"98.0", 1))
        return "SHA-256"
    if case == "longer":
        data.write_bytes(content + b" ")
        return "longer"
    if case == "another version":
        change_manifest(folder, version="2999.02.02")
        return "another release"
    if case == "the hash of a file":
        change_manifest(folder, files={ABOUT: "0" * 64})
        return "another release"
    change_manifest(folder, data="../" + DATA)
    return "beside"


@pytest.mark.parametrize(
    "case",
    ["shorter", "one byte", "longer", "another version", "the hash of a file", "another folder"],
)
def test_data_that_is_not_that_of_the_manifest_is_refused(case: str, server: ReleaseServer) -> None:
    word = corrupt(server.folder, case)
    with pytest.raises(BadSource, match=word):
        update_data(server.url)
    assert nothing_stored()


def forge(files: dict[str, str], case: str) -> None:
    """Change files so that their hashes are right and ropeconv cannot use them."""
    if case == "a field":
        files["data/vllm.toml"] += "nothing = 1\n"
    elif case == "inherits":
        files["data/vllm.toml"] = files["data/vllm.toml"].replace(
            'inherits = "0.33"', 'inherits = "7"'
        )
    elif case == "a record":
        records = json.loads(files["lab/vllm.json"])
        records["records"].reverse()
        files["lab/vllm.json"] = json.dumps(records)
    elif case == "a reader":
        files["readers/ollama.toml"] += "[[rows]]\nversion = '99'\n"
    elif case == "missing":
        del files["data/vllm.toml"]
    elif case == "another file":
        files["data/../../evil.py"] = "x"
    else:
        files[ABOUT] = files[ABOUT].replace(LATER, "2999.03.03")


@pytest.mark.parametrize(
    "case",
    ["a field", "inherits", "a record", "a reader", "missing", "another file", "another version"],
)
def test_data_that_this_ropeconv_cannot_use_is_refused(case: str, tmp_path: Path) -> None:
    """Also where all hashes are right: a release is made here without its checks."""
    folder = tmp_path / "release"
    write_release(folder)
    files = later_files()
    forge(files, case)
    hashes = {place: file_hash(text) for place, text in files.items()}
    content = msgspec.json.encode(StoredData(FORM, LATER, files, hashes))
    (folder / DATA).write_bytes(content)
    change_manifest(
        folder,
        files=hashes,
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
    )
    with pytest.raises(BadSource, match="cannot be used"):
        update_data(str(folder / MANIFEST))
    assert nothing_stored()


def test_a_later_form_is_refused_with_the_fix(server: ReleaseServer) -> None:
    """Whatever else the later form has: the manifest is read first."""
    change_manifest(server.folder, form=FORM + 1, added={"by": "a later ropeconv"})
    with pytest.raises(RopeconvError, match="later ropeconv .*pip install --upgrade ropeconv"):
        update_data(server.url)
    assert server.asked == [MANIFEST]
    change_manifest(server.folder, form=FORM - 1)
    with pytest.raises(RopeconvError, match="earlier ropeconv"):
        update_data(server.url)
    assert nothing_stored()


@pytest.mark.parametrize(
    "content", [b"", b"<html>", b"[]", b'{"form": "one"}', b'{"version": "1"}']
)
def test_a_page_is_not_a_manifest(content: bytes, tmp_path: Path) -> None:
    (tmp_path / MANIFEST).write_bytes(content)
    with pytest.raises(BadSource, match="not the manifest"):
        update_data(str(tmp_path / MANIFEST))


def test_a_pinned_manifest_is_the_one_that_is_meant(server: ReleaseServer) -> None:
    digest = hashlib.sha256((server.folder / MANIFEST).read_bytes()).hexdigest()
    with pytest.raises(BadSource, match="--sha256"):
        update_data(server.url, sha256="0" * 64)
    with pytest.raises(UsageError, match="64 hexadecimal"):
        update_data(server.url, sha256=digest[1:])
    assert nothing_stored()
    assert update_data(server.url, sha256=digest.upper()).sha256 == digest


def test_http_is_for_this_machine_or_a_pinned_manifest(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def fetch(place: str, limit: int) -> bytes:
        asked.append(place)
        raise RopeconvError("asked")

    monkeypatch.setattr("ropeconv.features.updates.update.fetch", fetch)
    url = f"http://example.org/{MANIFEST}"
    with pytest.raises(UsageError, match="https"):
        update_data(url)
    assert asked == []
    with pytest.raises(RopeconvError, match="asked"):
        update_data(url, sha256="0" * 64)


def test_https_does_not_lead_to_http(monkeypatch: pytest.MonkeyPatch) -> None:
    import httpx2 as httpx

    def answer(request: httpx.Request) -> httpx.Response:
        if request.url.scheme == "https":
            return httpx.Response(302, headers={"Location": "http://example.org/x"})
        return httpx.Response(200, stream=httpx.ByteStream(b"changed on its way"))

    client = httpx.Client(transport=httpx.MockTransport(answer))
    with pytest.raises(RopeconvError, match="without https"):
        download._follow(client, "https://example.org/x", 100)
    assert download._follow(client, "http://example.org/x", 100) == b"changed on its way"


def test_an_address_that_leads_to_itself_ends(server: ReleaseServer) -> None:
    server.moved = server.url.replace(MANIFEST, DATA)
    with pytest.raises(RopeconvError, match="without an end"):
        update_data(server.url)
    assert server.asked.count(DATA) <= 10


@pytest.mark.parametrize("name", ["", "a/b", "../x", "/etc/passwd", ".hidden", "a\\b"])
def test_the_data_is_beside_its_manifest(name: str) -> None:
    assert beside("https://example.org/a/m.json", "d.json") == "https://example.org/a/d.json"
    assert beside("/a/m.json", "d.json") == "/a/d.json"
    with pytest.raises(BadSource):
        beside("https://example.org/a/m.json", name)


# The command, and kills


def environment(home: Path) -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"XDG_DATA_HOME": str(home), "PYTHONPATH": paths}


def ropeconv(home: Path, *words: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "ropeconv", *words],
        env=environment(home),
        capture_output=True,
        text=True,
    )


def test_the_command_says_what_it_did_and_the_version_names_the_data(
    home: Path, server: ReleaseServer
) -> None:
    assert SHIPPED_VERSION in ropeconv(home, "--version").stdout
    checked = ropeconv(home, "update-data", "--from", server.url, "--check")
    assert (checked.returncode, "data/vllm.toml" in checked.stdout) == (0, True)

    done = ropeconv(home, "update-data", "--from", server.url, "--json")
    document = json.loads(done.stdout)
    assert (document["available"], document["newer"]) == (LATER, True)
    assert Path(document["stored"]) == stored_path()
    named = ropeconv(home, "--version")
    assert (LATER in named.stdout, named.stderr) == (True, "")
    listed = ropeconv(home, "list", "runtimes", "--runtime", NEW)
    assert (listed.returncode, "vLLM 99.0" in listed.stdout) == (0, True)

    assert ropeconv(home, "update-data", "--reset", "--check").returncode == 2
    assert ropeconv(home, "update-data", "--reset").returncode == 0
    assert SHIPPED_VERSION in ropeconv(home, "--version").stdout
    assert ropeconv(home, "list", "runtimes", "--runtime", NEW).returncode == 2


def test_a_kill_while_it_downloads_leaves_what_was_there(home: Path, server: ReleaseServer) -> None:
    server.stall = 10_000
    words = [sys.executable, "-m", "ropeconv", "update-data", "--from", server.url]
    process = subprocess.Popen(words, env=environment(home))
    assert server.stalled.wait(60)
    process.send_signal(signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    assert nothing_stored()

    server.stall = 0
    assert ropeconv(home, "update-data", "--from", server.url).returncode == 0
    assert knows(NEW)


@pytest.mark.parametrize("mode", [Mode.KILL, Mode.KILL_HALF])
def test_a_kill_at_each_writing_call_leaves_whole_data(
    mode: Mode, home: Path, tmp_path: Path
) -> None:
    """Before its name is given, the data is as before; the same command finishes what was begun."""
    manifest = write_release(tmp_path / "release")
    command = ("ropeconv", "update-data", "--from", str(manifest))
    tools = tmp_path / "tools"
    tools.mkdir()
    with closing(Server(tools, more={"XDG_DATA_HOME": str(home)})) as killer:
        calls = killer.run(tmp_path, command, Fault(Mode.COUNT)).calls()
        assert any(stored_path().name in call.path for call in calls)
        reset_data()

        states = []
        for at in range(1, len(calls) + 1):
            killed = killer.run(tmp_path, command, Fault(mode, at))
            states.append(used())
            if killed.code == KILLED:
                assert killer.run(tmp_path, command).code == 0
            assert used() == LATER
            assert knows(NEW)
            assert [path.name for path in stored_path().parent.iterdir()] == [stored_path().name]
            reset_data()
    assert {SHIPPED_VERSION, LATER} >= set(states)
    assert SHIPPED_VERSION in states, "no kill came before the name"


# How a release is made


def test_a_release_is_the_same_for_the_same_files() -> None:
    manifest, data = make_release(later_files())
    assert make_release(dict(reversed(later_files().items()))) == (manifest, data)
    stated = json.loads(manifest)
    assert stated["sha256"] == hashlib.sha256(data).hexdigest()
    assert stated["size"] == len(data)
    for place, text in later_files().items():
        assert stated["files"][place] == hashlib.sha256(text.encode()).hexdigest()


def test_the_script_makes_a_release_of_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from scripts import release_data

    about = tmp_path / "package" / ABOUT
    about.parent.mkdir()
    about.write_text((SHIPPED / ABOUT).read_text())
    monkeypatch.setattr(release_data, "SHIPPED", about.parent)
    release_data.main([str(tmp_path / "out"), LATER])
    assert (
        hashlib.sha256((tmp_path / "out" / MANIFEST).read_bytes()).hexdigest()
        in capsys.readouterr().out
    )
    assert LATER in about.read_text()
    assert update_data(str(tmp_path / "out" / MANIFEST)).changes == {ABOUT: "changed"}
    with pytest.raises(SystemExit, match="not later"):
        release_data.main([str(tmp_path / "out"), LATER])


@pytest.mark.parametrize(
    ("before", "version"),
    [
        ("2026.11.29", "2026.12.01"),
        ("2026.12.01", "2026.12.01.1"),
        ("2026.12.01.9", "2026.12.01.10"),
    ],
)
def test_a_day_may_have_several_releases(before: str, version: str) -> None:
    from scripts.release_data import next_version

    assert next_version(before, "2026.12.01") == version


def test_the_package_has_all_that_a_release_has() -> None:
    files = read_shipped()
    assert {ABOUT, "data/vllm.toml", "lab/vllm.json", "readers/ollama.toml"} <= files.keys()
    named = {path.relative_to(SHIPPED).as_posix() for path in SHIPPED.rglob("*.toml")}
    named |= {path.relative_to(SHIPPED).as_posix() for path in SHIPPED.rglob("*.json")}
    assert named - files.keys() == {"llamacpp/archs.toml"}, "which belongs to the code"
    assert ROW not in "".join(files.values())
