"""Recipes against each other: `nnue compare` trains them with several seeds, and games decide."""
