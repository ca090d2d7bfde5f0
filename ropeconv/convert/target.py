"""Target: format, encoding and runtimes of an output, and the rules about which options go together."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

from ..errors import UnsupportedBake, UsageError
from ..rope.methods.vectors import AsIs
from ..rope.recipe import Recipe
from ..rope.schedule import EXACT, QueryScaling, Schedule
from ..runtimes.gguf_readers import find_any, reader_names
from ..runtimes.grouping import canonical
from ..runtimes.runtime import GOOD, LLAMA_CPP, VersionRange
from ..runtimes.verdict import Verdict

Format = Literal["safetensors", "gguf"]
FoldInto = Literal["q", "k", "qk"]
FoldDtype = Literal["stored", "f32"]
DualChunk = Literal["keep", "drop"]
FLOATS = ("auto", "f32", "f16", "bf16")
"""Values of `outtype` that quantise nothing."""


@dataclass(frozen=True)
class GgufTarget:
    """Options of GGUF output. None leaves the default.

    outtype: type of the weights of a conversion: f32, f16, bf16, q8_0, auto (as stored; the default), or one of
    llama.cpp's own such as q4_k_m; from GGUF to a checkpoint f32, f16, bf16, or auto (f32 where it is quantised). pre:
    `tokenizer.ggml.pre`, for a pre-tokenizer that is not recognised. carrier: the host architecture, another one that
    computes the same network and takes any frequencies. assume_arch_keys: take an architecture that is not in the
    table, with the keys that llama.cpp reads for every one. quantized_by: `general.quantized_by` of a conversion, left
    out by default.
    """

    outtype: str | None = None
    pre: str | None = None
    carrier: str | None = None
    assume_arch_keys: bool = False
    quantized_by: str | None = None

    def published_by(self, owner: str) -> GgufTarget:
        """The same, with the owner of a repository as who quantised it, where it quantises and nobody is named."""
        quantises = self.outtype not in (None, *FLOATS)
        return replace(self, quantized_by=self.quantized_by or owner) if quantises else self


@dataclass(frozen=True)
class FoldTarget:
    """Options of folding the attention factor into weights. None leaves the default.

    into: "q" (rows that make queries), "k" (keys; the default), or "qk" (both, each by its share). dtype: of the scaled
    tensors: "stored" (as they are; the default) or "f32", for norms only.
    """

    into: FoldInto | None = None
    dtype: FoldDtype | None = None


@dataclass(frozen=True)
class Target:
    """How and for whom an output is written.

    to: the format, None for the source's own. out: the folder or GGUF file, None for `./NAME-METHODFACTOR`. in_place:
    change the GGUF file itself. allow_hard_links: also one with other names, all of which change. encoding: a name, or
    "auto" for the plainest that `runtimes` read exactly. runtimes: `name` or `name@version` of those that must
    (default: transformers, and llama.cpp for GGUF, where readers of GGUF can be named too). gguf, fold: options of GGUF
    output and of folding. allow_approximate: accept the log-n approximation where the formula has no encoding.
    all_files: copy the same weights in other formats too. replace: start a scaled model from its unscaled RoPE.
    dual_chunk: whether the config keeps its dual_chunk_attention_config, with which some runtimes ignore the method
    (None keeps it, and warns).
    """

    to: Format | None = None
    out: Path | None = None
    in_place: bool = False
    allow_hard_links: bool = False
    encoding: str = "auto"
    runtimes: tuple[str, ...] = ()
    gguf: GgufTarget = field(default_factory=GgufTarget)
    fold: FoldTarget = field(default_factory=FoldTarget)
    allow_approximate: bool = False
    all_files: bool = False
    replace: bool = False
    dual_chunk: DualChunk | None = None

    def __post_init__(self) -> None:
        if self.out is not None:
            object.__setattr__(self, "out", Path(self.out))

    def check(self, recipe: Recipe, from_gguf: bool) -> None:
        """Raises UsageError for options that contradict each other, or have no effect beside the others.

        recipe: what is to be written. from_gguf: whether the source is a GGUF file.
        """
        to_gguf = (from_gguf and self.to is None) or self.to == "gguf"
        self._check_values()
        if self.replace and isinstance(recipe.method, AsIs):
            raise UsageError("--as-is keeps the scaling that --replace would take away; give one of them")
        if self.replace and recipe.on_top:
            raise UsageError("--on-top keeps the scaling that --replace would take away; give one of them")
        if self.allow_approximate and recipe.log_n is None:
            raise UsageError("--allow-approximate goes with --log-n, the only thing that is approximated; leave it out")
        if self.gguf.assume_arch_keys and not from_gguf:
            raise UsageError("--assume-arch-keys goes with a GGUF file as SOURCE; leave it out")
        self._check_place(from_gguf, to_gguf)
        if to_gguf:
            self._check_gguf(recipe, from_gguf)
        else:
            self._check_folder(from_gguf)

    def check_folded(self, folded: bool) -> None:
        """Raises UsageError for options of folding where the selected encoding folds nothing."""
        for flag, value in (("--fold-into", self.fold.into), ("--fold-dtype", self.fold.dtype)):
            if value is not None and not folded:
                raise UsageError(f"{flag} goes with folded weights; add --encoding weights, or leave it out")

    def _check_values(self) -> None:
        given = {
            "--to": (self.to, get_args(Format)),
            "--fold-into": (self.fold.into, get_args(FoldInto)),
            "--fold-dtype": (self.fold.dtype, get_args(FoldDtype)),
            "--dual-chunk": (self.dual_chunk, get_args(DualChunk)),
        }
        for flag, (value, known) in given.items():
            if value is not None and value not in known:
                raise UsageError(f"{flag} {value} is not known; choose {', '.join(known)}")
        if isinstance(self.runtimes, str):
            raise UsageError(f"runtimes is a tuple of names; write ({self.runtimes!r},)")
        for name in self.runtimes:
            find_any(name)

    def _check_place(self, from_gguf: bool, to_gguf: bool) -> None:
        if self.in_place and (not from_gguf or not to_gguf or self.out is not None):
            raise UsageError("--in-place changes a GGUF file itself; give one as SOURCE, and leave -o out")
        if self.allow_hard_links and not self.in_place:
            raise UsageError("--allow-hard-links goes with --in-place; leave it out, or add that")
        if self.out is not None and to_gguf != (self.out.suffix == ".gguf"):
            to_folder = ", or add --to safetensors" if from_gguf else ""
            repair = f"end its name in .gguf{to_folder}" if to_gguf else "add --to gguf, or choose another name"
            raise UsageError(f"-o {self.out} is not a name for {'GGUF' if to_gguf else 'a folder'}; {repair}")

    def _check_gguf(self, recipe: Recipe, from_gguf: bool) -> None:
        made = self.gguf
        for flag, value in (("--outtype", made.outtype), ("--pre", made.pre), ("--quantized-by", made.quantized_by)):
            if from_gguf and value is not None:
                raise UsageError(f"a GGUF file stays as it is quantised, so {flag} has no effect; leave it out")
        known = (LLAMA_CPP, *reader_names())
        others = [name for name in self.runtimes if canonical(name).partition("@")[0] not in known]
        if others:
            raise UsageError(
                f"--runtime {others[0]} does not read GGUF the way llama.cpp does; leave it out, or take one of "
                f"{', '.join(known)}"
            )
        if self.fold.into is not None or self.fold.dtype is not None:
            raise UsageError(
                "--fold-into and --fold-dtype go with a folder as output, and this is GGUF; leave them out"
            )
        if self.all_files:
            raise UsageError("--all-files goes with a folder as output, and this is GGUF; leave it out")
        if self.dual_chunk is not None:
            raise UsageError("--dual-chunk goes with a folder as output, and GGUF has no such key; leave it out")
        if self.gguf.carrier and self.encoding not in ("auto", "carrier"):
            raise UsageError(
                f"--carrier is an encoding of its own, so --encoding {self.encoding} does not go with it; leave one out"
            )
        if recipe.log_n is not None and self.encoding == "keys":
            raise UsageError("log-n needs a rope tensor, so --encoding keys does not go with it; leave --encoding out")

    def _check_folder(self, from_gguf: bool) -> None:
        made = self.gguf
        given = {"--carrier": made.carrier, "--pre": made.pre, "--quantized-by": made.quantized_by}
        if not from_gguf:
            given["--outtype"] = made.outtype
        for flag, value in given.items():
            if value is not None:
                raise UsageError(f"{flag} goes with GGUF; add --to gguf, or leave it out")
        readers = [name for name in self.runtimes if canonical(name).partition("@")[0] in reader_names()]
        if readers:
            raise UsageError(f"--runtime {readers[0]} reads GGUF; add --to gguf, or leave it out")


@dataclass(frozen=True)
class Considered:
    """An encoding that "auto" looked at: whether it was selected, and the reason."""

    encoding: str
    selected: bool
    reason: str


@dataclass(frozen=True)
class EncodeResult:
    """A schedule as an encoding writes it.

    encoding: its name. verdicts: one per runtime. considered: the encodings that "auto" looked at. notes: sentences for
    the user. log_n_approximation: the query scaling written in place of the schedule's log-n, None where the formula
    itself is written or there is no log-n. deviation: of that approximation from the formula, relative.
    """

    encoding: str
    verdicts: tuple[Verdict, ...]
    considered: tuple[Considered, ...] = ()
    notes: tuple[str, ...] = ()
    log_n_approximation: QueryScaling | None = None
    deviation: float = 0.0

    def status_of(self, runtime: VersionRange) -> str:
        """The status of the verdict of one runtime."""
        return self.verdict_of(runtime).status

    def verdict_of(self, runtime: VersionRange) -> Verdict:
        """The verdict about the last version of a row of the table of runtimes."""
        return next(verdict for verdict in reversed(self.verdicts) if verdict.covers(runtime))

    def exact_count(self) -> int:
        """Number of verdicts with status "exact"."""
        return sum(verdict.status == "exact" for verdict in self.verdicts)

    @property
    def exact_share(self) -> str:
        """For display: in how many runtimes it is exact, of those that have the model and were looked at."""
        known = sum(verdict.status not in ("unsupported", "unknown") for verdict in self.verdicts)
        return f"exact in {self.exact_count()} of {known} runtimes"


def with_deviation(verdict: Verdict, deviation: float) -> Verdict:
    """The verdict on a log-n approximation: "approximate" in place of "exact" and "rounded" where it is not negligible.

    deviation: of the approximation from log-n, relative; up to 1e-3 the verdict stays.
    """
    if verdict.status not in GOOD or deviation <= EXACT:
        return verdict
    reason = "; ".join(filter(None, [f"log-n in steps, up to {deviation:.1%} off", verdict.reason]))
    return replace(verdict, status="approximate", reason=reason)


def refuse_approximate(result: EncodeResult, schedule: Schedule, otherwise: str) -> None:
    """Raises UnsupportedBake for a log-n approximation that is not negligibly near log-n.

    otherwise: the alternative to `--allow-approximate`, for the message.
    """
    if result.deviation > EXACT:
        raise UnsupportedBake(
            f"--log-n {schedule.log_n.kind if schedule.log_n else ''}",
            result.encoding,
            f"it comes within {result.deviation:.1%} of the formula only",
            f"pass --allow-approximate to take that, or {otherwise}",
        )


def refuse_attention_factor(schedule: Schedule, name: str, reason: str = "") -> None:
    """Raises UnsupportedBake for an attention factor in a family or architecture that can have none.

    name: of that. reason: why; by default its norms after the rotation.
    """
    if schedule.attention_factor != 1:
        raise UnsupportedBake(
            f"attention_factor {schedule.attention_factor:g}",
            name,
            reason or "it normalises queries and keys after the rotation, which cancels any attention factor",
            "pass --attention-factor 1",
        )
