"""The table of ops as text: a base name, its overloads (`-`: the one without a name), and what is demanded.

The demands are those of `op_table.Demands`: `name=low..high` is a range. An indented line goes on.
"""

ATEN = """\
# Copies and fills
clone: - out
copy: - out
copy_: -; shape=same
fill_: Scalar Tensor; shape=same
fill: Scalar Scalar_out Tensor Tensor_out
lift_fresh_copy: - out
_to_copy: - out
zero_: -
zero: - out

# Factories
arange: - out start start_out start_step; shape=arange
eye: - m m_out out
full: - out
full_like: - out
linspace: - Scalar_Tensor Scalar_Tensor_out Tensor_Scalar Tensor_Scalar_out Tensor_Tensor Tensor_Tensor_out out
logspace: - Scalar_Tensor Scalar_Tensor_out Tensor_Scalar Tensor_Scalar_out Tensor_Tensor Tensor_Tensor_out out
new_full: - out
new_ones: - out
new_zeros: - out
ones: - out
ones_like: -
scalar_tensor: - out
tril_indices: - out
triu_indices: - out
zeros: - out
zeros_like: - out

# One number of one
abs: - out; shape=broadcast
abs_: -; shape=broadcast
acos_: -; shape=broadcast
acos: - out; shape=broadcast
acosh_: -; shape=broadcast
acosh: - out; shape=broadcast
angle: - out; shape=broadcast
asin: - out; shape=broadcast
asin_: -; shape=broadcast
asinh: - out; shape=broadcast
asinh_: -; shape=broadcast
atan: - out; shape=broadcast
atan_: -; shape=broadcast
atanh: - out; shape=broadcast
atanh_: -; shape=broadcast
bitwise_not_: -; shape=broadcast
bitwise_not: - out; shape=broadcast
ceil: - out; shape=broadcast
ceil_: -; shape=broadcast
celu: - out; shape=broadcast
celu_: -; shape=broadcast
_conj_physical: - out; shape=broadcast
conj_physical: out; shape=broadcast
conj_physical_: -; shape=broadcast
cos: - out; shape=broadcast
cos_: -; shape=broadcast
cosh_: -; shape=broadcast
cosh: - out; shape=broadcast
deg2rad: - out; shape=broadcast
deg2rad_: -; shape=broadcast
digamma_: -; shape=broadcast
digamma: - out; shape=broadcast
elu_: -; shape=broadcast
elu: - out; shape=broadcast
erf_: -; shape=broadcast
erf: - out; shape=broadcast
erfc: - out; shape=broadcast
erfc_: -; shape=broadcast
erfinv: - out; shape=broadcast
erfinv_: -; shape=broadcast
exp_: -; shape=broadcast
exp: - out; shape=broadcast
exp2: - out; shape=broadcast
exp2_: -; shape=broadcast
expm1_: -; shape=broadcast
expm1: - out; shape=broadcast
floor: - out; shape=broadcast
floor_: -; shape=broadcast
frac: - out; shape=broadcast
frac_: -; shape=broadcast
frexp: Tensor Tensor_out
gelu: - out; shape=broadcast
gelu_: -; shape=broadcast
glu: - out
hardshrink: - out; shape=broadcast
hardsigmoid: - out; shape=broadcast
hardsigmoid_: -; shape=broadcast
hardswish: - out; shape=broadcast
hardswish_: -; shape=broadcast
hardtanh: - out; shape=broadcast
hardtanh_: -; shape=broadcast
i0: - out; shape=broadcast
i0_: -; shape=broadcast
isinf: - out; shape=broadcast
isnan: - out; shape=broadcast
isneginf: - out; shape=broadcast
isposinf: - out; shape=broadcast
leaky_relu: - out; shape=broadcast
leaky_relu_: -; shape=broadcast
lgamma: - out; shape=broadcast
lgamma_: -; shape=broadcast
log: - out; shape=broadcast
log_: -; shape=broadcast
log10: - out; shape=broadcast
log10_: -; shape=broadcast
log1p: - out; shape=broadcast
log1p_: -; shape=broadcast
log2: - out; shape=broadcast
log2_: -; shape=broadcast
log_sigmoid_forward: - output
logical_not_: -; shape=broadcast
logical_not: - out; shape=broadcast
logit: - out; shape=broadcast
logit_: -; shape=broadcast
mish: - out; shape=broadcast
mish_: -; shape=broadcast
nan_to_num: - out; shape=broadcast
nan_to_num_: -; shape=broadcast
neg: - out; shape=broadcast
neg_: -; shape=broadcast
polygamma: - out
polygamma_: -
_prelu_kernel: -
rad2deg: - out; shape=broadcast
rad2deg_: -; shape=broadcast
reciprocal_: -; shape=broadcast
reciprocal: - out; shape=broadcast
relu: - out; shape=broadcast
relu_: -; shape=broadcast
round: - decimals decimals_out out; decimals=-16..16 shape=broadcast
round_: - decimals; decimals=-16..16 shape=broadcast
rsqrt: - out; shape=broadcast
rsqrt_: -; shape=broadcast
sgn: - out; shape=broadcast
sgn_: -; shape=broadcast
sigmoid: - out; shape=broadcast
sigmoid_: -; shape=broadcast
sign_: -; shape=broadcast
sign: - out; shape=broadcast
signbit: - out; shape=broadcast
silu: - out; shape=broadcast
silu_: -; shape=broadcast
sin: - out; shape=broadcast
sin_: -; shape=broadcast
sinc_: -; shape=broadcast
sinc: - out; shape=broadcast
sinh: - out; shape=broadcast
sinh_: -; shape=broadcast
softplus: - out; shape=broadcast
softshrink: - out; shape=broadcast
special_airy_ai: - out; shape=broadcast
special_bessel_j0: - out; shape=broadcast
special_bessel_j1: - out; shape=broadcast
special_bessel_y0: - out; shape=broadcast
special_bessel_y1: - out; shape=broadcast
special_entr: - out; shape=broadcast
special_erfcx: - out; shape=broadcast
special_i0e: - out; shape=broadcast
special_i1: - out; shape=broadcast
special_i1e: - out; shape=broadcast
special_log_ndtr: - out; shape=broadcast
special_modified_bessel_i0: - out; shape=broadcast
special_modified_bessel_i1: - out; shape=broadcast
special_modified_bessel_k0: - out; shape=broadcast
special_modified_bessel_k1: - out; shape=broadcast
special_ndtri: - out; shape=broadcast
special_scaled_modified_bessel_k0: - out; shape=broadcast
special_scaled_modified_bessel_k1: - out; shape=broadcast
special_spherical_bessel_j0: - out; shape=broadcast
sqrt: - out; shape=broadcast
sqrt_: -; shape=broadcast
tan: - out; shape=broadcast
tan_: -; shape=broadcast
tanh: - out; shape=broadcast
tanh_: -; shape=broadcast
threshold: - out; shape=broadcast
threshold_: -; shape=broadcast
trunc_: -; shape=broadcast
trunc: - out; shape=broadcast

# One number of several
add_: Scalar Tensor; shape=broadcast
add: Scalar Scalar_out Tensor out; shape=broadcast
addcdiv: - out; shape=broadcast
addcdiv_: -; shape=broadcast
addcmul: - out; shape=broadcast
addcmul_: -; shape=broadcast
atan2: - out; shape=broadcast
atan2_: -; shape=broadcast
bitwise_and: Scalar Scalar_Tensor Scalar_Tensor_out Scalar_out Tensor Tensor_out; shape=broadcast
bitwise_and_: Scalar Tensor; shape=broadcast
bitwise_left_shift: Scalar_Tensor Scalar_Tensor_out Tensor Tensor_Scalar Tensor_Scalar_out Tensor_out;
    shape=broadcast
bitwise_left_shift_: Tensor Tensor_Scalar; shape=broadcast
bitwise_or_: Scalar Tensor; shape=broadcast
bitwise_or: Scalar Scalar_Tensor Scalar_Tensor_out Scalar_out Tensor Tensor_out; shape=broadcast
bitwise_right_shift: Scalar_Tensor Scalar_Tensor_out Tensor Tensor_Scalar Tensor_Scalar_out Tensor_out;
    shape=broadcast
bitwise_right_shift_: Tensor Tensor_Scalar; shape=broadcast
bitwise_xor_: Scalar Tensor; shape=broadcast
bitwise_xor: Scalar Scalar_Tensor Scalar_Tensor_out Scalar_out Tensor Tensor_out; shape=broadcast
bucketize: Scalar Scalar_out Tensor Tensor_out
clamp: - Tensor Tensor_out out; shape=broadcast
clamp_: - Tensor; shape=broadcast
clamp_max_: - Tensor; shape=broadcast
clamp_max: - Tensor Tensor_out out; shape=broadcast
clamp_min: - Tensor Tensor_out out; shape=broadcast
clamp_min_: - Tensor; shape=broadcast
complex: - out; shape=broadcast
copysign_: Scalar Tensor; shape=broadcast
copysign: Scalar Scalar_out Tensor out; shape=broadcast
div: Scalar Scalar_mode Scalar_mode_out Scalar_out Tensor Tensor_mode out out_mode; shape=broadcast
div_: Scalar Scalar_mode Tensor Tensor_mode; shape=broadcast
eq: Scalar Scalar_out Tensor Tensor_out; shape=broadcast
eq_: Scalar Tensor; shape=broadcast
floor_divide: - Scalar Scalar_out out; shape=broadcast
floor_divide_: Scalar Tensor; shape=broadcast
fmax: - out; shape=broadcast
fmin: - out; shape=broadcast
fmod_: Scalar Tensor; shape=broadcast
fmod: Scalar Scalar_out Tensor Tensor_out; shape=broadcast
gcd: - out; shape=broadcast
gcd_: -; shape=broadcast
ge: Scalar Scalar_out Tensor Tensor_out; shape=broadcast
ge_: Scalar Tensor; shape=broadcast
gt: Scalar Scalar_out Tensor Tensor_out; shape=broadcast
gt_: Scalar Tensor; shape=broadcast
heaviside: - out; shape=broadcast
heaviside_: -; shape=broadcast
hypot: - out; shape=broadcast
hypot_: -; shape=broadcast
igamma: - out; shape=broadcast
igamma_: -; shape=broadcast
igammac: - out; shape=broadcast
igammac_: -; shape=broadcast
isin: Scalar_Tensor Scalar_Tensor_out Tensor_Scalar Tensor_Scalar_out Tensor_Tensor Tensor_Tensor_out
lcm: - out; shape=broadcast
lcm_: -; shape=broadcast
ldexp: Tensor out
ldexp_: -
le: Scalar Scalar_out Tensor Tensor_out; shape=broadcast
le_: Scalar Tensor; shape=broadcast
lerp: Scalar Scalar_out Tensor Tensor_out; shape=broadcast
lerp_: Scalar Tensor; shape=broadcast
logaddexp: - out; shape=broadcast
logaddexp2: - out; shape=broadcast
logical_and: - out; shape=broadcast
logical_and_: -; shape=broadcast
logical_or_: -; shape=broadcast
logical_or: - out; shape=broadcast
logical_xor_: -; shape=broadcast
logical_xor: - out; shape=broadcast
__lshift__: Scalar Scalar_out Tensor Tensor_out; shape=broadcast
lt: Scalar Scalar_out Tensor Tensor_out; shape=broadcast
lt_: Scalar Tensor; shape=broadcast
masked_fill_: Scalar Tensor; shape=broadcast
masked_fill: Scalar Scalar_out Tensor Tensor_out; shape=broadcast
maximum: - out; shape=broadcast
minimum: - out; shape=broadcast
mul_: Scalar Tensor; shape=broadcast
mul: Scalar Scalar_out Tensor out; shape=broadcast
ne: Scalar Scalar_out Tensor Tensor_out; shape=broadcast
ne_: Scalar Tensor; shape=broadcast
nextafter_: -; shape=broadcast
nextafter: - out; shape=broadcast
polar: - out; shape=broadcast
pow: Scalar Scalar_out Tensor_Scalar Tensor_Scalar_out Tensor_Tensor Tensor_Tensor_out; shape=broadcast
pow_: Scalar Tensor; shape=broadcast
remainder: Scalar Scalar_Tensor Scalar_Tensor_out Scalar_out Tensor Tensor_out; shape=broadcast
remainder_: Scalar Tensor; shape=broadcast
__rshift__: Scalar Scalar_out Tensor Tensor_out; shape=broadcast
rsub: Scalar Scalar_out Tensor Tensor_out; shape=broadcast
searchsorted: Scalar Scalar_out Tensor Tensor_out; shape=searched indices=sorter
special_xlog1py: - other_scalar other_scalar_out out self_scalar self_scalar_out; shape=broadcast
special_zeta: - other_scalar other_scalar_out out self_scalar self_scalar_out; shape=broadcast
sub: Scalar Scalar_out Tensor out; shape=broadcast
sub_: Scalar Tensor; shape=broadcast
where: self self_out; shape=broadcast
xlogy: OutScalar_Other OutScalar_Self OutTensor Scalar_Other Scalar_Self Tensor; shape=broadcast
xlogy_: Scalar_Other Tensor; shape=broadcast

# Reductions, sums along a dimension, orders
all: - all_out dim dims dims_out out; shape=reduced
amax: - out; shape=reduced
amin: - out; shape=reduced
aminmax: - out
any: - all_out dim dims dims_out out; shape=reduced
argmax: - out; shape=reduced
argmin: - out; shape=reduced
count_nonzero: - dim_IntList dim_IntList_out out; shape=reduced
cummax: - out
cummin: - out
cumprod_: -; shape=along
cumprod: - out; shape=along
cumsum_: -; shape=along
cumsum: - out; shape=along
dist: - out
kthvalue: -; unrepeated
linalg_vector_norm: - out; shape=reduced
log_softmax: int int_out; shape=along
_log_softmax: - out; shape=along
_logcumsumexp: - out; shape=along
logcumsumexp: - out
logsumexp: -
max: - dim dim_max unary_out; shape=reduced
mean: - dim dtype_out out; shape=reduced
median: - dim out; unrepeated shape=reduced
min: - dim dim_min unary_out; shape=reduced
mode: - values; unrepeated
nansum: -
norm: Scalar ScalarOpt_dim ScalarOpt_dim_dtype ScalarOpt_dtype ScalarOpt_dtype_out Scalar_out dtype_out out
prod: - dim_int int_out out; shape=reduced
renorm: - out
renorm_: -
_safe_softmax: -
_softmax: - out; shape=along
softmax: int; shape=along
sort: - stable values values_stable; shape=along
std: correction correction_out; shape=reduced
std_mean: correction correction_out; shape=reduced
sum: - IntList_out dim_IntList out; shape=reduced
topk: - values; shape=first
trace: - out
var: correction correction_out; shape=reduced
var_mean: correction correction_out; shape=reduced

# Products
addbmm: - out
addbmm_: -
addmm: - out; shape=product
addmm_: -; shape=product
_addmm_activation: - out
addmv: - out
addmv_: -
addr: - out
addr_: -
baddbmm: - out; shape=product
baddbmm_: -; shape=product
bmm: - out; shape=product
dot: - out
_grouped_mm: -; indices=offs
_int_mm: - out
linear: - out; shape=linear
matmul: - out
mm: - out; shape=product
mv: - out
_trilinear: - out
vdot: - out
_weight_int4pack_mm_for_cpu: -; plain four_bits

# Convolutions
conv2d: padding
conv_tbc: - out
convolution: - out; shape=convolution

# Norms
group_norm: -; shape=same
layer_norm: -; shape=normed
_native_batch_norm_legit: no_stats; training=1..1 channels dense shape=batch_norm
_native_batch_norm_legit_no_training: -; channels shape=batch_norm
native_group_norm: - out; groups shape=group_norm
native_layer_norm: - out; shape=native_norm
rms_norm: -; shape=normed

# Pooling
adaptive_avg_pool1d: out
_adaptive_avg_pool2d: - out
adaptive_avg_pool2d: out
adaptive_avg_pool3d: out
_adaptive_avg_pool3d: - out
adaptive_max_pool2d: - out
adaptive_max_pool3d: - out
avg_pool1d: out
avg_pool2d: - out
avg_pool3d: - out
max_pool2d_with_indices: - out; shape=pooled
max_pool3d_with_indices: - out
max_unpool2d: - out; indices=indices
max_unpool3d: - out; indices=indices

# Images: sizes, grids, pads
affine_grid_generator: - out
channel_shuffle: - out
col2im: - out
constant_pad_nd: - out; shape=padded
grid_sampler_2d: - out
grid_sampler_3d: - out
im2col: - out
pixel_shuffle: - out; filled
pixel_unshuffle: - out; filled
reflection_pad1d: - out
reflection_pad2d: - out
reflection_pad3d: - out
replication_pad1d: - out
replication_pad2d: - out
replication_pad3d: - out
upsample_bicubic2d: vec; shape=resized
upsample_bicubic2d: - out; floating shape=resized
upsample_bilinear2d: vec; shape=resized
upsample_bilinear2d: - out vec_out; floating shape=resized
upsample_linear1d: vec; shape=resized
upsample_linear1d: - out; floating shape=resized
upsample_nearest1d: - out; shape=resized
upsample_nearest2d: vec; shape=resized
upsample_nearest2d: - out vec_out; shape=resized
upsample_nearest3d: - out; shape=resized
_upsample_nearest_exact1d: - out; shape=resized
_upsample_nearest_exact2d: - out; shape=resized
_upsample_nearest_exact3d: - out; shape=resized
upsample_trilinear3d: vec; shape=resized
upsample_trilinear3d: - out; floating shape=resized

# Shapes
alias_copy: - out
block_diag: - out
cat: - out; shape=joined
_conj_copy: - out
detach_copy: - out
diag_embed: - out
diagonal_copy: - out
diagonal_scatter: - out
expand_copy: - out
flip: - out
narrow_copy: - out
_neg_view_copy: - out
permute_copy: - out
repeat: - out; shape=repeated
roll: - out
rot90: - out
select_copy: int int_out
select_scatter: - out
slice_copy: Tensor Tensor_out
slice_scatter: - out
split_copy: Tensor
split_with_sizes_copy: -
squeeze_copy: - dim dim_out dims dims_out out
stack: - out; shape=stacked
t_copy: - out
transpose_copy: int int_out
tril: - out; dense
tril_: -
triu: - out; dense
triu_: -
unbind_copy: int
unfold_copy: - out
unsafe_split: Tensor
unsafe_split_with_sizes: -
unsqueeze_copy: - out
view_as_complex_copy: - out
view_as_real_copy: - out
view_copy: - dtype dtype_out out

# Indices
embedding: - out; shape=embedded indices=indices
gather: - out; shape=gathered indices=index
index: Tensor Tensor_out; shape=indexed indices=indices
index_add: - out; shape=same indices=index
index_add_: -; shape=same indices=index
index_copy: - out; shape=same indices=index
index_copy_: -; shape=same indices=index
index_fill: int_Scalar int_Scalar_out int_Tensor int_Tensor_out; indices=index
index_fill_: int_Scalar int_Tensor; indices=index
index_put: - out; shape=same indices=indices
index_put_: -; shape=same indices=indices
index_reduce: - out; indices=index
index_reduce_: -; indices=index
index_select: - out; shape=selected indices=index
masked_scatter_: -
masked_scatter: - out
scatter: reduce reduce_out src src_out value value_out value_reduce value_reduce_out; shape=same indices=index
scatter_: reduce src value value_reduce; shape=same indices=index
scatter_add: - out; shape=same indices=index
scatter_add_: -; shape=same indices=index
scatter_reduce: two two_out; indices=index
scatter_reduce_: two; indices=index
take: - out; indices=index
_unsafe_index: Tensor; indices=indices
_unsafe_index_put: -; indices=indices
_unsafe_masked_index: -; indices=indices

# Attention
scaled_dot_product_attention: -; dropout_p=0..0 filled shape=attention

# Fourier transforms
_fft_c2c: - out; normalization=0..2 axes dense
_fft_c2r: - out; normalization=0..2 axes dense
fft_fftfreq: out
_fft_r2c: - out; normalization=0..2 axes dense
fft_rfftfreq: out

# Linear algebra
_cdist_forward: - out; dense
cholesky_inverse: - out; dense
_euclidean_dist: - out; dense
linalg_cholesky_ex: - L; dense
linalg_cross: - out; dense
_linalg_det: - result; dense
_linalg_eigh: - eigenvalues; dense
linalg_householder_product: - out; dense
linalg_inv_ex: - inverse; dense
linalg_lu: - out; dense
linalg_lu_factor_ex: - out; dense
linalg_matrix_exp: - out; dense
linalg_qr: - out; dense
_linalg_slogdet: - sign; dense
_linalg_solve_ex: - result; dense
_linalg_svd: - U; dense
triangular_solve: - X; dense

# Losses
binary_cross_entropy: - out; reduction=0..2
binary_cross_entropy_with_logits: - out; reduction=0..2
huber_loss: -; reduction=0..2
mse_loss: -; reduction=0..2
nll_loss_forward: -; reduction=0..2 indices=target
smooth_l1_loss: -; reduction=0..2
soft_margin_loss: -; reduction=0..2

# Quantisation
fake_quantize_per_channel_affine_cachemask: - out
fake_quantize_per_tensor_affine_cachemask: - out
_fake_quantize_per_tensor_affine_cachemask_tensor_qparams: - out
histc: - out

# Recurrent
gru: input; dropout=0..0 train=0..0 filled gru shape=recurrent
lstm: input; dropout=0..0 train=0..0 filled lstm shape=recurrent
rnn_relu: input; dropout=0..0 train=0..0 filled rnn shape=recurrent
rnn_tanh: input; dropout=0..0 train=0..0 filled rnn shape=recurrent
"""

