"""Learning rates against values worked out by hand."""

import pytest
from pydantic import TypeAdapter

from nnue_trainer.training.schedule import ScheduleConfig

PER_EPOCH, EPOCHS, LR = 10, 8, 0.5


@pytest.mark.parametrize(
    ("schedule", "values"),
    [
        ({"kind": "constant"}, {0: 0.5, 79: 0.5}),
        ({"kind": "exponential", "gamma": 0.9}, {0: 0.5, 9: 0.5, 10: 0.45, 29: 0.405}),
        ({"kind": "step", "epochs": 3, "gamma": 0.1}, {29: 0.5, 30: 0.05, 60: 0.005}),
        ({"kind": "linear", "final_lr": 0.1}, {0: 0.5, 40: 0.3, 80: 0.1}),
        ({"kind": "cosine", "final_lr": 0.1}, {0: 0.5, 20: 0.3 + 0.2 * 0.5**0.5, 40: 0.3, 80: 0.1}),
        ({"kind": "constant", "warmup_steps": 4}, {0: 0.125, 1: 0.25, 3: 0.5, 4: 0.5}),
        ({"kind": "exponential", "gamma": 0.5, "warmup_steps": 20}, {9: 0.25, 19: 0.25, 20: 0.125}),
    ],
)
def test_learning_rates(schedule, values):
    parsed = TypeAdapter(ScheduleConfig).validate_python(schedule)
    for step, lr in values.items():
        assert parsed.lr_at(step, PER_EPOCH, EPOCHS, LR) == pytest.approx(lr, rel=1e-12), step
