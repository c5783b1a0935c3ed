# $ sbatch /scratch/me/hpcml/runs/demo/20261121-083015-222abcde/job.sh
#!/bin/bash
# hpcml run 20261121-083015-222abcde; may be submitted again by hand: sbatch job.sh
#SBATCH --account=ACCOUNT
#SBATCH --partition=gpu
#SBATCH --qos=gpu-shd
#SBATCH --nodes=1
#SBATCH --time=02:00:00
#SBATCH --signal=B:USR1@180
#SBATCH --requeue
#SBATCH --chdir=/scratch/me/hpcml/runs/demo/20261121-083015-222abcde
#SBATCH --output=/scratch/me/hpcml/runs/demo/20261121-083015-222abcde/slurm.log
#SBATCH --open-mode=append
#SBATCH --gpus=1
#SBATCH --job-name=golden.20261121-083015-222abcde
#SBATCH --comment=hpcml:20261121-083015-222abcde

trap '' USR1  # --signal may come before the agent listens
set -e
export HPCML_REQUEUE='PYTHON -P -m hpcml.schedulers.requeue slurm'
export HPCML_TIME_LIMIT='PYTHON -P -m hpcml.schedulers.time_limit slurm'
exec PYTHON -P -c 'from hpcml.agent.main import begin; begin()' /scratch/me/hpcml/runs/demo/20261121-083015-222abcde
