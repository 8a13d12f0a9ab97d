"""Damaged checkpoints are refused in one line, whatever stands in them."""

import pytest
from mutate_checkpoint import mutate


@pytest.mark.slow
def test_two_thousand_mutations(tmp_path, capsys):
    outcome = mutate(tmp_path, seed=1, count=2000)
    assert outcome["refused"] > 1000
    assert outcome["taken"] > 100  # what is damaged in places that do not matter, such as the random state
