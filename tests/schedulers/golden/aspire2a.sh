# $ qsub -q normal -P ACCOUNT -l select=1:ngpus=1 -l walltime=02:00:00 -W umask=022 -j oe -k oed -o /scratch/me/hpcml/runs/demo/20261121-083015-222abcde/logs/ -m n -r y -N golden.20261121-083015-222abcde -- /bin/bash /scratch/me/hpcml/runs/demo/20261121-083015-222abcde/job.sh
#!/bin/bash
# hpcml run 20261121-083015-222abcde; may be submitted again by hand: qsub job.sh
#PBS -q normal
#PBS -P ACCOUNT
#PBS -l select=1:ngpus=1
#PBS -l walltime=02:00:00
#PBS -W umask=022
#PBS -j oe
#PBS -k oed
#PBS -o /scratch/me/hpcml/runs/demo/20261121-083015-222abcde/logs/
#PBS -m n
#PBS -r y
#PBS -N golden.20261121-083015-222abcde

cd "${PBS_O_WORKDIR:-.}"
export PATH="${PBS_O_PATH:-$PATH}"  # PBS gives /bin:/usr/bin only; this is where it was submitted
set -e
export HPCML_REQUEUE='PYTHON -P -m hpcml.schedulers.requeue pbs'
export HPCML_TIME_LIMIT='PYTHON -P -m hpcml.schedulers.time_limit pbs'
exec PYTHON -P -c 'from hpcml.agent.main import begin; begin()' /scratch/me/hpcml/runs/demo/20261121-083015-222abcde
