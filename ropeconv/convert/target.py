"""Target: format, encoding and runtimes of an output, and rules about combinations."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar, get_args

from ..errors import UnsupportedBake, UsageError
from ..formats.files import expand_home
from ..formats.kind import is_gguf
from ..options import (
    CompanionNames,
    ConverterOptions,
    Format,
    OutputPlace,
    TargetOptions,
    options,
)
from ..rope.methods.vectors import AsIs
from ..rope.ramps import RampApproximation
from ..rope.recipe import Recipe
from ..rope.schedule import EXACT, QueryScaling, Schedule
from ..runtimes.gguf_readers import find_any, reader_names
from ..runtimes.runtime import GOOD, LLAMA_CPP, UNTESTED, VersionRange, canonical
from ..runtimes.verdict import Verdict


@dataclass(frozen=True)
class Target(CompanionNames, TargetOptions, ConverterOptions, OutputPlace):
    """How, where and for which runtimes an output is written.

    It has every rule about combinations of options. Its fields are in ropeconv/options.py.
    """

    def __post_init__(self) -> None:
        if self.out is not None:
            object.__setattr__(self, "out", expand_home(self.out))
        if self.converter is not None:
            object.__setattr__(self, "converter", expand_home(self.converter))
        if self.imatrix is not None:
            object.__setattr__(self, "imatrix", expand_home(self.imatrix))

    def check(self, recipe: Recipe, from_gguf: bool) -> None:
        """Raise UsageError for options that contradict each other, or have no effect together.

        Args:
            recipe: The method, with its settings.
            from_gguf: Whether the source is a GGUF file.
        """
        self._check_values()

        # without --to, the output has the format of the source
        if self.to is None:
            to_gguf = from_gguf
        else:
            to_gguf = self.to == "gguf"

        # what is done with the scaling that a model has
        if self.replace and isinstance(recipe.method, AsIs):
            raise UsageError(
                "--as-is keeps the scaling that --replace would take away; give one of them"
            )
        if self.replace and recipe.on_top:
            raise UsageError(
                "--on-top keeps the scaling that --replace would take away; give one of them"
            )

        # only log-n, and in GGUF the ramp of YaRN, can be written as an approximation
        can_be_approximate = recipe.log_n is not None or to_gguf
        if self.allow_approximate and not can_be_approximate:
            raise UsageError("--allow-approximate needs --log-n or GGUF output; leave it out")
        if self.assume_arch_keys and not from_gguf:
            raise UsageError("--assume-arch-keys goes with a GGUF file as SOURCE; leave it out")
        stays_in_file = from_gguf and to_gguf and self.out is None
        if self.in_place and not stays_in_file:
            raise UsageError(
                "--in-place changes a GGUF file itself; give one as SOURCE, and leave -o out"
            )

        if self.out is not None:
            _check_name(self.out, to_gguf, from_gguf)
        if to_gguf:
            self._check_gguf(recipe, from_gguf)
        else:
            self._check_folder(from_gguf)

    def _check_values(self) -> None:
        """Raise UsageError for values that an option cannot have."""
        # options with a list of choices; only the encoding is checked later, where it is selected,
        # since features and GGUF have encodings of their own
        for option in options(Target):
            value = getattr(self, option.name)
            if not option.choices or option.name == "encoding" or value is None:
                continue
            if value not in option.choices:
                raise UsageError(
                    f"{option.flag} {value} is not known; choose {', '.join(option.choices)}"
                )
        if self.to not in (None, *get_args(Format)):
            raise UsageError(f"--to {self.to} is for the command line; choose safetensors or gguf")
        if isinstance(self.runtimes, str):
            raise UsageError(f"runtimes is a tuple of names; write ({self.runtimes!r},)")
        for name in self.runtimes:
            find_any(name)  # raises for a name that is not known

    def _check_folder(self, from_gguf: bool) -> None:
        """Raise UsageError for options that a folder as output does not have."""
        for flag in self._flags_given("gguf"):
            if flag == "--outtype" and from_gguf:  # the dtype of the folder that is made from GGUF
                continue
            raise UsageError(f"{flag} goes with GGUF; add --to gguf, or leave it out")
        for name in self.runtimes:
            if canonical(name).partition("@")[0] in reader_names():
                raise UsageError(f"--runtime {name} reads GGUF; add --to gguf, or leave it out")

    def _refuse_conversion_options(self) -> None:
        """Raise UsageError for options of a conversion to GGUF, as the source is GGUF already."""
        of_conversion = {
            "--outtype": self.outtype,
            "--pre": self.pre,
            "--quantized-by": self.quantized_by,
            "--converter": self.converter,
            "--imatrix": self.imatrix,
            "--tensor-type": self.tensor_type or None,
            "--output-tensor-type": self.output_tensor_type,
            "--token-embedding-type": self.token_embedding_type,
        }
        for flag, value in of_conversion.items():
            if value is not None:
                raise UsageError(
                    f"a GGUF file keeps its quantisation, so {flag} has no effect; leave it out"
                )
        if self.split_max_size is not None:
            raise UsageError(
                "--split-max-size is for conversions; leave it out, and split the output with"
                " llama-gguf-split, which keeps the receipt"
            )

    def _check_gguf(self, recipe: Recipe, from_gguf: bool) -> None:
        """Raise UsageError for options that GGUF as output does not have.

        Args:
            recipe: The method, with its settings.
            from_gguf: Whether the source is a GGUF file too.
        """
        if from_gguf:  # such a source is patched, and its weights stay
            self._refuse_conversion_options()

        # programs that read GGUF files; a name may have a version, as in ollama@0.9
        known = (LLAMA_CPP, *reader_names())
        for name in self.runtimes:
            without_version, _, _ = canonical(name).partition("@")
            if without_version not in known:
                raise UsageError(
                    f"--runtime {name} does not read GGUF the way llama.cpp does; leave it out, or"
                    f" take one of {', '.join(known)}"
                )

        for flag in self._flags_given("folder"):
            raise UsageError(f"{flag} goes with a folder as output, and this is GGUF; leave it out")

        if self.carrier and self.encoding not in ("auto", "carrier"):
            raise UsageError(
                f"--carrier is an encoding of its own, so --encoding {self.encoding} does not go"
                " with it; leave one out"
            )
        if recipe.log_n is not None and self.encoding == "keys":
            raise UsageError(
                "log-n needs a rope tensor, so --encoding keys does not go with it; leave"
                " --encoding out"
            )

    def _flags_given(self, only: str) -> list[str]:
        """The flags for one format of output that were given."""
        given = []
        for option in options(Target):
            is_given = getattr(self, option.name) != option.default
            if option.only == only and is_given:
                given.append(option.flag)
        return given


def _check_name(out: Path, to_gguf: bool, from_gguf: bool) -> None:
    """Raise UsageError for the name of an output that does not fit its format."""
    if to_gguf and not is_gguf(out):
        to_folder = ", or add --to safetensors" if from_gguf else ""
        raise UsageError(f"-o {out} is not a name for GGUF; end its name in .gguf{to_folder}")
    if not to_gguf and is_gguf(out):
        raise UsageError(
            f"-o {out} is not a name for a folder; add --to gguf, or choose another name"
        )


Refusals = dict[str, UnsupportedBake]
"""Errors of encodings that cannot hold a schedule, by the name of the encoding."""


@dataclass(frozen=True)
class ConsideredEncoding:
    """An encoding that "auto" tried: whether it was selected, and the reason."""

    encoding: str
    selected: bool
    reason: str


@dataclass(frozen=True)
class EncodeResult:
    """A schedule as an encoding writes it."""

    encoding: str
    verdicts: tuple[Verdict, ...]
    """One per runtime."""

    considered: tuple[ConsideredEncoding, ...] = ()
    """The encodings that "auto" tried."""

    notes: tuple[str, ...] = ()
    """Sentences for the user."""

    log_n_approximation: QueryScaling | None = None
    """The query scaling written for the schedule's log-n.

    None where the formula itself is written or there is no log-n.
    """

    deviation: float = 0.0
    """The relative deviation of that approximation from the formula."""

    ramp: RampApproximation | None = None
    """The ramp of YaRN that is written in place of the schedule's; None for the schedule's own."""

    def verdict_of(self, runtime: VersionRange) -> Verdict:
        """Return the verdict on a runtime, in its newest version of a range such as vLLM 0.20-0.33.

        It is "unknown" for a version that no verdict covers, such as one that is installed here and
        newer than the table.
        """
        for verdict in reversed(self.verdicts):
            if verdict.covers(runtime):
                return verdict
        return Verdict(
            runtime=runtime.key,
            display_name=runtime.display_name,
            status=UNTESTED,
            reason="this version is untested",
            source="",
            through=runtime.last,
        )

    def exact_count(self) -> int:
        """Return the number of verdicts with status "exact"."""
        return sum(verdict.status == "exact" for verdict in self.verdicts)

    @property
    def exact_share(self) -> str:
        """The share of runtime versions in which it is exact, of those that were tested."""
        known = sum(verdict.status not in ("unsupported", "unknown") for verdict in self.verdicts)
        return f"exact in {self.exact_count()} of {known} runtime versions"

    def refuse_approximate(self, schedule: Schedule, target: Target, otherwise: str) -> None:
        """Raise UnsupportedBake where log-n is only approximated, and the user did not allow that.

        Args:
            schedule: The schedule with log-n, the scaling of queries by the logarithm of the
                position.
            target: The options of the output, with `allow_approximate`.
            otherwise: Another way out for the user, for the message.
        """
        if self.deviation <= EXACT or target.allow_approximate:
            return
        kind = schedule.log_n.kind if schedule.log_n else ""
        raise UnsupportedBake(
            f"--log-n {kind}",
            self.encoding,
            f"it comes within {self.deviation:.1%} of the formula only",
            f"pass --allow-approximate to take that, or {otherwise}",
        )


R = TypeVar("R", bound=EncodeResult)


def add_untested_note(result: R, target: Target, verdicts: Sequence[Verdict]) -> R:
    """Add a note to a result on what the option --allow-untested has accepted, if it was given.

    Args:
        result: The result of an encoding.
        target: The options of the output.
        verdicts: The verdicts on the runtimes for which the output is written.
    """
    if not target.allow_untested:
        return result

    notes = []
    for verdict in verdicts:
        if verdict.status != UNTESTED:
            continue
        why = verdict.reason or "untested"
        notes.append(
            f"it is not known what {verdict.display_name} computes ({why}), and --allow-untested"
            " accepts that; measure it with `ropeconv validate OUTPUT --server URL`"
        )

    # GGUF for no named runtime has no verdicts here, and is for llama.cpp
    if not notes:
        names = " and ".join(verdict.display_name for verdict in verdicts)
        notes.append(
            f"--allow-untested was not needed: it is known what {names or 'llama.cpp'} computes"
        )
    return replace(result, notes=(*notes, *result.notes))


def attempts(encoders: Mapping[str, Callable[[], R]]) -> tuple[list[R], Refusals]:
    """Try several encodings, and return the results of some and the errors of the others.

    Args:
        encoders: Functions that encode it, by the names of the encodings.

    Returns:
        The results in order, and the errors of the others by name.
    """
    results = list[R]()
    refusals = Refusals()
    for name, encode in encoders.items():
        try:
            results.append(encode())
        except UnsupportedBake as refusal:
            refusals[name] = refusal
    return results, refusals


def with_deviation(verdict: Verdict, deviation: float) -> Verdict:
    """Return the verdict on a log-n approximation: "approximate" for a good one that is off."""
    if deviation <= EXACT:
        return verdict
    return _approximate(verdict, f"log-n in steps, up to {deviation:.1%} off")


def with_ramp(verdict: Verdict, ramp: RampApproximation | None) -> Verdict:
    """Return the verdict on another ramp than the schedule's: "approximate" for a good one."""
    if ramp is None:
        return verdict
    return _approximate(verdict, ramp.distance)


def _approximate(verdict: Verdict, distance: str) -> Verdict:
    """A good verdict as "approximate", with the distance in its reason; others unchanged."""
    if verdict.status not in GOOD:
        return verdict
    reason = f"{distance}; {verdict.reason}" if verdict.reason else distance
    return replace(verdict, status="approximate", reason=reason)


CANCELLED = "it normalises queries and keys after the rotation, which cancels any attention factor"


def refuse_attention_factor(schedule: Schedule, present: float, name: str, reason: str) -> None:
    """Raise UnsupportedBake for a new attention factor in a family or architecture without one.

    Args:
        schedule: The schedule with an attention factor.
        present: The attention factor that the model states already, which has no effect either.
        name: The family or architecture.
        reason: Why it has none.
    """
    if schedule.attention_factor not in (1, present):
        given = f"attention_factor {schedule.attention_factor:g}"
        raise UnsupportedBake(given, name, reason, "pass --attention-factor 1")
