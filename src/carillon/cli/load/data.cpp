#include <charconv>
#include <cstdint>
#include <cstring>

#include "carillon/base/random.h"
#include "carillon/cli/load/client.h"

namespace carillon::cli {
namespace {

// Words of 1 to 12 letters, each behind its length in four bytes.
void fill_words(Random& random, std::int64_t elements, std::vector<std::byte>& data) {
  for (std::int64_t i = 0; i < elements; ++i) {
    const auto length = static_cast<std::uint32_t>(1 + random.below(12));
    for (int byte = 0; byte < 4; ++byte) data.push_back(static_cast<std::byte>(length >> (8 * byte) & 0xff));
    for (std::uint32_t c = 0; c < length; ++c)
      data.push_back(static_cast<std::byte>('a' + static_cast<char>(random.below(26))));
  }
}

}  // namespace

std::optional<double> number_in(const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || end != text.data() + text.size()) return std::nullopt;
  return number;
}

Result<std::vector<std::byte>> make_data(const std::string& datatype, std::int64_t elements,
                                         std::uint64_t seed) {
  Random random(seed);
  std::vector<std::byte> data;
  const auto fill = [&]<typename T>(auto draw, T) {
    data.resize(static_cast<std::size_t>(elements) * sizeof(T));
    for (std::int64_t i = 0; i < elements; ++i) {
      const T value = draw();
      std::memcpy(data.data() + static_cast<std::size_t>(i) * sizeof(T), &value, sizeof(T));
    }
  };
  // Ones for integers: a valid token, a mask that hides nothing, an index into anything but the empty.
  const auto one = [] { return 1; };
  if (datatype == "FP32")
    fill([&] { return static_cast<float>(random.uniform()); }, float{});
  else if (datatype == "FP64")
    fill([&] { return random.uniform(); }, double{});
  else if (datatype == "FP16" || datatype == "BF16")
    fill([] { return std::uint16_t{0}; }, std::uint16_t{});
  else if (datatype == "INT64" || datatype == "UINT64")
    fill(one, std::int64_t{});
  else if (datatype == "INT32" || datatype == "UINT32")
    fill(one, std::int32_t{});
  else if (datatype == "INT16" || datatype == "UINT16")
    fill([] { return std::int16_t{1}; }, std::int16_t{});
  else if (datatype == "INT8" || datatype == "UINT8" || datatype == "BOOL")
    fill([] { return std::int8_t{1}; }, std::int8_t{});
  else if (datatype == "BYTES")
    fill_words(random, elements, data);
  else
    return fail(ErrorCode::unsupported, "no data can be made for an input of type " + datatype);
  return data;
}

}  // namespace carillon::cli
