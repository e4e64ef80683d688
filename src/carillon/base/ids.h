#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>

namespace carillon {

// An integer that cannot be mistaken for another kind's. Ids are dealt out in order from zero, so they also
// index tables and break ties by age.
template <typename Tag, typename Rep>
struct Id {
  using rep = Rep;
  Rep value{};

  constexpr std::size_t index() const { return static_cast<std::size_t>(value); }
  friend constexpr auto operator<=>(const Id&, const Id&) = default;
};

using RequestId = Id<struct RequestTag, std::uint64_t>;
using ActionId = Id<struct ActionTag, std::uint64_t>;
using ModelId = Id<struct ModelTag, std::uint32_t>;
using AppId = Id<struct AppTag, std::uint32_t>;
using DeviceId = Id<struct DeviceTag, std::uint32_t>;

}  // namespace carillon

template <typename Tag, typename Rep>
struct std::hash<carillon::Id<Tag, Rep>> {
  std::size_t operator()(const carillon::Id<Tag, Rep>& id) const noexcept {
    return std::hash<Rep>{}(id.value);
  }
};
