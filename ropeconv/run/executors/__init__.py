"""Where units run: processes of this machine, a Ray cluster, Slurm."""

from .executor import Executor, Failure, Pool
from .opening import executor_of

__all__ = ["Executor", "Failure", "Pool", "executor_of"]
