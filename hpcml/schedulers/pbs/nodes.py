"""The lines of a PBS job that start its script on each node, hand on signals, and end the others once one has failed.

The first shell starts the script on each node as one of a rank, and waits for all of them; theirs go on below. The
first that fails, or is killed, ends the others as with srun: SIGTERM, with the reason in a file that their agents
read, some seconds later SIGKILL, and at last the end of this shell, with which PBS ends the job.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from textwrap import indent

from hpcml.model.cluster import LAUNCHERS
from hpcml.schedulers.script import until_agents_end


def on_every_node(script: Path, launcher: str | None, grace_s: int) -> list[str]:
    """Return the lines for *script*, with what starts a program on another node: *launcher*, or what is found there.

    Whoever does not obey SIGTERM is killed after *grace_s* seconds.
    """
    return [*_launcher_found(script, launcher), *_ON_NODES, *_watched(grace_s), *_LATER_NODES]


def _launcher_found(script: Path, launcher: str | None) -> list[str]:
    """Return the lines that look for what reaches other nodes, and decide what these are told."""
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
    words=$script.$PBS_JOBID  # what the nodes of this job have to tell each other lies in files that begin so
    export HPCML_JOB_END=$words.end
    HPCML_JOB_START=$(date +%s%N).$$  # a job that is requeued keeps its id
    export HPCML_JOB_START
    told=()  # what is exported here does not reach the other nodes
    for name in HPCML_MASTER_ADDR HPCML_JOB_START HPCML_JOB_END \\
        PBS_JOBID PBS_JOBNAME PBS_ARRAY_ID PBS_ARRAY_INDEX PBS_O_PATH PBS_O_WORKDIR; do
        [ -z "${{!name}}" ] || told+=("$name=${{!name}}")
    done
""".splitlines()


# How the first shell reaches the agents: it becomes a launcher for each, and passes signals on.
_ON_NODES = """\
    on_node() {  # RANK WORDS: become the launcher that runs WORDS there
        node=${nodes[$1]}
        shift
        trap '' USR1 USR2  # else the launcher dies of a signal that is meant for the agents
        case $launcher in
            pbs_tmrsh) exec pbs_tmrsh "$node" "$@" ;;
            # -tt: the agent there is hung up on if this end is killed; PBS itself does not reach it
            ssh) exec ssh -tt -o BatchMode=yes -o ServerAliveInterval=30 "$node" "$(printf '%q ' "$@")" ;;
            # the variables: Open MPI and Intel MPI would bind the agent, and all that it starts, to one core
            mpiexec) OMPI_MCA_hwloc_base_binding_policy=none PRTE_MCA_hwloc_default_binding_policy=none I_MPI_PIN=off \\
                exec mpiexec -n 1 -host "$node" "$@" ;;
            # It always succeeds: the exit status is left in a file, and one that is not there was killed
            pbsdsh)
                left=$words.left.$BASHPID
                pbsdsh -h "$node" -- /bin/bash -c 'trap : TERM; "${@:2}"; echo $? >"$1"' - "$left" "$@"
                exit "$(cat "$left" 2>/dev/null || echo 137)" ;;
        esac
    }
    signal_all() {  # SIGNAL RANKS: to the agents of these nodes; a signal to the job does not reach the other nodes
        local number=$1 rank
        shift
        for rank in "$@"; do
            if [ "$rank" -eq 0 ]; then
                kill -s "$number" "${agents[0]}" 2>/dev/null
            else
                on_node "$rank" /bin/bash -c 'kill -s "$1" "$(<"$2")"' - "$number" "$words.$rank" &
            fi
        done
    }
    ending=  # by PBS, which signals each process of the job, and the tasks on its other nodes: no failure of theirs
    others=("${!nodes[@]}")
    unset "others[0]"
    trap 'signal_all USR1 "${others[@]}"' USR1
    trap 'ending=1' TERM  # this shell has to outlive the agents
    trap : USR2
    HPCML_NODE_RANK=0 /bin/bash "$script" &
    agents=($!)
    for rank in "${!nodes[@]}"; do
        [ "$rank" -eq 0 ] && continue
        on_node "$rank" /usr/bin/env HPCML_NODE_RANK="$rank" "${told[@]}" /bin/bash "$script" &
        agents+=($!)
    done
""".splitlines()
# Below what the first shell does alone.
_LATER_NODES = """\
elif [ "$HPCML_NODE_RANK" -gt 0 ]; then
    echo $$ >"$script.$PBS_JOBID.$HPCML_NODE_RANK"  # this shell becomes the agent
fi
""".splitlines()


def _watched(grace_s: int) -> list[str]:
    """Return the lines with which the first shell waits for all agents, and ends the others once one has failed."""
    return f"""\
    status=0 why= term_at= kill_at= leave_at=  # seconds of this shell; not set: never
{indent(until_agents_end("$((SECONDS + 1))  # one second, to hear whether it is PBS that ends us"), " " * 4)}
        if [ -n "$ending" ]; then
            term_at=
        elif [ -n "$term_at" ] && [ "$SECONDS" -ge "$term_at" ]; then
            [ -z "$why" ] || echo "$why" >"$HPCML_JOB_END"
            signal_all TERM "${{!agents[@]}}"
            term_at= kill_at=$((SECONDS + {grace_s}))
        elif [ -n "$kill_at" ] && [ "$SECONDS" -ge "$kill_at" ]; then
            signal_all KILL "${{!agents[@]}}"
            kill_at= leave_at=$((SECONDS + 10))
        elif [ -n "$leave_at" ] && [ "$SECONDS" -ge "$leave_at" ]; then
            break  # a node does not answer: PBS ends what is left of a job whose first process is gone
        fi
    done
    rm -f "$words".*
    exit "$status"
""".splitlines()
