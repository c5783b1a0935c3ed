"""What recipes train with: one loop, data, precision, and an adaptor for each framework. Python 3.8 and newer."""
