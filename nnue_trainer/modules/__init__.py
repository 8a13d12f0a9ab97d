"""nn.Modules over the operators."""

from nnue_trainer.modules.feature_transformer import FeatureTransformer
from nnue_trainer.modules.layer_stacks import LayerStacks
from nnue_trainer.modules.perspective_transformer import PerspectiveTransformer
from nnue_trainer.modules.stacked_linear import StackedLinear
from nnue_trainer.ops.reference import StackLayer

__all__ = ["FeatureTransformer", "LayerStacks", "PerspectiveTransformer", "StackLayer", "StackedLinear"]
