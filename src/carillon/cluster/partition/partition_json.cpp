#include "carillon/cluster/partition/partition_json.h"

#include <cmath>
#include <unordered_map>

#include <spdlog/fmt/fmt.h>

#include "carillon/profile/json_fields.h"

namespace carillon::cluster {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;
using profile::JsonFields;

// A whole number in [least, most], which may be written like 8e9. Doubles hold all whole numbers up to 2^53.
std::int64_t whole(JsonFields& fields, const json& object, const std::string& place, const std::string& name,
                   std::int64_t least, std::int64_t most, const std::string& meaning,
                   std::optional<double> otherwise = std::nullopt) {
  const double read = fields.number(object, place, name, static_cast<double>(least),
                                    static_cast<double>(most), meaning, otherwise);
  if (read != std::floor(read))
    fields.wrong(JsonFields::at(place, name), fmt::format("is {}, but should be {}", read, meaning));
  return static_cast<std::int64_t>(read);
}

std::int64_t rate(JsonFields& fields, const json& object, const std::string& place, const std::string& name,
                  double least, double most) {
  return std::llround(static_cast<double>(micro_per_unit) *
                      fields.number(object, place, name, least, most, "requests per second"));
}

std::size_t moved(const Problem& problem, const Division& division) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < problem.current.size(); ++i)
    count += problem.current[i] != no_group && problem.current[i] != division[i];
  return count;
}

}  // namespace

Result<Problem> parse_problem(std::string_view text, std::string_view where, std::int64_t groups) {
  const auto document = profile::parse_json(text, where);
  if (!document) return std::unexpected(document.error());
  JsonFields fields(where);
  Problem problem;
  problem.memory_bytes =
      whole(fields, *document, "document", "memory_bytes", 1, most_memory_bytes, "a whole number of bytes");
  fields.only(*document, "document", {"memory_bytes", "max_rate_rps", "models"});
  if (!fields.failed() && document->contains("max_rate_rps"))
    problem.max_micro_rps = rate(fields, *document, "document", "max_rate_rps", 1e-6, 1e12);
  const json& list = fields.array(*document, "document", "models", true);
  if (!fields.failed() && list.empty())
    fields.wrong("models", "is empty, but should hold at least one model");
  if (list.size() > most_models)
    fields.wrong("models",
                 fmt::format("has {} entries, but should have at most {}", list.size(), most_models));
  std::unordered_map<std::string, std::size_t> seen;
  std::size_t costs = 0;
  for (std::size_t i = 0; i < list.size() && !fields.failed(); ++i) {
    const std::string place = JsonFields::at("models", i);
    Model model;
    model.name = fields.text(list[i], place, "name", true);
    fields.only(list[i], place, {"name", "rate_rps", "static_bytes", "dynamic_bytes", "move_cost"});
    model.micro_rps = rate(fields, list[i], place, "rate_rps", 0, most_rate_rps);
    model.static_bytes =
        whole(fields, list[i], place, "static_bytes", 0, most_bytes, "a whole number of bytes");
    model.dynamic_bytes =
        whole(fields, list[i], place, "dynamic_bytes", 0, most_bytes, "a whole number of bytes", 0);
    model.move_cost = whole(fields, list[i], place, "move_cost", 0, most_move_cost, "a whole number",
                            static_cast<double>(model.static_bytes));
    if (fields.failed()) break;
    if (model.name.empty()) fields.wrong(place + ".name", "is empty, but should name the model");
    if (const auto [first, is_new] = seen.try_emplace(model.name, i); !is_new)
      fields.wrong(place + ".name", "is '" + JsonFields::brief(model.name) + "' like that of " +
                                        JsonFields::at("models", first->second) +
                                        ", but names should differ");
    costs += list[i].contains("move_cost");
    if (costs != 0 && costs != i + 1)
      fields.wrong(place,
                   list[i].contains("move_cost")
                       ? "has a \"move_cost\", but earlier models have none; give it for all or for none"
                       : "has no \"move_cost\", but earlier models have; give it for all or for none");
    problem.models.push_back(std::move(model));
  }
  if (fields.failed()) return fields.error();
  if (groups < 1 || groups > most_groups)
    return invalid(fmt::format("--groups is {}, but should be in 1..{}", groups, most_groups));
  if (static_cast<std::size_t>(groups) > problem.models.size())
    return invalid(fmt::format("--groups is {}, but {} has {} models; give at most so many groups", groups,
                               where, problem.models.size()));
  problem.groups = static_cast<int>(groups);
  return problem;
}

