"""Names of Ollama, and the blobs of its store."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from ropeconv.errors import BadSource
from ropeconv.inspection.inspection import inspect_source
from ropeconv.models import ollama
from ropeconv.models.gguf import GgufSource
from ropeconv.models.open import open_source
from ropeconv.models.reference import modelfile_of, names_gguf, resolve_reference

from ..conftest import Run, hashes
from ..support.gguf_files import write

TEMPLATE = '{{ if .System }}<|system|>\n{{ .System }}{{ end }}\nFROM here on, "speak"'
LAYER = "application/vnd.ollama.image."


class Store:
    """A store in a folder, written as Ollama writes it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "blobs").mkdir(parents=True)

    def blob(self, content: bytes) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        (self.root / "blobs" / f"sha256-{digest}").write_bytes(content)
        return {"digest": f"sha256:{digest}", "size": len(content)}

    def add(self, name: str, layers: dict[str, bytes], **config: str) -> None:
        """A model. name: host/namespace/model/tag. layers: contents by their media types."""
        listed = [
            {"mediaType": LAYER + kind.rstrip("0123456789"), **self.blob(data)}
            for kind, data in layers.items()
        ]
        place = self.root / "manifests" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        held = {
            "mediaType": "application/vnd.docker.container.image.v1+json",
            **self.blob(json.dumps(config).encode()),
        }
        place.write_text(json.dumps({"schemaVersion": 2, "config": held, "layers": listed}))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    made = Store(tmp_path / "my ollama")
    monkeypatch.setenv("OLLAMA_MODELS", str(made.root))
    model = write(tmp_path / "m.gguf").read_bytes()
    (tmp_path / "m.gguf").unlink()
    everything = {
        "model": model,
        "projector": b"GGUF projector",
        "adapter": b"GGUF adapter",
        "template": TEMPLATE.encode(),
        "system": b"Be brief.",
        "params": json.dumps({"num_ctx": 32, "stop": ["<|a|>", "b"], "seed": 7}).encode(),
        "license": b"Mine\nalone.",
    }
    made.add("registry.ollama.ai/library/Llama3.1/8b", everything, renderer="r1", parser="p1")
    made.add("registry.ollama.ai/library/small/latest", {"model": model + bytes(32)})
    made.add("registry.ollama.ai/me/mine/v1", {"model": model + bytes(64)})
    made.add("hf.co/me/m-GGUF/Q4_K_M", {"model": model + bytes(96)})
    made.add("registry.ollama.ai/library/huge/120b-cloud", {"license": b"far away"})
    return made


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("llama3.1:8b", "Llama3.1-8b"),
        ("LLAMA3.1:8B", "Llama3.1-8b"),
        ("small", "small"),
        ("small:latest", "small"),
        ("me/mine:v1", "mine-v1"),
        ("hf.co/me/m-GGUF:Q4_K_M", "m-GGUF-Q4_K_M"),
        ("hf.co/me/m-gguf:q4_k_m", "m-GGUF-Q4_K_M"),
        ("huggingface.co/me/m-GGUF:Q4_K_M", "m-GGUF-Q4_K_M"),
        ("registry.ollama.ai/library/small", "small"),
        ("https://ollama.com/library/llama3.1:8b", "Llama3.1-8b"),
        ("ollama://small", "small"),
    ],
)
def test_names_as_ollama_shows_them(store: Store, typed: str, name: str) -> None:
    source = open_source(typed)
    assert isinstance(source, GgufSource)
    assert (source.reference, source.name, names_gguf(typed)) == (typed, name, True)
    assert inspect_source(source).spec.context == 64
    assert source.path.parent == store.root / "blobs"


@pytest.mark.parametrize(
    ("typed", "words"),
    [
        ("llama3.1:70b", r"which has .*Llama3\.1:8b.*; run `ollama pull llama3\.1:70b`"),
        ("me/mine:v2", r"`ollama pull me/mine:v2`, or give the file itself, me/mine/FILE-v2\.gguf"),
        ("huge:120b-cloud", "has no GGUF file in Ollama's store"),
        ("a:b:c", "neither a folder nor a Hub id"),
        ("../x:8b", "neither a folder nor a Hub id"),
        ("unheard", "Ollama has no model of that name"),
    ],
)
def test_what_the_store_lacks_is_a_sentence(store: Store, typed: str, words: str) -> None:
    with pytest.raises(BadSource, match=words) as problem:
        open_source(typed)
    assert "\n" not in str(problem.value)


def test_a_name_on_the_hub_stays_one(store: Store) -> None:
    store.add("registry.ollama.ai/me/mine/latest", {"model": b"GGUF"})
    assert ollama.name_in("me/mine") is None
    assert ollama.name_in("hf.co/me/m-GGUF") is None
    assert resolve_reference("hf.co/me/m-GGUF") == "me/m-GGUF"


def test_a_path_comes_before_a_name(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "other.gguf", extra={"context_length": 128}).rename(tmp_path / "small")
    assert open_source("small").reference == "small"
    assert inspect_source(open_source("small")).source.name == "small"


