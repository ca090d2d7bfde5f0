"""Training after the bake: what trains a baked checkpoint in each trainer, without anything that scales RoPE again."""

from .baked import Baked as Baked
from .baked import baked_output as baked_output
from .baked import baked_plan as baked_plan
from .snippet import Snippet as Snippet
from .snippet import make_snippet as make_snippet
from .trainer import Trainer as Trainer
from .trainer import find_trainer as find_trainer
from .trainer import trainers as trainers
