"""llama.cpp's own converter, convert_hf_to_gguf.py, which converts models that ropeconv does not.

`find_converter` returns the one that is used, and `StockConverter.convert` runs it. A converter is
code. So it is one that the user names, or one of a package that is installed, and never one of the
model's folder or of the working directory. Code of the model itself is not given to it.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

from ...environment import redacted, without_secrets
from ...errors import BadSource, UsageError
from ...formats import jsontext
from ...formats.files import expand_home, read_text
from ...models.source import Source
from ...models.stored.checkpoint import DequantisedCheckpoint
from ...rope.errors import RopeconvError, shown
from .stock_program import MOST_BYTES_OF_SMALL_TENSOR

SCRIPT = "convert_hf_to_gguf.py"
PLACES = ("", "vendor/llama.cpp")
"""Folders with the script: a checkout of llama.cpp, and an sdist of llama-cpp-python."""
CODE = ("*.py", "conversion/**/*.py", "gguf-py/gguf/**/*.py")
"""The files of a converter, from the folder of the script."""
VARIABLE = "ROPECONV_CONVERTER"
"""The environment variable with a path, for models that ropeconv does not convert."""
PROGRAM = Path(__file__).with_name("stock_program.py")

READ = (".json", ".txt", ".model", ".jinja", ".md", ".tiktoken", ".safetensors")
"""Ends of the names of files that the converter is given: no code, and no pickles."""
TOKENIZER_CONFIG = "tokenizer_config.json"
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "PYTHONDONTWRITEBYTECODE": "1"}
REPEATABLE = {"PYTHONHASHSEED": "0"}
"""The order of sets, by which gguf-py lists the names of chat templates, is that of every run."""
LONGEST_LINE = 300
LACKS_KEY = ("KeyError:", "TypeError:")
ABSENT_KEY = re.compile(r"KeyError: '(\w+)'")
"""How the converter stops at keys of published configs that classes of transformers 5 drop."""
RENAMED_LAYERS = ("qwen4_exp", "qwen4_exp_text")
"""Model types whose layer types transformers 5 renames, for which the converter looks in vain: it
would leave out which layers of a Qwen 4 choose tokens (conversion/qwen4exp.py)."""
UNKNOWN_PRE = "pre-tokenizer was not recognized"
"""How the converter says that `--pre` is needed (get_vocab_base_pre in conversion/base.py)."""


@dataclass(frozen=True)
class StockConverter:
    """A convert_hf_to_gguf.py on this machine."""

    script: Path
    version: str
    """The commit of its checkout, or the name and version of its package; empty if not known."""

    sha256: str
    """The digest of its code."""

    is_optional: bool = False
    """Whether ropeconv converts the model itself where the user does not name a converter."""

    @property
    def described(self) -> str:
        """The script with its version, for people."""
        version = self.version or f"sha256 {self.sha256[:12]}"
        return f"llama.cpp's {SCRIPT} ({version})"

    @property
    def repair(self) -> str:
        """The way out where the converter fails, or writes a file that llama.cpp cannot run."""
        if self.is_optional:
            return "leave --converter out: ropeconv converts this model itself"
        return "keep safetensors, or name another checkout of llama.cpp with --converter"

    def convert(
        self,
        model: Path,
        target: Path,
        outtype: str,
        *,
        pre: str = "",
        dense: bool = False,
        projector: bool = False,
        predicts: bool = True,
        header_only: bool = False,
    ) -> None:
        """Convert a checkpoint in a process of its own, without secrets and without the network.

        Args:
            model: The folder of the checkpoint, from `prepare_folder`.
            target: The GGUF file to write.
            outtype: The type of the weights, as the converter names it.
            pre: The value of tokenizer.ggml.pre; empty for the one that the converter finds.
            dense: Whether projections of sentence-transformers (`2_Dense`) are written too.
            projector: Whether the vision and audio parts are converted, and not the language
                model.
            predicts: Whether the checkpoint has layers that predict further tokens. Configs may
                state some that it does not have.
            header_only: Whether large tensors become holes, which takes seconds for any model.

        Raises:
            RopeconvError: The converter fails; the message has its last line.
        """
        arguments = [str(model), "--outtype", outtype, "--outfile", str(target.absolute())]
        if dense:
            arguments.append("--sentence-transformers-dense-modules")
        if projector:
            arguments.append("--mmproj")
        # The converter reads the config by transformers, unless "plain_config" makes it read
        # config.json. It must for models whose layer types transformers 5 renames.
        reads_plain_config = renames_layers(model)
        settings = {
            "header_only": header_only,
            "pre": pre,
            "predicts": predicts,
            "plain_config": reads_plain_config,
        }
        why_failed = self._run(model, target, settings, arguments)  # empty without an error
        if not why_failed:
            return

        # a second try: transformers 5 turns keys such as rotary_pct of GPT-NeoX into others, which
        # the converter does not look for, so it fails with a KeyError or a TypeError
        if why_failed.startswith(LACKS_KEY) and not reads_plain_config:
            plain_settings = settings | {"plain_config": True}
            if not self._run(model, target, plain_settings, arguments):
                return

        repair = self.repair
        if UNKNOWN_PRE in why_failed:
            repair = f"pass --pre NAME with its name in llama.cpp; or {repair}"
        absent = ABSENT_KEY.fullmatch(why_failed)
        if absent and absent[1] not in read_text(model / "config.json", "config.json"):
            repair = f"add {absent[1]} to config.json, or {repair}"
        raise RopeconvError(f"{self.described} does not convert this model: {why_failed}; {repair}")

    def _run(
        self, model: Path, target: Path, settings: dict[str, Any], arguments: list[str]
    ) -> str:
        """Run the converter, and return the reason of a failure, or "" if it has made its file."""
        text = json.dumps(settings)
        # -P keeps modules of the current folder out
        command = [sys.executable, "-P", str(PROGRAM), str(self.script), text, *arguments]
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
            cwd=model,
            env=without_secrets() | OFFLINE | REPEATABLE,
        )
        if done.returncode == 0 and target.exists():
            return ""
        return _last_line(done.stderr)


def renames_layers(model: Path) -> bool:
    """Whether transformers renames the layers of a model, whose config.json is then read itself."""
    config = json.loads((model / "config.json").read_text("utf-8"))
    return config.get("model_type") in RENAMED_LAYERS


def _last_line(text: str) -> str:
    """The last line of what a program wrote, without secrets."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return "it gives no reason"
    return redacted(lines[-1])[:LONGEST_LINE]


