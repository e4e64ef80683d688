#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <CLI/CLI.hpp>
#include <fcntl.h>
#include <fmt/core.h>
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "carillon/base/bytes.h"
#include "carillon/base/descriptor.h"
#include "carillon/cli/commands.h"
#include "carillon/share/broker.h"
#include "carillon/share/protocol.h"

namespace carillon::cli {
namespace {

namespace fs = std::filesystem;

struct RunArguments {
  std::string socket;
  std::string name;
  std::string persistent, ephemeral;
  double remaining_s = 0;
  double weight = 0;
  std::optional<double> reattach_s;
  bool alone = false;
  std::string python = "python3";
  std::string shim, package;
  std::vector<std::string> command;
};

int complain_of_run(int status, const std::string& text) {
  fmt::print(stderr, "carillon run: {}\n", text);
  return status;
}

const char* set_in_environment(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr && *value != '\0' ? value : nullptr;
}

// The first that is there; empty: none.
fs::path first_of(const std::vector<fs::path>& places) {
  for (const fs::path& place : places) {
    std::error_code wrong;
    if (fs::exists(place, wrong)) return fs::weakly_canonical(place, wrong);
  }
  return {};
}

fs::path folder_of_program() {
  std::error_code wrong;
  return fs::read_symlink("/proc/self/exe", wrong).parent_path();
}

// Where `python` has the package 'carillon' installed, as pip does it; empty: it has none, or does not say.
fs::path installed_package(const std::string& python) {
  int ends[2]{-1, -1};
  if (pipe2(ends, O_CLOEXEC) != 0) return {};
  const Descriptor reads(ends[0]);
  Descriptor writes(ends[1]);
  const char* const words[] = {python.c_str(), "-c",
                               "import importlib.util as u; s = u.find_spec('carillon'); "
                               "print(s.submodule_search_locations[0] if s else '')",
                               nullptr};
  const pid_t child = fork();
  if (child < 0) return {};
  if (child == 0) {
    dup2(writes.number(), STDOUT_FILENO);
    execvp(words[0], const_cast<char**>(words));
    _exit(127);
  }
  writes.close();
  std::string said;
  char part[4096];
  for (ssize_t got = 0; (got = ::read(reads.number(), part, sizeof part)) > 0 && said.size() < std::size_t{64} * 1024;)
    said.append(part, static_cast<std::size_t>(got));
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {}
  if (status != 0) return {};
  return said.substr(0, said.find('\n'));
}

// What goes into a job: the library that is preloaded, and the folder with Python's hook, sitecustomize.py.
struct JobParts {
  fs::path shim, site;
};

// As told; else beside the program (installed, or in the folder that it was built in); else in the package that the
// Python has.
Result<JobParts> find_parts(const RunArguments& arguments) {
  const fs::path here = folder_of_program();
  std::vector<fs::path> shims{here / "libcarillon_shim.so", here / "../lib/carillon/libcarillon_shim.so"};
  std::vector<fs::path> sites{here / "python/carillon/_site", here / "../lib/carillon/python/carillon/_site",
                              here / "../../python/carillon/_site"};
  if (!arguments.shim.empty()) shims = {arguments.shim};
  if (!arguments.package.empty()) sites = {fs::path(arguments.package) / "_site"};
  JobParts found{arguments.alone ? fs::path() : first_of(shims), first_of(sites)};
  const bool ask = (found.shim.empty() && arguments.shim.empty() && !arguments.alone) ||
                   (found.site.empty() && arguments.package.empty());
  if (const fs::path package = ask ? installed_package(arguments.python) : fs::path(); !package.empty()) {
    if (arguments.shim.empty() && found.shim.empty()) found.shim = first_of({package / "libcarillon_shim.so"});
    if (arguments.package.empty() && found.site.empty()) found.site = first_of({package / "_site"});
  }
  const auto missing = [&](const char* what, const std::vector<fs::path>& places, const std::string& option) {
    std::string looked;
    for (const fs::path& place : places) looked += (looked.empty() ? "" : ", ") + place.lexically_normal().string();
    return fail(ErrorCode::not_found, fmt::format("{} was not found: not at {}{}; {} says where it is", what, looked,
                                                  ask ? ", nor in a package 'carillon' of " + arguments.python : "", option));
  };
  if (found.site.empty()) return missing("Python's hook (_site of the package 'carillon')", sites, "--package");
  if (found.shim.empty() && !arguments.alone) return missing("libcarillon_shim.so", shims, "--shim");
  return found;
}

bool is_script(const std::string& name) {
  return name.ends_with(".py") || name.ends_with(".pyc");
}

// In front of what was there already.
void prepend(const char* variable, const std::string& what, const char* between) {
  const char* const before = set_in_environment(variable);
  setenv(variable, before == nullptr ? what.c_str() : (what + between + before).c_str(), 1);
}

std::string fresh_run() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", random(), random(), random(), random());
}

// What the job, and all that it starts, finds in its environment; python/carillon/__main__.py does the same.
Result<> prepare_job(const RunArguments& arguments) {
  const auto parts = find_parts(arguments);
  if (!parts) return std::unexpected(parts.error());
  prepend("PYTHONPATH", parts->site.string(), ":");
  if (arguments.alone) {
    setenv("CARILLON_ALONE", "1", 1);
    return {};
  }
  const fs::path& shim = parts->shim;
  if (shim.string().find_first_of(": ") != std::string::npos)
    return invalid("the path " + shim.string() + " has a colon or a space, which LD_PRELOAD cannot have");
  prepend("LD_PRELOAD", shim.string(), ":");
  setenv(share::socket_variable, arguments.socket.c_str(), 1);
  // What a job starts is a part of it.
  if (set_in_environment("CARILLON_INSIDE") == nullptr) setenv("CARILLON_RUN", fresh_run().c_str(), 1);
  if (!arguments.name.empty()) setenv(share::name_variable, arguments.name.c_str(), 1);
  for (const auto& [option, text, variable] :
       {std::tuple("--persistent", &arguments.persistent, share::persistent_variable),
        std::tuple("--ephemeral", &arguments.ephemeral, share::ephemeral_variable)}) {
    if (text->empty()) continue;
    const auto size = parse_bytes(*text);
    if (!size) return in_context(option, size.error());
    setenv(variable, std::to_string(size->count).c_str(), 1);
  }
  if (arguments.remaining_s > 0) setenv(share::remaining_variable, fmt::format("{}", arguments.remaining_s).c_str(), 1);
  if (arguments.weight > 0) setenv(share::weight_variable, fmt::format("{}", arguments.weight).c_str(), 1);
  if (arguments.reattach_s) setenv("CARILLON_REATTACH", fmt::format("{}", *arguments.reattach_s).c_str(), 1);
  // OpenMP's threads else spin for a while after each iteration, in another job's time. The same rule in Python, for
  // `python -m carillon run` and for trials of carillon.tune: python/carillon/_threads.py.
  if (set_in_environment("OMP_WAIT_POLICY") == nullptr) setenv("GOMP_SPINCOUNT", "10000", 0);
  setenv("KMP_BLOCKTIME", "0", 0);
  return {};
}

std::vector<std::string> command_of(const RunArguments& arguments) {
  std::vector<std::string> command = arguments.command;
  if (!command.empty() && command.front() == "--") command.erase(command.begin());
  if (!command.empty() && is_script(command.front())) command.insert(command.begin(), arguments.python);
  return command;
}

[[noreturn]] void become(const std::vector<std::string>& command, const sigset_t& signals) {
  pthread_sigmask(SIG_SETMASK, &signals, nullptr);
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  execvp(words.front(), words.data());
  const int why = errno;
  fmt::print(stderr, "carillon run: {}: {}\n", command.front(), std::strerror(why));
  std::fflush(stderr);
  _exit(why == ENOENT ? 127 : 126);  // as shells have it
}

// Waits for the child, and passes on what is sent to this process alone; what a terminal sends (Ctrl-C) goes to all
// of its group, and is there already.
int accompany(pid_t child, const sigset_t& signals) {
  for (;;) {
    siginfo_t signal{};
    if (sigwaitinfo(&signals, &signal) < 0) continue;
    if (signal.si_signo != SIGCHLD) {
      if (signal.si_code <= 0) kill(child, signal.si_signo);
      continue;
    }
    int status = 0;
    if (waitpid(child, &status, WNOHANG) != child) continue;  // stopped, or going on
    if (WIFEXITED(status)) return WEXITSTATUS(status);
    // The same end, so that whoever waits for this process sees what ended the job.
    const int ended_by = WTERMSIG(status);
    rlimit none{};
    setrlimit(RLIMIT_CORE, &none);
    std::signal(ended_by, SIG_DFL);
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, ended_by);
    std::fflush(nullptr);
    raise(ended_by);
    pthread_sigmask(SIG_UNBLOCK, &only, nullptr);
    return 128 + ended_by;
  }
}

