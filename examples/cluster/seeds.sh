#!/bin/bash
#SBATCH --job-name=nnue-seeds
#SBATCH --array=1-5
#SBATCH --ntasks=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#
# sbatch seeds.sh RECIPE FOLDER [KEY=VALUE]...
# Trains the recipe once per task of the array, each with its own seed, into FOLDER/seed-N.

source "${NNUE_CLUSTER:-$SLURM_SUBMIT_DIR}/job.sh"
# source ~/venv/bin/activate

export NNUE_GRACE_SECONDS=120
recipe=$1 run=${2%/}/seed-$SLURM_ARRAY_TASK_ID
shift 2
as_job "$run" srun python -m nnue_trainer train "$recipe" --run-dir "$run" --resume auto \
    "training.seed=$SLURM_ARRAY_TASK_ID" "$@"
