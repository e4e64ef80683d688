#include "carillon/cli/memory_bound.h"

#include <algorithm>
#include <utility>

#include <unistd.h>

#include "carillon/base/memory_limit.h"
#include "carillon/base/resident_memory.h"
#include "carillon/engine/host/memory.h"
#include "carillon/graph/onnx_sizes.h"

namespace carillon::cli {
namespace {

// Plans of a node at usual batch sizes, about; and its plan of batch size 1, which has one kernel at most in
// common models, of 32 KiB as plans count it, and constants.
constexpr Bytes a_node = kib(96), a_node_alone = kib(40);

// What processes may have resident of such a limit: a control group counts the kernel's memory for them.
Bytes usable(const MemoryLimit& limit) {
  const bool group = limit.from.starts_with('/');
  return group ? limit.bytes - Bytes{limit.bytes.count / 16} : limit.bytes;
}

}  // namespace

Result<MemoryBound> memory_bound(const std::string& text) {
  MemoryBound out;
  const auto limit = memory_limit();
  if (limit) out.limit = limit->bytes;
  if (text != "auto") {
    const auto size = parse_bytes(text);
    if (!size) return in_context("--memory", size.error());
    out.bytes = *size;
    out.named = "--memory " + text;
    out.from = "--memory";
    out.given = true;
    return out;
  }
  if (!limit) return in_context("--memory auto", limit.error());
  const auto available = engine::available_memory();
  if (!available) return in_context("--memory auto", available.error());
  out.bytes = usable(*limit);
  out.from = limit->from;
  if (const Bytes there = *available + resident_of_tree(::getpid()); there < out.bytes) {
    out.bytes = there;
    out.from = "what others leave of " + limit->from;
  }
  out.named = "--memory auto (" + to_text(out.bytes) + ", " + out.from + ")";
  return out;
}

KnownModels known_models(const std::vector<repository::RepositoryEntry>& entries, KnownOptions options) {
  KnownModels out;
  Bytes plans, most, weights;  // `plans` counts weights that stay in memory as well
  bool all_known = true;
  for (const repository::RepositoryEntry& entry : entries) {
    if (!entry.config) continue;
    const bool alone = options.later && !repository::wants_all_plans(*entry.config);
    for (const repository::ModelVersion& version : entry.versions) {
      if (version.file.empty()) continue;
      const auto sizes = graph::constant_sizes(version.file);
      all_known = all_known && sizes && !sizes->may_grow;
      if (!sizes) continue;
      out.largest_weights = std::max(out.largest_weights, sizes->packed);
      // Kernels may want them in several layouts.
      weights = weights + page_size * pages_for(sizes->packed * 3);
      const Bytes stays = options.stay ? sizes->packed : Bytes{};
      // What making the model takes includes its packed weights: those that stay are counted below.
      most = std::max(most, sizes->to_make() - stays);
      plans = plans + (alone ? a_node_alone : a_node) * sizes->nodes + stays;
    }
  }
  if (all_known) out.all_weights = weights;
  out.memory = most + plans;
  out.measured = out.largest_weights + plans;
  return out;
}

std::shared_ptr<MemoryAccount> make_account(const MemoryBound& bound, const server::MemoryWanted& wanted,
                                            const server::MemoryPlan& plan) {
  return MemoryAccount::make(
      {.models = plan.models,
       .bound = bound.named,
       .weights = plan.page_caches > Bytes{} ? plan.page_cache : Bytes{},
       .workspace = plan.workspaces > Bytes{} ? plan.workspace : Bytes{},
       .tensors = plan.io_caches > Bytes{} ? plan.io_cache : Bytes{},
       .least = [wanted](const ModelNeed& need) { return server::least_bound(wanted, need); }});
}

std::string LimitWatch::look() {
  if (bound_.given) return {};
  const auto limit = memory_limit();
  if (!limit) return {};
  const Bytes now = usable(*limit);
  const Bytes missing = bound_.bytes - std::min(bound_.bytes, now);
  account_->shrink_by(missing);
  if (std::exchange(low_, missing > Bytes{}) == low_) return {};
  if (!low_) return "memory: the limit is as it was, or higher: models have their part again";
  return "memory: " + limit->from + " allows " + to_text(limit->bytes) + " now, and parts of " +
         to_text(bound_.bytes) + " were planned when the server started: models get " + to_text(missing) +
         " less, and the server may be ended where its caches fill. Start it again to plan anew";
}

}  // namespace carillon::cli
