"""A sweep with Optuna over two options of a recipe, which continues after an interruption.

python optuna_sweep.py RECIPE.yaml FOLDER TRIALS     (pip install optuna)
"""

import json
import sys
from pathlib import Path

import optuna

from nnue_trainer import config
from nnue_trainer.training import train

# The validation loss depends on λ, so trials with different λ are compared by a fixed figure.
FIGURE = "score_cross_entropy"


def overrides(trial: optuna.Trial) -> list[str]:
    """The changes of a trial to the recipe, as on the command line."""
    return [
        f"optimizer.lr={trial.suggest_float('lr', 1e-4, 1e-2, log=True)}",
        f"lambda={{kind: constant, value: {trial.suggest_float('lambda', 0.5, 1.0)}}}",
    ]


def objective(trial: optuna.Trial, recipe: str, folder: Path) -> float:
    run = folder / trial.user_attrs.get("run", f"trial-{trial.number:03}")
    trial.set_user_attr("run", run.name)
    if train(config.load(recipe, overrides(trial)), run, resume="auto").interrupted:
        raise KeyboardInterrupt
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return float([record for record in records if record["event"] == "validation"][-1][FIGURE])


def continue_stopped(study: optuna.Study) -> None:
    """Trials that a signal, a kill or an error ended come first, and continue from their last checkpoint."""
    ended = optuna.trial.TrialState.RUNNING, optuna.trial.TrialState.FAIL
    settled = {trial.user_attrs.get("run") for trial in study.trials if trial.state not in ended}
    for trial in study.get_trials(states=ended):
        if trial.state == optuna.trial.TrialState.RUNNING:
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
        if trial.user_attrs.get("run") not in settled:
            study.enqueue_trial(trial.params, user_attrs=trial.user_attrs)
            settled.add(trial.user_attrs.get("run"))


def main(recipe: str, folder: Path, trials: int) -> optuna.Study:
    folder.mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(storage=f"sqlite:///{folder}/study.db", study_name="sweep", load_if_exists=True)
    study.sampler = optuna.samplers.TPESampler(seed=len(study.trials))
    continue_stopped(study)
    done = len(study.get_trials(states=[optuna.trial.TrialState.COMPLETE]))
    study.optimize(lambda trial: objective(trial, recipe, folder), n_trials=max(trials - done, 0))
    best = study.best_trial
    print(f"best of {trials} trials: {best.params}, {FIGURE} {best.value:.6f}, {folder / best.user_attrs['run']}")
    return study


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]))
