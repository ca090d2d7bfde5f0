"""Receipts, plans and inspections are what their schemas in docs/schemas say, and wrong ones are
not.
"""

import dataclasses
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import ropeconv
from ropeconv.bake.plan import PlanDocument
from ropeconv.bake.proof import Proof
from ropeconv.engines.probes.result import ProbeResult
from ropeconv.features.identify.identification import Identification
from ropeconv.features.imatrix.collecting import CollectedImatrix
from ropeconv.inspection.document import InspectionDocument
from scripts.pages.reference import DOCS, schema_of

from ..conftest import CONFIGS
from ..support.gguf_files import write
from ..support.in_process import command
from ..support.models import make

jsonschema = pytest.importorskip("jsonschema")
PLANS = (
    "apply model --yarn 4 --dry-run",
    "apply model --mixed 4 --keep-short --dry-run",
    "apply model --yarn 4 --encoding weights --dry-run",
    "apply model --mixed 4 --log-n clamped --encoding buffers --dry-run",
    "apply model --as-is --dry-run",
    "apply small.gguf --yarn 4 --dry-run",
)
INSPECTIONS = ("inspect model", "inspect small.gguf")


def kind_of(words: str) -> type[msgspec.Struct]:
    return PlanDocument if words.startswith("apply") else InspectionDocument


def is_of(data: Any, kind: type[msgspec.Struct]) -> bool:
    """Whether a document has the types of its kind and no key beside them, and its schema accepts
    it.
    """
    schema = jsonschema.Draft202012Validator(schema_of((kind,)))
    try:
        return (
            bool(schema.is_valid(data))
            and json.loads(msgspec.json.encode(msgspec.convert(data, kind))) == data
        )
    except msgspec.ValidationError:
        return False


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a checkpoint, a GGUF file and an output."""
    root = tmp_path_factory.mktemp("schemas")
    make("llama", root / "model")
    write(root / "small.gguf")
    return root


def printed(folder: Path, words: str) -> Any:
    return json.loads(command(folder, *words.split(), "--json", code=0).stdout)


@pytest.mark.parametrize("words", [*PLANS, *INSPECTIONS])
def test_a_document_is_what_its_schema_says(folder: Path, words: str) -> None:
    assert is_of(printed(folder, words), kind_of(words))


def test_an_output_has_the_keys_of_a_plan_and_a_receipt(folder: Path, tmp_path: Path) -> None:
    done = printed(folder, f"apply model --yarn 4 -o {tmp_path / 'out'}")
    assert is_of(
        {
            key: value
            for key, value in done.items()
            if key not in ("path", "check", "reason", "against", "run", "train", "validate")
        },
        PlanDocument,
    )
    schemas = {
        path.stem: json.loads(path.read_text("utf-8")) for path in (DOCS / "schemas").iterdir()
    }
    assert schemas.keys() >= {"receipt", "evaluation", "apply-journal"}
    receipt = tmp_path / "out" / "ropeconv.json"
    schema = schemas["receipt"]["$defs"]["Receipt"]
    assert (
        set(schema["required"])
        <= json.loads(receipt.read_text()).keys()
        <= schema["properties"].keys()
    )
    assert not {"method", "sha256"} & schema["properties"].keys()


def test_inspections_of_published_configs_are_too() -> None:
    paths = [
        path
        for path in sorted(CONFIGS.glob("*.json"))
        if not path.stem.endswith((".first", ".params"))
    ]
    inspections = [ropeconv.inspect_source(ropeconv.open_source(str(path))) for path in paths]
    documents = [json.loads(json.dumps(inspection.to_dict())) for inspection in inspections]
    assert len(documents) > 20
    assert [
        document["source"]["reference"]
        for document in documents
        if not is_of(document, InspectionDocument)
    ] == []
    assert any(document["local_theta"] for document in documents)
    assert any(document["mla"] for document in documents)


WITHOUT_SCHEMA = (
    ("advise model --context 512", "advise"),
    ("plot model --yarn 4", "plot"),
    ("bound 128k", "bound"),
    ("bound model", "bound"),
    ("compare model model", "compare"),
    ("restore out -o back --dry-run", "Other commands"),
    ("push out me/x --dry-run", "Other commands"),
    ("train-config out --for axolotl", "Other commands"),
    ("list methods", "Other commands"),
    ("list families", "Other commands"),
    ("list archs", "Other commands"),
    ("list runtimes", "Other commands"),
    ("list runtimes --matrix", "Other commands"),
    ("profiles model yarn:2 yarn:4 --dry-run -o profiles", "Other commands"),
    ("update-data --reset", "update-data"),
)
"""Commands, and the sections of docs/python.md with the keys of their documents."""


@pytest.mark.parametrize(("words", "title"), WITHOUT_SCHEMA)
def test_the_page_has_every_key_of_a_document(folder: Path, words: str, title: str) -> None:
    if not (folder / "out").exists():
        command(folder, *"apply model --yarn 4 -o out".split(), code=0)
    page = (DOCS / "python.md").read_text("utf-8")
    section = page.partition(f"\n### {title}\n")[2].partition("\n#")[0]
    keys = printed(folder, words).keys() - {"schema"}
    assert [key for key in keys if f"`{key}`" not in section] == []


@pytest.mark.parametrize(
    ("kind", "title"),
    [
        (Identification, "identify"),
        (ProbeResult, "probe"),
        (CollectedImatrix, "Other commands"),
        (Proof, "Other commands"),
    ],
)
def test_the_page_has_every_field_of_a_result(kind: type, title: str) -> None:
    page = (DOCS / "python.md").read_text("utf-8")
    section = page.partition(f"\n### {title}\n")[2].partition("\n#")[0]
    names = {"unseen": "unseen_experts"}
    fields = [names.get(field.name, field.name) for field in dataclasses.fields(kind)]
    assert [name for name in fields if f"`{name}`" not in section] == []
