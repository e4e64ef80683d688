#pragma once

#include <string_view>

#include "carillon/base/bytes.h"
#include "carillon/base/result.h"

namespace carillon::cli {

// Whether the process may still take what libraries need that end it where they do not get it. Nothing is
// kept.

// Where addresses are limited ('ulimit -v'): sees to it that malloc does not reserve them for each thread.
// Before other threads start.
void spare_addresses();
// Room for `needed` more addresses. The error says what `what` needs, what there is, and what would help.
Result<> enough_addresses(Bytes needed, std::string_view what);
// Room for `count` more threads, started and ended.
Result<> enough_threads(int count, std::string_view what);

// From now on an exception that nobody catches, for want of memory or of threads, ends the process with one
// line and the status 1; others abort, as they did, but without the library's text. From main(), before anything is allocated.
void end_in_words();

}  // namespace carillon::cli
