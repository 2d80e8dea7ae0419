#!/bin/sh
# Slurm's epilog: the job that ends has no GPU any more. It looks into every file, so that one whose prolog saw other GPUs leaves nothing behind.
#
# It always ends with 0: an epilog that fails drains the node, and a note for the monitoring is not worth a node.
DIRECTORY="${TRAINER_EXPORTER_JOBS:-/run/trainer-exporter/jobs}"

forget() {
    flock -w 30 9 || return
    for file in "$DIRECTORY"/[0-9]*; do
        [ -f "$file" ] || continue
        # grep fails where no other job is left: then the card is nobody's.
        if grep -vxF "$SLURM_JOB_ID" "$file" >"$DIRECTORY/.rest"; then
            mv "$DIRECTORY/.rest" "$file"
        else
            rm -f "$file" "$DIRECTORY/.rest"
        fi
    done
}

umask 022
[ -z "${SLURM_JOB_ID:-}" ] || [ ! -d "$DIRECTORY" ] || forget 9>"$DIRECTORY/.lock"
exit 0
