#pragma once

#include <memory>

#include "carillon/research/sharing/sharing.h"

namespace carillon::research {

// The policies by which a device is shared, one source each.
std::unique_ptr<Sharing> make_reef(const SharingOptions& options);
std::unique_ptr<Sharing> make_rt_only(const SharingOptions& options);
std::unique_ptr<Sharing> make_sequential(const SharingOptions& options);
std::unique_ptr<Sharing> make_streams(const SharingOptions& options);
std::unique_ptr<Sharing> make_wait(const SharingOptions& options);

}  // namespace carillon::research
