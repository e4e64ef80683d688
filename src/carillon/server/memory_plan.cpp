#include "carillon/server/memory_plan.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <numeric>

namespace carillon::server {
namespace {

// A part of the bound: of `count` pieces that are equally large.
struct Part {
  std::string name;  // its option, or what it is
  std::uint64_t count = 1;
  bool given = false;
  std::uint64_t least = 0;  // of a piece
  std::uint64_t most = 0;   // likewise
  std::uint64_t unit = 1;   // a piece is a multiple of it
  unsigned share = 0;       // of what is left beside all least sizes
  std::uint64_t size = 0;   // of a piece

  std::uint64_t all_least() const { return least * count; }
};

enum Which : std::uint8_t { pages, tensors, workspaces, sizes, doors, models, count_of_parts };
using Parts = std::array<Part, count_of_parts>;

constexpr std::uint64_t any = std::numeric_limits<std::uint64_t>::max();

std::uint64_t rounded_down(std::uint64_t size, std::uint64_t unit) {
  return size / unit * unit;
}

// Of requests, answers and gRPC's buffers, as size_doors() divides it.
std::uint64_t doors_for(Bytes inflight, Bytes body) {
  return (inflight + grpc_buffers(inflight, body)).count;
}

// Divides `left` among the parts that may grow, in proportion to their shares.
void grow(Parts& parts, std::uint64_t left) {
  std::vector<Part*> growing;
  for (Part& part : parts)
    if (part.share > 0 && part.count > 0 && part.size < part.most) growing.push_back(&part);
  while (!growing.empty()) {
    const std::uint64_t shares =
        std::accumulate(growing.begin(), growing.end(), std::uint64_t{0},
                        [](auto sum, const Part* part) { return sum + part->share; });
    const auto filled = std::ranges::find_if(growing, [&](const Part* part) {
      return part->most != any && (part->most - part->size) * part->count <= left / shares * part->share;
    });
    if (filled == growing.end()) {
      const std::uint64_t each = left / shares;
      for (Part* part : growing)
        part->size =
            std::max(part->size, rounded_down(part->size + each * part->share / part->count, part->unit));
      return;
    }
    left -= ((*filled)->most - (*filled)->size) * (*filled)->count;
    (*filled)->size = (*filled)->most;
    growing.erase(filled);
  }
}

std::string told(const Part& part) {
  std::string text = part.name + (part.given ? " " : " at least ") + to_text(Bytes{part.all_least()});
  if (part.count > 1) text += " (" + std::to_string(part.count) + " of " + to_text(Bytes{part.least}) + ")";
  return text;
}

Error too_small(const MemoryWanted& wanted, const Part& libraries, const Parts& parts) {
  std::uint64_t sum = libraries.all_least();
  std::string list = told(libraries);
  for (const Part& part : parts) {
    if (part.all_least() == 0) continue;
    sum += part.all_least();
    list += ", " + told(part);
  }
  return Error{ErrorCode::resource_exhausted,
               wanted.named + " is too small: at least " + whole_mib(Bytes{sum}) + ", for " + list};
}

Parts parts_of(const MemoryWanted& wanted, Bytes beside_libraries) {
  HostShare all;
  for (const HostShare& device : wanted.devices) {
    all.caches += device.caches;
    all.tensors += device.tensors;
    all.streams += device.streams;
  }
  const auto part = [](std::string name, std::uint64_t count, std::optional<Bytes> given, Bytes least,
                       Bytes most, Bytes unit, unsigned share) {
    if (given)
      return Part{.name = std::move(name),
                  .count = count,
                  .given = true,
                  .least = given->count,
                  .most = given->count,
                  .size = given->count};
    return Part{.name = std::move(name),
                .count = count,
                .least = least.count,
                .most = std::max(least, most).count,
                .unit = unit.count,
                .share = share,
                .size = least.count};
  };
  Bytes most_pages = gib(2), least_pages = page_size;
  if (wanted.all_weights)
    most_pages = std::min(most_pages, page_size * std::max<std::uint64_t>(1, pages_for(*wanted.all_weights)));
  Parts out;
  out[pages] = part("--page-cache", all.caches, wanted.page_cache, least_pages, most_pages, page_size, 14);
  out[tensors] = part("--io-cache", all.tensors, wanted.io_cache, mib(2), mib(256), kib(64), 1);
  out[workspaces] = part("--workspace", all.streams, wanted.workspace, mib(2), mib(512), kib(64), 2);
  const std::uint64_t served = wanted.serves ? 1 : 0;
  out[sizes] =
      part("--sizes-memory", served, wanted.sizes, mib(2), Bytes{beside_libraries.count / 16}, kib(64), 1);
  const Bytes inflight = wanted.inflight.value_or(std::max(least_inflight, wanted.body.value_or(Bytes{})));
  const Bytes body = wanted.body.value_or(std::min(largest_body, Bytes{inflight.count / 2}));
  const Bytes least_doors{doors_for(inflight, body)};
  out[doors] = part("--inflight-limit, with gRPC's buffers,", served, {}, least_doors,
                    Bytes{wanted.inflight ? least_doors.count : doors_for(largest_inflight, largest_body)},
                    Bytes{1}, 3);
  out[doors].given = wanted.inflight.has_value();
  out[models] = part("models", served, {}, mib(8), Bytes{any}, Bytes{1}, 3);
  return out;
}

std::uint64_t sum_of(const Parts& parts) {
  std::uint64_t sum = 0;
  for (const Part& part : parts) sum += part.size * part.count;
  return sum;
}

}  // namespace

Bytes libraries_of(unsigned cores) {
  constexpr unsigned most = 32;
  return mib(128) + mib(4) * std::min(cores, most);
}

Bytes grpc_buffers(Bytes inflight, Bytes body) {
  return std::max(Bytes{inflight.count / 2}, body) + std::min(mib(64), inflight);
}

Result<DoorSizes> size_doors(Bytes room, std::optional<Bytes> inflight, std::optional<Bytes> body) {
  DoorSizes out;
  if (inflight) {
    out.inflight = *inflight;
  } else {
    // What grpc_buffers() wants beside it: as much and a half of little, else half and 64 MiB.
    const Bytes fits{room <= mib(160) ? room.count / 5 * 2 : (room.count - mib(64).count) / 3 * 2};
    out.inflight = std::clamp(fits, least_inflight, largest_inflight);
    // Who wants large bodies gets room for one.
    if (body) out.inflight = std::max(out.inflight, *body);
  }
  out.body = body.value_or(std::min(largest_body, Bytes{out.inflight.count / 2}));
  if (out.inflight < out.body)
    return invalid("--inflight-limit is " + to_text(out.inflight) + ", less than --body-limit, " +
                   to_text(out.body) + ": such a body could never be read");
  return out;
}

Result<MemoryPlan> plan_memory(const MemoryWanted& wanted) {
  // Before anything else: it is wrong in any memory.
  if (auto right = size_doors({}, wanted.inflight, wanted.body); !right)
    return std::unexpected(right.error());
  const Part libraries{
      .name = "libraries and threads", .given = true, .least = libraries_of(wanted.cores).count};
  const Bytes beside{wanted.bound.count - std::min(wanted.bound.count, libraries.least)};
  Parts parts = parts_of(wanted, beside);
  if (wanted.bound.count < libraries.least || sum_of(parts) > beside.count)
    return std::unexpected(too_small(wanted, libraries, parts));
  // Models that are known come first, where there is room.
  std::uint64_t left = beside.count - sum_of(parts);
  const auto raise = [&](Part& part, std::uint64_t to) {
    if (part.given || part.count == 0) return;
    to = std::min(to, part.most);
    const std::uint64_t more = to > part.size ? (to - part.size) * part.count : 0;
    if (more == 0 || more > left) return;
    part.size = to;
    left -= more;
  };
  raise(parts[pages], (page_size * pages_for(wanted.largest_weights)).count);
  // Who has weights has activations, too: such models take some megabytes for one request.
  if (wanted.largest_weights >= mib(1)) {
    raise(parts[workspaces], mib(8).count);
    raise(parts[tensors], mib(4).count);
  }
  std::uint64_t known = wanted.known_models.count;
  if (wanted.known_measured > Bytes{})
    known = std::max(known, wanted.known_measured.count + parts[workspaces].size + parts[tensors].size);
  // At most 3/4 of what is left: the other parts need some to serve the models that fit.
  raise(parts[models], std::min(known, parts[models].size + left / 4 * 3));
  grow(parts, left);
  MemoryPlan out{.libraries = Bytes{libraries.least},
                 .page_cache = Bytes{parts[pages].size},
                 .io_cache = Bytes{parts[tensors].size},
                 .workspace = Bytes{parts[workspaces].size},
                 .sizes = Bytes{parts[sizes].size * parts[sizes].count},
                 .page_caches = Bytes{parts[pages].size * parts[pages].count},
                 .io_caches = Bytes{parts[tensors].size * parts[tensors].count},
                 .workspaces = Bytes{parts[workspaces].size * parts[workspaces].count}};
  if (wanted.serves) {
    const auto at_doors = size_doors(Bytes{parts[doors].size}, wanted.inflight, wanted.body);
    if (!at_doors) return std::unexpected(at_doors.error());
    out.inflight = at_doors->inflight;
    out.body = at_doors->body;
    out.grpc = grpc_buffers(out.inflight, out.body);
  }
  out.models =
      beside - (out.page_caches + out.io_caches + out.workspaces + out.sizes + out.inflight + out.grpc);
  return out;
}

Bytes least_bound(MemoryWanted wanted, ModelNeed need) {
  // Others that are known come, too.
  need.memory = std::max(need.memory, wanted.known_models);
  // Files told it before a model was made: what is needed now may be more.
  wanted.all_weights = {};
  const std::uint64_t too_small = wanted.bound.count / mib(1).count;
  // Files do not tell what a run works in: at most what there is for that.
  const auto has_room_to_measure = [&](const MemoryPlan& plan) {
    const Bytes known = need.workspace + need.tensors;
    const Bytes run = known > Bytes{} ? known : plan.workspace + plan.io_cache;
    return wanted.known_measured == Bytes{} || plan.models >= wanted.known_measured + run;
  };
  // Given is given: a part that is too small stays so.
  const auto enough = [&](std::uint64_t size) {
    wanted.bound = mib(size);
    const auto plan = plan_memory(wanted);
    return plan && plan->models >= need.memory && has_room_to_measure(*plan) &&
           (wanted.page_cache || plan->page_caches == Bytes{} ||
            plan->page_cache >= page_size * pages_for(need.weights)) &&
           (wanted.workspace || plan->workspaces == Bytes{} || plan->workspace >= need.workspace) &&
           (wanted.io_cache || plan->io_caches == Bytes{} || plan->io_cache >= need.tensors);
  };
  std::uint64_t least = too_small, most = too_small + 1;
  while (!enough(most) && most < (1ULL << 24)) most = too_small + 2 * (most - too_small);
  if (!enough(most)) return {};
  while (most - least > 1) {
    const std::uint64_t middle = least + (most - least) / 2;
    (enough(middle) ? most : least) = middle;
  }
  return mib(most);
}

std::string MemoryPlan::text() const {
  std::string out = "libraries " + to_text(libraries);
  for (const auto& [name, size] :
       {std::pair("weights", page_caches), std::pair("tensors", io_caches),
        std::pair("workspaces", workspaces), std::pair("plans for sizes", sizes),
        std::pair("bodies", inflight), std::pair("gRPC", grpc), std::pair("models", models)})
    if (size > Bytes{}) out += std::string(", ") + name + " " + to_text(size);
  return out;
}

}  // namespace carillon::server
