"""Ways to look for schedules, one file each; the first in REGISTRY that fits is the default."""

from . import gradient as gradient

from . import evolution as evolution  # isort: skip
from . import tpe as tpe
from .search import REGISTRY as REGISTRY
from .search import Search as Search
from .search import Task as Task
from .search import choose as choose
