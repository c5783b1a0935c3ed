"""The own machine as a scheduler: a queue that outlives the terminal, with claims on cores and GPUs."""