int run_job(const RunArguments& arguments) {
  const std::vector<std::string> command = command_of(arguments);
  if (command.empty()) return complain_of_run(exit_usage, "there is nothing to run: a script.py, or -- and a program");
  if (is_script(arguments.command.front()) && !fs::exists(arguments.command.front()))
    return complain_of_run(exit_usage, "there is no file " + arguments.command.front());
  if (!arguments.alone)
    if (const auto list = share::ask_for_list(arguments.socket, 5s); !list)
      return complain_of_run(exit_failure, list.error().message + "; --alone runs without one");
  if (const auto ready = prepare_job(arguments); !ready)
    return complain_of_run(ready.error().code == ErrorCode::invalid_argument ? exit_usage : exit_failure,
                           ready.error().message);
  sigset_t passed, before;
  sigemptyset(&passed);
  for (const int signal : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGWINCH, SIGALRM, SIGPIPE})
    sigaddset(&passed, signal);
  pthread_sigmask(SIG_BLOCK, &passed, &before);
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child < 0) return complain_of_run(exit_failure, std::string("no process can be started: ") + std::strerror(errno));
  if (child == 0) become(command, before);
  return accompany(child, passed);
}

}  // namespace

void add_run(CLI::App& program, int& status) {
  const auto arguments = std::make_shared<RunArguments>();
  arguments->socket = share::default_socket([](const char* name) { return std::getenv(name); }, geteuid());
  CLI::App& command = *program.add_subcommand(
      "run", "Runs a PyTorch script, as it is, as a job of the broker that 'carillon share' is");
  command.prefix_command();
  command.add_option("--socket", arguments->socket, "The broker's")->capture_default_str();
  command.add_option("--name", arguments->name, "The job's, for people (default: the script's)");
  command.add_option("--persistent", arguments->persistent,
                     "Memory that stays from iteration to iteration, such as 2GiB; without it, found out");
  command.add_option("--ephemeral", arguments->ephemeral,
                     "Memory that an iteration takes besides; without it, found out");
  command
      .add_option("--remaining", arguments->remaining_s,
                  "Seconds of the device that it takes in all, for the policies srtf and best")
      ->check(CLI::PositiveNumber);
  command.add_option("--weight", arguments->weight, "Its share under the policy fair, 1 without it")
      ->check(CLI::Range(1e-6, 1000.0));
  command
      .add_option("--reattach", arguments->reattach_s,
                  "Seconds for which the job waits for another broker where its own is gone, before it goes on alone")
      ->check(CLI::NonNegativeNumber);
  command.add_flag("--alone", arguments->alone, "Without a broker");
  command.add_option("--python", arguments->python, "What runs scripts")->capture_default_str();
  command.add_option("--shim", arguments->shim, "libcarillon_shim.so (default: beside the program, else in the package of --python)");
  command.add_option("--package", arguments->package, "The folder of the Python package 'carillon' (likewise)");
  command.footer(
      "Options of carillon go before the script; what follows it is the script's own.\n"
      "Examples:\n"
      "  carillon run train.py --epochs 10\n"
      "  carillon run --weight 2 --name large train.py\n"
      "  carillon run -- torchrun --nproc-per-node 1 train.py");
  command.callback([arguments, &command, &status] {
    arguments->command = command.remaining();
    status = run_job(*arguments);
  });
}

}  // namespace carillon::cli
