# $ flux submit --nodes=1 --ntasks=1 --exclusive --time-limit=3600s --queue=pbatch --setattr=bank=ACCOUNT --cwd=/scratch/me/hpcml/runs/demo/20261121-083015-222abcde --output=/scratch/me/hpcml/runs/demo/20261121-083015-222abcde/job.log --job-name=golden.20261121-083015-222abcde bash /scratch/me/hpcml/runs/demo/20261121-083015-222abcde/job.sh
#!/bin/bash
# hpcml run 20261121-083015-222abcde; may be submitted again by hand: flux submit ... bash job.sh
# flux submit --nodes=1 --ntasks=1 --exclusive --time-limit=3600s --queue=pbatch --setattr=bank=ACCOUNT --cwd=/scratch/me/hpcml/runs/demo/20261121-083015-222abcde --output=/scratch/me/hpcml/runs/demo/20261121-083015-222abcde/job.log --job-name=golden.20261121-083015-222abcde bash /scratch/me/hpcml/runs/demo/20261121-083015-222abcde/job.sh

trap '' USR1  # --signal may come before the agent listens
unset HPCML_ARRAY_INDEX HPCML_PACK HPCML_JOB_START
export HPCML_JOB_ID=${FLUX_JOB_ID//ƒ/f} HPCML_NODE_RANK=$FLUX_TASK_RANK
export HPCML_JOB_NAME=golden.20261121-083015-222abcde
set -e
export HPCML_REQUEUE='PYTHON -P -m hpcml.schedulers.requeue flux'
export HPCML_TIME_LIMIT='PYTHON -P -m hpcml.schedulers.time_limit flux'
exec PYTHON -P -c 'from hpcml.agent.main import begin; begin()' /scratch/me/hpcml/runs/demo/20261121-083015-222abcde
