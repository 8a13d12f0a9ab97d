#!/bin/bash
#SBATCH --job-name=nnue-rescore
#SBATCH --array=1-16
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=32
#SBATCH --time=12:00:00
#SBATCH --signal=B:USR1@60
#SBATCH --requeue
#SBATCH --open-mode=append
#
# sbatch rescore.sh ENGINE INPUT OUTPUT [OPTION]...
# Each task N of the array rescores its part of the file, into out-N.binpack for OUTPUT out.binpack. If it is preempted,
# it continues.

source "${NNUE_CLUSTER:-$SLURM_SUBMIT_DIR}/job.sh"
# source ~/venv/bin/activate

engine=$1 input=$2 output=${3%.*}-$SLURM_ARRAY_TASK_ID.${3##*.}
shift 3
as_job "$output" srun python -m nnue_trainer data rescore "$input" "$output" --engine "$engine" \
    --part "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT" "$@"
