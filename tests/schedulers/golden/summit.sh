# $ bsub /scratch/me/hpcml/runs/demo/20261121-083015-222abcde/job.sh
#!/bin/bash
# hpcml run 20261121-083015-222abcde; may be submitted again by hand: bsub job.sh
#BSUB -P ACCOUNT
#BSUB -q batch
#BSUB -W 2:00
#BSUB -nnodes 1
#BSUB -alloc_flags "gpumps smt1"
#BSUB -cwd /scratch/me/hpcml/runs/demo/20261121-083015-222abcde
#BSUB -o /scratch/me/hpcml/runs/demo/20261121-083015-222abcde/job.log
#BSUB -r
#BSUB -J golden.20261121-083015-222abcde

unset HPCML_ARRAY_INDEX HPCML_PACK HPCML_NODE_RANK
export HPCML_JOB_ID=$LSB_JOBID HPCML_JOB_NAME=golden.20261121-083015-222abcde
HPCML_JOB_START=$(date +%s%N).$$  # a job that is started once more keeps its id
export HPCML_JOB_START
set -e
export HPCML_REQUEUE='PYTHON -P -m hpcml.schedulers.requeue lsf'
export HPCML_TIME_LIMIT='PYTHON -P -m hpcml.schedulers.time_limit lsf'
exec jsrun -n 1 -r 1 -a 1 -c 42 -g 6 -b none PYTHON -P -c 'from hpcml.agent.main import begin; begin()' /scratch/me/hpcml/runs/demo/20261121-083015-222abcde
