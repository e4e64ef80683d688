#include "carillon/frontend/http/http_body.h"

#include <string>

#include <nlohmann/json.hpp>

#include "carillon/frontend/codec/json_check.h"

namespace carillon::frontend {

Result<nlohmann::json> object_body(const HttpRequest& request, std::string_view example) {
  if (request.body.size() == 0) return nlohmann::json::object();
  constexpr std::size_t longest = std::size_t{1} << 20;  // parsed, it takes many times as much
  if (request.body.size() > longest)
    return invalid("the body has " + std::to_string(request.body.size()) + " bytes; at most " +
                   std::to_string(longest) + " are allowed here");
  auto body = nlohmann::json::parse(request.body.text(), nullptr, false);
  if (body.is_discarded()) return invalid(json_fault_text(request.body.text()));
  if (!body.is_object()) return invalid("the body must be a JSON object, such as " + std::string(example));
  return body;
}

}  // namespace carillon::frontend
