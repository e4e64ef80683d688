#pragma once

#include <dnnl.hpp>

#include "carillon/graph/graph.h"

namespace carillon::engine::cpu {

// An elementwise function in oneDNN's terms.
struct Eltwise {
  dnnl::algorithm algorithm = dnnl::algorithm::undef;
  float alpha = 0;
  float beta = 0;
};

// Of a post-op without an operand (not add, not mul).
Eltwise eltwise_of(const graph::PostOp& op);

}  // namespace carillon::engine::cpu
