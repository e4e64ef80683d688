#pragma once

#include "carillon/base/descriptor.h"

namespace carillon::frontend {

// Raises this process's limit of open descriptors as far as it may, and says what it is now.
int raise_descriptor_limit();

}  // namespace carillon::frontend
