"""Jobs handed to whoever runs them: this machine, Slurm or PBS; a scheduler is a folder, entered in `registry`.

Each folder has the same files: `submitter` keeps the contract, `script` renders the job, `submission` calls sbatch or
qsub and never twice blindly, `query` asks, `answers` reads what was said (pure), `site` learns what the cluster is.
"""
