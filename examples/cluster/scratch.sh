# shellcheck shell=bash
# Copies data files to a fast local disk of each node of a job; read it with `source`, before `as_job`:
#
#   stage_in /scratch/$USER FILE...    copies what is missing or has another size, once per node
#
# Recipes then name the copies. A training continues on other nodes if the copies have the same paths there.

stage_in() {
    local folder=$1
    shift
    # shellcheck disable=SC2016 # the inner shell expands its own arguments
    srun --ntasks-per-node=1 bash -c '
        folder=$1
        shift
        mkdir -p "$folder" || exit
        for file; do
            copy=$folder/$(basename "$file")
            [ "$(stat -Lc %s "$file")" = "$(stat -Lc %s "$copy" 2>/dev/null)" ] && continue
            cp -L "$file" "$copy.part.$$" && mv "$copy.part.$$" "$copy" || exit
        done' stage_in "$folder" "$@"
}
