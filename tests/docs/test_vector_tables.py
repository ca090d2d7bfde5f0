"""Tables and reports of what engines compute for packets."""

import json
import re

from scripts.gather_pages import ROOT
from scripts.pages.vector_tables import NONE, cell, example, report
from scripts.vectors.building import BY_PAIRS

WORDS = ("zero", "one", "two", "three", "four")
PASSED = {"outcome": "pass"}


def test_a_cell_names_few_methods_and_counts_many() -> None:
    found = {f"method{number}": PASSED for number in range(12)}
    assert cell(found) == "pass"
    found |= {"longrope": {"outcome": "long-list"}, "mixed": {"outcome": "long-list"}}
    assert cell(found) == "pass: 12 methods; long-list: longrope, mixed"


def test_an_example_is_the_command_of_its_packet() -> None:
    theta = {"recipe": "--theta 50000000 --context 512"}
    lists = {"recipe": "--longrope"}
    assert example({"phi3/longrope": lists, "phi/theta": theta}) == (
        "ropeconv vectors phi --theta 50000000 --context 512 -o packet"
    )
    # an option that is given a file, which the command makes
    assert example({"phi3/longrope": lists}) == (
        "python -m scripts.vectors build packet --families phi3 --methods longrope"
    )
    assert BY_PAIRS.keys() > {"longrope", "inv-freq"}


def test_a_report_of_an_unknown_mistake_names_none() -> None:
    result = {
        "recipe": "--ntk-fixed 8",
        "allowed": 1e-4,
        "distance": 0.39,
        "from_method": 1.4,
    }
    text = report("an engine", "engine 1.0", NONE, {"gemma2/ntk-fixed": result})
    assert "Seen: the logits of no known mistake; those of the method are at least 1.4" in text
    known = report("an engine", "engine 1.0", "unscaled", {"gemma2/ntk-fixed": result})
    assert "Seen: unscaled, at most 3.9e-01 away from its logits" in known
    assert "the packets of `ntk-fixed` of gemma2" in " ".join(known.split())


def packets_of(engine: str) -> dict[str, set[str]]:
    """The architectures whose packets an engine was given, by method."""
    record = json.loads((ROOT / "docs" / "evidence" / "vectors.json").read_text("utf-8"))
    packets: dict[str, set[str]] = {}
    for name in record[engine]["results"]:
        architecture, method = name.split("/")
        packets.setdefault(method, set()).add(architecture)
    return packets


def test_the_words_on_what_engines_were_given_are_those_of_the_record() -> None:
    page = " ".join((ROOT / "docs" / "engines.md").read_text("utf-8").split())
    every = packets_of("transformers")
    assert f"mlx-lm with every packet, of {len(every)} methods;" in page
    assert every == packets_of("llama.cpp") == packets_of("mlx-lm")

    (words,) = re.findall(r"ONNX Runtime and OpenVINO with ([^;]*);", page)
    graphs = packets_of("ONNX Runtime")
    assert graphs == packets_of("OpenVINO")
    assert set(re.findall(r"`([\w-]+)`", words)) == graphs.keys() - {"longrope"}

    pattern = r"vLLM with `yarn`, and for (\w+) architectures with ([^.]*) too\. "
    (found,) = re.findall(pattern, page)
    count, words = found
    served = packets_of("vLLM")
    methods = set(re.findall(r"`([\w-]+)`", words))
    assert methods == served.keys() - {"yarn", "longrope"}
    assert {len(served[method]) for method in methods} == {WORDS.index(count)}
    (count,) = re.findall(r"given to these three for (\w+) architectures", page)
    assert len(served["longrope"]) == len(graphs["longrope"]) == WORDS.index(count)