Result<Problem> read_problem(const std::filesystem::path& file, std::int64_t groups) {
  const auto text = profile::read_text(file, "a file of models");
  if (!text) return std::unexpected(text.error());
  return parse_problem(*text, file.string(), groups);
}

Result<Changes> parse_current(std::string_view text, std::string_view where, Problem& problem) {
  const auto document = profile::parse_json(text, where);
  if (!document) return std::unexpected(document.error());
  JsonFields fields(where);
  const json& list = fields.array(*document, "document", "groups", true);
  if (list.size() > static_cast<std::size_t>(most_groups))
    fields.wrong("groups",
                 fmt::format("has {} entries, but should have at most {}", list.size(), most_groups));
  std::unordered_map<std::string_view, std::size_t> index;
  for (std::size_t i = 0; i < problem.models.size(); ++i) index[problem.models[i].name] = i;
  std::vector<int> current(problem.models.size(), no_group);
  Changes changes{.added = problem.models.size()};
  for (std::size_t g = 0; g < list.size() && !fields.failed(); ++g) {
    const std::string place = JsonFields::at("groups", g);
    const json& names = fields.array(list[g], place, "models", true);
    for (std::size_t i = 0; i < names.size() && !fields.failed(); ++i) {
      const std::string at = JsonFields::at(place + ".models", i);
      if (!names[i].is_string()) {
        fields.wrong(at, "is " + JsonFields::shown(names[i]) + ", but should be the name of a model");
        break;
      }
      const auto found = index.find(names[i].get_ref<const std::string&>());
      if (found == index.end()) {
        ++changes.removed;
        continue;
      }
      int& group = current[found->second];
      if (group != no_group)
        fields.wrong(at, "is " + JsonFields::shown(names[i]) + ", which is in " +
                             JsonFields::at("groups", static_cast<std::size_t>(group)) +
                             " already; a model is in one group");
      group = static_cast<int>(g);
      --changes.added;
    }
  }
  if (!fields.failed() && changes.added == problem.models.size())
    fields.wrong("groups",
                 "name none of the models to divide; is it the output of 'carillon partition --json' "
                 "for these models?");
  if (fields.failed()) return fields.error();
  problem.current = std::move(current);
  return changes;
}

Result<Changes> read_current(const std::filesystem::path& file, Problem& problem) {
  const auto text = profile::read_text(file, "a division as 'carillon partition --json' prints it");
  if (!text) return std::unexpected(text.error());
  return parse_current(*text, file.string(), problem);
}

