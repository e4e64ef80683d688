#include "carillon/controller/models/stamps.h"

namespace carillon::controller {

EntryStamps stamps_of(const repository::RepositoryEntry& entry) {
  EntryStamps out;
  if (!entry.config) {
    out.all = "error: " + entry.config.error().message;
    return out;
  }
  for (const repository::ModelVersion& version : entry.versions) {
    out.versions.push_back(repository::stamp_of(entry, version));
    out.all += std::to_string(version.version) + "=" + out.versions.back() + ";";
  }
  return out;
}

}  // namespace carillon::controller
