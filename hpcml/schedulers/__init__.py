"""Jobs handed to whoever runs them: this machine or a scheduler, which is a folder in `registry`.

Each folder has the same files: `submitter` keeps the contract, `script` renders the job, `submission` calls sbatch or
its like and never twice blindly, `query` asks, `answers` reads what was said (pure), `site` learns what the cluster is.
"""
