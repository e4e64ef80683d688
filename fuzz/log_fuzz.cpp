#include "fuzz.h"

#include "carillon/schedule/log/reader.h"

// A log of decisions, read to its end.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace carillon;
  static const fuzz::InputFile file("input.log");
  auto reader = schedule::log::LogReader::open(file.write(fuzz::text_of(data, size)));
  if (!fuzz::taken(reader)) return 0;
  while (true) {
    const auto next = reader->next();
    if (!fuzz::taken(next) || !*next) return 0;
  }
}