def find_converter(named: Path | None = None) -> StockConverter | None:
    """Return the converter that the user named, or else one that is installed; None without one.

    Args:
        named: A checkout of llama.cpp, an unpacked sdist with one, or the script itself. None for
            the path in the variable ROPECONV_CONVERTER, or one in a package of this environment.

    Raises:
        UsageError: The path has no converter.
    """
    # the one that the user named, by the option or by the variable
    if named is not None:
        return _describe(_script_at(expand_home(named), "--converter"))
    path_in_variable = os.environ.get(VARIABLE)
    if path_in_variable:
        return _describe(_script_at(expand_home(Path(path_in_variable)), VARIABLE))

    # the first one that is installed
    for script, version in _installed():
        return _describe(script, version)
    return None


def find_again(sha256: str, remembered: Path | None) -> StockConverter:
    """Return the converter that made an output, by the digest in its receipt.

    Args:
        sha256: The digest.
        remembered: Where it was when the output was made, None where that is not known.

    Raises:
        BadSource: It is not here.
    """
    # at the place where it was
    if remembered is not None and remembered.is_file():
        converter = _describe(remembered)
        if converter.sha256 == sha256:
            return converter

    # or at the usual places
    found = find_converter()
    if found is not None and found.sha256 == sha256:
        return found
    raise BadSource(
        f"it was converted by llama.cpp's {SCRIPT} with the digest {sha256[:12]}, which is not"
        f" here; set {VARIABLE} to that checkout"
    )


def _script_at(path: Path, option: str) -> Path:
    """The script at a path that the user named. Raises UsageError without one."""
    if path.is_file() and path.suffix == ".py":
        return path.resolve()
    for place in PLACES:
        script = path / place / SCRIPT
        if script.is_file():
            return script.resolve()
    raise UsageError(f"{option} {path} has no {SCRIPT}; give a checkout of llama.cpp, or that file")


def _installed() -> Iterator[tuple[Path, str]]:
    """Yield the scripts of installed packages, each with the name and version of its package.

    Only the folders of this environment count: sys.path may have the working directory, whose files
    the user has not installed.
    """
    # usually both are the same folder, site-packages
    folders = [sysconfig.get_path("purelib")]
    if sysconfig.get_path("platlib") not in folders:
        folders.append(sysconfig.get_path("platlib"))

    for package in distributions(path=folders):
        for file in package.files or ():
            if file.name != SCRIPT:
                continue
            script = Path(str(package.locate_file(file))).resolve()
            is_inside = any(script.is_relative_to(Path(folder).resolve()) for folder in folders)
            if is_inside and script.is_file():
                yield script, f"{package.metadata['Name']} {package.version}"


def _describe(script: Path, version: str = "") -> StockConverter:
    """The converter with a script, whose code is read for its digest."""
    root = script.parent
    digest = hashlib.sha256()
    files = {script}
    for pattern in CODE[1:]:
        files.update(root.glob(pattern))
    for path in sorted(files):
        content = path.read_bytes()
        digest.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode())
        digest.update(content)
    return StockConverter(script, version or _version_of(root), digest.hexdigest())


