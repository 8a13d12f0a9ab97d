"""nn.Modules over the operators."""

from nnue_trainer.modules.feature_transformer import FeatureTransformer

__all__ = ["FeatureTransformer"]
