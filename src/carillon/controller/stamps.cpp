#include "carillon/controller/stamps.h"

namespace carillon::controller {

std::string stamp_of_all(const repository::RepositoryEntry& entry) {
  if (!entry.config) return "error: " + entry.config.error().message;
  std::string out;
  for (const repository::ModelVersion& version : entry.versions)
    out += std::to_string(version.version) + "=" + repository::stamp_of(entry, version) + ";";
  return out;
}

}  // namespace carillon::controller
