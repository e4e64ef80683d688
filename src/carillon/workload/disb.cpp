#include "carillon/workload/disb.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <set>
#include <utility>

#include "carillon/base/assert.h"
#include "carillon/profile/json_fields.h"

namespace carillon::workload {

// Of scenarios/disb, by carillon_embed.
std::string_view disb_a_json();
std::string_view disb_b_json();
std::string_view disb_b220_json();
std::string_view disb_c_json();
std::string_view disb_d_json();
std::string_view disb_e_json();
std::string_view disb_real_json();

namespace {

using nlohmann::json;
using profile::JsonFields;
using Arrivals = DisbClient::Arrivals;

constexpr std::array<std::string_view, 7> own_names{"A", "B", "B220", "C", "D", "E", "REAL"};
constexpr std::array own_texts{disb_a_json, disb_b_json, disb_b220_json, disb_c_json,
                               disb_d_json, disb_e_json, disb_real_json};
static_assert(own_names.size() == own_texts.size());

constexpr std::size_t most_clients = 1000, longest_name = 200;
constexpr double shortest_s = 1e-3, longest_s = 24 * 3600;

Duration period(double rate) {
  return from_seconds(1 / rate);
}

class Reader {
 public:
  explicit Reader(std::string_view where) : fields_(where) {}

  Result<DisbWorkload> read(const json& document, std::string_view name) {
    DisbWorkload workload;
    workload.name = name;
    workload.length =
        from_seconds(fields_.number(document, "document", "time", shortest_s, longest_s, "seconds"));
    const json& tasks = fields_.array(document, "document", "tasks", true);
    if (tasks.empty() || tasks.size() > most_clients)
      fields_.wrong("tasks", "has " + std::to_string(tasks.size()) + " tasks, but should have 1.." +
                                 std::to_string(most_clients));
    for (std::size_t i = 0; i < tasks.size() && !fields_.failed(); ++i)
      workload.clients.push_back(read_task(tasks[i], JsonFields::at("tasks", i), workload.length));
    if (fields_.failed()) return fields_.error();
    spread(workload.clients);
    return workload;
  }

 private:
  std::string name_of(const json& object, const std::string& place, const std::string& field) {
    std::string name = fields_.text(object, place, field, true);
    if (name.empty() || name.size() > longest_name)
      fields_.wrong(JsonFields::at(place, field), "is a name of " + std::to_string(name.size()) +
                                                      " bytes, but should have 1.." +
                                                      std::to_string(longest_name));
    return name;
  }

  Class class_of(const json& task, const std::string& place, const std::string& id) {
    if (task.contains("class")) {
      const std::string name = fields_.text(task, place, "class", true);
      if (name != "real_time" && name != "best_effort")
        fields_.wrong(JsonFields::at(place, "class"),
                      "is '" + JsonFields::brief(name) + "', but should be 'real_time' or 'best_effort'");
      return name == "real_time" ? Class::real_time : Class::best_effort;
    }
    if (!id.ends_with("_rt") && !id.ends_with("_be"))
      fields_.wrong(JsonFields::at(place, "id"), "is '" + id +
                                                     "', but should end in _rt or _be, unless the task "
                                                     "has a \"class\" of 'real_time' or 'best_effort'");
    return id.ends_with("_rt") ? Class::real_time : Class::best_effort;
  }

  void read_load(DisbClient& client, const json& load, const std::string& place, Duration length) {
    const std::string type = fields_.text(load, place, "type", true);
    if (fields_.failed()) return;
    if (type == "periodic" || type == "poisson") {
      client.arrivals = type == "periodic" ? Arrivals::periodic : Arrivals::poisson;
      client.rate = fields_.number(load, place, "frequency", 1e-3, 1e5, "requests a second");
      client.staggered = type == "periodic" && fields_.integer(load, place, "priority", 0, 1'000'000, 0) == 0;
    } else if (type == "continuous") {
      client.arrivals = Arrivals::closed_loop;
    } else if (type == "trace") {
      client.arrivals = Arrivals::trace;
      const json& trace = fields_.array(load, place, "trace", true);
      const std::string list = JsonFields::at(place, "trace");
      if (trace.empty()) fields_.wrong(list, "is empty, but should hold milliseconds from the start");
      for (std::size_t i = 0; i < trace.size() && !fields_.failed(); ++i) {
        const Duration at = from_ms(
            fields_.number(trace[i], JsonFields::at(list, i), 0, 1e12, "milliseconds from the start"));
        if (at < length) client.trace.push_back(at);
      }
      std::ranges::sort(client.trace);
    } else {
      fields_.wrong(
          JsonFields::at(place, "type"),
          "is '" + JsonFields::brief(type) +
              "', but should be 'periodic', 'poisson', 'continuous' or 'trace'" +
              (type == "dependent" ? "; requests that depend on others' answers are not supported" : ""));
    }
  }

