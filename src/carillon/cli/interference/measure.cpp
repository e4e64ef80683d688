#include "carillon/cli/interference/measure.h"

#include <algorithm>

#include <spdlog/fmt/fmt.h>

namespace carillon::cli {
namespace {

// Least, middle and largest of the batch sizes up to `most`; fewer where there are fewer.
std::vector<int> three(const ModelFacts& model, int most) {
  std::vector<int> sizes = model.batch_sizes;
  std::erase_if(sizes, [&](int size) { return size > most && size != model.batch_sizes.front(); });
  std::vector<int> chosen{sizes.front(), sizes[sizes.size() / 2], sizes.back()};
  chosen.erase(std::ranges::unique(chosen).begin(), chosen.end());
  return chosen;
}

std::string text_of(std::span<const Placed> placed) {
  std::string text;
  for (const Placed& p : placed)
    text += fmt::format("{}{} batch {} at {:g}%", text.empty() ? "" : " + ", p.model, p.batch, p.share_pct);
  return text;
}

}  // namespace

std::vector<Placed> alone(const ModelFacts& model, int max_batch) {
  const std::vector<int> sizes = three(model, max_batch);
  std::vector<Placed> placed;
  for (const int size : sizes)
    for (const double share : {25.0, 50.0, 100.0}) placed.push_back({model.name, size, share});
  placed.push_back({model.name, sizes[sizes.size() / 2], 35});
  placed.push_back({model.name, sizes.back(), 75});
  return placed;
}

Together together(std::span<const ModelFacts> models, const MeasureOptions& options) {
  Together runs;
  const auto middle = [&](const ModelFacts& m) {
    const auto sizes = three(m, options.max_batch);
    return sizes[sizes.size() / 2];
  };
  for (int count = 2; count <= options.most_together; ++count) {
    const double share = 100.0 / count;
    // As many of one kind, of each model; and neighbours in the list.
    for (std::size_t first = 0; first < models.size(); ++first) {
      std::vector<Placed> same, mixed, uneven;
      for (int i = 0; i < count; ++i) {
        const ModelFacts& other = models[(first + static_cast<std::size_t>(i)) % models.size()];
        same.push_back({models[first].name, middle(models[first]), share});
        mixed.push_back({other.name, middle(other), share});
        // 60% and what is left: no run of the fit has these shares.
        uneven.push_back(
            {other.name, three(other, options.max_batch).back(), i == 0 ? 60 : 40.0 / (count - 1)});
      }
      runs.fit.push_back(same);
      if (models.size() > 1) runs.fit.push_back(mixed);
      runs.check.push_back(uneven);
    }
  }
  return runs;
}

Result<profile::InterferenceMeasurements> measure_interference(InterferenceProbe& probe,
                                                               const MeasureOptions& options) {
  const DeviceFacts device = probe.device();
  const std::vector<ModelFacts> models = probe.models();
  profile::InterferenceMeasurements m;
  m.device = device.name;
  m.pcie_bytes_per_ms = device.copy_bytes_per_ms;
  m.max_frequency_mhz = device.max_frequency_mhz;
  m.max_power_w = device.max_power_w;
  m.idle_power_w = device.idle_power_w;
  m.not_measured = device.missing;
  m.not_measured.push_back(
      "scheduling delay alone: it cannot be told from the kernels' times here, and is part of them");

  const Together runs = together(models, options);
  std::size_t total = runs.fit.size() + runs.check.size(), done = 0;
  for (const ModelFacts& model : models) total += alone(model, options.max_batch).size();
  const auto run = [&](std::span<const Placed> placed) -> Result<Seen> {
    options.tell(fmt::format("[{}/{}] {}", ++done, total, text_of(placed)));
    auto seen = probe.run(placed);
    if (!seen) return in_context(text_of(placed), seen.error());
    return seen;
  };
  for (const ModelFacts& model : models) {
    profile::ModelMeasurements& into = m.models[model.name];
    into.load_bytes = model.load_bytes;
    into.feedback_bytes = model.feedback_bytes;
    into.kernels = model.kernels;
    into.schedule_ms = 0;
    for (const Placed& p : alone(model, options.max_batch)) {
      const auto seen = run({&p, 1});
      if (!seen) return std::unexpected(seen.error());
      into.solo.push_back(
          {p.batch, p.share_pct, seen->gpu_ms.front(), seen->power_w, seen->frequency_mhz, seen->cache_pct});
    }
  }
  for (const auto& placed : runs.fit) {
    const auto seen = run(placed);
    if (!seen) return std::unexpected(seen.error());
    profile::ColocatedRun colocated{
        .members = {}, .power_w = seen->power_w, .frequency_mhz = seen->frequency_mhz};
    for (std::size_t i = 0; i < placed.size(); ++i)
      colocated.members.push_back(
          {placed[i].model, placed[i].batch, placed[i].share_pct, seen->gpu_ms[i], {}});
    m.colocated.push_back(std::move(colocated));
  }
  for (const auto& placed : runs.check) {
    const auto seen = run(placed);
    if (!seen) return std::unexpected(seen.error());
    profile::CheckRun check;
    for (std::size_t i = 0; i < placed.size(); ++i) {
      const auto model = std::ranges::find(models, placed[i].model, &ModelFacts::name);
      // Copies do not run in the probe; a prediction counts them, and so must what it is held against.
      const double copies = device.copy_bytes_per_ms ? (model->load_bytes + model->feedback_bytes) *
                                                           placed[i].batch / *device.copy_bytes_per_ms
                                                     : 0;
      check.models.push_back(placed[i].model);
      check.batches.push_back(placed[i].batch);
      check.share_pct.push_back(placed[i].share_pct);
      check.latency_ms.push_back(seen->gpu_ms[i] + copies);
    }
    m.checks.push_back(std::move(check));
  }
  return m;
}

}  // namespace carillon::cli
