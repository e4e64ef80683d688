#include "carillon/cli/train.h"

#include <utility>

#include <CLI/CLI.hpp>
#include <pthread.h>
#include <spdlog/spdlog.h>

#include "carillon/share/lending.h"
#include "carillon/share/overview.h"

namespace carillon::cli {

void add_train_options(CLI::App& command, TrainArguments& arguments) {
  arguments.rest_ms = to_ms(share::Lending::usual_rest);
  std::string policies;
  for (const std::string_view name : device::job_policy_names())
    policies += (policies.empty() ? "" : ", ") + std::string(name);
  command.add_option("--train", arguments.socket,
                     "Lend the CPU to training scripts while no request wants it: the path of a socket, at which "
                     "'carillon run --socket PATH script.py' finds it. They run at the lowest priority, are frozen "
                     "within an iteration when a request comes, and go on after it");
  CLI::Option* const train = command.get_option("--train");
  command
      .add_option("--train-memory", arguments.memory,
                  "What these scripts may have together, out of the CPU's --page-cache: what stays of each, and an "
                  "iteration's of each lane (default: a quarter of it)")
      ->needs(train);
  command.add_option("--train-policy", arguments.policy, "Who of them runs: " + policies)
      ->capture_default_str()
      ->needs(train);
  command
      .add_option("--train-rest", arguments.rest_ms,
                  "Milliseconds for which the CPU must have been free before scripts go on: what freezing them and "
                  "thawing them costs")
      ->check(CLI::Range(0.0, 1000.0))
      ->capture_default_str()
      ->needs(train);
  command
      .add_option("--train-freeze", arguments.freeze_ms,
                  "Milliseconds by which a request may start later as scripts have to be frozen first: what is "
                  "promised allows for it, until it was measured")
      ->check(CLI::Range(0.0, 1000.0))
      ->capture_default_str()
      ->needs(train);
}

Result<Bytes> Training::memory_of(const TrainArguments& arguments, Bytes page_cache, Bytes least) {
  Bytes memory{page_cache.count / 4};
  if (!arguments.memory.empty()) {
    const auto read = parse_bytes(arguments.memory);
    if (!read) return in_context("--train-memory", read.error());
    memory = *read;
    if (memory == Bytes{}) return invalid("--train-memory is 0: scripts need some, such as 1GiB");
  }
  if (page_cache < least || memory > Bytes{page_cache.count - least.count})
    return invalid("--train-memory " + to_text(memory) + " is part of the CPU's --page-cache, which is " +
                   to_text(page_cache) + " and needs " + to_text(least) +
                   " for weights at least: make the one smaller or the other larger");
  return memory;
}

Result<std::unique_ptr<Training>> Training::start(const TrainArguments& arguments, Bytes memory, const Clock& clock) {
  share::BrokerOptions options;
  options.socket = arguments.socket;
  options.policy = arguments.policy;
  options.jobs.capacity = memory;
  options.lent_after = from_ms(arguments.rest_ms);
  // Turns are longer than where the device is the jobs' own: it is lent for some milliseconds at a time, and each change of
  // the job takes about one. Nor does the broker stay awake around them, as the processor may be wanted.
  options.jobs.quantum = from_ms(200);
  options.polls = Duration{0};
  options.log = [](const share::Note& note) {
    if (note.level == share::Note::Level::warning)
      spdlog::warn("training: {}", note.text);
    else
      spdlog::info("training: {}", note.text);
  };
  auto broker = share::Broker::start(std::move(options), clock);
  if (!broker) return in_context("--train", broker.error());
  return std::unique_ptr<Training>(new Training(std::move(*broker)));
}

Training::Training(std::unique_ptr<share::Broker> broker)
    : broker_(std::move(broker)), thread_([this] {
        pthread_setname_np(pthread_self(), "carillon-broker");
        broker_->run();
      }) {}

Training::~Training() {
  broker_->stop();
  thread_.join();
}

std::string Training::metrics() const {
  const auto overview = broker_->overview(1s);
  return overview ? share::metrics_text(*overview) : std::string();
}

}  // namespace carillon::cli