def test_damage_of_a_store_is_a_sentence(store: Store) -> None:
    manifest = store.root / "manifests/registry.ollama.ai/library/small/latest"
    content = json.loads(manifest.read_text())
    store.root.joinpath("blobs", content["layers"][0]["digest"].replace(":", "-")).unlink()
    with pytest.raises(BadSource, match="lacks .*sha256-.*`ollama pull small:latest`"):
        open_source("small")
    for layers in ([{"mediaType": LAYER + "model", "digest": "sha256:../../x"}], ["no layer"]):
        manifest.write_text(json.dumps({"layers": layers}))
        with pytest.raises(BadSource, match="ollama pull small:latest"):
            open_source("small")
    manifest.write_text("{")
    with pytest.raises(BadSource, match="not valid JSON"):
        open_source("small")


def test_the_folders_without_the_variable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OLLAMA_MODELS", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert ollama.folders() == (
        tmp_path / ".ollama/models",
        Path("/usr/share/ollama/.ollama/models"),
    )


def test_a_modelfile_with_all_that_the_model_has(store: Store) -> None:
    modelfile = modelfile_of("llama3.1:8b")
    assert modelfile is not None
    blobs = {path.read_bytes(): path for path in store.root.joinpath("blobs").iterdir()}
    lines = modelfile.text.splitlines()
    assert lines[1:3] == [f"FROM {blobs[b'GGUF projector']}", f"ADAPTER {blobs[b'GGUF adapter']}"]
    assert f'TEMPLATE """{TEMPLATE}"""' in modelfile.text
    for line in (
        'SYSTEM """Be brief."""',
        "RENDERER r1",
        "PARSER p1",
        "PARAMETER num_ctx 32",
        'PARAMETER stop "<|a|>"',
        'PARAMETER stop "b"',
        "PARAMETER seed 7",
    ):
        assert line in lines


def test_a_modelfile_from_a_model_inherits_what_it_does_not_say(
    store: Store, tmp_path: Path
) -> None:
    file = tmp_path / "Modelfile"
    file.write_text('FROM llama3.1:8b\nPARAMETER stop "mine"\nSYSTEM """\nTEMPLATE of mine\n"""\n')
    assert resolve_reference(str(file)) == "llama3.1:8b"
    modelfile = modelfile_of(str(file))
    assert modelfile is not None
    assert modelfile.text.startswith(file.read_text())
    rest = modelfile.text.removeprefix(file.read_text())
    assert ("PARAMETER seed 7" in rest, "PARAMETER stop" in rest, "SYSTEM" in rest) == (
        True,
        False,
        False,
    )
    assert (f'TEMPLATE """{TEMPLATE}"""' in rest, rest.count("FROM /")) == (True, 1)


def test_apply_names_the_output_after_the_model(store: Store, run: Run, tmp_path: Path) -> None:
    before = hashes(store.root)
    done = run("apply", "llama3.1:8b", "--yarn", "4", "--ollama")
    assert (done.returncode, (tmp_path / "Llama3.1-8b-yarn4.gguf").is_file()) == (
        0,
        True,
    ), done.stderr
    text = (tmp_path / "Llama3.1-8b-yarn4.Modelfile").read_text()
    assert text.startswith("FROM ./Llama3.1-8b-yarn4.gguf\nFROM /")
    assert ("PARAMETER num_ctx 256" in text, "num_ctx 32" in text, "RENDERER r1" in text) == (
        True,
        False,
        True,
    )
    assert hashes(store.root) == before


def test_a_blob_is_named_after_its_model_and_not_changed_in_place(
    store: Store, run: Run, tmp_path: Path
) -> None:
    before = hashes(store.root)
    blob = open_source("llama3.1:8b").path  # type: ignore[union-attr, call-arg]
    assert open_source(str(blob)).name == "Llama3.1-8b"
    for source in ("llama3.1:8b", str(blob)):
        done = run("apply", source, "--yarn", "4", "--in-place")
        assert (done.returncode, "digest" in done.stderr, "Traceback" in done.stderr) == (
            1,
            True,
            False,
        )
    assert hashes(store.root) == before
    elsewhere = tmp_path / "copied"
    shutil.copy(blob, elsewhere)  # the control: the same bytes outside a store are changed
    assert run("apply", str(elsewhere), "--yarn", "4", "--in-place").returncode == 0
    assert elsewhere.read_bytes() != blob.read_bytes()


def test_a_blob_that_no_model_names(tmp_path: Path) -> None:
    (tmp_path / "blobs").mkdir()
    path = tmp_path / "blobs" / f"sha256-{'ab' * 32}"
    write(tmp_path / "m.gguf").rename(path)
    assert open_source(str(path)).name == "sha256-abababababab"


def test_the_source_of_an_output_is_found_in_the_store(
    store: Store, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ropeconv.inspection.receipts.places import find_source

    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    assert run("apply", "llama3.1:8b", "--yarn", "4", "-q", "-o", "new/out.gguf").returncode == 0
    found = find_source(tmp_path / "new" / "out.gguf")
    assert Path(found) == open_source("llama3.1:8b").path  # type: ignore[union-attr, call-arg]
