#!/bin/sh
# Slurm's prolog: writes down which job has which GPU, for trainer-exporter's attribution.job_mapping_dir (dcgm-exporter reads the same).
# A file a GPU, named by its index, with a job id a line. It asks no daemon of Slurm: all it needs is in its environment.
#
# It always ends with 0: a prolog that fails drains the node, and a note for the monitoring is not worth a node.
DIRECTORY="${TRAINER_EXPORTER_JOBS:-/run/trainer-exporter/jobs}"

# "0,2-3" as "0 2 3"; anything else is left out.
indices() {
    for part in $(printf '%s' "${SLURM_JOB_GPUS:-}" | tr ',' ' '); do
        case $part in
            *[!0-9-]* | -* | *-) ;;
            *-*) seq "${part%-*}" "${part#*-}" ;;
            *) echo "$part" ;;
        esac
    done
}

note() {
    flock -w 30 9 || return
    for gpu in $(indices); do
        # Added, not replaced: jobs may share a card. Renamed, so that nobody reads half a line.
        { [ ! -f "$DIRECTORY/$gpu" ] || grep -vxF "$SLURM_JOB_ID" "$DIRECTORY/$gpu"; echo "$SLURM_JOB_ID"; } >"$DIRECTORY/.$gpu.new"
        mv "$DIRECTORY/.$gpu.new" "$DIRECTORY/$gpu"
    done
}

umask 022
[ -z "${SLURM_JOB_ID:-}" ] || { mkdir -p "$DIRECTORY" && note 9>"$DIRECTORY/.lock"; }
exit 0
