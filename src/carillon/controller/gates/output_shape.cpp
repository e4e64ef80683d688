#include "carillon/controller/gates/output_shape.h"

#include "carillon/graph/bounded.h"

namespace carillon::controller {

graph::Shape promised_shape(const repository::ModelConfig& config, std::size_t index, const InferCall& call) {
  if (call.size == nullptr) return config.outputs[index].shape_at(call.rows, call.length);
  graph::Shape shape = call.size->outputs[index];
  if (config.max_batch_size > 0 && !shape.empty()) shape.front() = call.rows;
  return shape;
}

Result<graph::Shape> found_shape(const repository::ModelConfig& config, std::size_t index,
                                 const InferCall& call) {
  graph::Shape promised = promised_shape(config, index, call);
  if (!graph::has_bounded(promised)) return promised;
  return graph::shape_in(config.outputs[index].type, promised, call.outputs[index]);
}

}  // namespace carillon::controller
