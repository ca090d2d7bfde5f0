"""The smallest base for a length, the interval that it opens, and the first interval wide enough.

Read `bound` first. Men et al. 2024, https://arxiv.org/abs/2405.14591; Su 2024,
https://kexue.fm/archives/10122.

Tables of the bound for common heads are in data/R-base.json, -wide and -last, made by
scripts/make_bound_table.py. Each is valid for lengths up to `through`. Columns, one entry per step:
the `length` from which on it holds, `begin` and `end` of an interval of bases (null: no end), and
the `distance` whose sum is zero at its beginning.
"""

import json
import math
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal, NamedTuple

from ..errors import RecipeError
from ..forms import asymptotic_base
from ..summary import Summary, SummaryTable
from .reach import refuse_beyond
from .smallest import (
    WIDTH,
    Proof,
    exp,
    interval_end,
    last_violating,
    smallest_log_base,
    up,
    wide_intervals,
)
from .sums import Sums

DATA = Path(__file__).parent / "data"
Kind = Literal["base", "wide", "last"]


class Step(NamedTuple):
    """An interval of bases that holds from `length` on, up to the next step."""

    length: int
    begin: float
    """The first base of the interval."""

    end: float
    """The base at which the interval ends."""

    distance: int | None
    """In tokens, whose sum is zero at `begin`; None where there is none."""


ALL_FIT = Step(length=1, begin=1.0, end=math.inf, distance=None)
"""The step of lengths so short that every base above 1 fits."""


def look_up(kind: Kind, rotary_dim: int, length: int) -> Step | None:
    """Return an interval of bases for a length, from the tables of the package.

    A base fits a length where no distance below the length has a negative sum of cosines. For 4,096
    tokens and heads of 128 dimensions, the smallest bases that fit go from `begin` = 26,952 to
    `end` = 26,973. At the base 26,952, the sum at the `distance` of 4,012 tokens is exactly 0.

    Args:
        kind: "base" for the interval of the smallest bases that fit, "wide" for the first interval
            that is at least 1 % wide, or "last" for the bases above the last that does not fit.
        rotary_dim: All dimensions of the head.
        length: In tokens.

    Returns:
        The interval; None for a head or a length that the tables do not have.
    """
    # a table has one list for each column; "through" is its largest length
    table = _read(kind, rotary_dim)
    if table is None or length > table["through"]:
        return None

    # a row holds from its length on, up to the length of the next row
    row = bisect_right(table["length"], length) - 1
    if row < 0:  # shorter than the length of the first row: every base above 1 fits
        return ALL_FIT

    end = table["end"][row]
    if end is None:  # JSON has no infinity
        end = math.inf
    return Step(
        length=table["length"][row],
        begin=table["begin"][row],
        end=end,
        distance=table["distance"][row],
    )


def farthest(rotary_dim: int) -> tuple[int, float]:
    """The last length of the table of smallest bases, and its base; (1, 1.0) without a table."""
    table = _read("base", rotary_dim)
    if table is None:
        return 1, 1.0
    return table["through"], table["begin"][-1]


def published_bases() -> dict[str, dict[int, float]]:
    """The smallest bases for 128 dimensions that have been published, by source and length."""
    rows = json.loads((DATA / "published.json").read_text("utf-8"))
    bases = {}
    for source, row in rows.items():
        bases[source] = {int(length): base for length, base in row.items()}
    return bases


@cache
def _read(kind: Kind, rotary_dim: int) -> dict[str, Any] | None:
    path = DATA / f"{rotary_dim}-{kind}.json"
    if not path.exists():
        return None
    table: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return table


LONG_WIDE = 1 << 20
"""Up to this length, in tokens, the first wide interval is looked for without being asked."""
LONG_LAST = 1 << 17
"""Up to this length, the last base that violates is looked for without being asked."""
QUICK = 1 << 18
"""Up to this length, the first wide interval is found in seconds."""


