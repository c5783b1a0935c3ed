"""Part of the double of Horovod."""
