#include "fuzz.h"

#include <span>
#include <variant>

#include "carillon/share/messages.h"

// A packet of a job, as the broker reads it.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace carillon;
  const auto said = share::read_packet(std::as_bytes(std::span(data, size)));
  if (said.has_value()) {
    if (const auto* hello = std::get_if<share::HelloSaid>(&*said)) {
      fuzz::must(hello->name.size() <= share::most_name, "a name is as long as it may be");
      fuzz::must(hello->weight > 0 && hello->weight <= 1000, "a weight is in its range");
      for (const unsigned char byte : hello->name) fuzz::must(byte >= 0x20 && byte != 0x7f, "a name can be shown");
      fuzz::must(share::shown(hello->name) == hello->name, "what can be shown stays as it is");
    }
    if (const auto* stopped = std::get_if<share::StoppedSaid>(&*said))
      fuzz::must(stopped->counters.busy >= Duration{0} && stopped->counters.busy <= share::most_time &&
                     stopped->counters.memory.persistent <= share::most_bytes,
                 "sizes and times are held");
    return 0;
  }
  fuzz::must(!said.error().message.empty(), "an error says what is wrong");
  fuzz::must(said.error().code != ErrorCode::internal, "bad input is no internal error");
  return 0;
}
