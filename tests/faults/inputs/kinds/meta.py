"""Meta's layout: params.json, tokenizer.model, and the pickles and zips of the weights."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from ..bytes_mutations import damaged
from ..folders import PARAMS, pth, saved, sentencepiece, tensors, write_release
from ..formats import Commands, commands, register
from ..json_mutations import changed, text_of

COMMANDS = commands("""
inspect model
apply model --yarn 4 --dry-run
apply model --yarn 4 -o out
apply model --yarn 4 --encoding weights -o out
apply model --as-is --to gguf -o out.gguf
compare model model
""")
PICKLES = (
    b"cposix\nsystem\n(S'touch left'\ntR.", b"\x80\x02.", b".", b"", b"\x80\x04\x8d" + b"\xff" * 8,
    b"(" * 100_000 + b".", b"\x80\x02" + b"]" * 100_000 + b".", b"\x8b\xff\xff\xff\x7f", b"I" + b"9" * 5000 + b"\n.",
    b"S'\xff'\n.", b"V\\ud800\n.", b"\x80\x02X\xff\xff\xff\x7fFloatStorage.", b"L" + b"9" * 20 + b"L\n.",
    pickle.dumps({"FloatStorage": 1}), pickle.dumps([["HalfStorage"], 10**400]), b"\x80\x02X\x03\0\0\0\xed\xa0\x80.",
)  # fmt: skip


@register("params.json")
def write_params(random: Random, folder: Path) -> Commands:
    model = write_release(folder / "model")
    keys = (*PARAMS, "rope_scaling_factor")
    (model / "params.json").write_bytes(text_of(random, changed(random, PARAMS, keys, (128, 64, 500000.0, 1000000.0))))
    return random.sample(COMMANDS, 2)


@register("tokenizer.model")
def write_tokenizer(random: Random, folder: Path) -> Commands:
    model = write_release(folder / "model")
    tiktoken = b"YQ== 0\nYg== 1\nYWI= 2\n"
    odd = (b"YQ== 99999999999999999999999\n", "YQ== ²\n".encode(), b"YQ== 0\n\xff\xfe 1\nYQ==")
    made = random.choice((damaged(random, sentencepiece()), damaged(random, tiktoken), *odd))
    (model / "tokenizer.model").write_bytes(made)
    return random.sample(COMMANDS, 2)


def _packed(random: Random, pickled: bytes | None = None) -> bytes:
    """The zip of a release written again: compressed, with entries that are gone, doubled, renamed or huge."""
    out, deflated = io.BytesIO(), random.random() < 0.3
    with zipfile.ZipFile(io.BytesIO(pth())) as old, zipfile.ZipFile(out, "w") as new:
        for entry in old.infolist():
            data = old.read(entry)
            if entry.filename.endswith("data.pkl"):
                data = data if pickled is None else pickled
                data += bytes(random.choice((0, 0, 0, 0, 30_000_000)))
            chance = random.random()
            if pickled is None and chance < 0.05:
                continue
            if pickled is None and chance < 0.1:
                data = data[: random.randrange(len(data) + 1)]
            entry.compress_type = zipfile.ZIP_DEFLATED if deflated else zipfile.ZIP_STORED
            if pickled is None and chance > 0.95:
                entry.filename = random.choice(("x", "../x", "archive/data.pkl", entry.filename * 2, "", "é\x00"))
            new.writestr(entry, data)
    return out.getvalue()


def _other_objects(random: Random) -> bytes:
    """What torch.save writes of other things than the tensors of a release."""
    import torch

    found: dict[Any, Any] = dict(tensors())
    odd: tuple[Callable[[Any], Any], ...] = (
        lambda old: None, lambda old: "FloatStorage", lambda old: 3, lambda old: old.float(), lambda old: old.long(),
        lambda old: old[:1], lambda old: old.reshape(-1), lambda old: old.reshape(-1)[:1].expand(1 << 30),
        lambda old: old.reshape(-1)[:1].expand(old.shape), lambda old: old.to_sparse(), lambda old: [old],
        lambda old: old.t() if old.ndim == 2 else old, lambda old: old.half(), lambda old: torch.nn.Parameter(old),
        lambda old: torch.complex(old.float(), old.float()), lambda old: old.to("meta"), lambda old: old.new_zeros(0),
    )  # fmt: skip
    whole = random.random()
    if whole < 0.1:
        return saved(random.choice((list(found.values()), found["norm.weight"], {"model": found}, 3, {}, "x", None)))
    for _ in range(random.choice((1, 1, 2))):
        name = random.choice(list(found))
        kind = random.random()
        if kind < 0.1:
            del found[name]
        elif kind < 0.2:
            found[random.choice((3, None, "x" * 300, "layers.7.attention.wq.weight"))] = found[name]
        else:
            with suppress(AttributeError, NotImplementedError):  # of an object that was changed before
                found[name] = random.choice(odd)(found[name])
    return saved(found)


def _with_torch() -> None:
    """Imports torch, which takes seconds."""
    import torch  # noqa: F401


@register("pth", _with_torch)
def write_weights(random: Random, folder: Path) -> Commands:
    model = write_release(folder / "model")
    kind = random.random()
    if kind < 0.25:
        made = damaged(random, pth())
    elif kind < 0.5:
        made = _packed(random, random.choice(PICKLES) if random.random() < 0.5 else None)
    elif kind < 0.6:
        with zipfile.ZipFile(io.BytesIO(pth())) as archive:
            name = next(name for name in archive.namelist() if name.endswith("data.pkl"))
            made = _packed(random, damaged(random, archive.read(name)))
    else:
        made = _other_objects(random)
    (model / "consolidated.00.pth").write_bytes(made)
    return random.sample(COMMANDS, 2)
