#include "carillon/repository/warmup.h"

#include <algorithm>
#include <map>

#include "model_config.pb.h"

#include "carillon/repository/config_types.h"

namespace carillon::repository {
namespace {

using inference::ModelWarmup;
using std::to_string;

Result<Warmup::Input> read_input(const std::string& name, const ModelWarmup::Input& message,
                                 const std::string& where) {
  Warmup::Input out{.name = name};
  const auto type = from_wire(message.data_type());
  if (!type) return invalid(where + "data_type is missing or unknown; for example TYPE_FP32");
  if (*type == graph::DataType::string)
    return fail(ErrorCode::unsupported, where + "TYPE_STRING tensors are not supported");
  out.type = *type;
  if (message.dims_size() > 16) return invalid(where + to_string(message.dims_size()) + " dims; at most 16");
  for (const std::int64_t extent : message.dims()) {
    if (extent < 1)
      return invalid(where + "dims has " + to_string(extent) +
                     "; each is what it is in this request, 1 or more");
    out.dims.push_back(extent);
  }
  if (const auto count = graph::element_count(out.dims); !count)
    return in_context(where + "dims", count.error());
  switch (message.input_data_type_case()) {
    case ModelWarmup::Input::kZeroData:
      out.data = Warmup::Input::Data::zeros;
      return out;
    case ModelWarmup::Input::kRandomData:
      out.data = Warmup::Input::Data::random;
      return out;
    case ModelWarmup::Input::kInputDataFile:
      out.data = Warmup::Input::Data::file;
      out.file = message.input_data_file();
      if (out.file.empty() || out.file == "." || out.file == ".." ||
          out.file.find('/') != std::string::npos || out.file.find('\0') != std::string::npos)
        return invalid(where + "input_data_file is '" + out.file +
                       "'; it is the name of a file in the model's folder " + warmup_folder);
      return out;
    case ModelWarmup::Input::INPUT_DATA_TYPE_NOT_SET:
      return invalid(where + "it says none of zero_data: true, random_data: true and input_data_file");
  }
  return out;
}

}  // namespace

Result<std::vector<Warmup>> read_warmup(const inference::ModelConfig& message) {
  if (message.model_warmup_size() > most_warmups)
    return invalid("model_warmup: " + to_string(message.model_warmup_size()) + " of them; at most " +
                   to_string(most_warmups));
  std::vector<Warmup> out;
  for (const ModelWarmup& each : message.model_warmup()) {
    Warmup warmup{.name = each.name()};
    const std::string where = "model_warmup '" + each.name() + "': ";
    const auto most_rows = static_cast<std::uint32_t>(std::max(1, message.max_batch_size()));
    if (each.batch_size() > most_rows && (message.max_batch_size() > 0 || message.input_size() > 0))
      return invalid(where + "batch_size is " + to_string(each.batch_size()) +
                     "; it is at most max_batch_size, here " + to_string(message.max_batch_size()) +
                     (message.max_batch_size() == 0 ? " (1 row)" : ""));
    if (each.batch_size() > 4096) return invalid(where + "batch_size is " + to_string(each.batch_size()));
    warmup.rows = std::max(1, static_cast<int>(each.batch_size()));
    if (each.count() > most_warmup_runs)
      return invalid(where + "count is " + to_string(each.count()) + "; at most " +
                     to_string(most_warmup_runs));
    warmup.runs = std::max(1, static_cast<int>(each.count()));
    const std::map<std::string, ModelWarmup::Input> inputs(each.inputs().begin(), each.inputs().end());
    for (const auto& [name, input] : inputs) {
      auto read = read_input(name, input, where + "input '" + name + "': ");
      if (!read) return std::unexpected(read.error());
      warmup.inputs.push_back(std::move(*read));
    }
    out.push_back(std::move(warmup));
  }
  return out;
}

}  // namespace carillon::repository
