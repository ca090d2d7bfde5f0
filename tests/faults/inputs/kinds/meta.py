"""Meta's layout: params.json, tokenizer.model, and the pickles and zips of the weights."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from random import Random

from ..bytes_mutations import damaged
from ..folders import PARAMS, pth, sentencepiece, write_release
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


@register("pth")
def write_weights(random: Random, folder: Path) -> Commands:
    """Damaged bytes, and zips of which entries are gone, cut, renamed or compressed, or whose pickle is damaged.

    Objects and pickles of other kinds are in tests/sources/test_meta_hostile.py.
    """
    place = write_release(folder / "model") / "consolidated.00.pth"
    if random.random() < 0.4:
        place.write_bytes(damaged(random, pth()))
        return random.sample(COMMANDS, 2)
    out, kind = io.BytesIO(), random.choice((zipfile.ZIP_STORED, zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    whole, share = random.random() < 0.5, random.choice((0.05, 0.3))
    with zipfile.ZipFile(io.BytesIO(pth())) as old, zipfile.ZipFile(out, "w", kind) as new:
        for name in old.namelist():
            content = old.read(name)
            if name.endswith("data.pkl") and whole:
                content = damaged(random, content) + bytes(random.choice((0, 0, 0, 30_000_000)))
            elif not whole and random.random() < share:
                content = random.choice((b"", content[: random.randrange(len(content) + 1)], content * 2))
                name = random.choice((name, name, "x", "../x", "archive/data.pkl", name * 2, "é\x00"))
            new.writestr(name, content)
    place.write_bytes(out.getvalue())
    return random.sample(COMMANDS, 2)
