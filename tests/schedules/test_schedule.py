"""Learning rates against values worked out by hand."""

import pytest

from nnue_trainer.schedules import SCHEDULES, RunStep

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
        ({"kind": "drops", "epochs": [2, 5], "gamma": 0.1}, {19: 0.5, 20: 0.05, 49: 0.05, 50: 0.005, 79: 0.005}),
        (
            {"kind": "one_cycle", "start_lr": 0.1, "final_lr": 0.01, "rise": 0.25},
            {0: 0.1, 19: 0.5, 49: 0.255, 79: 0.01, 80: 0.01},
        ),
        (
            {"kind": "cycle", "final_lr": 0.1, "height": 1.0, "peak": 0.25, "steps": 40},
            {0: 0.5, 5: 0.95, 10: 1.4, 25: 0.75, 40: 0.1, 79: 0.1},
        ),
        ({"kind": "linear", "final_lr": 0.1, "steps": 40}, {0: 0.5, 20: 0.3, 40: 0.1, 79: 0.1}),
        ({"kind": "linear", "final_lr": 0.1, "stairs": "begin"}, {0: 0.5, 9: 0.5, 10: 0.45, 79: 0.15}),
        ({"kind": "linear", "final_lr": 0.1, "stairs": "end"}, {0: 0.45, 9: 0.45, 10: 0.4, 79: 0.1}),
        ({"kind": "constant", "warmup_steps": 4, "warmup": "hyperbola"}, {0: 0.125, 2: 0.25, 3: 0.5, 4: 0.5}),
        (
            {
                "kind": "sequence",
                "parts": [
                    {"epochs": 2, "schedule": {"kind": "constant", "warmup_steps": 4}},
                    {"epochs": 4, "schedule": {"kind": "linear", "final_lr": 0.1}, "lr": 0.3},
                ],
            },
            {0: 0.125, 3: 0.5, 19: 0.5, 20: 0.3, 40: 0.2, 60: 0.1, 79: 0.1},
        ),
    ],
)
def test_learning_rates(schedule, values):
    parsed = SCHEDULES.parse(schedule, trusted=False)
    for step, lr in values.items():
        assert parsed.of(RunStep(step, PER_EPOCH, EPOCHS), LR) == pytest.approx(lr, rel=1e-12), step
