"""What each operation of torch is: a product of matrices, one made of others, a fused one, a solver, or none of these.

An emulation rounds products and refuses fused ones by name; an observer counts them. Torch's own operations are told by
name: whatever sounds like a product, in a newer torch too, is taken for a fused one. Those of other libraries are
unknown. tests/train/test_operations.py asks for the kind of every operation of the installed torch.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any, NamedTuple

import torch

Operation = Any  # torch._ops.OpOverload, which torch does not export


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


class Kind(Enum):
    """What an operation is."""

    PRODUCT = "a product of matrices, whose factors are its arguments"
    COMPOSITE = "torch itself computes it by others"
    SOLVER = "a solver, a decomposition or a transform: libraries compute it in FP32 on a GPU as well"
    FUSED = "products inside of one kernel"
    OTHER = "it multiplies no matrices"
    UNKNOWN = "of another library"


class Product(NamedTuple):
    """The arguments of a product of matrices."""

    factors: tuple[int, ...]  # positions
    addend: int | None = None  # the position of what is added to the product, and stays as it is


_TWO = Product((0, 1))
_ADDED = Product((1, 2), addend=0)
_CONVOLUTION = Product((0, 1), addend=2)
CONVOLUTIONS = ("convolution", "_convolution")
CONVOLUTION_BACKWARD = "convolution_backward"
PRODUCTS: Mapping[str, Product] = {
    "mm": _TWO,
    "bmm": _TWO,
    "mv": _TWO,
    "dot": _TWO,
    "vdot": _TWO,
    "addmm": _ADDED,
    "addmm_": _ADDED,
    "addbmm": _ADDED,
    "addbmm_": _ADDED,
    "baddbmm": _ADDED,
    "baddbmm_": _ADDED,
    "addmv": _ADDED,
    "addmv_": _ADDED,
    "convolution": _CONVOLUTION,
    "_convolution": _CONVOLUTION,
    CONVOLUTION_BACKWARD: Product((0, 1, 2)),
    # of sparse matrices, which an observer counts and an emulation refuses
    "_sparse_addmm": _ADDED,
    "sparse_sampled_addmm": _ADDED,
    "sspaddmm": _ADDED,
    "hspmm": _TWO,
    "_sparse_sparse_matmul": _TWO,
    "_sparse_mm_reduce_impl": _TWO,
}
_SOLVERS = _words(
    """
    _cholesky_solve_helper _compute_linear_combination _fft_c2c _fft_c2r _fft_r2c _int_mm _linalg_det
    _linalg_eigh _linalg_eigvals _linalg_slogdet _linalg_solve_ex _linalg_svd _spsolve cholesky cholesky_inverse
    cholesky_solve geqrf linalg_cholesky_ex linalg_eig linalg_eigvals linalg_householder_product linalg_inv_ex
    linalg_ldl_factor_ex linalg_ldl_solve linalg_lstsq linalg_lu linalg_lu_factor_ex linalg_lu_solve
    linalg_matrix_exp linalg_pinv linalg_qr linalg_solve_triangular ormqr triangular_solve
    """
)
_SOUNDS_LIKE_A_PRODUCT = re.compile(
    r"(^|_)(b|add|addb|badd|sp|ss|hs|chain_)?(mm|mv|matmul)(_|$)|conv(?!ert)|attention"
    r"|(^|_)(rnn|lstm|gru|gemm|linear|v?dot)(_|$)|int[48]pack"
)
_FUSED = ("_trilinear", "_euclidean_dist", "_cdist_forward", "affine_grid_generator", "_transformer_encoder_layer_fwd")
# The gates of a cell, whose products come before; and how cuDNN lays its weights out.
_NO_PRODUCTS = re.compile(r"_thnn_(fused|differentiable)_(lstm|gru)_cell|_flatten_weight$|mkldnn_reorder_conv")
# Torch's own messages between processes, its profiler and its scripts; and what torchvision does to boxes.
_HARMLESS_NAMESPACES = (
    *("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "fsdp", "symm_mem", "device_mesh"),
    *("prim", "prims", "profiler", "inductor", "debugprims", "rngprims", "nccl"),
)
_HARMLESS_ELSEWHERE = ("torchvision::nms", "torchvision::roi_align", "torchvision::_roi_align_backward")


def name_of(func: Operation) -> str:
    """Return the name of an operation without its namespace and overload: ``addmm``."""
    name: str = func._schema.name.rpartition("::")[2]  # noqa: SLF001 - the schema has no public name
    return name


@functools.cache
def kind_of(func: Operation) -> Kind:
    """Return what *func* is."""
    namespace, _, name = func._schema.name.rpartition("::")  # noqa: SLF001
    if namespace != "aten":
        is_known = namespace in _HARMLESS_NAMESPACES or func._schema.name in _HARMLESS_ELSEWHERE  # noqa: SLF001
        return Kind.OTHER if is_known else Kind.UNKNOWN
    if name in PRODUCTS:
        return Kind.PRODUCT
    if _is_composite(func):
        return Kind.COMPOSITE
    if name in _SOLVERS:
        return Kind.SOLVER
    plain = name.rstrip("_")
    is_fused = plain in _FUSED or (_SOUNDS_LIKE_A_PRODUCT.search(plain) and not _NO_PRODUCTS.search(plain))
    return Kind.FUSED if is_fused else Kind.OTHER


def _is_composite(func: Operation) -> bool:
    key = "CompositeImplicitAutograd"
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key))  # noqa: SLF001 - as torch does it


def product_of(func: Operation) -> Product:
    """Return the arguments of *func*, a `Kind.PRODUCT`."""
    return PRODUCTS[name_of(func)]
