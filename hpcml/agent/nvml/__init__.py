"""NVIDIA's management library, as hpcml asks it: the only place that knows pynvml."""
