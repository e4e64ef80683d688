#include "carillon/profile/kernel_table.h"

#include <algorithm>
#include <map>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/profile/json_fields.h"

namespace carillon::profile {

std::string_view mi50_kernels_json();  // profiles/mi50_kernels.json, by carillon_embed

namespace {

using nlohmann::json;

constexpr std::size_t most_models = 256, most_aliases = 64, most_rounds = 64, longest_name = 200;
// "repeat" lets a short file ask for any number of kernels, so all models together have a limit, too.
constexpr std::size_t most_kernels = 100'000, most_kernels_in_all = 200'000;
constexpr double longest_round_us = 10e6, longest_model_us = 1000e6;

class Reader {
 public:
  explicit Reader(std::string_view where) : fields_(where) {}

  Result<KernelTable> read(const json& document) {
    KernelTable table;
    table.device = fields_.text(document, "document", "device", true);
    table.units = static_cast<int>(fields_.integer(document, "document", "units", 1, 1024));
    const json& models = fields_.object(document, "document", "models", true);
    check_count("models", models.size(), most_models, "models");
    for (const auto& [name, model] : models.items()) {
      if (fields_.failed()) break;
      table.models.push_back(read_model(name, model));
    }
    if (fields_.failed()) return fields_.error();
    return table;
  }

 private:
  void check_count(const std::string& place, std::size_t count, std::size_t most, const char* what) {
    if (count == 0)
      fields_.wrong(place, std::string("is empty, but should hold 1..") + std::to_string(most) + " " + what);
    if (count > most)
      fields_.wrong(place, "has " + std::to_string(count) + " " + what + ", but may have at most " +
                               std::to_string(most));
  }

  void check_length(const std::string& place, const std::string& name) {
    if (name.empty() || name.size() > longest_name)
      fields_.wrong(place, "is a name of " + std::to_string(name.size()) + " bytes, but should have 1.." +
                               std::to_string(longest_name));
  }

  // A name that workloads may use: of one model of the table alone.
  void add_name(ModelKernels& model, const std::string& place, const std::string& name) {
    check_length(place, name);
    const auto [owner, added] = owner_of_.try_emplace(name, model.names.empty() ? name : model.names.front());
    if (!added)
      fields_.wrong(
          place, "is '" + name + "', as '" + owner->second + "' is called already, but names should differ");
    model.names.push_back(name);
  }

  ModelKernels read_model(const std::string& name, const json& object) {
    const std::string place = JsonFields::at("models", JsonFields::brief(name));
    ModelKernels model;
    add_name(model, place, name);
    const json& aliases = fields_.array(object, place, "aliases", false);
    if (aliases.size() > most_aliases)
      check_count(JsonFields::at(place, "aliases"), aliases.size(), most_aliases, "names");
    for (std::size_t i = 0; i < aliases.size() && !fields_.failed(); ++i) {
      const std::string at = JsonFields::at(JsonFields::at(place, "aliases"), i);
      if (aliases[i].is_string())
        add_name(model, at, aliases[i].get<std::string>());
      else
        fields_.wrong(at, "is " + JsonFields::shown(aliases[i]) + ", but should be a string");
    }
    model.source = fields_.text(object, place, "source", false);
    model.latency =
        from_ns(1e3 * fields_.number(object, place, "latency_us", 1e-3, longest_model_us, "microseconds"));
    const std::string list = JsonFields::at(place, "kernels");
    const json& kernels = fields_.array(object, place, "kernels", true);
    check_count(list, kernels.size(), most_kernels, "kernels");
    for (std::size_t i = 0; i < kernels.size() && !fields_.failed(); ++i)
      read_kernel(model, list, JsonFields::at(list, i), kernels[i]);
    return model;
  }

  void read_kernel(ModelKernels& model, const std::string& list, const std::string& place,
                   const json& object) {
    KernelEntry kernel;
    kernel.name = fields_.text(object, place, "name", true);
    check_length(JsonFields::at(place, "name"), kernel.name);
    kernel.blocks = static_cast<int>(fields_.integer(object, place, "blocks", 1, 1'000'000));
    const std::string rounds_place = JsonFields::at(place, "round_us");
    const json& rounds = fields_.array(object, place, "round_us", true);
    check_count(rounds_place, rounds.size(), most_rounds, "times");
    for (std::size_t i = 0; i < rounds.size() && !fields_.failed(); ++i)
      kernel.rounds.push_back(from_ns(1e3 * fields_.number(rounds[i], JsonFields::at(rounds_place, i), 1e-3,
                                                           longest_round_us, "microseconds")));
    const auto repeat =
        static_cast<std::size_t>(fields_.integer(object, place, "repeat", 1, most_kernels, 1));
    if (fields_.failed()) return;
    if (model.kernels.size() + repeat > most_kernels) {
      fields_.wrong(list, "has more than " + std::to_string(most_kernels) + " kernels, of which " + place +
                              " is " + std::to_string(repeat) + "; a model may have at most so many");
      return;
    }
    kernels_ += repeat;
    if (kernels_ > most_kernels_in_all) {
      fields_.wrong(list, "are more than " + std::to_string(most_kernels_in_all) +
                              " kernels with those before; a table may have at most so many");
      return;
    }
    model.kernels.insert(model.kernels.end(), repeat, kernel);
  }

  JsonFields fields_;
  std::map<std::string, std::string> owner_of_;  // the models' own names, by all names
  std::size_t kernels_ = 0;
};

}  // namespace

const ModelKernels* KernelTable::find(std::string_view name) const {
  for (const ModelKernels& model : models)
    if (std::ranges::find(model.names, name) != model.names.end()) return &model;
  return nullptr;
}

Result<KernelTable> parse_kernel_table(std::string_view text, std::string_view where) {
  const auto document = parse_json_strictly(text, where);
  if (!document) return std::unexpected(document.error());
  return Reader(where).read(*document);
}

Result<KernelTable> read_kernel_table(const std::filesystem::path& file) {
  const auto text = read_text(file, "a table of kernels");
  if (!text) return std::unexpected(text.error());
  return parse_kernel_table(*text, file.string());
}

KernelTable mi50_kernel_table() {
  auto table = parse_kernel_table(mi50_kernels_json(), "mi50_kernels.json");
  CARILLON_ASSERT(table);  // the program's own
  return *std::move(table);
}

}  // namespace carillon::profile
