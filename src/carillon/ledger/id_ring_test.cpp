#include "carillon/ledger/id_ring.h"

#include <map>

#include <gtest/gtest.h>

#include "carillon/base/ids.h"
#include "carillon/base/random.h"

namespace carillon::ledger {
namespace {

TEST(IdRing, AgreesWithAMap) {
  for (const std::uint64_t often : {2, 3, 50}) {  // of how many ids each stays for long
    Random random(often);
    IdRing<RequestId, std::uint64_t> ring;
    std::map<std::uint64_t, std::uint64_t> truth;
    for (std::uint64_t id = 0; id < 20'000; ++id) {
      ring.open({id}) = id * 3;
      truth[id] = id * 3;
      for (std::uint64_t gone = id < 40 ? 0 : id - 40; gone + 30 < id; ++gone)
        if (gone % often != 0) {
          ring.close({gone});
          truth.erase(gone);
        }
      const std::uint64_t any = random.below(id + 1);
      if (random.below(3) != 0) {
        ring.close({any});
        truth.erase(any);
      } else if (random.below(4) == 0) {
        ring.open({any}) = id;  // once more
        truth[any] = id;
      }
      ASSERT_EQ(ring.size(), truth.size());
      const std::uint64_t asked = random.below(id + 2);
      const auto found = truth.find(asked);
      const std::uint64_t* const value = ring.find({asked});
      ASSERT_EQ(value != nullptr, found != truth.end()) << asked;
      if (value != nullptr) {
        ASSERT_EQ(*value, found->second);
      }
    }
    for (const auto& [id, value] : truth) {
      ASSERT_NE(ring.find({id}), nullptr);
      ASSERT_EQ(*ring.find({id}), value);
    }
  }
}

}  // namespace
}  // namespace carillon::ledger
