"""What recipes need of TensorFlow."""

import os

# Before TensorFlow is loaded. By itself it takes oneDNN's kernels only on CPUs with AVX-512, and without them has no
# convolution in NCHW (TensorFlow 2.21): a recipe would end on one node and train on the other.
os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
