"""Is every byte of an output what its recipe and its source give? The plan is made again and compared."""

from .output import verify_output
from .verified import Options, Verified

__all__ = ["Options", "Verified", "verify_output"]
