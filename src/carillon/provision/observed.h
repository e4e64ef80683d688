#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "carillon/base/result.h"
#include "carillon/base/time.h"

namespace carillon::provision {

// What a server's metrics say of one model.
struct ObservedModel {
  double rows = 0;              // of requests, ever, whatever their outcome
  std::optional<Duration> slo;  // of the model, where it has one
};

// Reads `carillon_rows_total` and `carillon_slo_seconds` from Prometheus's text format; versions of a
// model count together. Other metrics are passed over. Error: none of these (`where`, the address, opens it).
Result<std::map<std::string, ObservedModel>> parse_metrics(std::string_view text, std::string_view where);

// Workloads as `carillon plan` reads them (JSON): every model that had requests between the two looks,
// `seconds` > 0 apart, under its own name, with the rate that was seen; its SLO, or `slo` where it has none.
// Errors: no request came; a counter went back; a model has no SLO and none was given.
Result<std::string> observed_workloads(const std::map<std::string, ObservedModel>& first,
                                       const std::map<std::string, ObservedModel>& second, double seconds,
                                       std::optional<Duration> slo);

}  // namespace carillon::provision
