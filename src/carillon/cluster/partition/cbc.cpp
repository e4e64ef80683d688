#include "carillon/cluster/partition/cbc.h"

#include <optional>

#include <dlfcn.h>

#include "carillon/base/symbols.h"

namespace carillon::cluster {
namespace {

// Stays loaded for good.
std::optional<Cbc> load() {
  void* const library = dlopen("libCbcSolver.so.3", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return std::nullopt;
  Symbols find([library](const char* name) { return dlsym(library, name); });
  Cbc found{};
  find("Cbc_newModel", found.newModel);
  find("Cbc_deleteModel", found.deleteModel);
  find("Cbc_addCol", found.addCol);
  find("Cbc_addRow", found.addRow);
  find("Cbc_setMIPStartI", found.setMIPStartI);
  find("Cbc_setLogLevel", found.setLogLevel);
  find("Cbc_setParameter", found.setParameter);
  find("Cbc_setMaximumSeconds", found.setMaximumSeconds);
  find("Cbc_solve", found.solve);
  find("Cbc_isProvenInfeasible", found.isProvenInfeasible);
  find("Cbc_isProvenOptimal", found.isProvenOptimal);
  find("Cbc_bestSolution", found.bestSolution);
  find("Cbc_getObjValue", found.getObjValue);
  find("Cbc_getBestPossibleObjValue", found.getBestPossibleObjValue);
  if (!find.missing().empty()) return std::nullopt;
  return found;
}

}  // namespace

const Cbc* Cbc::find() {
  static const std::optional<Cbc> found = load();
  return found ? &*found : nullptr;
}

}  // namespace carillon::cluster
