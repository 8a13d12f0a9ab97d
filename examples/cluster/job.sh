# shellcheck shell=bash
# The part that all jobs of this folder share; they read it with `source`.
#
#   as_job RUN COMMAND...   runs the command, and acts on its exit status (docs/command-line.md):
#     0                     the job is finished
#     75, 76                preempted, or the time is up: the job is queued again, and continues
#     69                    another process works on the run: the same, a little later, at most MAX_REQUEUES times
#     started               a process or a node was lost: the same, at most MAX_REQUEUES times
#     none                  the program has not started, or not on all nodes: the same, at most MAX_FAILED_STARTS times
#                           in a row; also if a signal ends `stage_in`, or a program that then writes no status
#     another               an error that a person must correct: the job ends with this status
#
# The batch shell gets USR1 before the time is up (#SBATCH --signal=B:USR1@120) and hands it on, so the training saves
# its checkpoint. A signal before `as_job` queues the job again; a job that was cancelled is not queued again. The first
# process writes its status into a file beside RUN, in a folder that all nodes share.

# Since SLURM 22.05, srun does not take this from sbatch.
[ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK

# SLURM_JOB_ID of one task of an array is the number of the whole array, too.
_job=${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}
_failed_starts=${SLURM_SUBMIT_DIR:-.}/.nnue-$SLURM_JOB_ID.failed-starts # a line for each one
_child='' _signalled=''

_on_signal() {
    [ -z "$_signalled" ] || return 0 # only once: torchrun ends at a second signal without waiting for its processes
    _signalled=${_child:-yes}
    [ -z "$_child" ] || kill -USR1 "$_child" 2>/dev/null
}
trap _on_signal USR1 TERM

# Runs a command to its end, and hands a signal on to it.
_run() {
    local status
    [ -z "$_signalled" ] || return 1
    "$@" &
    _child=$!
    if [ "$_signalled" = yes ]; then # it came before the number was known
        sleep 1 # until the command has replaced the copy of this shell, in which the signal would be lost
        kill -USR1 "$_child" 2>/dev/null
    fi
    wait "$_child"
    status=$?
    while kill -0 "$_child" 2>/dev/null; do wait "$_child" && status=$? || status=$?; done # a signal ends a `wait` early
    _child=''
    return "$status"
}

# Whether the job was cancelled: SLURM would queue it again all the same. Until its last process has ended it is
# COMPLETING, as at its time limit and when it is preempted.
_cancelled() {
    local shown
    shown=$(scontrol show job "$_job" 2>/dev/null) || return
    case $shown in
    *JobState=CANCELLED*) ;;
    *JobState=COMPLETING*) [[ $shown != *Reason=TimeLimit* && $shown != *PreemptTime=[0-9]* ]] ;;
    *) return 1 ;;
    esac
}

# _requeue STATUS: queues the job again, or ends a cancelled one with this status.
_requeue() {
    trap '' USR1 TERM # scontrol must not end by a further signal
    if _cancelled; then
        echo "job $_job was cancelled: it is not queued again"
        rm -f "$_failed_starts"
        exit "$1"
    fi
    scontrol requeue "$_job"
    exit
}

# _failed_start STATUS: ends the job with this status if too many starts in a row have failed.
_failed_start() {
    local tries
    echo "$1" >>"$_failed_starts"
    tries=$(wc -l <"$_failed_starts" || echo 0)
    [ "$tries" -ge "${MAX_FAILED_STARTS:-3}" ] || return 0
    echo "job $_job is not queued again: $tries starts in a row have failed or were too short (MAX_FAILED_STARTS)"
    rm -f "$_failed_starts"
    exit "$1"
}

as_job() {
    local run=${1%"${1##*[!/]}"} ended status # without slashes at its end
    shift
    # Each start has a file of its own, as a process of an earlier one may still end on a node that was lost.
    mkdir -p "$(dirname "$run")"
    if cat "$run.status.$SLURM_JOB_ID".* 2>/dev/null | grep -qx 0; then # the node was lost before the script had ended
        echo "job $SLURM_JOB_ID was finished by an earlier start"
        rm -rf "$run.status.$SLURM_JOB_ID".* "$_failed_starts"
        exit 0
    fi
    rm -rf "$run.status.$SLURM_JOB_ID".*
    export NNUE_STATUS_FILE=$run.status.$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}
    _run "$@"
    ended=$?
    status=$(head -n 1 "$NNUE_STATUS_FILE" 2>/dev/null || echo none)
    status=${status:-started} # the disk was full
    rm -rf "$NNUE_STATUS_FILE" "$NNUE_STATUS_FILE.nodes"
    echo "job $SLURM_JOB_ID ended with status $status after ${SLURM_RESTART_COUNT:-0} restarts"

    [ -z "$_signalled" ] || case $status in started | none) status=early ;; esac
    case $status in
    early) _failed_start 75 ;;
    none) _failed_start $((ended > 0 ? ended : 1)) ;;
    *) rm -f "$_failed_starts" ;;
    esac
    case $status in
    75 | 76 | early) ;;
    69 | started | none) [ "${SLURM_RESTART_COUNT:-0}" -lt "${MAX_REQUEUES:-100}" ] || exit 1 ;;
    *) exit "$status" ;;
    esac
    [ "$status" != 69 ] || _run sleep "${NNUE_LEASE_SECONDS:-60}"
    case $status in 69 | 76) _requeue "$status" ;; *) _requeue 75 ;; esac
}
