#!/bin/bash
#SBATCH --job-name=nnue
#SBATCH --nodes=1
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#
# sbatch one_node.sh RECIPE RUN_FOLDER [KEY=VALUE]...
# Trains on one GPU until the run is finished, over as many jobs as it takes.

source "${NNUE_CLUSTER:-$SLURM_SUBMIT_DIR}/job.sh"
# source ~/venv/bin/activate

export NNUE_GRACE_SECONDS=120 # as in --signal
recipe=$1 run=$2
shift 2
as_job "$run" srun python -m nnue_trainer train "$recipe" --run-dir "$run" --resume auto "$@"
