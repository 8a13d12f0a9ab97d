"""Makes the parts of a training from a recipe. Besides parsing, printing and saving, only this package reads a `Recipe`
and looks up kernels in their table. It refuses at once what cannot go together; what it makes gets plain, typed values.

`begin` makes all of a stage for `run.train`; `assemble` makes a trainer of a given model and stream of batches.
"""

from nnue_trainer.training.assembly.data import held_out, neuron_sample, training_batches
from nnue_trainer.training.assembly.explanation import explain
from nnue_trainer.training.assembly.parts import assemble
from nnue_trainer.training.assembly.recipes import RecipeStage, idle_averages, left, stages_of
from nnue_trainer.training.assembly.stage import (
    Begin,
    Begun,
    begin,
    device_of,
    explaining_out_of_memory,
    stages_from,
    unused_gpu,
)
from nnue_trainer.training.assembly.steps import divide

__all__ = [
    "Begin",
    "Begun",
    "RecipeStage",
    "assemble",
    "begin",
    "device_of",
    "divide",
    "explain",
    "explaining_out_of_memory",
    "held_out",
    "idle_averages",
    "left",
    "neuron_sample",
    "stages_from",
    "stages_of",
    "training_batches",
    "unused_gpu",
]
