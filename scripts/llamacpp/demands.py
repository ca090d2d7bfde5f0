"""Writes ropeconv/convert/to_gguf/demands.json: which tensors and keys llama.cpp's loaders want,
from its source.

It also has the tensors that llama.cpp's converter keeps in F32 whatever the type of the others,
besides vectors, norms and names without ".weight".

    python -m scripts.llamacpp.demands LLAMA_CPP

LLAMA_CPP is a folder with its source, such as vendor/llama.cpp of llama-cpp-python's sdist. Tensors
that are created under a condition count as optional, and sizes that are no sums or products of what
a header says stay open ("?").
"""

import json
import re
import sys
from pathlib import Path

OUT = Path(__file__).parents[2] / "ropeconv" / "convert" / "to_gguf" / "demands.json"
KNOWN = {
    "n_embd",
    "n_vocab",
    "n_head",
    "n_head_kv",
    "n_embd_head_k",
    "n_embd_head_v",
    "n_embd_k_gqa",
    "n_embd_v_gqa",
    "n_embd_gqa",
    "n_ff",
    "n_ff_exp",
    "n_expert",
    "n_rot",
}
QKV = (("q", 0, 1), ("k", 0, 2), ("v", 0, 3))
FLOAT32 = re.compile(
    r"Some tensor types are always in float32(.*?)GGMLQuantizationType\.F32", re.DOTALL
)
SCALE = re.compile(r'create_tensor\(tn\((LLM_TENSOR_\w+_EXPS),\s*"scale", i\), \{n_expert\}')
ALWAYS = ["block_count", "context_length", "embedding_length"]
CALL = re.compile(r"create_tensor(?P<kind>_qkv|_gate_up_exps)?\s*\((?P<rest>.*)", re.DOTALL)
TENSOR = re.compile(
    r'tn\(\s*(LLM_TENSOR_\w+)\s*,\s*(?:"(\w+)"\s*,?)?\s*(\w+)?\s*\)\s*,\s*\{(.*?)\}\s*,\s*(.*)\)\s*$',
    re.DOTALL,
)


