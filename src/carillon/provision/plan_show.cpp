#include <algorithm>
#include <cmath>
#include <map>

#include <spdlog/fmt/fmt.h>

#include "carillon/base/xml.h"
#include "carillon/provision/plan_json.h"

namespace carillon::provision {
namespace {

std::string title_of(const Plan& plan, std::span<const DeviceType> types, const PlanReport& report) {
  return fmt::format("{} {}, {:.2f} $/h ({})", plan.devices.size(),
                     plan.devices.size() == 1 ? "device" : "devices", cost_usd_per_hour(plan, types),
                     report.strategy);
}

// Never rounded up: 100% is all.
std::string percent_on_time(double share) {
  return fmt::format("{:.2f}%", std::floor(share * 1e4 + 1e-9) / 100);
}

}  // namespace

std::string to_table(const Plan& plan, std::span<const Workload> workloads, std::span<const DeviceType> types,
                     const PlanReport& report) {
  std::size_t id_width = 8, model_width = 5;
  for (const Workload& w : workloads) {
    id_width = std::min<std::size_t>(32, std::max(id_width, w.id.size()));
    model_width = std::min<std::size_t>(32, std::max(model_width, w.model.size()));
  }
  std::string out =
      fmt::format("{:>6}  {:<{}}  {:<{}}  {:>7}  {:>5}  {:>10}  {:>10}  {:>10}  {:>10}\n", "device",
                  "workload", id_width, "model", model_width, "share", "batch", "latency ms",
                  report.queue != nullptr ? "of SLO" : "of half SLO", "requests/s", "of rate");
  if (report.queue != nullptr) out.insert(out.size() - 1, "   on time");
  for (const PlannedDevice& device : plan.devices) {
    const DeviceType& type = types[device.type];
    const auto forecasts = forecast(device, workloads, types);
    for (std::size_t i = 0; i < forecasts.size(); ++i) {
      const Placement& p = device.placements[i];
      const Workload& w = workloads[p.workload];
      out += fmt::format(
          "{:>6}  {:<{}}  {:<{}}  {:>6.5g}%  {:>5}  {:>10.2f}  {:>11.2f}  {:>10.1f}  {:>10.1f}{}{}\n",
          i == 0 ? std::to_string(device.number) : "", w.id, id_width, w.model, model_width,
          type.share_pct(p.units), p.batch, forecasts[i].latency_ms,
          report.queue != nullptr ? w.slo_ms : w.half_slo_ms(), forecasts[i].throughput_rps, p.rate_rps,
          p.expected ? fmt::format("  {:>8}", percent_on_time(p.expected->on_time)) : "",
          forecasts[i].violated ? "  violated" : "");
    }
  }
  std::map<std::size_t, int> by_type;
  for (const PlannedDevice& device : plan.devices) ++by_type[device.type];
  out += fmt::format("\n{}", title_of(plan, types, report));
  for (const auto& [type, count] : by_type)
    out += fmt::format("{}{} x {} at {:g} $/h", type == by_type.begin()->first ? ": " : ", ", count,
                       types[type].hardware.name, types[type].hardware.price_usd_per_hour);
  const std::size_t violations = predicted_violations(plan, workloads, types);
  out += fmt::format("; {} predicted {}\n", violations == 0 ? "no" : std::to_string(violations),
                     violations == 1 ? "violation" : "violations");
  if (report.queue != nullptr) {
    const QueueRule& rule = *report.queue;
    out += fmt::format("planned for {} arrivals: P{:g} within the SLO over {}; model error {:g}%\n",
                       rule.arrivals.text, 100 * rule.percentile,
                       rule.arrivals.recorded ? "all of them"
                                              : fmt::format("{:g} s, in {:g}% of cases", promise_span_s,
                                                            100 * (1 - promise_chance)),
                       100 * rule.model_error);
    // Rows above tell what is on one device; here are all devices of a workload together.
    std::map<std::size_t, int> parts;
    for (const PlannedDevice& device : plan.devices)
      for (const Placement& p : device.placements) ++parts[p.workload];
    for (const auto& [w, on_time] : expected_on_time(plan))
      if (parts[w] > 1)
        out += fmt::format("{} on {} devices: {} on time\n", workloads[w].id, parts[w],
                           percent_on_time(on_time));
  }
  if (report.best != nullptr) {
    if (plan.proven_cheapest)
      out += "no plan of these parts is cheaper\n";
    else
      out +=
          fmt::format("a cheaper plan costs at least {:.2f} $/h{}\n", report.best->lower_bound_usd_per_hour,
                      report.best->stopped ? "; the search was ended early"
                                           : "; a longer search (--effort) may find one");
    if (report.changes)
      out += fmt::format("{} moved, {} added, {} removed; {} devices opened, {} closed\n", report.best->moved,
                         report.best->added, report.removed, report.best->opened, report.best->closed);
  }
  for (const Infeasible& left_out : plan.infeasible) {
    const Workload& w = workloads[left_out.workload];
    out += fmt::format("infeasible: {} ({}, {:g} ms, {:g} requests/s): {}", w.id, w.model, w.slo_ms,
                       w.rate_rps, left_out.reason);
    if (left_out.smallest_slo_ms)
      out += fmt::format("; an SLO of {:g} ms would do", *left_out.smallest_slo_ms);
    if (left_out.largest_rate_rps.value_or(0) > 0)
      out += fmt::format("; {:g} requests/s would do", *left_out.largest_rate_rps);
    out += "\n";
  }
  return out;
}

std::string to_svg(const Plan& plan, std::span<const Workload> workloads, std::span<const DeviceType> types,
                   const PlanReport& report) {
  constexpr double bar = 22, gap = 8, width = 420, left = 50, top = 60;
  constexpr std::size_t rows = 40;
  const std::size_t count = std::max<std::size_t>(1, plan.devices.size());
  const std::size_t columns = (count + rows - 1) / rows;
  std::map<std::string, std::size_t> models;
  for (const Workload& w : workloads) models.try_emplace(w.model, models.size());
  const auto colour = [&](const std::string& model) {
    // Golden angles: neighbours in the list differ most.
    return fmt::format("hsl({:.0f},55%,72%)",
                       std::fmod(210 + 137.5 * static_cast<double>(models.at(model)), 360.0));
  };
  const double height = top + 30 + (bar + gap) * static_cast<double>(std::min(rows, count));
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{:.0f}\" height=\"{:.0f}\" "
      "font-family=\"sans-serif\" "
      "font-size=\"11\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n<text x=\"{}\" y=\"22\" "
      "font-size=\"15\">{}</text>\n",
      left + static_cast<double>(columns) * (width + left) + 10, height, left,
      xml_escaped(title_of(plan, types, report)));
  double x = left;
  for (const auto& [model, index] : models) {
    out += fmt::format(
        "<rect x=\"{:.0f}\" y=\"34\" width=\"11\" height=\"11\" fill=\"{}\"/><text x=\"{:.0f}\" "
        "y=\"44\">{}</text>\n",
        x, colour(model), x + 15, xml_escaped(model));
    x += 30 + 7 * static_cast<double>(model.size());
  }
  for (std::size_t d = 0; d < plan.devices.size(); ++d) {
    const PlannedDevice& device = plan.devices[d];
    const DeviceType& type = types[device.type];
    const double x0 = left + static_cast<double>(d / rows) * (width + left);
    const double y = top + static_cast<double>(d % rows) * (bar + gap);
    out += fmt::format(
        "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"end\">{}</text><rect x=\"{:.1f}\" y=\"{:.1f}\" "
        "width=\"{:.1f}\" height=\"{}\" fill=\"#f2f2f2\" stroke=\"#999\"><title>{}</title></rect>\n",
        x0 - 5, y + 15, device.number, x0, y, width, bar, xml_escaped(type.hardware.name));
    const auto forecasts = forecast(device, workloads, types);
    // Shares of more than the device are drawn to its end.
    const double whole = std::max(device.units(), type.units());
    double at = x0;
    for (std::size_t i = 0; i < forecasts.size(); ++i) {
      const Placement& p = device.placements[i];
      const Workload& w = workloads[p.workload];
      const double wide = width * p.units / whole;
      out += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\" "
          "stroke=\"{}\"><title>{}: {} at {:g} "
          "requests/s, {:g}%, batch {}, {:.2f} of {:g} ms</title></rect>\n",
          at, y, wide, bar, colour(w.model), forecasts[i].violated ? "#c00" : "#666", xml_escaped(w.id),
          xml_escaped(w.model), p.rate_rps, type.share_pct(p.units), p.batch, forecasts[i].latency_ms,
          w.half_slo_ms());
      if (wide > 7 * static_cast<double>(w.id.size()))
        out += fmt::format(
            "<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\" pointer-events=\"none\">{}</text>\n",
            at + wide / 2, y + 15, xml_escaped(w.id));
      at += wide;
    }
  }
  return out + "</svg>\n";
}

}  // namespace carillon::provision
