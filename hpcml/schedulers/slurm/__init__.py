"""Slurm by its own commands: sbatch, squeue, sacct, scancel, scontrol and sinfo."""