class Arch:
    """The demands of one architecture: keys without its name, and tensors with their shapes."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.required: dict[str, str] = {}
        self.optional: dict[str, set[str]] = {}


def body(text: str, name: str) -> str:
    """Return the body of a method in C++ source, without its braces; empty without the method."""
    start = re.search(rf"::{name}\([^)]*\)\s*\{{", text)
    if start is None:
        return ""
    depth = 1  # of braces that are open
    end = start.end()
    while depth:
        if text[end] == "{":
            depth += 1
        elif text[end] == "}":
            depth -= 1
        end += 1
    return text[start.end() : end - 1]


def statements(text: str) -> list[tuple[str, bool]]:
    """Return the statements in the body of a function, and whether each has a condition.

    `n = 1; if (x) { f(); }` gives [("n = 1", False), ("f()", True)].
    """
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    found = []
    conditional_blocks: list[bool] = []  # for each open block, whether it has a condition
    parentheses = 0  # that are open; `;` in a `for (...)` ends no statement
    start = 0
    for index, letter in enumerate(text):
        if letter == "(":
            parentheses += 1
        elif letter == ")":
            parentheses -= 1
        if parentheses or letter not in "{};":
            continue
        before = text[start:index].strip()
        start = index + 1
        if letter == "{":
            condition = re.search(r"\b(if|else|switch|case)\b|load_block_mtp", before)
            conditional_blocks.append(condition is not None)
        elif letter == "}":
            if conditional_blocks:
                conditional_blocks.pop()
        else:
            has_own_condition = re.match(r"if\b|else\b", before) is not None
            found.append((before, any(conditional_blocks) or has_own_condition))
    return found


def size(text: str, local: dict[str, str]) -> str:
    """Return an expression in C++ as a sum of products of names in KNOWN; "?" for any other.

    Args:
        text: Such as "n_embd_head_k * n_head".
        local: The values of local variables, by name.
    """
    text = re.sub(
        r"\bhparams\.(n_embd_head_k|n_embd_head_v|n_rot|n_ff_exp|n_ff)\(\w*\)", r"\1", text.strip()
    )
    for _ in range(4):  # a variable may be made of others
        text = re.sub(r"\b[a-z]\w*\b", lambda name: local.get(name[0], name[0]), text)
    terms = []
    for term in text.split("+"):
        factors = [factor.strip() for factor in term.split("*")]
        if not all(factor in KNOWN or factor.isdigit() for factor in factors):
            return "?"
        terms.append(" * ".join(factors))
    return " + ".join(terms)


def read(
    arch: Arch, hparams: str, tensors: str, names: dict[str, str], keys: dict[str, str]
) -> None:
    """Add the keys and tensors that two methods of a model file want.

    Args:
        arch: The architecture, which gets them.
        hparams: The body of load_arch_hparams, which reads keys.
        tensors: The body of load_arch_tensors, which creates tensors.
        names: The names of tensors by their constants, such as LLM_TENSOR_ATTN_Q.
        keys: The metadata keys by theirs, such as LLM_KV_ROPE_FREQ_BASE.
    """
    _read_keys(arch, hparams, keys)

    local: dict[str, str] = {}  # the values of local variables
    lenient: list[str] = []  # variables that say that a tensor need not be there
    for text, is_conditional in statements(tensors):
        flags = re.match(r"(?:const )?int\s+(\w+)\s*=.*NOT_REQUIRED", text, re.DOTALL)
        if flags and "create_tensor" not in text and "mtp_only" not in text:
            lenient.append(flags[1])
        constant = re.match(r"(?:const )?(?:u?int\d*_t|auto) (\w+)\s*=\s*(.*)", text, re.DOTALL)
        if constant and "create_tensor" not in text:
            name = constant[1]
            local[name] = name if name in KNOWN else size(constant[2], local)

        call = CALL.search(text)
        if call is None or "DUPLICATED" in text:
            continue
        says_optional = re.search("|".join(("NOT_REQUIRED", "SKIP", *lenient)), text) is not None
        is_optional = is_conditional or says_optional
        if call["kind"]:  # a helper that creates several
            _several(arch, call["kind"], call["rest"], local, is_optional)
            continue
        single = TENSOR.search(call["rest"])
        if single is None or single[1] not in names:
            print(f"not understood: {' '.join(text.split())[:150]}", file=sys.stderr)
            continue
        name = names[single[1]].replace("%d", "{}")  # such as blk.{}.attn_q
        if single[2]:
            name += f".{single[2]}"  # .weight or .bias
        shape = [size(part, local) for part in single[4].split(",")]
        _add(arch, name, shape, is_optional or "nextn" in name)


def _read_keys(arch: Arch, hparams: str, keys: dict[str, str]) -> None:
    """Add the keys without which load_arch_hparams fails.

    Args:
        arch: The architecture, which gets them.
        hparams: The body of the method.
        keys: The metadata keys by their constants.
    """
    for text, is_conditional in statements(hparams):
        call = re.match(r"ml\.get_(?:key|key_or_arr)\((LLM_KV_\w+),.*\)$", text, re.DOTALL)
        if call is None or is_conditional:
            continue
        is_optional = re.search(r",\s*false\s*\)$", text)
        key = keys.get(call[1], "")
        if "%s." in key and not is_optional:  # %s is the architecture
            arch.keys.append(key.removeprefix("%s."))


def _several(arch: Arch, kind: str, rest: str, local: dict[str, str], optional: bool) -> None:
    """Add the tensors that a helper creates: those of queries, keys and values, or of experts.

    Args:
        arch: The architecture, which gets them.
        kind: The end of the name of the helper: "_qkv" or "_gate_up_exps".
        rest: The call behind "create_tensor_qkv(".
        local: The values of local variables.
        optional: Not used: each of the tensors may be absent, since others replace it.
    """
    arguments = rest.rsplit(")", 1)[0].split(",")
    sizes = [size(part, local) for part in arguments[2:]]  # behind the layer and its number
    if kind == "_qkv":
        for letter, columns, rows in QKV:
            _add(arch, f"blk.{{}}.attn_{letter}.weight", [sizes[columns], sizes[rows]], True)
            _add(arch, f"blk.{{}}.attn_{letter}.bias", [sizes[rows]], True)
        total = "?" if "?" in sizes[1:4] else " + ".join(sizes[1:4])
        _add(arch, "blk.{}.attn_qkv.weight", [sizes[0], total], True)
        _add(arch, "blk.{}.attn_qkv.bias", [total], True)
        return
    for name in ("gate", "up"):
        _add(arch, f"blk.{{}}.ffn_{name}_exps.weight", sizes[:3], True)
    both = "?" if sizes[1] == "?" else f"{sizes[1]} * 2"
    _add(arch, "blk.{}.ffn_gate_up_exps.weight", [sizes[0], both, sizes[2]], True)


def _add(arch: Arch, name: str, shape: list[str], optional: bool) -> None:
    text = ", ".join(shape)
    if not optional and name not in arch.optional:
        arch.required[name] = text
    else:
        arch.optional.setdefault(
            name, {arch.required.pop(name)} if name in arch.required else set()
        ).add(text)


def float32(root: Path) -> dict[str, set[str]]:
    """Return the tensors that the converter keeps in F32, by architecture.

    base.py of the converter has a list of kinds of tensors, and gguf-py the kinds that each
    architecture has.

    Args:
        root: The root of llama.cpp.
    """
    rule = FLOAT32.search((root / "conversion" / "base.py").read_text())
    assert rule is not None
    kept = set(re.findall(r"MODEL_TENSOR\.(\w+)", rule[1]))

    text = (root / "gguf-py" / "gguf" / "constants.py").read_text()
    names = dict(re.findall(r'MODEL_TENSOR\.(\w+):\s*"([^"]+)"', text))
    archs = dict(re.findall(r'MODEL_ARCH\.(\w+):\s*"([^"]+)"', text))
    _, _, tables = text.partition("\nMODEL_TENSORS")
    table, _, _ = tables.partition("\n}")
    by_arch = {}
    for arch, listed in re.findall(r"MODEL_ARCH\.(\w+)\s*:\s*\[(.*?)\]", table, re.DOTALL):
        tensors = set()
        for constant in re.findall(r"MODEL_TENSOR\.(\w+)", listed):
            if constant in kept:
                tensors.add(names[constant].replace("{bid}", "{}") + ".weight")
        by_arch[archs[arch]] = tensors
    return by_arch


def extract(root: Path) -> dict[str, dict[str, object]]:
    """Return what the loader of each architecture wants, from the source of llama.cpp.

    Args:
        root: The root of llama.cpp.

    Returns:
        By architecture: keys, the metadata keys; required and optional, the tensors with their
        shapes; float32, those that the converter keeps in F32.
    """
    # names of tensors, keys and architectures by their constants
    source = (root / "src" / "llama-arch.cpp").read_text()
    names = dict(re.findall(r'\{\s*(LLM_TENSOR_\w+),\s*"([^"]+)"\s*\}', source))
    keys = dict(re.findall(r'\{\s*(LLM_KV_\w+),\s*"([^"]+)"\s*\}', source))
    archs = dict(re.findall(r'\{\s*(LLM_ARCH_\w+),\s*"([^"]+)"\s*\}', source))

    # the class of each architecture, the base of each class, and all their methods
    header = (root / "src" / "models" / "models.h").read_text()
    bases = dict(re.findall(r"struct (llama_model_\w+) : public (llama_model_\w+)", header))
    text = "\n".join(path.read_text() for path in sorted((root / "src" / "models").glob("*.cpp")))
    factory = (root / "src" / "llama-model.cpp").read_text()
    classes = re.findall(r"case (LLM_ARCH_\w+):\s*return new (llama_model_\w+)\(", factory)

    # a pass for all architectures loads these
    expert_tensors = [names[tensor].replace("%d", "{}") for tensor in SCALE.findall(factory)]
    demands = {}
    kept = float32(root)
    for constant, name in classes:
        # the class that has the methods: this one or one that it inherits
        owner = name
        while owner in bases and f"{owner}::load_arch_tensors" not in text:
            owner = bases[owner]
        tensors = body(
            text.replace(f"{owner}::load_arch_tensors", "::wanted_tensors"), "wanted_tensors"
        )
        hparams = body(
            text.replace(f"{owner}::load_arch_hparams", "::wanted_hparams"), "wanted_hparams"
        )
        arch = Arch()
        read(arch, hparams, tensors, names, keys)
        if not arch.required:
            continue
        for experts in expert_tensors:
            if f"{experts}.weight" in arch.required | arch.optional:
                _add(arch, f"{experts}.scale", ["n_expert"], True)
        all_tensors = arch.required.keys() | arch.optional.keys()
        demands[archs[constant]] = {
            "keys": sorted({*ALWAYS, *arch.keys}),
            "required": arch.required,
            "optional": {key: sorted(shapes) for key, shapes in arch.optional.items()},
            "float32": sorted(kept.get(archs[constant], set()) & all_tensors),
        }
    return demands


if __name__ == "__main__":
    OUT.write_text(json.dumps(extract(Path(sys.argv[1])), indent=1) + "\n")