OURS = """\
# Of the runtime: what every node has
air::channel_affine: - out
air::channel_affine_: -
air::dynamic_quant: - out
air::grouped_int_mm: - out; indices=ends
air::grouped_mm: - out; indices=ends
air::linear_int8: - out
air::latent_attention: - out; indices=table,lengths
air::paged_attention: - out; indices=table,lengths
air::quant_matmul: - out
air::all_gather: - out; ranks=1..65536 plain
air::all_reduce: - out; plain
air::all_reduce_: -; plain
air::all_to_all: - out; ranks=1..65536 plain
air::moe_distribute_combine: -; ranks=1..65536 number=1..65536 plain
air::moe_distribute_dispatch: -; ranks=1..65536 number=1..65536 plain
air::reduce_scatter: - out; ranks=1..65536 plain
air::stage_input: - out; ranks=1..65536 plain
air::stage_output: - out; ranks=1..65536 plain

# Of the host, where they stand for ops of torch_npu
air::fused_infer_attention_score: -
air::fused_infer_attention_score_v2: -

# Of torch_npu
npu::_npu_dtype_cast: -
npu::_npu_fused_infer_attention_score_get_max_workspace: -
npu::_npu_fused_infer_attention_score_v2_get_max_workspace: -
npu::npu_add_rms_norm: -
npu::npu_add_rms_norm_cast: -
npu::npu_add_rms_norm_dynamic_quant: -
npu::npu_add_rms_norm_quant: -
npu::npu_add_rms_norm_v2: -
npu::npu_add_rms_norm_v2_functional: -
npu::npu_all_gather_base_mm: -
npu::npu_dynamic_quant: -
npu::npu_fused_infer_attention_score: - out
npu::npu_fused_infer_attention_score_v2: - out
npu::npu_geglu: -
npu::npu_grouped_matmul: - List
npu::npu_kv_rmsnorm_rope_cache_v2: -
npu::npu_kv_rmsnorm_rope_cache_v2_functional: -
npu::npu_mla_prolog_v3: -
npu::npu_mla_prolog_v3_functional: -
npu::npu_mm_all_reduce_base: -
npu::npu_mm_reduce_scatter_base: -
npu::npu_moe_gating_top_k: -
npu::npu_moe_gating_top_k_softmax: -
npu::npu_moe_gating_top_k_softmax_v2: -
npu::npu_moe_init_routing_v2: -
npu::npu_moe_token_unpermute: -
npu::npu_quant_matmul: -
npu::npu_quantize: -
npu::npu_rms_norm: -
npu::npu_rotary_mul: -
npu::npu_scatter_nd_update: -
npu::npu_scatter_nd_update_: -
npu::npu_swiglu: -
npu::npu_transpose_batchmatmul: -
npu::npu_weight_quant_batchmatmul: -
npu::scatter_update: -
npu::scatter_update_: -
"""
