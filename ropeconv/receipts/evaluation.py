"""EvaluationRecord: the headline numbers of an evaluation of an output, as its receipt keeps them."""

from __future__ import annotations

import msgspec


class MeasuredRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One number.

    The fields are those of a cell of `ropeconv eval`: `measure` and `metric`, `length` in tokens, `value` and `error`,
    `low` and `high` of shares, `difference` and `difference_error` to the row `against`.
    """

    measure: str
    metric: str
    length: int
    value: float
    error: float | None = None
    low: float | None = None
    high: float | None = None
    difference: float | None = None
    difference_error: float | None = None


class EvaluationRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An evaluation of an output.

    against: name of the row that differences are to; empty for none. runtime, device, dtype: which computed it.
    trained: the trained context in tokens. texts: names of files, without their folders. tokens_sha256: over the tokens
    of all of them. price, price_error, holds_to: as in the result. measured: numbers over all depths. ropeconv: the
    version that measured it.
    """

    against: str = ""
    runtime: str
    device: str
    dtype: str
    trained: int
    texts: tuple[str, ...]
    tokens_sha256: str
    price: float | None = None
    price_error: float | None = None
    holds_to: int | None = None
    measured: tuple[MeasuredRecord, ...]
    ropeconv: str = ""

    @property
    def of_what(self) -> tuple[str, ...]:
        """What an evaluation is replaced by: one of the same text in the same runtime and precision."""
        return self.runtime, self.dtype, self.tokens_sha256, self.against

    def joined(self, older: EvaluationRecord) -> EvaluationRecord:
        """This evaluation, with the measures that only an older one of the same kind has. older: that one."""
        own = {one.measure for one in self.measured}
        kept = tuple(one for one in older.measured if one.measure not in own)
        found = msgspec.structs.replace(self, measured=(*kept, *self.measured))
        if self.holds_to is not None or self.price is not None or not kept:
            return found
        return msgspec.structs.replace(found, price=older.price, price_error=older.price_error, holds_to=older.holds_to)

    @property
    def described_texts(self) -> str:
        """The texts in a few words."""
        return ", ".join(self.texts) if len(self.texts) <= 3 else f"{len(self.texts)} texts"
