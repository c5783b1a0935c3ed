"""What a program inside a run may import: standard library only, Python 3.8 and newer."""
