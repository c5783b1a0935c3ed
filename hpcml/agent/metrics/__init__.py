"""Values that a program leaves in files of its working directory, and on its output, as metrics of its run."""
