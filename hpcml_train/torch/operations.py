"""What each operation of torch is to an emulation: a product, harmless, listed, or refused; nothing passes unknown.

A product that slipped through would be FP32 under another name. So an operation is passed on only where its tags, its
schema or a list below say that it multiplies no matrices; the others are refused by name, those of a newer torch and of
other libraries among them. tests/train/test_operations.py asks for the class of every operation of the installed torch.
"""

from __future__ import annotations

import functools
from enum import Enum
from typing import Any, Collection, FrozenSet, Mapping, NamedTuple, Optional, Tuple

import torch

Operation = Any  # torch._ops.OpOverload, which torch does not export


def _words(text: str) -> FrozenSet[str]:
    return frozenset(text.split())


class Kind(Enum):
    """What an emulation does with an operation."""

    PRODUCT = "its factors are rounded"
    REPLACED = "it is computed by others, which are seen"  # hpcml_train.torch.replacements
    COMPOSITE = "torch itself computes it by others"
    HARMLESS = "it multiplies no matrices"
    LISTED = "it passes, and is counted"
    REFUSED = "its products cannot be rounded"
    UNKNOWN = "nobody has looked at it: refused too"


class Product(NamedTuple):
    """The arguments of a product of matrices."""

    factors: Tuple[int, ...]  # positions
    addend: Optional[int] = None  # the position of what is added to the product, and stays as it is


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
    # of sparse matrices, whose values are rounded
    "_sparse_addmm": _ADDED,
    "sparse_sampled_addmm": _ADDED,
    "sspaddmm": _ADDED,
    "hspmm": _TWO,
    "_sparse_sparse_matmul": _TWO,
    "_sparse_mm_reduce_impl": _TWO,
}
REPLACED = (
    *("_addmm_activation", "conv_tbc", "_trilinear", "_euclidean_dist", "_cdist_forward"),
    "affine_grid_generator",
)
# Solvers, decompositions and transforms: libraries compute them in FP32 on a GPU as well. They pass, and the journal of
# a run says how many there were. Products of integers are no floating point.
_LISTED = _words(
    """
    _cholesky_solve_helper _compute_linear_combination _fft_c2c _fft_c2r _fft_r2c _int_mm _linalg_det
    _linalg_eigh _linalg_eigvals _linalg_slogdet _linalg_solve_ex _linalg_svd _spsolve cholesky cholesky_inverse
    cholesky_solve geqrf linalg_cholesky_ex linalg_eig linalg_eigvals linalg_householder_product linalg_inv_ex
    linalg_ldl_factor_ex linalg_ldl_solve linalg_lstsq linalg_lu linalg_lu_factor_ex linalg_lu_solve
    linalg_matrix_exp linalg_pinv linalg_qr linalg_solve_triangular ormqr triangular_solve
    """
)
# Several products in one kernel, whose factors nobody sees; kernels of one library that torch's general operation
# chooses by itself; products of numbers that are in few bits already; and torch's own tests.
_REFUSED = _words(
    """
    _conv_depthwise2d _convert_weight_to_int4pack _convert_weight_to_int4pack_for_cpu _cslt_compress
    _cslt_sparse_mm _cslt_sparse_mm_search _cudnn_attention_backward _cudnn_attention_forward _cudnn_rnn
    _cudnn_rnn_backward _cudnn_rnn_flatten_weight _dyn_quant_matmul_4bit _dyn_quant_pack_4bit_weight
    _efficient_attention_backward _efficient_attention_forward _flash_attention_backward
    _flash_attention_forward _flash_attention_forward_no_dropout_inplace _foobar _foreach_mm _grouped_mm
    _lstm_mps _mixed_dtypes_linear _mps_convolution _mps_convolution_transpose _native_multi_head_attention
    _nnpack_spatial_convolution _scaled_dot_product_attention_math_for_mps _scaled_dot_product_cudnn_attention
    _scaled_dot_product_cudnn_attention_backward _scaled_dot_product_efficient_attention
    _scaled_dot_product_efficient_attention_backward _scaled_dot_product_flash_attention
    _scaled_dot_product_flash_attention_backward _scaled_dot_product_flash_attention_for_cpu
    _scaled_dot_product_flash_attention_for_cpu_backward _scaled_dot_product_fused_attention_overrideable
    _scaled_dot_product_fused_attention_overrideable_backward _scaled_grouped_mm _scaled_grouped_mm_v2
    _scaled_mm _scaled_mm_v2 _slow_conv2d_backward _slow_conv2d_forward _sparse_mm_reduce_impl_backward
    _sparse_semi_structured_addmm _sparse_semi_structured_apply _sparse_semi_structured_apply_dense
    _sparse_semi_structured_linear _sparse_semi_structured_mm _sparse_semi_structured_tile
    _test_autograd_multiple_dispatch _test_autograd_multiple_dispatch_view_copy
    _test_functorch_fallback _test_optional_filled_intlist
    _test_optional_floatlist _test_optional_intlist _test_parallel_materialize _test_warn_in_autograd
    _to_sparse_semi_structured _transformer_encoder_layer_fwd _triton_multi_head_attention
    _triton_scaled_dot_attention _weight_int4pack_mm _weight_int4pack_mm_for_cpu
    _weight_int4pack_mm_with_scales_and_zeros _weight_int8pack_mm conv_depthwise3d
    convolution_backward_overrideable convolution_overrideable cudnn_convolution cudnn_convolution_add_relu
    cudnn_convolution_relu cudnn_convolution_transpose linear linear_backward lstm_mps_backward matmul_backward
    miopen_convolution miopen_convolution_add_relu miopen_convolution_relu miopen_convolution_transpose
    miopen_depthwise_convolution miopen_rnn miopen_rnn_backward mkldnn_convolution mkldnn_linear
    mkldnn_linear_backward mkldnn_linear_backward_input mkldnn_linear_backward_weights
    mkldnn_reorder_conv2d_weight mkldnn_reorder_conv3d_weight mkldnn_rnn_layer mkldnn_rnn_layer_backward
    mps_convolution_backward mps_convolution_transpose_backward quantized_gru quantized_lstm slow_conv3d_forward
    slow_conv_dilated2d slow_conv_dilated3d slow_conv_transpose2d slow_conv_transpose3d
    """
)
# What is left of torch 2.13 without the tag "pointwise" that makes tensors of tensors: elementwise (an outer product
# too), reductions, copies, indexing, pooling, normalisation, interpolation, losses, random numbers, optimisers. The
# same name with an underscore is the same in place.
_HARMLESS = _words(
    """
    __irshift__ __lshift__ __rshift__ _adaptive_avg_pool2d _adaptive_avg_pool2d_backward _adaptive_avg_pool3d
    _adaptive_avg_pool3d_backward _add_relu _aminmax _amp_foreach_non_finite_check_and_unscale _amp_update_scale
    _assert_async _assert_tensor_metadata _batch_norm_no_update _batch_norm_with_update
    _batch_norm_with_update_functional _cdist_backward _chunk_cat _coalesce _coalesced _conj_copy _conj_physical
    _convert_indices_from_coo_to_csr _convert_indices_from_csr_to_coo _copy_from _copy_from_and_resize _ctc_loss
    _ctc_loss_backward _cudnn_ctc_loss _cudnn_init_dropout_state _cummax_helper _cummin_helper _dimI _dimV
    _dirichlet_grad _efficientzerotensor _embedding_bag _embedding_bag_backward _embedding_bag_dense_backward
    _embedding_bag_forward_only _embedding_bag_per_sample_weights_backward _empty_affine_quantized
    _empty_per_channel_affine_quantized _fake_quantize_learnable_per_channel_affine
    _fake_quantize_learnable_per_channel_affine_backward _fake_quantize_learnable_per_tensor_affine
    _fake_quantize_learnable_per_tensor_affine_backward
    _fake_quantize_per_tensor_affine_cachemask_tensor_qparams _fill_mem_eff_dropout_mask_ _foreach_abs
    _foreach_acos _foreach_add _foreach_addcdiv _foreach_addcmul _foreach_asin _foreach_atan _foreach_ceil
    _foreach_clamp_max _foreach_clamp_min _foreach_clone _foreach_copy _foreach_cos _foreach_cosh _foreach_div
    _foreach_erf _foreach_erfc _foreach_exp _foreach_expm1 _foreach_floor _foreach_frac _foreach_lerp
    _foreach_lgamma _foreach_log _foreach_log10 _foreach_log1p _foreach_log2 _foreach_max _foreach_maximum
    _foreach_minimum _foreach_mul _foreach_neg _foreach_norm _foreach_pow _foreach_powsum _foreach_reciprocal
    _foreach_round _foreach_rsqrt _foreach_sigmoid _foreach_sign _foreach_sin _foreach_sinh _foreach_sqrt
    _foreach_sub _foreach_tan _foreach_tanh _foreach_trunc _foreach_zero _functional_assert_async
    _functional_assert_scalar _functional_sym_constrain_range _functional_sym_constrain_range_for_size
    _fused_adagrad _fused_adam _fused_adamw _fused_dropout _fused_moving_avg_obs_fq_helper
    _fused_moving_avg_obs_fq_helper_functional _fused_rms_norm_backward _fused_sdp_choice _fused_sgd
    _fw_primal_copy _grid_sampler_2d_cpu_fallback _grid_sampler_2d_cpu_fallback_backward _has_same_storage_numel
    _histogramdd_bin_edges _histogramdd_from_bin_cts _histogramdd_from_bin_tensors _index_put_impl _indices_copy
    _is_all_true _is_any_true _jagged_to_padded_dense_forward _lazy_clone _linalg_check_errors
    _local_scalar_dense _log_softmax _log_softmax_backward_data _logcumsumexp _make_dual_copy
    _make_per_channel_quantized_tensor _make_per_tensor_quantized_tensor _masked_scale _masked_softmax
    _masked_softmax_backward _mkldnn_reshape _mkldnn_transpose _native_batch_norm_legit
    _native_batch_norm_legit_functional _native_batch_norm_legit_no_training _neg_view_copy
    _nested_compute_contiguous_strides_offsets _nested_from_padded _nested_from_padded_and_nested_example
    _nested_from_padded_tensor _nested_get_jagged_dummy _nested_get_lengths _nested_get_max_seqlen
    _nested_get_min_seqlen _nested_get_offsets _nested_get_ragged_idx _nested_get_values_copy
    _nested_select_backward _nested_sum_backward _nested_tensor_from_mask _nested_tensor_from_mask_left_aligned
    _nested_tensor_from_tensor_list _nested_tensor_size _nested_tensor_softmax_with_shape
    _nested_tensor_storage_offsets _nested_tensor_strides _nested_view_from_buffer_copy
    _nested_view_from_jagged_copy _new_zeros_with_same_feature_meta _nnz _pack_padded_sequence
    _padded_dense_to_jagged_forward _pdist_backward _pdist_forward _philox_key_fold_in _philox_key_split
    _philox_normal _philox_uniform _pin_memory _prelu_kernel _prelu_kernel_backward _reshape_alias_copy
    _reshape_copy _resize_output _safe_softmax _sample_dirichlet _segment_reduce_backward _softmax
    _softmax_backward_data _sparse_broadcast_to_copy _sparse_coo_tensor_with_dims
    _sparse_coo_tensor_with_dims_and_tensors _sparse_csr_prod _sparse_csr_sum _sparse_log_softmax
    _sparse_log_softmax_backward_data _sparse_mask_projection _sparse_softmax _sparse_softmax_backward_data
    _sparse_sum _sparse_sum_backward _spdiags _stack _standard_gamma _standard_gamma_grad _thnn_fused_gru_cell
    _thnn_fused_gru_cell_backward _thnn_fused_lstm_cell _thnn_fused_lstm_cell_backward_impl _to_copy _to_dense
    _to_sparse _to_sparse_bsc _to_sparse_bsr _to_sparse_csc _to_sparse_csr _transform_bias_rescale_qkv _unique
    _unique2 _unsafe_index _unsafe_index_put _unsafe_masked_index _unsafe_masked_index_put_accumulate
    _unsafe_view _upsample_bicubic2d_aa _upsample_bicubic2d_aa_backward _upsample_bilinear2d_aa
    _upsample_bilinear2d_aa_backward _upsample_lanczos2d_aa _upsample_lanczos2d_aa_backward
    _upsample_nearest_exact1d _upsample_nearest_exact1d_backward _upsample_nearest_exact2d
    _upsample_nearest_exact2d_backward _upsample_nearest_exact3d _upsample_nearest_exact3d_backward
    _use_cudnn_ctc_loss _use_miopen_ctc_loss _validate_compressed_sparse_indices _values_copy
    _weight_norm_interface _weight_norm_interface_backward abs_ adaptive_avg_pool1d adaptive_avg_pool2d
    adaptive_avg_pool3d adaptive_avg_pool3d_backward adaptive_max_pool2d adaptive_max_pool2d_backward
    adaptive_max_pool3d adaptive_max_pool3d_backward add addr alias_copy all allclose amax
    amin aminmax any arange argmax argmin as_strided_ as_strided_copy as_strided_scatter avg_pool1d avg_pool2d
    avg_pool2d_backward avg_pool3d avg_pool3d_backward bartlett_window batch_norm_backward
    batch_norm_backward_elemt batch_norm_backward_reduce batch_norm_elemt batch_norm_gather_stats
    batch_norm_gather_stats_with_counts batch_norm_stats batch_norm_update_stats bernoulli binary_cross_entropy
    binary_cross_entropy_backward binary_cross_entropy_with_logits bincount binomial bitwise_and
    bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor blackman_window block_diag bucketize cat
    cauchy ccol_indices_copy celu channel_shuffle clone col2im col_indices_copy complex constant_pad_nd copy
    copy_sparse_to_sparse copysign_ count_nonzero crow_indices_copy cudnn_affine_grid_generator
    cudnn_affine_grid_generator_backward cudnn_batch_norm cudnn_batch_norm_backward cudnn_grid_sampler
    cudnn_grid_sampler_backward cummax cummin cumprod cumsum dense_dim dequantize detach_ detach_copy diag_embed
    diagonal_backward diagonal_copy diagonal_scatter dist div elu elu_backward embedding
    embedding_dense_backward embedding_renorm empty_like empty_permuted empty_quantized empty_strided eq_
    expand_copy exponential eye fake_quantize_per_channel_affine_cachemask
    fake_quantize_per_tensor_affine_cachemask fft_fftfreq fft_rfftfreq fill flip floor_divide
    fractional_max_pool2d fractional_max_pool2d_backward fractional_max_pool3d fractional_max_pool3d_backward
    from_file full full_like gather gcd_ ge_ gelu gelu_backward geometric glu glu_backward glu_backward_jvp
    glu_jvp grid_sampler_2d grid_sampler_2d_backward grid_sampler_3d grid_sampler_3d_backward gt_ hamming_window
    hann_window hardshrink hardshrink_backward hardsigmoid hardsigmoid_backward hardswish hardswish_backward
    hardtanh hardtanh_backward hash_tensor heaviside_ histc histogram huber_loss huber_loss_backward im2col
    index index_add index_copy index_fill index_put index_reduce index_select indices_copy int_repr is_coalesced
    is_pinned is_same_size is_set_to isin isinf isnan kaiser_window kthvalue lcm_ le_ leaky_relu
    leaky_relu_backward lift lift_fresh_copy linalg__powsum linalg_cross linalg_vector_norm linspace log_normal
    log_sigmoid_backward log_sigmoid_forward log_softmax logcumsumexp logspace logsumexp lt_ lu_unpack
    masked_fill masked_scatter masked_scatter_backward masked_select max max_pool2d_backward
    max_pool2d_with_indices max_pool2d_with_indices_backward max_pool3d_with_indices
    max_pool3d_with_indices_backward max_unpool2d max_unpool3d mean median min miopen_batch_norm
    miopen_batch_norm_backward miopen_ctc_loss mish mkldnn_adaptive_avg_pool2d
    mkldnn_adaptive_avg_pool2d_backward mkldnn_max_pool2d mkldnn_max_pool2d_backward mkldnn_max_pool3d
    mkldnn_max_pool3d_backward mode mse_loss mse_loss_backward mul multi_margin_loss multi_margin_loss_backward
    multilabel_margin_loss_backward multilabel_margin_loss_forward multinomial nanmedian nansum narrow_copy
    native_batch_norm native_batch_norm_backward native_dropout native_dropout_backward native_group_norm
    native_group_norm_backward native_layer_norm native_layer_norm_backward native_norm ne_ new_empty
    new_empty_strided new_full new_ones new_zeros nll_loss2d_backward nll_loss2d_forward nll_loss_backward
    nll_loss_forward nonzero nonzero_static norm normal normal_functional ones ones_like permute_copy
    pixel_shuffle pixel_unshuffle poisson polar prod put q_per_channel_axis q_per_channel_scales
    q_per_channel_zero_points q_scale q_zero_point qscheme quantize_per_channel quantize_per_tensor
    quantize_per_tensor_dynamic quantized_batch_norm quantized_max_pool1d quantized_max_pool2d
    quantized_max_pool3d rand rand_like randint randint_like randn_like random randperm range record_stream
    reflection_pad1d reflection_pad1d_backward reflection_pad2d reflection_pad2d_backward reflection_pad3d
    reflection_pad3d_backward relu remainder renorm repeat repeat_interleave replication_pad1d
    replication_pad1d_backward replication_pad2d replication_pad2d_backward replication_pad3d
    replication_pad3d_backward resize resize_as resize_as_sparse roll rot90 row_indices_copy rrelu_with_noise
    rrelu_with_noise_backward rrelu_with_noise_functional rsub scalar_tensor scatter scatter_add scatter_reduce
    searchsorted segment_reduce select_backward select_copy select_scatter set slice_backward slice_copy
    slice_scatter smooth_l1_loss smooth_l1_loss_backward soft_margin_loss soft_margin_loss_backward softmax
    softplus softplus_backward softshrink softshrink_backward sort sparse_compressed_tensor sparse_coo_tensor
    sparse_dim sparse_mask sparse_resize sparse_resize_and_clear split_copy split_with_sizes_copy squeeze_
    squeeze_copy stack std std_mean sub sum t_ t_copy take threshold threshold_backward to_mkldnn
    to_padded_tensor topk trace transpose_ transpose_copy tril tril_indices triu triu_indices unbind_copy
    unfold_backward unfold_copy uniform unique_consecutive unique_dim unique_dim_consecutive unsafe_split
    unsafe_split_with_sizes unsqueeze_ unsqueeze_copy upsample_bicubic2d upsample_bicubic2d_backward
    upsample_bilinear2d upsample_bilinear2d_backward upsample_linear1d upsample_linear1d_backward
    upsample_nearest1d upsample_nearest1d_backward upsample_nearest2d upsample_nearest2d_backward
    upsample_nearest3d upsample_nearest3d_backward upsample_trilinear3d upsample_trilinear3d_backward
    values_copy var var_mean view_as_complex_copy view_as_real_copy view_copy where xlogy_ zero zeros zeros_like
    """
)
# Other libraries' operators are refused; but for torch's own messages between processes, its profiler and its scripts,
# and what torchvision does to boxes.
_HARMLESS_NAMESPACES = (
    *("c10d", "_c10d_functional", "_c10d_functional_autograd", "_dtensor", "fsdp"),
    *("prim", "profiler"),
)
HARMLESS_ELSEWHERE = ("torchvision::nms", "torchvision::roi_align", "torchvision::_roi_align_backward")


