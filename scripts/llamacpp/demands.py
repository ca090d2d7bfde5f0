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
    """What one architecture wants: `keys` without its name, tensors that must be there, and all
    with their shapes.
    """

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.required: dict[str, str] = {}
        self.optional: dict[str, set[str]] = {}


def body(text: str, name: str) -> str:
    """The body of a function."""
    start = re.search(rf"::{name}\([^)]*\)\s*\{{", text)
    if start is None:
        return ""
    depth = 1
    at = start.end()
    while depth:
        depth += {"{": 1, "}": -1}.get(text[at], 0)
        at += 1
    return text[start.end() : at - 1]


def statements(text: str) -> list[tuple[str, bool]]:
    """The statements of a function, and whether each stands under a condition."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    conditions = []
    blocks = []
    paren = 0
    start = 0
    for at, letter in enumerate(text):
        paren += {"(": 1, ")": -1}.get(letter, 0)
        if paren:
            continue
        before = text[start:at].strip()
        if letter == "{":
            blocks.append(bool(re.search(r"\b(if|else|switch|case)\b|load_block_mtp", before)))
            start = at + 1
        elif letter == "}":
            if blocks:
                blocks.pop()
            start = at + 1
        elif letter == ";":
            conditions.append((before, any(blocks) or bool(re.match(r"if\b|else\b", before))))
            start = at + 1
    return conditions


def size(text: str, local: dict[str, str]) -> str:
    """An expression in names of KNOWN, or "?"."""
    text = re.sub(
        r"\bhparams\.(n_embd_head_k|n_embd_head_v|n_rot|n_ff_exp|n_ff)\(\w*\)", r"\1", text.strip()
    )
    for _ in range(4):
        text = re.sub(r"\b[a-z]\w*\b", lambda name: local.get(name[0], name[0]), text)
    parts = [[factor.strip() for factor in term.split("*")] for term in text.split("+")]
    if all(factor in KNOWN or factor.isdigit() for term in parts for factor in term):
        return " + ".join(" * ".join(term) for term in parts)
    return "?"


def read(
    arch: Arch, hparams: str, tensors: str, names: dict[str, str], keys: dict[str, str]
) -> None:
    """Adds what two functions of a model file want."""
    for text, conditional in statements(hparams):
        key = re.match(r"ml\.get_(?:key|key_or_arr)\((LLM_KV_\w+),.*\)$", text, re.DOTALL)
        if (
            key
            and not conditional
            and not re.search(r",\s*false\s*\)$", text)
            and "%s." in keys.get(key[1], "")
        ):
            arch.keys.append(keys[key[1]].removeprefix("%s."))
    local: dict[str, str] = {}
    lenient: list[str] = []  # variables that say that a tensor need not be there
    for text, conditional in statements(tensors):
        flags = re.match(r"(?:const )?int\s+(\w+)\s*=.*NOT_REQUIRED", text, re.DOTALL)
        if flags and "create_tensor" not in text and "mtp_only" not in text:
            lenient.append(flags[1])
        constant = re.match(r"(?:const )?(?:u?int\d*_t|auto) (\w+)\s*=\s*(.*)", text, re.DOTALL)
        if constant and "create_tensor" not in text:
            value = size(constant[2], local)
            local[constant[1]] = constant[1] if constant[1] in KNOWN else value
        call = CALL.search(text)
        if call is None or "DUPLICATED" in text:
            continue
        optional = conditional or bool(
            re.search("|".join(("NOT_REQUIRED", "SKIP", *lenient)), text)
        )
        if call["kind"]:
            _several(arch, call["kind"], call["rest"], local, optional)
            continue
        single = TENSOR.search(call["rest"])
        if single is None or single[1] not in names:
            print(f"not understood: {' '.join(text.split())[:150]}", file=sys.stderr)
            continue
        name = names[single[1]].replace("%d", "{}") + (f".{single[2]}" if single[2] else "")
        _add(
            arch,
            name,
            [size(part, local) for part in single[4].split(",")],
            optional or "nextn" in name,
        )


def _several(arch: Arch, kind: str, rest: str, local: dict[str, str], optional: bool) -> None:
    given = [size(part, local) for part in rest.rsplit(")", 1)[0].split(",")[2:]]
    if kind == "_qkv":
        for letter, columns, rows in QKV:
            _add(arch, f"blk.{{}}.attn_{letter}.weight", [given[columns], given[rows]], True)
            _add(arch, f"blk.{{}}.attn_{letter}.bias", [given[rows]], True)
        total = "?" if "?" in given[1:4] else " + ".join(given[1:4])
        _add(arch, "blk.{}.attn_qkv.weight", [given[0], total], True)
        _add(arch, "blk.{}.attn_qkv.bias", [total], True)
        return
    for name in ("gate", "up"):
        _add(arch, f"blk.{{}}.ffn_{name}_exps.weight", given[:3], True)
    both = "?" if given[1] == "?" else f"{given[1]} * 2"
    _add(arch, "blk.{}.ffn_gate_up_exps.weight", [given[0], both, given[2]], True)


def _add(arch: Arch, name: str, shape: list[str], optional: bool) -> None:
    text = ", ".join(shape)
    if not optional and name not in arch.optional:
        arch.required[name] = text
    else:
        arch.optional.setdefault(
            name, {arch.required.pop(name)} if name in arch.required else set()
        ).add(text)


def float32(root: Path) -> dict[str, set[str]]:
    """Per architecture the tensors that the converter keeps in F32: those of its list that gguf-py
    gives it.
    """
    rule = FLOAT32.search((root / "conversion" / "base.py").read_text())
    assert rule is not None
    kept = set(re.findall(r"MODEL_TENSOR\.(\w+)", rule[1]))
    text = (root / "gguf-py" / "gguf" / "constants.py").read_text()
    names = dict(re.findall(r'MODEL_TENSOR\.(\w+):\s*"([^"]+)"', text))
    archs = dict(re.findall(r'MODEL_ARCH\.(\w+):\s*"([^"]+)"', text))
    tensors = text.partition("\nMODEL_TENSORS")[2].partition("\n}")[0]
    listed = re.findall(r"MODEL_ARCH\.(\w+)\s*:\s*\[(.*?)\]", tensors, re.DOTALL)
    return {
        archs[arch]: {
            names[constant].replace("{bid}", "{}") + ".weight"
            for constant in re.findall(r"MODEL_TENSOR\.(\w+)", each)
            if constant in kept
        }
        for arch, each in listed
    }


def extract(root: Path) -> dict[str, dict[str, object]]:
    """What the loader of each architecture wants, from the source of llama.cpp."""
    source = (root / "src" / "llama-arch.cpp").read_text()
    names = dict(re.findall(r'\{\s*(LLM_TENSOR_\w+),\s*"([^"]+)"\s*\}', source))
    keys = dict(re.findall(r'\{\s*(LLM_KV_\w+),\s*"([^"]+)"\s*\}', source))
    archs = dict(re.findall(r'\{\s*(LLM_ARCH_\w+),\s*"([^"]+)"\s*\}', source))
    header = (root / "src" / "models" / "models.h").read_text()
    bases = dict(re.findall(r"struct (llama_model_\w+) : public (llama_model_\w+)", header))
    text = "\n".join(path.read_text() for path in sorted((root / "src" / "models").glob("*.cpp")))
    factory = (root / "src" / "llama-model.cpp").read_text()
    scales = [names[tensor].replace("%d", "{}") for tensor in SCALE.findall(factory)]
    demands = {}
    kept = float32(root)
    for number, name in re.findall(
        r"case (LLM_ARCH_\w+):\s*return new (llama_model_\w+)\(", factory
    ):
        chain = name
        while chain in bases and f"{chain}::load_arch_tensors" not in text:
            chain = bases[chain]
        tensors = body(
            text.replace(f"{chain}::load_arch_tensors", "::wanted_tensors"), "wanted_tensors"
        )
        hparams = body(
            text.replace(f"{chain}::load_arch_hparams", "::wanted_hparams"), "wanted_hparams"
        )
        arch = Arch()
        read(arch, hparams, tensors, names, keys)
        if not arch.required:
            continue
        for experts in scales:  # which a pass for all architectures loads
            if f"{experts}.weight" in arch.required | arch.optional:
                _add(arch, f"{experts}.scale", ["n_expert"], True)
        demands[archs[number]] = {
            "keys": sorted({*ALWAYS, *arch.keys}),
            "required": arch.required,
            "optional": {key: sorted(shapes) for key, shapes in arch.optional.items()},
            "float32": sorted(
                kept.get(archs[number], set()) & (arch.required.keys() | arch.optional.keys())
            ),
        }
    return demands


if __name__ == "__main__":
    OUT.write_text(json.dumps(extract(Path(sys.argv[1])), indent=1) + "\n")
