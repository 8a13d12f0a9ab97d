# shellcheck shell=bash
# Copies data files to a fast local disk of each node of a job; read it with `source`, after job.sh and before `as_job`:
#
#   stage_in /scratch/$USER FILE... || exit    copies what is missing or has another size, once per node
#
# Recipes then name the copies. On other nodes the copies may have other paths: a training compares the contents. A
# signal meanwhile ends the copying and queues the job again.

declare -F as_job >/dev/null || source "$(dirname "${BASH_SOURCE[0]}")/job.sh"

stage_in() {
    local folder=$1 status
    shift
    # shellcheck disable=SC2016 # the inner shell expands its own arguments
    _run srun --ntasks-per-node=1 bash -c '
        folder=$1
        shift
        trap "kill \$copying 2>/dev/null; rm -f \"\$part\"; exit 1" USR1 TERM
        mkdir -p "$folder" || exit
        for file; do
            copy=$folder/$(basename "$file")
            part=$copy.part.$$
            size=$(stat -Lc %s "$file") || exit
            [ "$size" = "$(stat -Lc %s "$copy" 2>/dev/null)" ] && continue
            cp -L "$file" "$part" &
            copying=$!
            wait $copying && mv "$part" "$copy" && continue
            rm -f "$part"
            exit 1
        done' stage_in "$folder" "$@"
    status=$?
    if [ -n "$_signalled" ]; then
        _failed_start 75
        _requeue 75
    fi
    return "$status"
}
