#!/bin/bash
#SBATCH --job-name=nnue
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=4
#SBATCH --cpus-per-task=64
#SBATCH --time=24:00:00
#SBATCH --signal=B:USR1@120
#SBATCH --requeue
#SBATCH --open-mode=append
#
# sbatch several_nodes.sh RECIPE RUN_FOLDER [KEY=VALUE]...
# One training on all GPUs of several nodes: torchrun starts a process for each GPU.

source "${NNUE_CLUSTER:-$SLURM_SUBMIT_DIR}/job.sh"
# source ~/venv/bin/activate

export NNUE_JOIN_SECONDS=${NNUE_JOIN_SECONDS:-120}
export NNUE_GRACE_SECONDS=120 TORCH_ELASTIC_SHUTDOWN_TIMEOUT=115 # as in --signal, and a little less
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
recipe=$1 run=$2
shift 2
as_job "$run" srun bash "${NNUE_CLUSTER:-$SLURM_SUBMIT_DIR}/node.sh" python -m torch.distributed.run \
    --nnodes "$SLURM_NNODES" --nproc-per-node "${PROCESSES_PER_NODE:-gpu}" --signals-to-handle SIGTERM,SIGINT,SIGUSR1 \
    --rdzv-backend c10d --rdzv-id "$SLURM_JOB_ID-${SLURM_RESTART_COUNT:-0}" \
    --rdzv-endpoint "$first:${RENDEZVOUS_PORT:-$((20000 + SLURM_JOB_ID % 10000))}" --rdzv-conf "join_timeout=$NNUE_JOIN_SECONDS" \
    -m nnue_trainer train "$recipe" --run-dir "$run" --resume auto "$@"
