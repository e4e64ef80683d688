#pragma once

#include <cstddef>
#include <cstdint>

#include "carillon/base/result.h"
#include "carillon/engine/cuda/driver/driver.h"
#include "carillon/engine/cuda/driver/real.h"

// What is used of cuDNN's graph API (backend API), as a table. Declared here, so that no header of cuDNN is
// needed; cudnn_test.cpp holds it against cudnn_graph.h where there is one.
namespace carillon::engine::cuda::dnn {

using Status = int;                                  // cudnnStatus_t; 0: success
using Handle = void*;                                // cudnnHandle_t
using Descriptor = void*;                            // cudnnBackendDescriptor_t
inline constexpr std::size_t least_version = 90800;  // the first that plans for a described device

// X(name, cuDNN's name, value). Descriptors: cudnnBackendDescriptorType_t.
#define CARILLON_CUDNN_KINDS(X)                                           \
  X(pointwise, CUDNN_BACKEND_POINTWISE_DESCRIPTOR, 0)                     \
  X(convolution, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR, 1)                 \
  X(engine, CUDNN_BACKEND_ENGINE_DESCRIPTOR, 2)                           \
  X(engine_config, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, 3)                 \
  X(heuristics, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, 4)                   \
  X(plan, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, 5)                     \
  X(knob_choice, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, 7)                 \
  X(convolve, CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR, 10) \
  X(apply, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, 13)              \
  X(graph, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, 15)                   \
  X(variant_pack, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, 16)              \
  X(tensor, CUDNN_BACKEND_TENSOR_DESCRIPTOR, 17)                          \
  X(device, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, 38)

// cudnnBackendAttributeName_t
#define CARILLON_CUDNN_ATTRIBUTES(X)                                       \
  X(pointwise_mode, CUDNN_ATTR_POINTWISE_MODE, 0)                          \
  X(pointwise_precision, CUDNN_ATTR_POINTWISE_MATH_PREC, 1)                \
  X(convolution_type, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, 100)               \
  X(convolution_mode, CUDNN_ATTR_CONVOLUTION_CONV_MODE, 101)               \
  X(convolution_dilations, CUDNN_ATTR_CONVOLUTION_DILATIONS, 102)          \
  X(convolution_strides, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, 103)       \
  X(convolution_post, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, 104)           \
  X(convolution_pre, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, 105)             \
  X(convolution_dims, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, 106)            \
  X(heuristics_mode, CUDNN_ATTR_ENGINEHEUR_MODE, 200)                      \
  X(heuristics_graph, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, 201)          \
  X(heuristics_results, CUDNN_ATTR_ENGINEHEUR_RESULTS, 202)                \
  X(heuristics_device, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, 204)              \
  X(config_engine, CUDNN_ATTR_ENGINECFG_ENGINE, 300)                       \
  X(config_knobs, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, 302)                  \
  X(engine_graph, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, 1300)                 \
  X(engine_processors, CUDNN_ATTR_ENGINE_SM_COUNT_TARGET, 1306)            \
  X(plan_handle, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, 400)                    \
  X(plan_config, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, 401)             \
  X(plan_workspace, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, 402)         \
  X(plan_json, CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, 405)         \
  X(knob_type, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, 600)                      \
  X(knob_value, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, 601)                    \
  X(convolve_alpha, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, 700)   \
  X(convolve_beta, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, 701)     \
  X(convolve_how, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, 702) \
  X(convolve_w, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, 703)           \
  X(convolve_x, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, 704)           \
  X(convolve_y, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, 705)           \
  X(apply_how, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, 750)          \
  X(apply_x, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, 751)                    \
  X(apply_b, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, 752)                    \
  X(apply_y, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, 753)                    \
  X(graph_handle, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, 800)                   \
  X(graph_operations, CUDNN_ATTR_OPERATIONGRAPH_OPS, 801)                  \
  X(tensor_alignment, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 900)               \
  X(tensor_type, CUDNN_ATTR_TENSOR_DATA_TYPE, 901)                         \
  X(tensor_dimensions, CUDNN_ATTR_TENSOR_DIMENSIONS, 902)                  \
  X(tensor_strides, CUDNN_ATTR_TENSOR_STRIDES, 903)                        \
  X(tensor_id, CUDNN_ATTR_TENSOR_UNIQUE_ID, 906)                           \
  X(tensor_virtual, CUDNN_ATTR_TENSOR_IS_VIRTUAL, 907)                     \
  X(pack_ids, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, 1000)                    \
  X(pack_pointers, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, 1001)            \
  X(pack_workspace, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, 1003)               \
  X(engine_index, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, 1301)                    \
  X(engine_numerical, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, 1303)              \
  X(engine_behavior, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, 1305)                \
  X(engine_device, CUDNN_ATTR_ENGINE_DEVICEPROP, 1307)                     \
  X(device_json, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, 2702)

// cudnnBackendAttributeType_t
#define CARILLON_CUDNN_TYPES(X)                       \
  X(handle, CUDNN_TYPE_HANDLE, 0)                     \
  X(data_type, CUDNN_TYPE_DATA_TYPE, 1)               \
  X(boolean, CUDNN_TYPE_BOOLEAN, 2)                   \
  X(int64, CUDNN_TYPE_INT64, 3)                       \
  X(float32, CUDNN_TYPE_FLOAT, 4)                     \
  X(pointer, CUDNN_TYPE_VOID_PTR, 6)                  \
  X(convolution_mode, CUDNN_TYPE_CONVOLUTION_MODE, 7) \
  X(heuristics_mode, CUDNN_TYPE_HEUR_MODE, 8)         \
  X(knob_type, CUDNN_TYPE_KNOB_TYPE, 9)               \
  X(numerical_note, CUDNN_TYPE_NUMERICAL_NOTE, 11)    \
  X(pointwise_mode, CUDNN_TYPE_POINTWISE_MODE, 14)    \
  X(descriptor, CUDNN_TYPE_BACKEND_DESCRIPTOR, 15)    \
  X(behavior_note, CUDNN_TYPE_BEHAVIOR_NOTE, 19)      \
  X(int32, CUDNN_TYPE_INT32, 23)                      \
  X(character, CUDNN_TYPE_CHAR, 24)

// Values of attributes: of data types, modes and notes.
#define CARILLON_CUDNN_VALUES(X)                                             \
  X(data_f32, CUDNN_DATA_FLOAT, 0)                                           \
  X(data_f16, CUDNN_DATA_HALF, 2)                                            \
  X(data_bf16, CUDNN_DATA_BFLOAT16, 9)                                       \
  X(cross_correlation, CUDNN_CROSS_CORRELATION, 1)                           \
  X(pointwise_add, CUDNN_POINTWISE_ADD, 0)                                   \
  X(pointwise_relu, CUDNN_POINTWISE_RELU_FWD, 100)                           \
  X(by_b, CUDNN_HEUR_MODE_B, 1)                                              \
  X(by_fallback, CUDNN_HEUR_MODE_FALLBACK, 2)                                \
  X(by_a, CUDNN_HEUR_MODE_A, 3)                                              \
  X(tensor_core, CUDNN_NUMERICAL_NOTE_TENSOR_CORE, 0)                        \
  X(down_converts, CUDNN_NUMERICAL_NOTE_DOWN_CONVERT_INPUTS, 1)              \
  X(reduced_sums, CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION, 2)       \
  X(fft, CUDNN_NUMERICAL_NOTE_FFT, 3)                                        \
  X(nondeterministic, CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC, 4)              \
  X(winograd, CUDNN_NUMERICAL_NOTE_WINOGRAD, 5)                              \
  X(winograd_6, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_6x6, 7)                   \
  X(winograd_13, CUDNN_NUMERICAL_NOTE_WINOGRAD_TILE_13x13, 8)                \
  X(compiles, CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION, 0)                    \
  X(reorders_filter, CUDNN_BEHAVIOR_NOTE_REQUIRES_FILTER_INT8x32_REORDER, 1) \
  X(reorders_bias, CUDNN_BEHAVIOR_NOTE_REQUIRES_BIAS_INT8x32_REORDER, 2)

#define CARILLON_CUDNN_CONSTANT(name, theirs, value) inline constexpr int name = value;
namespace kind {
CARILLON_CUDNN_KINDS(CARILLON_CUDNN_CONSTANT)
}  // namespace kind
namespace attribute {
CARILLON_CUDNN_ATTRIBUTES(CARILLON_CUDNN_CONSTANT)
}  // namespace attribute
namespace type {
CARILLON_CUDNN_TYPES(CARILLON_CUDNN_CONSTANT)
}  // namespace type
namespace value {
CARILLON_CUDNN_VALUES(CARILLON_CUDNN_CONSTANT)
}  // namespace value
#undef CARILLON_CUDNN_CONSTANT

// X(member, symbol, result, arguments)
#define CARILLON_CUDNN_FUNCTIONS(X)                                                            \
  X(version, cudnnGetVersion, std::size_t, ())                                                 \
  X(error_text, cudnnGetErrorString, const char*, (Status status))                             \
  X(last_error, cudnnGetLastErrorString, void, (char* text, std::size_t bytes))                \
  X(create, cudnnCreate, Status, (Handle * out))                                               \
  X(destroy, cudnnDestroy, Status, (Handle handle))                                            \
  X(set_stream, cudnnSetStream, Status, (Handle handle, cuda::Stream stream))                  \
  X(create_descriptor, cudnnBackendCreateDescriptor, Status, (int kind, Descriptor* out))      \
  X(destroy_descriptor, cudnnBackendDestroyDescriptor, Status, (Descriptor descriptor))        \
  X(finalize, cudnnBackendFinalize, Status, (Descriptor descriptor))                           \
  X(set, cudnnBackendSetAttribute, Status,                                                     \
    (Descriptor descriptor, int attribute, int type, std::int64_t count, const void* values))  \
  X(get, cudnnBackendGetAttribute, Status,                                                     \
    (Descriptor descriptor, int attribute, int type, std::int64_t wanted, std::int64_t* count, \
     void* values))                                                                            \
  X(execute, cudnnBackendExecute, Status, (Handle handle, Descriptor plan, Descriptor variant_pack))

struct Api {
#define CARILLON_CUDNN_MEMBER(member, symbol, result, arguments) result(*member) arguments = nullptr;
  CARILLON_CUDNN_FUNCTIONS(CARILLON_CUDNN_MEMBER)
#undef CARILLON_CUDNN_MEMBER
};

// Errors (unavailable): it lacks a function, or is older than `least_version`; both named.
Result<Api> find_api(const Library& library);

}  // namespace carillon::engine::cuda::dnn
