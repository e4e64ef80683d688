// A module that does what its file says: a line each of a call, a space, and what becomes of it, such as
// "compile crash"; of runs "run 13 hang", where the input's first element is 13. What it says nothing of goes
// well: there is an input x [-1,4] of f32 ([-1,-1] with "ports open"), and the output y is twice that.

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "carillon/engine/second/runtime.h"

namespace carillon::engine::second {
namespace {

using Faults = std::map<std::string, std::string>;

// To all that this process has of sockets.
void say_nonsense() {
  const std::vector<char> nonsense(64, '\x77');
  for (int descriptor = 3; descriptor < 64; ++descriptor) {
    struct stat is {};
    if (::fstat(descriptor, &is) == 0 && S_ISSOCK(is.st_mode)) [[maybe_unused]]
      const ssize_t written = ::write(descriptor, nonsense.data(), nonsense.size());
  }
}

void take_all_memory() {
  constexpr std::size_t part = 4U << 20;
  for (;;) {
    void* const more = ::mmap(nullptr, part, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (more == MAP_FAILED) continue;
    std::memset(more, 1, part);
    ::usleep(1000);
  }
}

// The error that the call is to return.
std::string happens(const Faults& faults, const std::string& call) {
  const auto found = faults.find(call);
  if (found == faults.end()) return {};
  const std::string& what = found->second;
  if (what == "crash") std::raise(SIGSEGV);
  if (what == "abort") std::abort();
  if (what == "exit") ::_exit(7);
  // Whoever waits for that can see it.
  if (what == "hang" || what == "loop") std::ofstream(faults.at("file") + ".reached") << call;
  if (what == "hang")
    for (;;) ::pause();
  if (what == "loop")
    for (volatile int i = 0;; i = i + 1) {
    }
  if (what == "nonsense") say_nonsense();
  if (what == "allocate") take_all_memory();
  if (what == "chatter") return std::string(100'000, 'c');
  return what == "nonsense" ? "" : what;
}

class FaultyRequest final : public Request {
 public:
  explicit FaultyRequest(Faults faults) : faults_(std::move(faults)) {}
  Ran run(std::span<const std::byte* const> inputs, std::span<const graph::Shape> shapes,
          std::span<std::byte* const> outputs, std::span<const graph::Shape>) override {
    float first = 0;
    std::memcpy(&first, inputs[0], sizeof first);
    std::string error = happens(faults_, "run " + std::to_string(static_cast<int>(first)));
    const std::int64_t count = shapes[0][0] * shapes[0][1];
    for (std::int64_t i = 0; i < count; ++i) {
      float value = 0;
      std::memcpy(&value, inputs[0] + i * sizeof value, sizeof value);
      value *= 2;
      std::memcpy(outputs[0] + i * sizeof value, &value, sizeof value);
    }
    return {.error = std::move(error)};
  }

 private:
  Faults faults_;
};

class FaultyCompiled final : public Compiled {
 public:
  explicit FaultyCompiled(Faults faults) : faults_(std::move(faults)) {}
  std::string make_request(std::unique_ptr<Request>& into) override {
    into = std::make_unique<FaultyRequest>(faults_);
    return happens(faults_, "request");
  }

 private:
  Faults faults_;
};

class FaultyNetwork final : public Network {
 public:
  explicit FaultyNetwork(Faults faults) : faults_(std::move(faults)) {
    if (faults_.contains("ports")) inputs_[0].shape = outputs_[0].shape = {-1, -1};
  }
  const std::vector<Port>& inputs() const override { return inputs_; }
  const std::vector<Port>& outputs() const override { return outputs_; }
  std::string shapes_at(std::span<const graph::Shape> inputs,
                        std::vector<graph::Shape>& outputs) const override {
    outputs = {inputs.begin(), inputs.end()};
    if (faults_.contains("shapes") && faults_.at("shapes") == "impossible") {
      outputs = {{-7, 4}};
      return {};
    }
    if (faults_.contains("shapes") && faults_.at("shapes") == "many") {
      outputs.resize(9);
      return {};
    }
    return happens(faults_, "shapes");
  }
  std::string compile(const Options&, std::unique_ptr<Compiled>& into) const override {
    into = std::make_unique<FaultyCompiled>(faults_);
    return happens(faults_, "compile");
  }

 private:
  Faults faults_;
  std::vector<Port> inputs_{{.name = "x", .known = true, .ranked = true, .shape = {-1, 4}}};
  std::vector<Port> outputs_{{.name = "y", .known = true, .ranked = true, .shape = {-1, 4}}};
};

class FaultyRuntime final : public Runtime {
 public:
  std::string version() const override { return "13.0"; }
  std::string read(const std::string& file, std::unique_ptr<Network>& into) override {
    Faults faults;
    std::ifstream lines(file);
    for (std::string line; std::getline(lines, line);) {
      const std::size_t space = line.rfind(' ');
      if (space != std::string::npos) faults[line.substr(0, space)] = line.substr(space + 1);
    }
    faults["file"] = file;
    into = std::make_unique<FaultyNetwork>(faults);
    return happens(faults, "read");
  }
};

}  // namespace
}  // namespace carillon::engine::second

extern "C" __attribute__((visibility("default"))) std::string carillon_module(
    std::unique_ptr<carillon::engine::second::Runtime>& into);
std::string carillon_module(std::unique_ptr<carillon::engine::second::Runtime>& into) {
  into = std::make_unique<carillon::engine::second::FaultyRuntime>();
  return {};
}
