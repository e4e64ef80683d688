#include "carillon/engine/cuda/table/step_table.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include <fmt/format.h>

#include "carillon/engine/cuda/driver/emulated.h"
#include "carillon/engine/cuda/plan/step_work.h"
#include "carillon/profile/json_fields.h"

namespace carillon::engine::cuda {
namespace {

using nlohmann::json;
using profile::JsonFields;

constexpr std::size_t most_plans = 4096, most_steps = 100'000, most_steps_in_all = 1'000'000,
                      most_rates = 1000, longest_name = 2000;
constexpr double longest_us = 1e9;

std::string text_of(const PlanName& plan) {
  return fmt::format("{} at batch {}{} in {}", plan.model, plan.batch,
                     plan.length > 0 ? fmt::format(" and length {}", plan.length) : "", name_of(plan.number));
}

using Key = std::tuple<std::string, Number, int, std::int64_t>;
Key key_of(const PlanName& plan) {
  return {plan.model, plan.number, plan.batch, plan.length};
}

class StepTableReader {
 public:
  explicit StepTableReader(std::string_view where) : fields_(where) {}

  Result<StepTable> read(const json& document) {
    StepTable table;
    fields_.only(document, "document",
                 {"device", "made_by", "processors", "memory_bytes", "bus_bytes_per_s", "memory_bytes_per_s",
                  "copy_us", "step_us", "rates", "plans"});
    table.device = name(document, "document", "device");
    table.processors =
        static_cast<unsigned>(fields_.integer(document, "document", "processors", 1, 4096, table.processors));
    table.memory = static_cast<std::uint64_t>(fields_.integer(document, "document", "memory_bytes",
                                                              std::int64_t{64} << 20, std::int64_t{1} << 44,
                                                              static_cast<std::int64_t>(table.memory)));
    const auto number = [&](const char* field, double least, double most, const char* meaning, double& into) {
      into = fields_.number(document, "document", field, least, most, meaning, into);
    };
    number("bus_bytes_per_s", 1e6, 1e15, "bytes a second", table.bus_bytes_per_s);
    number("memory_bytes_per_s", 1e6, 1e15, "bytes a second", table.memory_bytes_per_s);
    number("copy_us", 0, 1e6, "microseconds", table.copy_us);
    number("step_us", 0, 1e6, "microseconds", table.step_us);
    const json& rates = fields_.object(document, "document", "rates", false);
    at_most("rates", rates.size(), most_rates, "kernels");
    for (const auto& [kernel, rate] : rates.items()) {
      if (fields_.failed()) break;
      const std::string place = JsonFields::at("rates", JsonFields::brief(kernel));
      fields_.only(rate, place, {"operations_per_s", "bytes_per_s"});
      table.rates.emplace(
          kernel,
          StepTable::Rate{fields_.number(rate, place, "operations_per_s", 1, 1e20, "operations a second"),
                          fields_.number(rate, place, "bytes_per_s", 1, 1e20, "bytes a second")});
    }
    const json& plans = fields_.array(document, "document", "plans", rates.empty());
    at_most("plans", plans.size(), most_plans, "plans");
    if (rates.empty() && plans.empty())
      fields_.wrong("document", R"(has neither "plans" with steps nor "rates" of kernels)");
    for (std::size_t i = 0; i < plans.size() && !fields_.failed(); ++i)
      table.plans.push_back(read_plan(JsonFields::at("plans", i), plans[i]));
    if (fields_.failed()) return fields_.error();
    return table;
  }

 private:
  void at_most(const std::string& place, std::size_t count, std::size_t most, const char* what) {
    if (count > most)
      fields_.wrong(place, fmt::format("has {} {}, but may have at most {}", count, what, most));
  }

  std::string name(const json& object, const std::string& place, const char* field) {
    std::string out = fields_.text(object, place, field, true);
    if (!fields_.failed() && (out.empty() || out.size() > longest_name))
      fields_.wrong(JsonFields::at(place, field),
                    fmt::format("is a name of {} bytes, but should have 1..{}", out.size(), longest_name));
    return out;
  }

