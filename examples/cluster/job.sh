# shellcheck shell=bash
# The part that all jobs of this folder share; they read it with `source`.
#
#   as_job RUN COMMAND...   runs the command, and acts on its exit status (docs/command-line.md):
#     0                     the job is finished
#     75, 76                preempted, or the time is up: the job is queued again, and continues
#     none                  a process or a node was lost: the same, unless it was queued again MAX_REQUEUES times
#     another               an error that a person must correct: the job ends with this status
#
# The batch shell gets USR1 before the time is up (#SBATCH --signal=B:USR1@120) and hands it on, so the training saves
# its checkpoint. RUN.status is a file in a folder that all nodes share; the first process writes its status into it.

as_job() {
    export NNUE_STATUS_FILE=$1.status
    shift
    mkdir -p "$(dirname "$NNUE_STATUS_FILE")"
    rm -rf "$NNUE_STATUS_FILE" "$NNUE_STATUS_FILE.nodes"
    "$@" &
    local child=$!
    # Only once: torchrun ends at a second signal without waiting for its processes.
    trap 'trap "" USR1 TERM; kill -USR1 "$child" 2>/dev/null' USR1 TERM
    while kill -0 "$child" 2>/dev/null; do wait "$child"; done # a signal ends a `wait` early
    trap - USR1 TERM

    rm -rf "$NNUE_STATUS_FILE.nodes"
    local status
    status=$(cat "$NNUE_STATUS_FILE" 2>/dev/null || echo none)
    echo "job ${SLURM_JOB_ID:-} ended with status $status after ${SLURM_RESTART_COUNT:-0} restarts"
    case $status in
    75 | 76) ;;
    none) [ "${SLURM_RESTART_COUNT:-0}" -lt "${MAX_REQUEUES:-100}" ] || exit 1 ;;
    *) exit "$status" ;;
    esac
    scontrol requeue "$SLURM_JOB_ID"
}
