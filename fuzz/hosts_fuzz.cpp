#include <string>
#include <string_view>

#include "fuzz.h"

#include "carillon/transport/codec.h"
#include "carillon/transport/times.h"

// A frame of another host.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace carillon;
  const auto frame = transport::decode({reinterpret_cast<const char*>(data), size});
  if (!frame) {
    fuzz::must(!frame.error().message.empty(), "an error says what is wrong");
    fuzz::must(frame.error().code == ErrorCode::invalid_argument, "bad input is no internal error");
    return 0;
  }
  std::string again;
  transport::encode(*frame, again);
  const auto twice = transport::decode(again);
  fuzz::must(twice.has_value(), "what was read can be passed on");
  fuzz::must(twice->messages.size() == frame->messages.size(), "all of it");
  cluster::PeerClock clock({.settle_samples = 1});
  clock.add({});
  for (transport::Message message : frame->messages)
    fuzz::must(transport::to_our_time(message, clock, TimePoint{}), "any time can be converted");
  return 0;
}
