"""Recipes under attack; tools/attack_recipes.py does the same for hours."""

from pathlib import Path

import pytest
from recipe_attacks import attack


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_a_mutated_recipe_is_read_or_refused_in_one_line(tmp_path: Path, seed: int) -> None:
    outcome = attack(seed, 250, tmp_path)
    assert outcome["read"] > 25
    assert outcome["refused"] > 25
