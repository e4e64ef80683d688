#pragma once

#include <string_view>

namespace carillon::engine::second {

// What is one such engine's own. Its texts outlive whatever is made with it.
struct Kind {
  // In configs, logs and file names: its module is libcarillon_NAME.so, its processes are of carillon-NAME.
  std::string_view name;
  std::string_view title;  // in texts
  // How to get it in a checkout, and where the program is the wheel's; each begins with "; ".
  std::string_view remedy;
  std::string_view wheel_remedy{};
  // The extension of files that no other engine reads; empty: there are none.
  std::string_view format{};
  // It makes something else of some nodes than ONNX says (graph/onnx_check.h).
  bool misreads_nodes = false;
};

}  // namespace carillon::engine::second
