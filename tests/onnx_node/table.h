#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "onnx_node/suite.h"

namespace carillon::onnx_node {

// bench/measured/onnx-operators.md: runs every test with every backend and says, for each operator, how many
// tests run, pass and are left out, and why. The same files give the same text.
Result<std::string> make_table(const std::vector<Case>& cases,
                               const std::vector<std::unique_ptr<Backend>>& backends,
                               const std::filesystem::path& scratch);

}  // namespace carillon::onnx_node
