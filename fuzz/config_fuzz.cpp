#include "fuzz.h"
#include <google/protobuf/stubs/logging.h>

#include "carillon/repository/config.h"

// config.pbtxt, and a config in JSON as orders to load a model bring it.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace carillon;
  static const google::protobuf::LogSilencer quiet;
  const auto text = fuzz::text_of(data, size);
  (void)fuzz::taken(repository::parse_config(text, "m"));
  if (const auto converted = repository::config_from_json(text); fuzz::taken(converted))
    (void)fuzz::taken(repository::parse_config(*converted, "m"));
  return 0;
}
