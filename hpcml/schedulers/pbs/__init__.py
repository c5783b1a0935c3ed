"""PBS Pro and OpenPBS by their own commands, for hpcml's runs and, as a plugin, for submitit."""