@dataclass(frozen=True)
class Bound(Summary):
    """The bases with which B(m) = (d - r)/2 + sum_i cos(m theta_i) >= 0 for 1 <= m < length."""

    length: int
    """In tokens."""

    rotary_dim: int
    """r, in dimensions."""

    head_dim: int
    """d, in dimensions."""

    base: float
    """The smallest such base above 1, rounded up to float64."""

    binding_distance: int | None
    """The distance in tokens at which B is zero with it; None where every base above 1 fits."""

    window: tuple[float, float | None]
    """The interval of such bases that begins at `base`; its end is None if all larger ones fit."""

    first_wide_window: tuple[float, float | None] | None
    """The first such interval at least 1 % wide, None where it is not known."""

    last_violating_base: float | None
    """Every base above it keeps B >= 0; None where no base violates, or where it is not known."""

    known_windows: bool
    """Whether `first_wide_window` and `last_violating_base` are known."""

    @property
    def sentence(self) -> str:
        """The smallest base in words."""
        head = f"{self.rotary_dim} of {self.head_dim} dimensions rotate"
        if self.binding_distance is None:
            return f"Every base above 1 keeps the sum from being negative ({head})."
        return f"The smallest base for {self.length:,} tokens is {self.base:,.1f} ({head})."

    @property
    def asymptotic(self) -> float:
        """The estimate L / x0 of the smallest base, for ever wider heads."""
        return asymptotic_base(self.length)

    def summary(self) -> dict[str, str]:
        """Return the values that the command line shows, by name; "" for a value not known."""
        values = {
            "sentence": self.sentence,
            "length": f"{self.length:,} tokens",
            "base": repr(self.base),
        }
        if self.binding_distance is None:  # every base fits, so there is nothing else to show
            return values

        # the distance whose sum of cosines is 0 at the smallest base
        values["binding_distance"] = f"{self.binding_distance:,} tokens"

        # the interval of bases that begins with the smallest base ("window"), and its width
        # relative to that base, e.g. 0.00078
        values["window"] = _describe_interval(self.window)
        values["width"] = ""
        if self.width is not None:
            values["width"] = f"{self.width:.2g}"

        # the first interval that is at least 1 % wide
        values["first_wide_window"] = ""
        if self.first_wide_window is not None:
            values["first_wide_window"] = _describe_interval(self.first_wide_window)

        # the largest base that does not fit
        values["last_violating_base"] = ""
        if self.last_violating_base is not None:
            values["last_violating_base"] = f"{self.last_violating_base:,.0f}"

        # an estimate of the smallest base by a formula, which is exact for infinitely many pairs
        values["asymptotic"] = f"{self.asymptotic:,.0f}"
        return values

    def shown_tables(self) -> list[SummaryTable]:
        """The bases that papers published for this length."""
        rows = [(source, f"{base:.2g}") for source, base in self.published.items()]
        return [SummaryTable("published", ("paper", "base"), rows)]

    @property
    def width(self) -> float | None:
        """Relative width of `window`, end / begin - 1; None where it has no end."""
        begin, end = self.window
        if end is None:
            return None
        return end / begin - 1

    @property
    def published(self) -> dict[str, float]:
        """Published smallest bases for this length, by paper; only for heads of 128 dimensions."""
        if (self.rotary_dim, self.head_dim) != (128, 128):
            return {}
        bases = {}
        for source, row in published_bases().items():
            if self.length in row:
                bases[source] = row[self.length]
        return bases

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON-ready data, with the estimate L / x0 and published bases.

        Keys stay within a schema.
        """
        wide = self.first_wide_window
        data = asdict(self)
        data["window"] = list(self.window)
        data["first_wide_window"] = list(wide) if wide else None
        data["asymptotic"] = self.asymptotic
        data["published"] = self.published
        return data


def _describe_interval(ends: tuple[float, float | None]) -> str:
    """An interval of bases in words."""
    begin, end = ends
    if end is None:
        return f"{begin:,.1f} and above"
    return f"{begin:,.1f} to {end:,.1f}"


def bound(
    length: int,
    rotary_dim: int,
    head_dim: int,
    windows: bool | None = None,
    proof: Proof | None = None,
    tell: Callable[[str], None] = lambda message: None,
) -> Bound:
    """The smallest base for one length and head, from the package's tables where they have it.

    The sum (d - r)/2 + sum_i cos(m theta_i), with theta_i = base^(-2i/r), must not be negative for
    any distance m below the length. Men et al. 2024, https://arxiv.org/abs/2405.14591.

    Args:
        length: In tokens.
        rotary_dim: Dimensions of a head that rotate.
        head_dim: Dimensions of the head.
        windows: Whether to look for the first wide interval and the last base that violates; None
            looks up to 1M tokens for the former (half a minute) and up to 128k for the latter (as
            long; a quarter of an hour at 1M).
        proof: A list to which (from ln b, to ln b, distance) is appended for each interval that the
            distance rules out; the base is then computed even where the tables have it.
        tell: Called with a sentence about the progress of long searches.

    Raises:
        RecipeError: For lengths beyond 2^27.
    """
    sums = _sums(length, rotary_dim, head_dim)
    if sums.automatic:
        return Bound(
            length=length,
            rotary_dim=rotary_dim,
            head_dim=head_dim,
            base=1.0,
            binding_distance=None,
            window=(1.0, None),
            first_wide_window=(1.0, None),
            last_violating_base=None,
            known_windows=True,
        )

    # what takes long is only searched for where it is short, or asked for
    search_wide = length <= LONG_WIDE
    search_last = length <= LONG_LAST
    if windows is not None:
        search_wide = windows
        search_last = windows

    # The bases that keep the bound are intervals. Each answer comes from a table of the package,
    # else from a search: the smallest base, the first interval that is wide enough to use, and the
    # last base that does not keep it.
    smallest = _smallest(sums, length, tell, proof)
    wide = _table("wide", sums, length)
    if wide is None and search_wide:
        tell("looking for the first interval that is 1 % wide")
        low, high = next(wide_intervals(sums, length, math.log(smallest.begin)))
        wide = Step(length=length, begin=exp(low), end=exp(high), distance=None)
    last = _table("last", sums, length)
    if last is None and search_last:
        last = _last(sums, length, tell)

    last_violating_base = None
    if last is not None and last.distance:
        last_violating_base = last.begin
    return Bound(
        length=length,
        rotary_dim=rotary_dim,
        head_dim=head_dim,
        base=smallest.begin,
        binding_distance=smallest.distance,
        window=_ends(smallest),
        first_wide_window=_ends(wide) if wide else None,
        last_violating_base=last_violating_base,
        known_windows=wide is not None and last is not None,
    )


def is_quick(length: int, rotary_dim: int, head_dim: int) -> bool:
    """Whether `wide_base` takes seconds: up to 2^18 tokens, or where the tables have it."""
    if length <= QUICK:
        return True
    return _table("wide", Sums(rotary_dim, head_dim), length) is not None


def wide_base(length: int, rotary_dim: int, head_dim: int, skip: int = 0) -> tuple[float, float]:
    """Return the smallest bases that are safe for a length, as the interval from b to 1.01 b.

    A base b fits a length where the sum (d - r)/2 + sum_i cos(m b^(-2i/r)) is not negative at any
    distance m below the length. Such bases form intervals. Rounding the frequencies to float32 may
    lead out of a narrow interval, so only intervals at least 1 % wide are used. The result is the
    first 1 % of such an interval.

    Args:
        length: In tokens.
        rotary_dim: r, dimensions of a head that rotate.
        head_dim: d, dimensions of the head.
        skip: 0 for the first wide interval, 1 for the second, and so on.

    Returns:
        The two ends; (inf, inf) if there are fewer intervals.

    Raises:
        RecipeError: For lengths beyond 2^27.
    """
    # the table of the package has the first wide interval of many lengths
    sums = _sums(length, rotary_dim, head_dim)
    first_wide = _table("wide", sums, length)
    if first_wide is not None and skip == 0:
        return first_wide.begin, min(first_wide.end, first_wide.begin * (1 + WIDTH))

    # Otherwise search all wide intervals: from the first wide interval on where it is known, and
    # from the smallest base on where it is not.
    if first_wide is not None:
        lowest_base = first_wide.begin
    else:
        smallest = _smallest(sums, length, tell=lambda message: None)  # without progress
        lowest_base = smallest.begin
    intervals = wide_intervals(sums, length, math.log(lowest_base))
    for number, (log_begin, log_end) in enumerate(intervals):
        if number == skip:
            begin = exp(log_begin)
            return begin, min(exp(log_end), begin * (1 + WIDTH))
    return math.inf, math.inf


def _sums(length: int, rotary_dim: int, head_dim: int) -> Sums:
    """The sums of a head, for a length and a number of dimensions that can be searched."""
    refuse_beyond(length)
    if rotary_dim < 4:
        raise RecipeError(
            "a single pair has the frequency 1 at every base, so there is no base to look for"
        )
    return Sums(rotary_dim, head_dim)


def _table(kind: Kind, sums: Sums, length: int) -> Step | None:
    """As `look_up`; the tables are of heads all of whose dimensions rotate."""
    if sums.head_dim != sums.rotary_dim:
        return None
    return look_up(kind, sums.rotary_dim, length)


def _smallest(
    sums: Sums, length: int, tell: Callable[[str], None], proof: Proof | None = None
) -> Step:
    """Return the smallest base that fits a length, with the interval of bases that begins there.

    A base b fits a length where the sum (d - r)/2 + sum_i cos(m b^(-2i/r)) of a head of d
    dimensions, of which r rotate, is not negative at any distance m below the length. For 4,096
    tokens and d = r = 128, the bases from 26,952 to 26,973 fit, and none below.

    Args:
        sums: Computes the sums of the head.
        length: In tokens.
        tell: Called with a sentence about the progress.
        proof: A list that gets (from ln b, to ln b, m) for each interval of bases that do not fit,
            with a distance m whose sum is negative there. With it, the tables are not used.

    Returns:
        The interval, with the distance whose sum is 0 at its begin.
    """
    # 1. the package has a table of smallest bases
    if proof is None:
        from_table = _table("base", sums, length)
        if from_table is not None:
            return from_table

    # 2. Another base is searched. The tables are for heads in which all dimensions rotate. For such
    # a head, the search begins at the last length in the table and its base: a longer length has no
    # smaller base.
    known_length_and_base = (1, 1.0)
    all_dimensions_rotate = sums.unrotated == 0
    if proof is None and all_dimensions_rotate:
        known_length_and_base = farthest(sums.rotary_dim)

    def tell_base(log_base: float) -> None:
        """Tell up to which base no base fits."""
        tell(f"ruled out: all bases up to {exp(log_base):,.0f}")

    log_base, distance = smallest_log_base(sums, length, known_length_and_base, proof, tell_base)
    if distance is None:  # no sum is negative, whatever the base is
        return ALL_FIT
    end = interval_end(sums, length, float(log_base))
    return Step(length=length, begin=up(log_base.exp()), end=exp(end), distance=distance)


def _last(sums: Sums, length: int, tell: Callable[[str], None]) -> Step:
    """The last base that violates, with all larger ones; `tell` is as in `bound`."""

    def tell_base(log_base: float) -> None:
        tell(f"proven: no base above {exp(log_base):,.0f} violates")

    log_base, distance = last_violating(sums, length, tell_base)
    return Step(length=length, begin=exp(log_base), end=math.inf, distance=distance)


def _ends(step: Step) -> tuple[float, float | None]:
    """The ends of an interval of bases, None for one that has no end."""
    if math.isinf(step.end):
        return step.begin, None
    return step.begin, step.end
