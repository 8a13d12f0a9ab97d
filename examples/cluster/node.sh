#!/bin/bash
# srun bash node.sh COMMAND...
# Runs COMMAND, torchrun, on one node of a job (job.sh). torchrun waits for the other nodes without a line, so this prints
# one on each node where it has started no process of the training after 20 seconds.

nodes=$NNUE_STATUS_FILE.nodes # on the file system that all nodes share
mkdir -p "$nodes"
touch "$nodes/$SLURM_NODEID"
seconds=${NNUE_TELL_SECONDS:-20}
[[ ${seconds%%[eE]*} != *[1-9]* ]] || ( # 0: no line
    sleep "$seconds" || exit
    # $$ is torchrun by now; its children are this shell and the processes of the training.
    [[ -e /proc/$$ ]] || exit
    (($(grep -lsx "PPid:[[:space:]]*$$" /proc/[0-9]*/status | wc -l) > 1)) && exit
    missing=
    for ((node = 0; node < SLURM_NNODES; node++)); do
        [[ -e $nodes/$node ]] || missing+=" $(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n "$((node + 1))p")"
    done
    for_what=${missing:+"nodes that have not started:$missing"}
    for_what=${for_what:-"nodes that have started but not reached the first one"}
    echo "node $SLURM_NODEID ($(hostname)): torchrun waits for $for_what; it ends after ${NNUE_JOIN_SECONDS:-600} s" \
        "(NNUE_JOIN_SECONDS)" >&2
) &
NNUE_TELL_SECONDS=0 exec "$@" # torchrun itself would print a line without the names