  StepTable::Plan read_plan(const std::string& place, const json& object) {
    StepTable::Plan plan;
    // From "workspace_bytes" on they are for people.
    fields_.only(object, place,
                 {"model", "number", "batch", "length", "steps", "workspace_bytes", "convolutions", "planned",
                  "operations", "bytes", "least_us"});
    plan.name.model = name(object, place, "model");
    const std::string number = fields_.text(object, place, "number", true);
    const auto named = number_named(number);
    if (!fields_.failed() && !named)
      fields_.wrong(
          JsonFields::at(place, "number"),
          fmt::format("is \"{}\", but should be f32, tf32, f16 or bf16", JsonFields::brief(number)));
    plan.name.number = named.value_or(Number::f32);
    plan.name.batch = static_cast<int>(fields_.integer(object, place, "batch", 1, 1'000'000));
    plan.name.length = fields_.integer(object, place, "length", 0, std::int64_t{1} << 40, 0);
    if (!fields_.failed() && !seen_.insert(key_of(plan.name)).second)
      fields_.wrong(place, text_of(plan.name) + " stands here for the second time");
    const std::string list = JsonFields::at(place, "steps");
    const json& steps = fields_.array(object, place, "steps", true);
    at_most(list, steps.size(), most_steps, "steps");
    steps_ += steps.size();
    if (steps_ > most_steps_in_all)
      fields_.wrong(list,
                    fmt::format("are more than {} steps with those before; a table may have at most so many",
                                most_steps_in_all));
    for (std::size_t i = 0; i < steps.size() && !fields_.failed(); ++i)
      plan.steps.push_back(read_step(JsonFields::at(list, i), steps[i]));
    return plan;
  }

  StepTable::Step read_step(const std::string& place, const json& object) {
    StepTable::Step step;
    fields_.only(object, place,
                 {"step", "us", "least_us", "kernel", "way", "operations", "bytes", "workspace_bytes", "ways",
                  "attention"});
    step.name = plain_name(name(object, place, "step"));
    step.measured = fields_.field(object, place, "us", false) != nullptr;
    if (!step.measured && fields_.field(object, place, "least_us", false) == nullptr)
      fields_.wrong(place, R"(has neither "us", as measured, nor "least_us", as estimated)");
    step.us = fields_.number(object, place, step.measured ? "us" : "least_us", 0, longest_us, "microseconds");
    return step;
  }

  JsonFields fields_;
  std::set<Key> seen_;
  std::size_t steps_ = 0;
};

class TableTimes final : public StepTimes {
 public:
  TableTimes(StepTable table, std::string where) : table_(std::move(table)), where_(std::move(where)) {
    for (const StepTable::Plan& plan : table_.plans) plans_.emplace(key_of(plan.name), &plan);
  }

  Result<std::vector<Duration>> of(const PlanName& plan, std::span<const Step> steps) const override {
    // Of each name the listed times that are not taken yet, the last first.
    std::map<std::string_view, std::vector<double>> listed;
    if (const auto found = plans_.find(key_of(plan)); found != plans_.end())
      for (auto step = found->second->steps.rbegin(); step != found->second->steps.rend(); ++step)
        listed[step->name].push_back(step->us + (step->measured ? 0 : table_.step_us));
    std::vector<Duration> out;
    double sum = 0;  // in microseconds; rounded as a whole, as many steps take less than a nanosecond
    Duration given{0};
    for (const Step& step : steps) {
      const auto found = listed.find(plain_name(step.name));
      if (found != listed.end() && !found->second.empty()) {
        sum += found->second.back();
        found->second.pop_back();
      } else {
        const auto us = by_rate(work_of(step));
        if (!us)
          return fail(ErrorCode::not_found,
                      fmt::format("{}: it has no time for step \"{}\" of {}: neither is the step listed for "
                                  "this plan, nor has \"rates\" its kernel, \"{}\", or \"*\"",
                                  where_, plain_name(step.name), text_of(plan), work_of(step).kernel));
        sum += *us;
      }
      out.push_back(from_ns(std::round(sum * 1e3)) - given);
      given += out.back();
    }
    for (const auto& [name, left] : listed)
      if (!left.empty())
        return invalid(fmt::format(
            "{}: step \"{}\" of {} is listed, and this program's plan has it less often, or not at all: the "
            "table is of another model of that name, or of another version of this program",
            where_, name, text_of(plan)));
    return out;
  }

