#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "carillon/graph/fold.h"
#include "carillon/graph/onnx_import.h"
#include "carillon/graph/signature.h"

namespace carillon::graph {

// Why it is not proven (rows.h) that `source`, as `signature` sees it, makes of each row of a batch what it
// makes of that row alone, at all of these batch sizes (each >= 2), at each of its lengths, or at its
// reference: the node that stands in the way of an output, in words. Empty where it is proven. Constants that
// `store` has are used; null: none. The signature batches, and its inputs are the source's, in any order.
std::string why_not_row_by_row(const OnnxGraph& source, const Signature& signature,
                               std::span<const int> batch_sizes, const ConstantStore* store);

// A question, and the graph that infer_types() gives for it, or its error, where somebody has it already
// (nullptr: nobody has). Its constants are in the store.
struct AskedGraph {
  const Signature::Question& question;
  const Result<Graph>* graph = nullptr;
};
// The same of two questions about one model, of one row and of `batch` rows, at whatever extents.
std::string why_not_row_by_row(const OnnxGraph& source, const Signature& signature, const AskedGraph& alone,
                               const AskedGraph& together, const ConstantStore* store);

// Whether rows are proven apart at these extents of an open model, too, which are not those of its reference:
// unsupported where not. A batch of one is asked for two rows, since more than one row of a request may run
// there, one after the other. `graph`: that of the batch, as infer_types() gives it, with constants in
// `store`; null where nobody has it.
Result<> prove_rows_at(const OnnxGraph& source, const Signature& signature, std::int64_t batch,
                       std::span<const std::int64_t> extents, const Result<Graph>* graph,
                       const ConstantStore* store);

}  // namespace carillon::graph