def _version_of(root: Path) -> str:
    """Return the commit of a git checkout, or the version of an sdist, or "" for neither."""
    # .git is read and git is not run, since settings of a repository may name programs
    head = _line_of(root / ".git" / "HEAD")
    if head.startswith("ref: "):
        head = _line_of(root / ".git" / head.removeprefix("ref: "))
    if re.fullmatch("[0-9a-f]{40}", head):
        return f"commit {head[:9]}"

    # vendor/llama.cpp of an sdist, whose PKG-INFO has its name and version
    for folder in (root, *root.parents[:2]):
        facts: dict[str, str] = {}
        for line in _text_of(folder / "PKG-INFO").splitlines():
            name, colon, value = line.partition(": ")
            if colon:
                facts.setdefault(name, value.strip())
        if "Name" in facts and "Version" in facts:
            return f"{facts['Name']} {facts['Version']}"
    return ""


def _line_of(path: Path) -> str:
    return _text_of(path).partition("\n")[0].strip()


def _text_of(path: Path) -> str:
    """A small text file; empty where it cannot be read."""
    try:
        return read_text(path, path.name)
    except (OSError, BadSource):
        return ""


def given_files(source: Source) -> tuple[str, ...]:
    """Return the names of the files of a checkpoint that the converter is given.

    These are its weights and its small files: no code, and no weights in other formats.
    """
    weights = set(source.weights())
    copied, _ = source.files_to_copy()
    names = []
    for file in copied:
        is_other_weights = file.name.endswith(".safetensors") and "/" not in file.name
        if file.name in weights or (file.name.endswith(READ) and not is_other_weights):
            names.append(file.name)
    return tuple(names)


def _refuse_unreadable_weights(source: Source) -> None:
    """Raise BadSource for weights in a format that llama.cpp's converter does not read."""
    if isinstance(source, DequantisedCheckpoint):
        repair = f"give a checkpoint whose weights are not quantised to llama.cpp's {SCRIPT}"
        if source.family.gguf is not None:
            repair = "leave --converter out, since ropeconv's own converter reads them"
        raise BadSource(f"the weights of {source.reference} are in {source.forms}; {repair}")
    if source.generated_files():
        raise BadSource(
            f"{source.reference} is not in Hugging Face's layout, which llama.cpp's {SCRIPT} reads;"
            " convert it to that first with `ropeconv apply --as-is`"
        )


def prepare_folder(
    source: Source,
    config: jsontext.JsonObject,
    folder: Path,
    names: Collection[str],
    *,
    whole: bool,
) -> Path:
    """Make the folder that llama.cpp's converter gets: a checkpoint with an unscaled RoPE.

    It has links to the files of the checkpoint, and a config.json of its own.

    Args:
        source: The checkpoint.
        config: The content of its config.json, with an unscaled RoPE.
        folder: An empty folder.
        names: The files that are linked.
        whole: Whether weights that are not on this machine are fetched. Otherwise they have holes,
            which is enough for a header.

    Returns:
        A folder in it with the name of the source, from which the converter guesses descriptions.

    Raises:
        BadSource: The weights are in another format.
    """
    _refuse_unreadable_weights(source)

    # two files are written anew, without auto_map: it names classes in files of the checkpoint or
    # of another repository, which the converter would fetch and run
    documents = {"config.json": config}
    tokenizer_config = source.text(TOKENIZER_CONFIG)
    if tokenizer_config is not None:
        documents[TOKENIZER_CONFIG] = jsontext.parse(tokenizer_config, TOKENIZER_CONFIG)

    weights = source.weights()
    place = folder / (Path(source.name).name or "model")
    place.mkdir()
    for name in names:
        target = place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if name in documents:
            document = documents[name]
            harmless = {key: value for key, value in document.items() if key != "auto_map"}
            target.write_bytes(jsontext.dump(harmless).encode())
            continue

        if source.is_generated(name):  # as weights in FP8, which become floats
            source.copy(name, target)
        elif name in weights and not whole and source.local(name) is None:  # it is on the Hub
            _copy_small_tensors(source, name, target)
        else:
            target.symlink_to(source.path(name).resolve())
    if not (place / "config.json").exists():
        raise BadSource(f"{shown(source.reference)} has no config.json; give a whole folder")
    return place


def _copy_small_tensors(source: Source, name: str, target: Path) -> None:
    """Copy the header and the small tensors of a safetensors file from the Hub.

    llama.cpp's converter needs no more for a plan of the conversion. In place of large tensors, the
    copy has holes (ranges of a sparse file), so it has the size of the original.

    Args:
        source: The checkpoint on the Hub.
        name: The name of the safetensors file, such as "model-00001-of-00002.safetensors".
        target: The path of the copy.
    """
    header = source.header(name)
    bytes_of_header = source.read(name, 0, header.data_start)
    target.write_bytes(bytes_of_header)

    file_size = header.data_start
    with target.open("r+b") as file:
        for tensor in header.tensors.values():
            start = header.data_start + tensor.start
            stop = header.data_start + tensor.stop
            file_size = max(file_size, stop)
            is_small = stop - start <= MOST_BYTES_OF_SMALL_TENSOR
            if is_small:
                file.seek(start)
                file.write(source.read(name, start, stop))
        file.truncate(file_size)  # makes the holes behind the last copied tensor too
