"""The classes of llama.cpp's models in src/models: their methods, what they inherit, and their
graphs.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path

DEFINITION = re.compile(r"^(?:[^\n#/ }][^\n]*?)?\bllama_model_(\w+?)::([\w:<>]+?)\(", re.M)
STRUCT = re.compile(
    r"^struct llama_model_(\w+) : public llama_model_(\w+) \{(.*?)^\};", re.M | re.S
)
ALIAS = re.compile(r"using graph = llama_model_(\w+)::graph")
GRAPH_BASE = re.compile(r"struct graph : public llama_model_(\w+)::graph")


@dataclass
class ModelClass:
    """A class `llama_model_NAME`."""

    name: str
    base: str
    """The class that it inherits; "base" for none."""

    graph_of: str
    """The class whose graph it uses."""

    methods: dict[str, str] = field(default_factory=dict)
    """The source of its methods by name, those of its graph under "graph"."""


def read_classes(sources: Path) -> dict[str, ModelClass]:
    """Return all classes of src/models by name, such as "qwen2" for llama_model_qwen2.

    Args:
        sources: The root of llama.cpp.
    """
    header = (sources / "src/models/models.h").read_text("utf-8")
    classes = {}
    for name, base, body in STRUCT.findall(header):
        # its graph is that of another class, inherits one, is its own, or is that of its base
        alias = ALIAS.search(body)
        graph_base = GRAPH_BASE.search(body)
        if alias:
            graph_of = alias.group(1)
        elif graph_base:
            graph_of = graph_base.group(1)
        elif "struct graph " in body:
            graph_of = name
        else:
            graph_of = base
        classes[name] = ModelClass(name, base, graph_of)
    for path in sorted((sources / "src/models").glob("*.cpp")):
        _add_methods(path.read_text("utf-8"), classes)
    return classes


def _add_methods(text: str, classes: dict[str, ModelClass]) -> None:
    for definition in DEFINITION.finditer(text):
        name, method = definition.groups()
        end = text.find("\n}\n", definition.end())
        if name in classes and end >= 0:
            kept = "graph" if method.startswith("graph") and "mtp" not in method else method
            methods = classes[name].methods
            methods[kept] = (
                methods.get(kept, "") + "\n" + without_comments(text[definition.start() : end])
            )


def without_comments(text: str) -> str:
    """C++ source without its comments."""
    return re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.S)


def method_of(classes: dict[str, ModelClass], name: str, method: str) -> str:
    """The source of a method of a class, its own or inherited; empty where there is none."""
    while name in classes:
        if method in classes[name].methods:
            return classes[name].methods[method]
        name = classes[name].base
    return ""


def graph_of(classes: dict[str, ModelClass], name: str) -> str:
    """The source of the graph that a class builds, that of its draft layers left out."""
    visited = set[str]()
    while name in classes and name not in visited:
        visited.add(name)
        if "graph" in classes[name].methods:
            return classes[name].methods["graph"]
        name = classes[name].graph_of if classes[name].graph_of != name else classes[name].base
    return ""