_KNOWN: Mapping[Kind, Collection[str]] = {
    Kind.PRODUCT: PRODUCTS,
    Kind.REPLACED: REPLACED,
    Kind.REFUSED: _REFUSED,
    Kind.LISTED: _LISTED,
}


def name_of(func: Operation) -> str:
    """Return the name of an operation without its namespace and overload: ``addmm``."""
    name: str = func._schema.name.rpartition("::")[2]  # noqa: SLF001 - the schema has no public name
    return name


@functools.lru_cache(maxsize=None)
def kind_of(func: Operation) -> Kind:
    """Return what an emulation does with *func*."""
    namespace, _, name = func._schema.name.rpartition("::")  # noqa: SLF001
    if namespace != "aten":
        is_known = namespace in _HARMLESS_NAMESPACES or func._schema.name in HARMLESS_ELSEWHERE  # noqa: SLF001
        return Kind.HARMLESS if is_known else Kind.UNKNOWN
    if name not in PRODUCTS and name not in REPLACED and _is_composite(func):
        return Kind.COMPOSITE
    for kind, known in _KNOWN.items():
        if name in known:
            return kind
    return Kind.HARMLESS if _is_harmless(func, name) else Kind.UNKNOWN


def _is_composite(func: Operation) -> bool:
    key = "CompositeImplicitAutograd"
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key))  # noqa: SLF001 - as torch does it


def is_harmless_name(name: str) -> bool:
    """Whether the operation *name* of torch's own is listed as one that multiplies no matrices, or a solver."""
    return name in _HARMLESS or name in _LISTED


def is_solver_name(name: str) -> bool:
    """Whether the operation *name* of torch's own is a solver, a decomposition or a transform."""
    return name in _LISTED


def is_refused_name(name: str) -> bool:
    """Whether the operation *name* of torch's own is listed as one that hides its products."""
    return name in _REFUSED


def product_of(func: Operation) -> Product:
    """Return the arguments of *func*, a `Kind.PRODUCT`."""
    return PRODUCTS[name_of(func)]


def _is_harmless(func: Operation, name: str) -> bool:
    if name in _HARMLESS or (name.endswith("_") and name[:-1] in _HARMLESS) or torch.Tag.pointwise in func.tags:
        return True
    schema = func._schema  # noqa: SLF001
    if not any("Tensor" in str(argument.type) for argument in schema.arguments):
        return True  # made of nothing
    views = [returned.alias_info is not None and not returned.alias_info.is_write for returned in schema.returns]
    return bool(views) and all(views)
