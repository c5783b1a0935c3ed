"""The lines by which a PBS job script, which PBS starts on the first node only, starts itself on all of them."""

from __future__ import annotations

import shlex
from pathlib import Path

from hpcml.cluster import LAUNCHERS


def on_every_node(script: Path, launcher: str | None) -> list[str]:
    """Return the lines for *script*, with what starts a program on another node: *launcher*, or what is found there.

    The first shell starts the script on each node as one of a rank, and waits for all of them; theirs go on below.
    """
    return f"""
script={shlex.quote(str(script))}
if [ -z "$HPCML_NODE_RANK" ]; then
    PATH="$PATH:$(. /etc/pbs.conf 2>/dev/null; echo "${{PBS_EXEC:-/opt/pbs}}")/bin"
    for launcher in {launcher or " ".join(LAUNCHERS)}; do
        command -v "$launcher" >/dev/null && break
        launcher=
    done
    if [ -z "$launcher" ]; then
        echo "no {launcher or ", ".join(LAUNCHERS)} on this node to reach the others: see cluster.launcher" >&2
        exit 127
    fi
    mapfile -t nodes < <(awk '!seen[$0]++' "$PBS_NODEFILE")  # it names a node once for each of its MPI slots
    export HPCML_MASTER_ADDR=${{nodes[0]}}
    told=()  # what is exported here does not reach the other nodes
    for name in HPCML_MASTER_ADDR PBS_JOBID PBS_JOBNAME PBS_ARRAY_ID PBS_ARRAY_INDEX PBS_O_PATH PBS_O_WORKDIR; do
        [ -z "${{!name}}" ] || told+=("$name=${{!name}}")
    done
    on_node() {{  # RANK WORDS: become the launcher that runs WORDS there
        node=${{nodes[$1]}}
        shift
        trap '' USR1 USR2  # else the launcher dies of a signal that is meant for the agents
        case $launcher in
            pbs_tmrsh) exec pbs_tmrsh "$node" "$@" ;;
            # -tt: the agent there is hung up on if this end is killed; PBS itself does not reach it
            ssh) exec ssh -tt -o BatchMode=yes "$node" "$(printf '%q ' "$@")" ;;
            # the variables: Open MPI and Intel MPI would bind the agent, and all that it starts, to one core
            mpiexec) OMPI_MCA_hwloc_base_binding_policy=none PRTE_MCA_hwloc_default_binding_policy=none I_MPI_PIN=off \\
                exec mpiexec -n 1 -host "$node" "$@" ;;
            # It always succeeds: how the agent there ended, only its journal tells
            pbsdsh) exec pbsdsh -h "$node" -- "$@" ;;
        esac
    }}
    pass_on() {{  # SIGNAL: to the agents of the other nodes, which a signal to the job does not reach
        local rank
        for rank in "${{!nodes[@]}}"; do
            [ "$rank" -eq 0 ] && continue
            on_node "$rank" /bin/bash -c 'kill -s "$1" "$(<"$2")"' - "$1" "$script.$PBS_JOBID.$rank" &
        done
    }}
    trap 'pass_on USR1' USR1
    trap : TERM USR2  # this shell has to outlive the agents; PBS signals each process, and the tasks of other nodes
    HPCML_NODE_RANK=0 /bin/bash "$script" &
    agents=($!)
    for rank in "${{!nodes[@]}}"; do
        [ "$rank" -eq 0 ] && continue
        on_node "$rank" /usr/bin/env HPCML_NODE_RANK="$rank" "${{told[@]}}" /bin/bash "$script" &
        agents+=($!)
    done
    status=0
    for agent in "${{agents[@]}}"; do
        while wait "$agent"; code=$?; kill -0 "$agent" 2>/dev/null; do :; done  # a signal ends a wait early
        wait "$agent"; code=$?
        [ "$status" -ne 0 ] || status=$code
    done
    rm -f "$script.$PBS_JOBID".*
    exit "$status"
elif [ "$HPCML_NODE_RANK" -gt 0 ]; then
    echo $$ >"$script.$PBS_JOBID.$HPCML_NODE_RANK"  # this shell becomes the agent
fi""".splitlines()
