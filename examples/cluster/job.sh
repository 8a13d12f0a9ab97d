# shellcheck shell=bash
# The part that all jobs of this folder share; they read it with `source`.
#
#   as_job RUN COMMAND...   runs the command, and acts on its exit status (docs/command-line.md):
#     0                     the job is finished
#     75, 76                preempted, or the time is up: the job is queued again, and continues
#     69                    another process works on the run: the same, a little later, at most MAX_REQUEUES times
#     started               a process or a node was lost: the same, at most MAX_REQUEUES times
#     none                  the program has not started: the same, at most MAX_FAILED_STARTS times in a row
#     another               an error that a person must correct: the job ends with this status
#
# The batch shell gets USR1 before the time is up (#SBATCH --signal=B:USR1@120) and hands it on, so the training saves
# its checkpoint. A signal before `as_job` queues the job again. The first process writes its status into a file beside
# RUN, in a folder that all nodes share.

_child='' _signalled=''

_on_signal() {
    trap '' USR1 TERM # only once: torchrun ends at a second signal without waiting for its processes
    _signalled=yes
    [ -z "$_child" ] || kill -USR1 "$_child" 2>/dev/null
}
trap _on_signal USR1 TERM

# Runs a command to its end, and hands a signal on to it.
_run() {
    local status
    [ -z "$_signalled" ] || return 1
    "$@" &
    _child=$!
    wait "$_child"
    status=$?
    while kill -0 "$_child" 2>/dev/null; do wait "$_child" && status=$? || status=$?; done # a signal ends a `wait` early
    _child=''
    return "$status"
}

_requeue() {
    scontrol requeue "$SLURM_JOB_ID"
    exit
}

as_job() {
    local run=$1 ended status tries
    shift
    # Each start has a file of its own, as a process of an earlier one may still end on a node that was lost.
    mkdir -p "$(dirname "$run")"
    rm -rf "$run.status.$SLURM_JOB_ID".*
    export NNUE_STATUS_FILE=$run.status.$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}
    _run "$@"
    ended=$?
    status=$(cat "$NNUE_STATUS_FILE" 2>/dev/null || echo none)
    rm -rf "$NNUE_STATUS_FILE" "$NNUE_STATUS_FILE.nodes"
    echo "job $SLURM_JOB_ID ended with status $status after ${SLURM_RESTART_COUNT:-0} restarts"

    [ -z "$_signalled" ] || case $status in started | none) status=75 ;; esac
    case $status in
    none)
        tries=$(($(cat "$run.failed-starts" 2>/dev/null || echo 0) + 1))
        echo "$tries" >"$run.failed-starts"
        if [ "$tries" -ge "${MAX_FAILED_STARTS:-3}" ]; then
            rm -f "$run.failed-starts"
            exit $((ended > 0 ? ended : 1))
        fi
        ;;
    *) rm -f "$run.failed-starts" ;;
    esac
    case $status in
    75 | 76) ;;
    69 | started | none) [ "${SLURM_RESTART_COUNT:-0}" -lt "${MAX_REQUEUES:-100}" ] || exit 1 ;;
    *) exit "$status" ;;
    esac
    [ "$status" != 69 ] || _run sleep "${NNUE_LEASE_SECONDS:-60}"
    _requeue
}