  DisbClient read_task(const json& task, const std::string& place, Duration length) {
    DisbClient client;
    client.name = name_of(task, place, "id");
    if (!fields_.failed() && !names_.insert(client.name).second)
      fields_.wrong(JsonFields::at(place, "id"),
                    "is '" + client.name + "' like that of a task before, but ids should differ");
    if (fields_.failed()) return client;
    client.cls = class_of(task, place, client.name);
    read_load(client, fields_.object(task, place, "load", true), JsonFields::at(place, "load"), length);
    const std::string sender = JsonFields::at(place, "client");
    const json& object = fields_.object(task, place, "client", true);
    client.model = name_of(object, sender, "model_name");
    fields_.integer(object, sender, "batch_size", 1, 1, 1);
    return client;
  }

  // The staggered ones of a rate over their period.
  static void spread(std::vector<DisbClient>& clients) {
    std::map<double, std::int64_t> count, next;
    for (const DisbClient& client : clients)
      if (client.staggered) ++count[client.rate];
    for (DisbClient& client : clients)
      if (client.staggered) client.phase = period(client.rate) * next[client.rate]++ / count[client.rate];
  }

  JsonFields fields_;
  std::set<std::string> names_;
};

Result<DisbWorkload> parse(std::string_view text, std::string_view where, std::string_view name) {
  const auto document = profile::parse_json_strictly(text, where);
  if (!document) return std::unexpected(document.error());
  return Reader(where).read(*document, name);
}

}  // namespace

Result<DisbWorkload> disb_workload(std::string_view name) {
  std::string upper(name), all;
  for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  for (std::size_t i = 0; i < own_names.size(); ++i) {
    if (upper == own_names[i]) {
      auto workload = parse_disb(own_texts[i](), own_names[i]);
      CARILLON_ASSERT(workload);  // the program's own
      return workload;
    }
    all += (i == 0 ? "" : ", ") + std::string(own_names[i]);
  }
  return fail(ErrorCode::not_found, "there is no workload '" + std::string(name) + "'; there are " + all);
}

Result<DisbWorkload> parse_disb(std::string_view text, std::string_view name) {
  return parse(text, name, name);
}

Result<DisbWorkload> read_disb(const std::filesystem::path& file) {
  const auto text = profile::read_text(file, "a workload of DISB");
  if (!text) return std::unexpected(text.error());
  return parse(*text, file.string(), file.stem().string());
}

void stagger(DisbWorkload& workload, const std::function<Duration(std::string_view model)>& alone) {
  std::map<double, Duration> end;  // of those so far, by rate
  for (DisbClient& client : workload.clients) {
    if (!client.staggered) continue;
    const Duration takes = alone(client.model);
    CARILLON_ASSERT(takes >= Duration{0});
    client.phase = end[client.rate];
    end[client.rate] += takes;
  }
}

void set_length(DisbWorkload& workload, Duration length) {
  CARILLON_ASSERT(length >= 1ms && length <= 24h);
  workload.length = length;
  for (DisbClient& client : workload.clients)
    client.trace.erase(std::ranges::lower_bound(client.trace, length), client.trace.end());
}

void scale_rates(DisbWorkload& workload, double factor) {
  CARILLON_ASSERT(factor >= 1e-3 && factor <= 1e3);
  const auto stretch = [&](Duration& d) { d = from_ns(static_cast<double>(d.count()) / factor); };
  stretch(workload.length);
  for (DisbClient& client : workload.clients) {
    client.rate *= factor;
    stretch(client.phase);
    for (Duration& at : client.trace) stretch(at);
  }
}

}  // namespace carillon::workload
