#include <map>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "carillon/cli/admission_option.h"
#include "carillon/cli/choice.h"
#include "carillon/cli/commands.h"
#include "carillon/cli/device_options.h"
#include "carillon/cli/headings.h"
#include "carillon/cli/miss_rate_option.h"
#include "carillon/cli/preempt_option.h"
#include "carillon/cli/serve/run.h"
#include "carillon/cli/tls_options.h"

namespace carillon::cli {
namespace serving {
namespace {

// The options of one heading each; `carillon serve` has all of them, in this order.
void add_models(CLI::App& command, Arguments& arguments) {
  heading::begin(command, heading::models);
  command.add_option("--models", arguments.models, "Repository: DIR/<model>/<version>/model.onnx");
  command
      .add_option("--model", arguments.model,
                  "In place of --models: [NAME=]FILE, a model that is one ONNX file, or OpenVINO's, without "
                  "a repository or a config; may be given several times. Without NAME it is called as the "
                  "file is. One that cannot be served ends the server")
      ->excludes("--models");
  command.add_flag(
      "--follow-links", arguments.follow_links,
      "Follow symbolic links that lead out of the repository; without it models that have such are "
      "not ready");
  static const std::map<std::string, server::ModelControlMode> modes{
      {"none", server::ModelControlMode::none},
      {"poll", server::ModelControlMode::poll},
      {"explicit", server::ModelControlMode::explicit_orders}};
  command
      .add_option(
          "--model-control-mode", arguments.control,
          "none: all models are loaded at the start, and stay; poll: the server follows the repository "
          "as it changes; explicit: clients load and unload models, with those of --load-model there "
          "from the start")
      ->transform(one_of(modes))
      ->default_str("none");
  command
      .add_option("--repository-poll-secs", arguments.poll_s,
                  "By --model-control-mode poll: seconds between two looks at the repository")
      ->check(CLI::Range(0.05, 86'400.0))
      ->capture_default_str();
  command.add_option(
      "--load-model", arguments.load,
      "By --model-control-mode explicit: a model to load at the start; '*': all of them. May be "
      "given several times");
  command.add_flag(
      "--plans-at-once", arguments.plans_at_once,
      "Make plans for all batch sizes of a model before it is ready. Without it a model on one CPU "
      "is ready with the plan of its smallest batch; those of larger batches are made beside "
      "serving, as far as there is memory");
}

void add_protocols(CLI::App& command, Arguments& arguments) {
  heading::begin(command, heading::addresses);
  command.add_option("--http", arguments.http, "HOST:PORT of KServe v2 over HTTP; empty: off")
      ->capture_default_str();
  command.add_option("--grpc", arguments.grpc, "HOST:PORT of KServe v2 over gRPC; empty: off")
      ->capture_default_str();
}

void add_metrics(CLI::App& command, Arguments& arguments) {
  command.add_option("--metrics", arguments.metrics, "HOST:PORT of Prometheus metrics; empty: off")
      ->capture_default_str();
  add_admin_option(command, arguments.safety);
}

void add_keda(CLI::App& command, Arguments& arguments) {
  command.add_option(
      "--keda", arguments.keda,
      "HOST:PORT where KEDA asks how many devices the load needs, as it asks an external scaler "
      "(docs/autoscaling.md); without it: off");
}

void add_memory_bound(CLI::App& command, Arguments& arguments) {
  heading::begin(command, heading::memory);
  command
      .add_option(
          "--memory", arguments.memory,
          "The most that the server and its processes may have of memory, such as 1GiB: code, weights, "
          "tensors, workspaces, plans, other engines' processes and requests together. --page-cache, "
          "--io-cache, --workspace, --sizes-memory and --inflight-limit are parts of it; those that "
          "are not given follow from it. A model that does not fit is refused. auto: what the control "
          "group or the machine leaves")
      ->capture_default_str();
}

void add_memory(CLI::App& command, Arguments& arguments) {
  add_memory_bound(command, arguments);
  auto* const store = command.add_option(
      "--store", arguments.store.directory,
      "Folder, for its owner alone, of packed weights: a CPU's memory then holds only those that are loaded. "
      "May be deleted at any time and shared by servers (default: carillon in $XDG_CACHE_HOME or ~/.cache)");
  auto* const limit = command.add_option("--store-limit", arguments.store.limit,
                                         "What it may take of the disk, such as 20GiB (default: half of what "
                                         "is free)");
  command.add_flag("--no-store", arguments.store.none, "Packed weights stay in memory")
      ->excludes(store)
      ->excludes(limit);
  command
      .add_option(
          "--sizes", arguments.sizes,
          "Of a model whose inputs' sizes neither its file nor its config fixes: for how many of them "
          "plans are kept; one that is not there is made when a request comes with it")
      ->check(CLI::Range(1, 65'536))
      ->capture_default_str();
  command.add_option("--sizes-memory", arguments.sizes_memory,
                     "What these plans may take of memory, of all models together, such as 512MiB "
                     "(default: up to a sixteenth of --memory less libraries)");
}

void add_deadline(CLI::App& command, Arguments& arguments) {
  heading::begin(command, heading::deadlines);
  command
      .add_option("--default-deadline", arguments.default_deadline_ms,
                  "Milliseconds for requests that name no deadline, of models without slo_ms; 0: none")
      ->check(CLI::Range(0.0, 86'400'000.0))
      ->capture_default_str();
}

void add_policy(CLI::App& command, Arguments& arguments) {
  command.add_option("--scheduler", arguments.scheduler, "Policy: " + schedule::scheduler_list())
      ->capture_default_str();
  add_preempt_option(command, arguments.preempt);
  add_admission_option(command, arguments.admission);
  add_miss_rate_option(command, arguments.miss_rate, "0.005");
}

void add_profile(CLI::App& command, Arguments& arguments) {
  command.add_option("--profile", arguments.profile,
                     "Profile file to start from; models that it lacks are measured at the start");
  command
      .add_option(
          "--profile-share", arguments.profile_share,
          "The share of finished requests, of models whose time depends on the input, that are run again "
          "alone in idle time, so that schedulers that plan by distributions learn from them; 0: none")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
}

void add_length_blind(CLI::App& command, Arguments& arguments) {
  command.add_flag(
      "--length-blind", arguments.length_blind,
      "Tell requests apart by their applications alone, as if nobody knew their lengths before they ran "
      "(matters to schedulers that plan by distributions)");
}

void add_hang_after(CLI::App& command, Arguments& arguments) {
  command
      .add_option("--hang-after", arguments.hang_after_ms,
                  "Milliseconds without a report after which a device counts as hung and is taken out until "
                  "it answers again; at least 20 times what it should take; 0: never")
      ->check(CLI::Range(0.0, 86'400'000.0))
      ->capture_default_str();
}

void add_devices(CLI::App& command, Arguments& arguments) {
  heading::begin(command, heading::devices);
  add_devices_options(command, arguments.devices);
  add_hang_after(command, arguments);
}

void add_classes(CLI::App& command, Arguments& arguments) {
  heading::begin(command, heading::classes);
  command
      .add_option("--best-effort-streams", arguments.devices.each.best_effort_streams,
                  "Runs of class best_effort at a time on cpu, each on a core of its own; 0: one a core")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command
      .add_option(
          "--real-time-threads", arguments.devices.each.real_time_threads,
          "Threads that run a real-time request on cpu; with fewer than --threads best effort goes on "
          "on the other cores meanwhile; 0: all")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command
      .add_option(
          "--stop-cost", arguments.stop_cost,
          "Divide the kernels of all models on cpu into parts, which may cost a run this share of its time "
          "(such as 0.02), so that real-time requests need not wait for a kernel's end; models take "
          "longer to load. Without it: of models of class best_effort only, at 0.02")
      ->check(CLI::Range(0.0, 1.0));
}

void add_limits(CLI::App& command, Arguments& arguments) {
  heading::begin(command, heading::security);
  add_safety_options(command, arguments.safety);

  heading::begin(command, heading::limits);
  command
      .add_option("--max-open", arguments.max_open,
                  "The most rows that may be open; beyond it requests are refused")
      ->check(CLI::Range(1, 1 << 24))
      ->capture_default_str();
  command.add_option("--http-threads", arguments.http_threads, "Threads of the HTTP frontend")
      ->check(CLI::Range(1, 256))
      ->capture_default_str();
  add_door_options(command, arguments.doors);

  heading::begin(command, heading::readiness);
  command
      .add_option("--strict-readiness", arguments.strict_readiness,
                  "true: the server is ready only where every model of the repository is, and there is one; "
                  "false: once all models were tried")
      ->capture_default_str();
  command
      .add_option("--drain-time", arguments.drain_s,
                  "Seconds that open requests have after SIGTERM or Ctrl-C; meanwhile the ports stay open, "
                  "new requests are refused and the server is not ready")
      ->check(CLI::Range(0.0, 86'400.0))
      ->capture_default_str();
}

void add_log_level(CLI::App& command, Arguments& arguments) {
  heading::begin(command, heading::logs);
  command.add_option("--log-level", arguments.log_level, "trace, debug, info, warn, err or off")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "err", "off"}))
      ->capture_default_str();
}

void add_access_log(CLI::App& command, Arguments& arguments) {
  command.add_option("--access-log", arguments.access_log,
                     "Write a line of JSON for each request over HTTP and gRPC to this file ('-': standard "
                     "output). SIGHUP opens it again, for logrotate");
}

void add_record(CLI::App& command, Arguments& arguments) {
  command.add_option("--record", arguments.record,
                     "Log every event and action of the scheduler to this file, for 'carillon replay'");
}

void add_journal(CLI::App& command, Arguments& arguments) {
  command
      .add_option("--journal", arguments.journal,
                  "Requests of which is kept what became of them and why, for 'carillon explain' and "
                  "/v2/carillon/requests, at about 900 bytes each; 0: none")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
}

void add_traces(CLI::App& command, Arguments& arguments) {
  command
      .add_option("--trace-sample", arguments.trace_sample,
                  "The share of requests without a good 'traceparent' (W3C Trace Context) that begin a trace "
                  "of their own, 0 to 1; those with one go on with theirs")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  add_otlp_options(command, arguments.otlp);
}

void add_empty_histograms(CLI::App& command, Arguments& arguments) {
  command.add_flag("--empty-histograms", arguments.empty_histograms,
                   "Metrics have histograms and quantiles also of models without a request so far");
}

void add_partition(CLI::App& command, Arguments& arguments) {
  command.add_option(
      "--partition", arguments.partition,
      "Divide the models over groups of devices, by this file of 'carillon partition --json'; device D is in "
      "group D modulo the number of groups. SIGHUP reads the file again, and models move under load");
}

void add_training_and_plans(CLI::App& command, Arguments& arguments) {
  heading::begin(command, heading::training);
  add_train_options(command, arguments.train);

  heading::begin(command, heading::plans);
  command.add_option(
      "--plan", arguments.plan,
      "Serve one device of this plan ('carillon plan --json'): each of its workloads with its share of "
      "the threads and its batch size, and a standby that takes over when its P99 breaks its SLO");
  command
      .add_option("--plan-device", arguments.plan_device, "Which device of the plan, where it has several")
      ->check(CLI::Range(1, 1'000'000));
  command.add_flag("--no-standby", arguments.no_standby, "With --plan: no standbys");
  add_partition(command, arguments);
}

void add_cluster(CLI::App& command, ClusterArguments& arguments) {
  heading::begin(command, heading::cluster);
  command
      .add_option("--cluster", arguments.cluster,
                  "The cluster that this process joins: etcd://HOST:PORT,HOST:PORT/NAME, "
                  "kubernetes://NAMESPACE/NAME, or static:FILE")
      ->required();
  command.add_option(
      "--listen", arguments.listen,
      "IP:PORT where the other members reach this process, by TCP and UDP; no two members of a "
      "machine have the same. With static:FILE the file's, where it is not given");
  command.add_option("--id", arguments.id, "What this member is called (default: the host's name)");
  command.add_option("--cluster-key", arguments.key_file,
                     "File with a secret of the cluster's, the same for all members, by which they know each "
                     "other's beats. Without it any process that reaches their ports can pretend to be one");
  command.add_option(
      "--other-cluster-key", arguments.other_key_file,
      "File with a second key, whose beats are heard, too: to change the key of a cluster that "
      "runs (docs/cluster.md)");
  add_tls_options(command, arguments.tls);
}

void check_models(const Arguments& arguments) {
  if (arguments.models.empty() && arguments.model.empty()) throw CLI::RequiredError("--models, or --model,");
  if (!arguments.model.empty() &&
      (arguments.control != server::ModelControlMode::none || !arguments.plan.empty()))
    throw CLI::ValidationError(
        "--model", "it goes neither with --model-control-mode nor with --plan: these want a repository");
  if (!arguments.load.empty() && arguments.control != server::ModelControlMode::explicit_orders)
    throw CLI::ValidationError("--load-model", "it goes with --model-control-mode explicit alone");
}

}  // namespace
}  // namespace serving

void add_serve(CLI::App& program, int& status) {
  auto arguments = std::make_shared<serving::Arguments>();
  CLI::App& command = *program.add_subcommand(
      "serve", "Serves a model repository: frontends, controller and worker in one process");
  command.get_help_ptr()->group(heading::help);

  using namespace serving;
  add_models(command, *arguments);
  add_protocols(command, *arguments);
  add_metrics(command, *arguments);
  add_keda(command, *arguments);
  add_memory(command, *arguments);
  add_deadline(command, *arguments);
  add_policy(command, *arguments);
  add_profile(command, *arguments);
  add_length_blind(command, *arguments);
  add_devices(command, *arguments);
  add_classes(command, *arguments);
  add_limits(command, *arguments);
  add_log_level(command, *arguments);
  add_access_log(command, *arguments);
  add_record(command, *arguments);
  add_journal(command, *arguments);
  add_traces(command, *arguments);
  add_empty_histograms(command, *arguments);
  add_training_and_plans(command, *arguments);

  command.footer(
      "Examples:\n"
      "  carillon serve --model resnet50.onnx\n"
      "  carillon serve --models ./models\n"
      "  carillon serve --models ./models --memory 1GiB\n"
      "  carillon serve --models ./models --http 127.0.0.1:9000 --grpc '' --metrics 127.0.0.1:9002\n"
      "  carillon serve --models ./models --tls-cert server.pem --tls-key server.key --keys keys.toml\n"
      "  carillon serve --models ./models --device emulated:profile.json --scheduler fcfs\n"
      "  carillon serve --models ./models --device cpu --device 'emulated:profile.json*4'\n"
      "  carillon serve --models ./models --device cuda:0,1,3 --cuda-number f16\n"
      "  carillon serve --models ./models --device 'cuda-emulated:profiles/h100_mobilenetv2.json*8'\n"
      "  carillon serve --models ./models --train /run/carillon/train.sock --train-memory 1GiB\n"
      "  carillon serve --models ./models --plan plan.json --plan-device 2\n"
      "  carillon serve --models ./models --model-control-mode poll --repository-poll-secs 5\n"
      "  carillon serve --models ./models --model-control-mode explicit --load-model resnet50");
  command.callback([arguments, &status] {
    check_models(*arguments);
    if (!arguments->plan.empty() && arguments->control != server::ModelControlMode::none)
      throw CLI::ValidationError("--model-control-mode", "with --plan models are as the plan has them: none");
    if (!arguments->partition.empty())
      for (const auto& [given, name] :
           {std::pair{!arguments->plan.empty(), "--plan"}, {!arguments->record.empty(), "--record"}})
        if (given) throw CLI::ValidationError("--partition", std::string("it does not go with ") + name);
    if (!arguments->plan.empty() && !arguments->keda.empty())
      throw CLI::ValidationError("--keda", "it does not go with --plan, which has one device");
    // Classes share a device, and a plan's share is one workload's.
    arguments->devices.each.classes = arguments->plan.empty();
    status = serving::run(*arguments);
  });
}

// --- A cluster's roles

void add_frontend(CLI::App& program, int& status) {
  auto arguments = std::make_shared<serving::Arguments>();
  CLI::App& command = *program.add_subcommand(
      "frontend", "A frontend of a cluster: takes clients' requests, which its scheduler decides on");
  command.get_help_ptr()->group(heading::help);
  using namespace serving;
  add_cluster(command, arguments->cluster);
  add_protocols(command, *arguments);
  add_metrics(command, *arguments);
  add_memory_bound(command, *arguments);
  add_deadline(command, *arguments);
  add_limits(command, *arguments);
  static const std::map<std::string, server::ModelControlMode> modes{
      {"none", server::ModelControlMode::none}, {"explicit", server::ModelControlMode::explicit_orders}};
  command
      .add_option("--model-control-mode", arguments->control,
                  "explicit: clients load and unload models, on all workers, which need this option, too; "
                  "none: they do not")
      ->transform(one_of(modes))
      ->default_str("none");
  add_log_level(command, *arguments);
  add_access_log(command, *arguments);
  add_traces(command, *arguments);
  command.footer(
      "Example:\n"
      "  carillon frontend --cluster etcd://10.0.0.1:2379/box --listen 10.0.0.2:7000");
  command.callback([arguments, &status] {
    serving::command_name = "frontend";
    status = serving::run_frontend(*arguments);
  });
}

void add_scheduler(CLI::App& program, int& status) {
  auto arguments = std::make_shared<serving::Arguments>();
  arguments->metrics.clear();
  CLI::App& command = *program.add_subcommand(
      "scheduler", "A scheduler of a cluster: one leads and decides, others are ready to take its place");
  command.get_help_ptr()->group(heading::help);
  using namespace serving;
  add_cluster(command, arguments->cluster);
  heading::begin(command, heading::addresses);
  command.add_option(
      "--metrics", arguments->metrics,
      "HOST:PORT of Prometheus metrics of the cluster. The leader also tells how many devices the load needs "
      "(default: off)");
  add_keda(command, *arguments);
  command
      .add_option("--autoscale-period", arguments->autoscale_period_s,
                  "Seconds of the recent past that the wanted number of devices follows from (default 15)")
      ->check(CLI::Range(1.0, 3600.0));
  command
      .add_option("--autoscale-quiet", arguments->autoscale_quiet_s,
                  "Seconds for which fewer devices have to be enough before fewer are wanted (default 300)")
      ->check(CLI::Range(1.0, 1e6));
  heading::begin(command, heading::deadlines);
  add_policy(command, *arguments);
  add_hang_after(command, *arguments);
  heading::begin(command, heading::plans);
  add_partition(command, *arguments);
  add_log_level(command, *arguments);
  add_otlp_options(command, arguments->otlp);
  command.footer(
      "Example:\n"
      "  carillon scheduler --cluster etcd://10.0.0.1:2379/box --listen 10.0.0.1:7000 --scheduler symphony");
  command.callback([arguments, &status] {
    serving::command_name = "scheduler";
    status = serving::run_scheduler(*arguments);
  });
}

void add_worker(CLI::App& program, int& status) {
  auto arguments = std::make_shared<serving::Arguments>();
  arguments->http.clear();
  arguments->grpc.clear();
  arguments->metrics.clear();
  CLI::App& command = *program.add_subcommand(
      "worker", "A worker of a cluster: has models and devices, and runs what its scheduler orders");
  command.get_help_ptr()->group(heading::help);
  using namespace serving;
  add_cluster(command, arguments->cluster);
  command.add_option(
      "--order", arguments->cluster.order,
      "This worker's place among the workers: under little load the last workers are idle, and can go "
      "(default: the number at the end of its id, as pods of a StatefulSet have it)");
  add_models(command, *arguments);
  heading::begin(command, heading::addresses);
  add_metrics(command, *arguments);
  add_memory(command, *arguments);
  heading::begin(command, heading::deadlines);
  add_profile(command, *arguments);
  add_devices(command, *arguments);
  add_classes(command, *arguments);
  add_log_level(command, *arguments);
  add_otlp_options(command, arguments->otlp);
  command.footer(
      "Example:\n"
      "  carillon worker --cluster etcd://10.0.0.1:2379/box --listen 10.0.0.3:7000 --models ./models");
  command.callback([arguments, &status] {
    check_models(*arguments);
    serving::command_name = "worker";
    arguments->devices.each.classes = true;
    status = serving::run(*arguments);
  });
}

}  // namespace carillon::cli