Result<GroupNames> parse_group_names(std::string_view text, std::string_view where) {
  const auto document = profile::parse_json(text, where);
  if (!document) return std::unexpected(document.error());
  JsonFields fields(where);
  const json& list = fields.array(*document, "document", "groups", true);
  if (!fields.failed() && list.empty())
    fields.wrong("groups", "is empty, but should hold at least one group");
  if (list.size() > static_cast<std::size_t>(most_groups))
    fields.wrong("groups",
                 fmt::format("has {} entries, but should have at most {}", list.size(), most_groups));
  GroupNames groups;
  std::unordered_map<std::string, std::size_t> seen;
  for (std::size_t g = 0; g < list.size() && !fields.failed(); ++g) {
    const std::string place = JsonFields::at("groups", g);
    const json& names = fields.array(list[g], place, "models", true);
    groups.emplace_back();
    for (std::size_t i = 0; i < names.size() && !fields.failed(); ++i) {
      const std::string at = JsonFields::at(place + ".models", i);
      if (!names[i].is_string() || names[i].get_ref<const std::string&>().empty()) {
        fields.wrong(at, "is " + JsonFields::shown(names[i]) + ", but should be the name of a model");
        break;
      }
      groups.back().push_back(names[i].get<std::string>());
      if (const auto [first, is_new] = seen.try_emplace(groups.back().back(), g); !is_new)
        fields.wrong(at, "is " + JsonFields::shown(names[i]) + ", which is in " +
                             JsonFields::at("groups", first->second) + " already; a model is in one group");
    }
  }
  if (fields.failed()) return fields.error();
  return groups;
}

Result<GroupNames> read_group_names(const std::filesystem::path& file) {
  const auto text = profile::read_text(file, "a division as 'carillon partition --json' prints it");
  if (!text) return std::unexpected(text.error());
  return parse_group_names(*text, file.string());
}

std::string to_json(const Problem& problem, const Partition& partition, const Changes& changes) {
  ordered_json document;
  ordered_json& groups = document["groups"] = ordered_json::array();
  for (const Group& group : partition.figures.groups) {
    ordered_json names = ordered_json::array();
    for (const int i : group.models) names.push_back(problem.models[static_cast<std::size_t>(i)].name);
    groups.push_back({{"models", std::move(names)},
                      {"rate_rps", in_rps(group.micro_rps)},
                      {"static_bytes", group.static_bytes},
                      {"peak_bytes", group.peak_bytes}});
  }
  document["load_imbalance"] = partition.figures.load_imbalance;
  document["memory_imbalance"] = partition.figures.memory_imbalance;
  document["move_cost"] = partition.figures.move_cost;
  document["objective"] = partition.figures.objective;
  document["bound"] = partition.bound;
  document["proved"] = partition.proved;
  if (!problem.current.empty())
    document["changes"] = {{"moved", moved(problem, partition.division)},
                           {"added", changes.added},
                           {"removed", changes.removed}};
  return document.dump(2, ' ', false, ordered_json::error_handler_t::replace);
}

std::string to_table(const Problem& problem, const Partition& partition, const Changes& changes) {
  std::string out = fmt::format("{:>5} {:>7} {:>14} {:>16} {:>16}  {}\n", "group", "models", "rate_rps",
                                "static_bytes", "peak_bytes", "names");
  for (std::size_t g = 0; g < partition.figures.groups.size(); ++g) {
    const Group& group = partition.figures.groups[g];
    std::string names;
    for (std::size_t k = 0; k < group.models.size(); ++k) {
      if (k == 4) {
        names += ", ...";
        break;
      }
      names += (k == 0 ? "" : ", ") +
               JsonFields::brief(problem.models[static_cast<std::size_t>(group.models[k])].name);
    }
    out += fmt::format("{:>5} {:>7} {:>14.6g} {:>16} {:>16}  {}\n", g, group.models.size(),
                       in_rps(group.micro_rps), group.static_bytes, group.peak_bytes, names);
  }
  const Figures& figures = partition.figures;
  out += fmt::format("\nimbalance, (max - min) / mean: load {:.4f}%, memory {:.4f}%\n",
                     100 * figures.load_imbalance, 100 * figures.memory_imbalance);
  out += fmt::format("objective {:.4g}, no division is below {:.4g}{}\n", figures.objective, partition.bound,
                     partition.proved ? ": proved to be the best" : "");
  if (!problem.current.empty())
    out += fmt::format("moved {} models at a cost of {}; {} are new, {} are gone\n",
                       moved(problem, partition.division), figures.move_cost, changes.added, changes.removed);
  return out;
}

}  // namespace carillon::cluster
