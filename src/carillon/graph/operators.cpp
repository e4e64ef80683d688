#include "carillon/graph/operators.h"

#include <algorithm>
#include <array>

namespace carillon::graph {
namespace {

namespace in = infer;
constexpr int now = last_opset;
constexpr int any = -1;

constexpr std::string_view conv = "auto_pad:s dilations:I group:i kernel_shape:I pads:I strides:I";
constexpr std::string_view transposed =
    "auto_pad:s dilations:I group:i kernel_shape:I output_padding:I output_shape:I pads:I strides:I";
constexpr std::string_view pool =
    "auto_pad:s ceil_mode:i count_include_pad:i dilations:I kernel_shape:I pads:I p:i storage_order:i "
    "strides:I";
constexpr std::string_view reduction = "axes:I keepdims:i noop_with_empty_axes:i";
constexpr std::string_view scale_and_shift = "alpha:f beta:f";

// In the order of their names, which find_operator relies on. `since` is the first opset whose form of the
// operator to_newest_form() understands.
constexpr auto table = std::to_array<Operator>({
    {"Abs", 6, now, 1, 1, 1, "", in::unary_number},
    {"Acos", 7, now, 1, 1, 1, "", in::unary_float},
    {"Acosh", 9, now, 1, 1, 1, "", in::unary_float},
    {"Add", 7, now, 2, 2, 1, "", in::binary_number},
    {"And", 7, now, 2, 2, 1, "", in::binary_boolean},
    {"ArgMax", 1, now, 1, 1, 1, "axis:i keepdims:i select_last_index:i", in::arg_reduce},
    {"ArgMin", 1, now, 1, 1, 1, "axis:i keepdims:i select_last_index:i", in::arg_reduce},
    {"Asin", 7, now, 1, 1, 1, "", in::unary_float},
    {"Asinh", 9, now, 1, 1, 1, "", in::unary_float},
    {"Atan", 7, now, 1, 1, 1, "", in::unary_float},
    {"Atanh", 9, now, 1, 1, 1, "", in::unary_float},
    {"AveragePool", 1, now, 1, 1, 1, pool, in::pool},
    {"BatchNormalization", 7, now, 5, 5, 5, "epsilon:f momentum:f spatial:i training_mode:i",
     in::batch_normalization},
    {"BitShift", 11, now, 2, 2, 1, "direction:s", in::binary_integer},
    {"BitwiseAnd", 18, now, 2, 2, 1, "", in::binary_integer},
    {"BitwiseNot", 18, now, 1, 1, 1, "", in::bitwise_not},
    {"BitwiseOr", 18, now, 2, 2, 1, "", in::binary_integer},
    {"BitwiseXor", 18, now, 2, 2, 1, "", in::binary_integer},
    {"BlackmanWindow", 17, now, 1, 1, 1, "output_datatype:i periodic:i", in::window},
    {"Cast", 6, now, 1, 1, 1, "to:i saturate:i", in::cast},
    {"CastLike", 15, now, 2, 2, 1, "saturate:i", in::cast_like},
    {"Ceil", 6, now, 1, 1, 1, "", in::unary_float},
    {"Celu", 12, now, 1, 1, 1, "alpha:f", in::unary_float},
    {"Clip", 6, now, 1, 3, 1, "max:f min:f", in::clip},
    {"Compress", 9, now, 2, 2, 1, "axis:i", in::compress},
    {"Concat", 4, now, 1, any, 1, "axis:i", in::concat},
    // Constant never reaches inference: import makes a constant of it.
    {"Constant", 1, now, 0, 0, 1, "value:t value_float:f value_floats:F value_int:i value_ints:I", nullptr},
    {"ConstantOfShape", 9, now, 1, 1, 1, "value:t", in::constant_of_shape},
    {"Conv", 1, now, 2, 3, 1, conv, in::conv},
    {"ConvInteger", 10, now, 2, 4, 1, conv, in::conv_integer},
    {"ConvTranspose", 1, now, 2, 3, 1, transposed, in::conv_transpose},
    {"Cos", 7, now, 1, 1, 1, "", in::unary_float},
    {"Cosh", 9, now, 1, 1, 1, "", in::unary_float},
    {"CumSum", 11, now, 2, 2, 1, "exclusive:i reverse:i", in::cumsum},
    {"DFT", 17, now, 1, 3, 1, "axis:i inverse:i onesided:i", in::dft},
    {"DepthToSpace", 1, now, 1, 1, 1, "blocksize:i mode:s", in::depth_to_space},
    {"DequantizeLinear", 10, now, 2, 3, 1, "axis:i block_size:i output_dtype:i", in::dequantize_linear},
    {"Det", 11, now, 1, 1, 1, "", in::determinant},
    {"Div", 7, now, 2, 2, 1, "", in::binary_number},
    {"Dropout", 7, now, 1, 3, 2, "ratio:f seed:i", in::dropout},
    {"DynamicQuantizeLinear", 11, now, 1, 1, 3, "", in::dynamic_quantize_linear},
    {"Einsum", 12, now, 1, any, 1, "equation:s", in::einsum},
    {"Elu", 6, now, 1, 1, 1, "alpha:f", in::unary_float},
    {"Equal", 7, now, 2, 2, 1, "", in::equality},
    {"Erf", 9, now, 1, 1, 1, "", in::unary_number},
    {"Exp", 6, now, 1, 1, 1, "", in::unary_float},
    {"Expand", 8, now, 2, 2, 1, "", in::expand},
    {"EyeLike", 9, now, 1, 1, 1, "dtype:i k:i", in::eye_like},
    {"Flatten", 1, now, 1, 1, 1, "axis:i", in::flatten},
    {"Floor", 6, now, 1, 1, 1, "", in::unary_float},
    {"GRU", 7, now, 3, 6, 2,
     "activation_alpha:F activation_beta:F activations:S clip:f direction:s hidden_size:i layout:i "
     "linear_before_reset:i",
     in::recurrent},
    {"Gather", 1, now, 2, 2, 1, "axis:i", in::gather},
    {"GatherElements", 11, now, 2, 2, 1, "axis:i", in::gather_elements},
    {"GatherND", 11, now, 2, 2, 1, "batch_dims:i", in::gather_nd},
    {"Gelu", 20, now, 1, 1, 1, "approximate:s", in::unary_float},
    {"Gemm", 7, now, 2, 3, 1, "alpha:f beta:f transA:i transB:i", in::gemm},
    {"GlobalAveragePool", 1, now, 1, 1, 1, "", in::global_pool},
    {"GlobalLpPool", 2, now, 1, 1, 1, "p:i", in::global_pool},
    {"GlobalMaxPool", 1, now, 1, 1, 1, "", in::global_pool},
    {"Greater", 7, now, 2, 2, 1, "", in::comparison},
    {"GreaterOrEqual", 12, now, 2, 2, 1, "", in::comparison},
    {"GridSample", 16, now, 2, 2, 1, "align_corners:i mode:s padding_mode:s", in::grid_sample},
    {"GroupNormalization", 18, now, 3, 3, 1, "epsilon:f num_groups:i stash_type:i", in::group_normalization},
    {"HammingWindow", 17, now, 1, 1, 1, "output_datatype:i periodic:i", in::window},
    {"HannWindow", 17, now, 1, 1, 1, "output_datatype:i periodic:i", in::window},
    {"HardSigmoid", 6, now, 1, 1, 1, scale_and_shift, in::unary_float},
    {"HardSwish", 14, now, 1, 1, 1, "", in::unary_float},
    {"Hardmax", 1, now, 1, 1, 1, "axis:i", in::softmax},
    {"Identity", 1, now, 1, 1, 1, "", in::same_as_input},
    // If and Loop never reach inference: specialisation puts their bodies' nodes in their place.
    {"If", 1, now, 1, 1, any, "else_branch:g then_branch:g", nullptr},
    {"InstanceNormalization", 6, now, 3, 3, 1, "epsilon:f", in::instance_normalization},
    {"IsInf", 10, now, 1, 1, 1, "detect_negative:i detect_positive:i", in::float_test},
    {"IsNaN", 9, now, 1, 1, 1, "", in::float_test},
    {"LRN", 1, now, 1, 1, 1, "alpha:f beta:f bias:f size:i", in::lrn},
    {"LSTM", 7, now, 3, 8, 3,
     // The last two are of our making: see recurrence.h.
     "activation_alpha:F activation_beta:F activations:S clip:f direction:s hidden_size:i input_forget:i "
     "layout:i w_scales:F r_scales:F",
     in::recurrent},
    {"LayerNormalization", 17, now, 2, 3, 3, "axis:i epsilon:f stash_type:i", in::layer_normalization},
    {"LeakyRelu", 6, now, 1, 1, 1, "alpha:f", in::unary_float},
    {"Less", 7, now, 2, 2, 1, "", in::comparison},
    {"LessOrEqual", 12, now, 2, 2, 1, "", in::comparison},
    {"Log", 6, now, 1, 1, 1, "", in::unary_float},
    {"LogSoftmax", 1, now, 1, 1, 1, "axis:i", in::softmax},
    {"Loop", 1, now, 2, any, any, "body:g", nullptr},
    {"LpNormalization", 1, now, 1, 1, 1, "axis:i p:i", in::lp_normalization},
    {"LpPool", 2, now, 1, 1, 1, pool, in::pool},
    {"MatMul", 1, now, 2, 2, 1, "", in::matmul},
    {"MatMulInteger", 10, now, 2, 4, 1, "", in::matmul_integer},
    {"Max", 7, now, 1, any, 1, "", in::variadic_number},
    {"MaxPool", 1, now, 1, 1, 2, pool, in::pool},
    {"MaxUnpool", 9, now, 2, 3, 1, "kernel_shape:I pads:I strides:I", in::max_unpool},
    {"Mean", 7, now, 1, any, 1, "", in::variadic_number},
    {"MeanVarianceNormalization", 9, now, 1, 1, 1, "axes:I", in::mean_variance_normalization},
    {"MelWeightMatrix", 17, now, 5, 5, 1, "output_datatype:i", in::mel_weights},
    {"Min", 7, now, 1, any, 1, "", in::variadic_number},
    {"Mish", 18, now, 1, 1, 1, "", in::unary_float},
    {"Mod", 10, now, 2, 2, 1, "fmod:i", in::binary_number},
    {"Mul", 7, now, 2, 2, 1, "", in::binary_number},
    {"Neg", 6, now, 1, 1, 1, "", in::unary_number},
    {"NegativeLogLikelihoodLoss", 12, now, 2, 3, 1, "ignore_index:i reduction:s",
     in::negative_log_likelihood},
    {"NonMaxSuppression", 10, now, 2, 5, 1, "center_point_box:i", in::non_max_suppression},
    {"NonZero", 9, now, 1, 1, 1, "", in::non_zero},
    {"Not", 1, now, 1, 1, 1, "", in::logical_not},
    {"OneHot", 9, now, 3, 3, 1, "axis:i", in::one_hot},
    {"Or", 7, now, 2, 2, 1, "", in::binary_boolean},
    {"PRelu", 7, now, 2, 2, 1, "", in::prelu},
    {"Pad", 2, now, 1, 4, 1, "mode:s pads:I value:f", in::pad},
    {"Pow", 7, now, 2, 2, 1, "", in::power},
    {"QLinearConv", 10, now, 8, 9, 1, conv, in::qlinear_conv},
    {"QLinearMatMul", 10, now, 8, 8, 1, "", in::qlinear_matmul},
    {"QuantizeLinear", 10, now, 2, 3, 1, "axis:i block_size:i output_dtype:i precision:i saturate:i",
     in::quantize_linear},
    {"RNN", 7, now, 3, 6, 2,
     "activation_alpha:F activation_beta:F activations:S clip:f direction:s hidden_size:i layout:i",
     in::recurrent},
    {"Range", 11, now, 3, 3, 1, "", in::range},
    {"Reciprocal", 6, now, 1, 1, 1, "", in::unary_float},
    {"ReduceL1", 1, now, 1, 2, 1, reduction, in::reduce},
    {"ReduceL2", 1, now, 1, 2, 1, reduction, in::reduce},
    {"ReduceLogSum", 1, now, 1, 2, 1, reduction, in::reduce},
    {"ReduceLogSumExp", 1, now, 1, 2, 1, reduction, in::reduce},
    {"ReduceMax", 1, now, 1, 2, 1, reduction, in::reduce},
    {"ReduceMean", 1, now, 1, 2, 1, reduction, in::reduce},
    {"ReduceMin", 1, now, 1, 2, 1, reduction, in::reduce},
    {"ReduceProd", 1, now, 1, 2, 1, reduction, in::reduce},
    {"ReduceSum", 1, now, 1, 2, 1, reduction, in::reduce},
    {"ReduceSumSquare", 1, now, 1, 2, 1, reduction, in::reduce},
    {"Relu", 6, now, 1, 1, 1, "", in::unary_number},
    {"Reshape", 5, now, 2, 2, 1, "allowzero:i", in::reshape},
    {"Resize", 10, now, 1, 4, 1,
     "antialias:i axes:I coordinate_transformation_mode:s cubic_coeff_a:f exclude_outside:i "
     "extrapolation_value:f keep_aspect_ratio_policy:s mode:s nearest_mode:s",
     in::resize},
    {"ReverseSequence", 10, now, 2, 2, 1, "batch_axis:i time_axis:i", in::reverse_sequence},
    {"RoiAlign", 10, now, 3, 3, 1,
     "coordinate_transformation_mode:s mode:s output_height:i output_width:i sampling_ratio:i "
     "spatial_scale:f",
     in::roi_align},
    {"Round", 11, now, 1, 1, 1, "", in::unary_float},
    {"STFT", 17, now, 2, 4, 1, "onesided:i", in::stft},
    // Scan never reaches inference, as If and Loop.
    {"Scan", 8, now, 1, any, any,
     "body:g directions:I num_scan_inputs:i scan_input_axes:I scan_input_directions:I scan_output_axes:I "
     "scan_output_directions:I",
     nullptr},
    {"Scatter", 9, 10, 3, 3, 1, "axis:i", in::scatter_elements},
    {"ScatterElements", 11, now, 3, 3, 1, "axis:i reduction:s", in::scatter_elements},
    {"ScatterND", 11, now, 3, 3, 1, "reduction:s", in::scatter_nd},
    {"Selu", 6, now, 1, 1, 1, "alpha:f gamma:f", in::unary_float},
    {"Shape", 1, now, 1, 1, 1, "end:i start:i", in::shape_of},
    {"Shrink", 9, now, 1, 1, 1, "bias:f lambd:f", in::unary_number},
    {"Sigmoid", 6, now, 1, 1, 1, "", in::unary_float},
    {"Sign", 9, now, 1, 1, 1, "", in::unary_number},
    {"Sin", 7, now, 1, 1, 1, "", in::unary_float},
    {"Sinh", 9, now, 1, 1, 1, "", in::unary_float},
    {"Size", 1, now, 1, 1, 1, "", in::size_of_tensor},
    {"Slice", 1, now, 1, 5, 1, "axes:I ends:I starts:I", in::slice},
    {"Softmax", 1, now, 1, 1, 1, "axis:i", in::softmax},
    {"SoftmaxCrossEntropyLoss", 12, now, 2, 3, 2, "ignore_index:i reduction:s", in::softmax_cross_entropy},
    {"Softplus", 1, now, 1, 1, 1, "", in::unary_float},
    {"Softsign", 1, now, 1, 1, 1, "", in::unary_float},
    {"SpaceToDepth", 1, now, 1, 1, 1, "blocksize:i", in::space_to_depth},
    {"Split", 2, now, 1, 2, any, "axis:i num_outputs:i split:I", in::split},
    {"Sqrt", 6, now, 1, 1, 1, "", in::unary_float},
    {"Squeeze", 1, now, 1, 2, 1, "axes:I", in::squeeze},
    {"Sub", 7, now, 2, 2, 1, "", in::binary_number},
    {"Sum", 7, now, 1, any, 1, "", in::variadic_number},
    {"Tan", 7, now, 1, 1, 1, "", in::unary_float},
    {"Tanh", 6, now, 1, 1, 1, "", in::unary_float},
    {"TfIdfVectorizer", 9, now, 1, 1, 1,
     "max_gram_length:i max_skip_count:i min_gram_length:i mode:s ngram_counts:I ngram_indexes:I "
     "pool_int64s:I pool_strings:S weights:F",
     in::tf_idf},
    {"ThresholdedRelu", 10, now, 1, 1, 1, "alpha:f", in::unary_float},
    {"Tile", 6, now, 2, 2, 1, "", in::tile},
    {"TopK", 1, now, 1, 2, 2, "axis:i k:i largest:i sorted:i", in::top_k},
    {"Transpose", 1, now, 1, 1, 1, "perm:I", in::transpose},
    {"Trilu", 14, now, 1, 2, 1, "upper:i", in::trilu},
    {"Unique", 11, now, 1, 1, 4, "axis:i sorted:i", in::unique},
    {"Unsqueeze", 1, now, 1, 2, 1, "axes:I", in::unsqueeze},
    {"Upsample", 7, 9, 1, 2, 1, "mode:s scales:F", in::resize},
    {"Where", 9, now, 3, 3, 1, "", in::where},
    {"Xor", 7, now, 2, 2, 1, "", in::binary_boolean},
});

static_assert(std::is_sorted(table.begin(), table.end(),
                             [](const Operator& a, const Operator& b) { return a.name < b.name; }));

// Those that no file may name: ml::expand() and Specializer write them, and have checked what their kernels
// rely on.
constexpr std::string_view tree = "binary:i features:i only_leq:i positive:i post_transform:s targets:i";
constexpr auto own_table = std::to_array<Operator>({
    {"Adagrad", 1, now, 5, any, any, "decay_factor:f epsilon:f norm_coefficient:f", in::adagrad},
    {"Adam", 1, now, 6, any, any, "alpha:f beta:f epsilon:f norm_coefficient:f norm_coefficient_post:f",
     in::adam},
    {"ArrayFeatureExtractor", 1, now, 2, 2, 1, "", in::ml_extractor},
    {"FeatureVectorizer", 1, now, 1, any, 1, "inputdimensions:I", in::ml_vectorizer},
    {"LabelEncoder", 1, now, 4, 4, 1, "", in::ml_label_encoder},
    {"LinearScores", 1, now, 2, 2, 2, "post_transform:s", in::ml_linear_scores},
    {"Momentum", 1, now, 5, any, any, "alpha:f beta:f mode:s norm_coefficient:f", in::momentum},
    {"OneHotEncoder", 1, now, 3, 3, 1, "columns:i zeros:i", in::ml_one_hot},
    {"Only", 1, now, 2, 2, 1, "when:i why:s", in::same_as_input},
    {"PostTransform", 1, now, 1, 1, 1, "post_transform:s", in::ml_post_transform},
    {"RbfKernel", 1, now, 2, 2, 1, "gamma:f", in::ml_rbf_kernel},
    {"SvmScores", 1, now, 2, 4, 2, "positive:i post_transform:s", in::ml_svm_scores},
    {"TrainingBatchNormalization", 14, now, 5, 5, 3, "epsilon:f momentum:f spatial:i training_mode:i",
     in::training_batch_normalization},
    {"TreeClassifier", 1, now, 7, 7, 2, tree, in::ml_trees},
    {"TreeRegressor", 1, now, 6, 6, 1,
     "aggregate_function:s features:i only_leq:i post_transform:s targets:i wide:i", in::ml_trees},
    {"Unfit", 1, now, 1, 1, 1, "shape:I type:i why:s", in::unfit},
});
static_assert(std::is_sorted(own_table.begin(), own_table.end(),
                             [](const Operator& a, const Operator& b) { return a.name < b.name; }));

const Operator* find_in(std::span<const Operator> operators, std::string_view name) {
  const auto found = std::lower_bound(operators.begin(), operators.end(), name,
                                      [](const Operator& op, std::string_view n) { return op.name < n; });
  return found != operators.end() && found->name == name ? &*found : nullptr;
}

}  // namespace

std::span<const Operator> all_operators() {
  return table;
}

const Operator* find_operator(std::string_view name) {
  return find_in(table, name);
}
const Operator* find_any_operator(std::string_view name) {
  const Operator* standard = find_operator(name);
  return standard != nullptr ? standard : find_in(own_table, name);
}

const Operator* find_training_operator(std::string_view domain, std::string_view name) {
  const bool step = name == "Adagrad" || name == "Adam" || name == "Momentum";
  return step && domain == "ai.onnx.preview.training" ? find_in(own_table, name) : nullptr;
}

char attribute_type(const Operator& op, std::string_view attribute) {
  std::string_view rest = op.attributes;
  while (!rest.empty()) {
    const std::size_t end = std::min(rest.find(' '), rest.size());
    const std::string_view word = rest.substr(0, end);
    const std::size_t colon = word.find(':');
    if (word.substr(0, colon) == attribute) return word[colon + 1];
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return 0;
}

}  // namespace carillon::graph