  void announce(Duration takes) const override { Emulated::next_takes(takes); }

 private:
  std::optional<double> by_rate(const StepWork& work) const {
    auto found = table_.rates.find(work.kernel);
    if (found == table_.rates.end()) found = table_.rates.find("*");
    if (found == table_.rates.end()) return std::nullopt;
    const StepTable::Rate& rate = found->second;
    return 1e6 * std::max(work.operations / rate.operations_per_s, work.bytes / rate.bytes_per_s) +
           table_.step_us;
  }

  const StepTable table_;
  const std::string where_;
  std::map<Key, const StepTable::Plan*> plans_;
};

class FusingAs final : public MathLibrary {
 public:
  FusingAs(const StepTable& table, std::unique_ptr<MathLibrary> library) : library_(std::move(library)) {
    // "fc product f16 1x [...]": the node's name may have any words.
    for (const StepTable::Plan& plan : table.plans)
      for (const StepTable::Step& step : plan.steps)
        for (const char* const kind : {" conv ", " product "})
          if (const std::size_t at = step.name.rfind(kind); at != std::string::npos)
            listed_.insert(step.name.substr(at + 1));
  }

  Result<std::shared_ptr<const Call>> convolution(const Convolution& spec) override {
    return library_->convolution(spec);
  }
  Result<std::shared_ptr<const Call>> product(const Product& spec) override {
    return library_->product(spec);
  }
  void size_for(unsigned processors) override { library_->size_for(processors); }
  void compiled() override { library_->compiled(); }

  std::int32_t channels_for(const Convolution& spec) override {
    for (const std::int32_t channels : {4, 8}) {
      Convolution wider = spec;
      wider.channels = std::max(channels, spec.channels);
      const std::string text = to_text(wider);  // before what follows it
      const auto found = listed_.lower_bound(text);
      if (wider.channels > spec.channels && found != listed_.end() && found->starts_with(text))
        return wider.channels;
    }
    return spec.channels;
  }

  // Asked with more and more of bias, residual and activation.
  bool fuses(const Convolution& spec) override {
    bool with = false, without = false;
    for (int i = 0; i < 8; ++i) {
      Convolution other = spec;
      other.bias = (i & 1) != 0;
      other.residual_pitch = (i & 2) != 0 ? std::max<std::int64_t>(1, spec.residual_pitch) : 0;
      other.relu = (i & 4) != 0;
      if (!listed_.contains(to_text(other))) continue;
      const bool more = (other.bias || !spec.bias) && (other.relu || !spec.relu) &&
                        (other.residual_pitch != 0 || spec.residual_pitch == 0);
      (more ? with : without) = true;
    }
    return with || !without;
  }
  bool fuses(const Product& spec) override {
    if (listed_.contains(to_text(spec))) return true;
    Product plain = spec;
    plain.epilogue = Epilogue::none;
    return !listed_.contains(to_text(plain)) && spec.epilogue != Epilogue::gelu_erf;
  }

 private:
  std::unique_ptr<MathLibrary> library_;
  std::set<std::string> listed_;
};

}  // namespace

std::string model_of_file(const std::string& file) {
  const std::filesystem::path path(file);
  return path.filename() == "model.onnx" && path.parent_path().has_parent_path()
             ? path.parent_path().parent_path().filename().string()
             : file;
}

Result<StepTable> parse_step_table(std::string_view text, std::string_view where) {
  const auto document = profile::parse_json_strictly(text, where);
  if (!document) return std::unexpected(document.error());
  return StepTableReader(where).read(*document);
}

Result<StepTable> read_step_table(const std::filesystem::path& file) {
  const auto text = profile::read_text(file, "a table of steps");
  if (!text) return std::unexpected(text.error());
  return parse_step_table(*text, file.string());
}

std::shared_ptr<const StepTimes> times_by(StepTable table, std::string where) {
  return std::make_shared<TableTimes>(std::move(table), std::move(where));
}

std::unique_ptr<MathLibrary> fusing_as(const StepTable& table, std::unique_ptr<MathLibrary> library) {
  return std::make_unique<FusingAs>(table, std::move(library));
}

}  // namespace carillon::engine::cuda
