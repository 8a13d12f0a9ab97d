"""NNUE training on PyTorch: fast sparse operators, a C++ data pipeline, nets that real engines load."""

__version__ = "0.1.0"
