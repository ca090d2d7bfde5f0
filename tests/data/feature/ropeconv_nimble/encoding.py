"""Encoding `plain`: a schedule of `--linear` as the rope type linear, and nothing else."""

from ropeconv import RopeSpec, Schedule, UnsupportedBake
from ropeconv.convert.config_edit import RopeSetting
from ropeconv.convert.encoding import config_encoding
from ropeconv.models.family import Family
from ropeconv.rope.forms import InterpolatedForm


@config_encoding("plain", order=90, max_ulp=7)
def plain(schedule: Schedule, spec: RopeSpec, family: Family) -> RopeSetting:
    """Return the schedule as a factor. Raises UnsupportedBake for another one than linear."""
    form = schedule.form
    if not isinstance(form, InterpolatedForm):
        reason = "it holds one factor"
        raise UnsupportedBake("these frequencies", "the plain encoding", reason, "use --linear")
    setting = {"rope_type": "linear", "factor": form.factor}
    return RopeSetting(setting, spec.rope_theta, schedule.context)
