#include "carillon/engine/second/apart.h"

#include <array>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <mutex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include "carillon/graph/testing.h"

#ifdef CARILLON_FAULTY_MODULE

namespace carillon::engine::second {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

ApartOptions options_for_tests() {
  return {.process = {.program = CARILLON_SECOND_HOST, .module = CARILLON_FAULTY_MODULE, .memory = mib(400)},
          .restarts = {.most = 3, .window = 10min, .pause = 1ms},
          .start = 60s,
          .load = 60s,
          .shapes = 60s,
          .runs = {.least = 60s, .first = 60s}};
}

// The processes of the second engine that this one has, which are not waited for.
std::set<pid_t> processes() {
  std::set<pid_t> out;
  for (const auto& each : fs::directory_iterator("/proc")) {
    // "17 (name) S 4 ...": its parent is 4. What goes meanwhile has no line.
    std::ifstream file(each.path() / "stat");
    std::string line;
    if (!std::getline(file, line)) continue;
    char state = 0;
    pid_t parent = 0;
    std::istringstream(line.substr(line.rfind(')') + 1)) >> state >> parent;
    if (parent == ::getpid()) out.insert(std::stoi(line));
  }
  return out;
}

std::size_t descriptors() {
  std::size_t out = 0;
  for ([[maybe_unused]] const auto& each : fs::directory_iterator("/proc/self/fd")) ++out;
  return out;
}

// A model whose module does what its file says.
class Faulty {
 public:
  explicit Faulty(const std::string& faults, const ApartOptions& options = options_for_tests()) {
    write(faults);
    auto made = make_apart_runtime(options, starter_);
    EXPECT_TRUE(made) << made.error().message;
    if (made) runtime_ = std::move(*made);
  }

  void write(const std::string& faults) { file_ = folder_.write("model.xml", faults); }
  std::string read() { return runtime_->read(file_.string(), network_); }
  std::string shapes() { return network_->shapes_at(std::vector<graph::Shape>{{2, 4}}, shapes_); }
  std::string compile() {
    return network_->compile({.inputs = {{-1, 4}}, .threads = 1, .bf16 = false}, compiled_);
  }
  std::string request() { return compiled_->make_request(request_); }
  // The first thing that goes wrong up to a request.
  std::string load() {
    std::string error = read();
    if (error.empty()) error = shapes();
    if (error.empty()) error = compile();
    if (error.empty()) error = request();
    return error;
  }
  // What goes in first is what faults are told by. With no error, twice of all came out.
  std::string run(float first, std::int64_t rows = 2) {
    std::vector<float> in(static_cast<std::size_t>(rows) * 4, 3.F), out(in.size());
    in[0] = first;
    const auto* const from = reinterpret_cast<const std::byte*>(in.data());
    auto* const to = reinterpret_cast<std::byte*>(out.data());
    const std::vector<graph::Shape> shape{{rows, 4}};
    const std::string error = request_->run({&from, 1}, shape, {&to, 1}, shape).error;
    if (error.empty()) {
      for (std::size_t i = 0; i < in.size(); ++i) EXPECT_EQ(out[i], 2 * in[i]) << i;
    }
    return error;
  }
  void await_restart() const {
    while (!compiled_->broken().empty()) std::this_thread::yield();
  }
  std::string await_end() const {
    for (;; std::this_thread::yield())
      if (auto why = compiled_->broken(); why.find("not started again") != std::string::npos) return why;
  }
  bool hangs() const { return fs::exists(file_.string() + ".reached"); }
  void drop() {
    request_ = nullptr;
    compiled_ = nullptr;
    network_ = nullptr;
  }

  void give_up() { request_->give_up(); }

  Runtime& runtime() { return *runtime_; }
  const Compiled& compiled() const { return *compiled_; }

 private:
  graph::testing::Folder folder_;
  fs::path file_;
  std::shared_ptr<Starter> starter_ = std::make_shared<Starter>();
  std::shared_ptr<Runtime> runtime_;
  std::unique_ptr<Network> network_;
  std::unique_ptr<Compiled> compiled_;
  std::unique_ptr<Request> request_;
  std::vector<graph::Shape> shapes_;
};

TEST(Apart, AModelRunsInAnotherProcess) {
  Faulty model("");
  EXPECT_EQ(model.runtime().version(), "13.0");
  ASSERT_THAT(model.load(), IsEmpty());
  EXPECT_EQ(processes().size(), 1U);
  EXPECT_GT(model.compiled().resident(), 0U);
  EXPECT_THAT(model.run(5), IsEmpty());
  EXPECT_THAT(model.run(5, 10'000), IsEmpty()) << "more than the memory that it has";
  EXPECT_THAT(model.run(5, 1), IsEmpty());
  EXPECT_EQ(model.compiled().broken(), "");
  model.drop();
  EXPECT_THAT(processes(), IsEmpty());
}

TEST(Apart, ModelsHaveAProcessEach) {
  Faulty one(""), other("run 13 crash");
  ASSERT_THAT(one.load(), IsEmpty());
  ASSERT_THAT(other.load(), IsEmpty());
  EXPECT_EQ(processes().size(), 2U);
  EXPECT_THAT(other.run(13), HasSubstr("SIGSEGV"));
  EXPECT_THAT(one.run(1), IsEmpty());
}

TEST(Apart, ItHasNothingOfTheServersOpen) {
  Faulty model("");
  ASSERT_THAT(model.load(), IsEmpty());
  const int kept = ::dup(0);  // not close-on-exec
  Faulty other("");
  ASSERT_THAT(other.load(), IsEmpty());
  for (const pid_t pid : processes()) {
    std::set<std::string> open;
    const fs::path folder = "/proc/" + std::to_string(pid) + "/fd";
    for (const auto& each : fs::directory_iterator(folder)) {
      const std::string name = each.path().filename();
      const std::string target = fs::read_symlink(each.path());
      if (name == "0" || name == "1") {
        EXPECT_EQ(target, "/dev/null");
      } else if (name != "2") {
        EXPECT_THAT(target, HasSubstr("socket:"));
      }
      open.insert(name);
    }
    EXPECT_EQ(open.size(), 5U) << "three, its socket, and its request's";
  }
  ::close(kept);
}

TEST(Apart, TheSystemEndsItBeforeTheServer) {
  Faulty model("");
  ASSERT_THAT(model.load(), IsEmpty());
  ASSERT_EQ(processes().size(), 1U);
  const std::string pid = std::to_string(*processes().begin());
  int score = 0;
  std::ifstream("/proc/" + pid + "/oom_score_adj") >> score;
  EXPECT_EQ(score, 1000);
}

TEST(Apart, WhatTellsAGroupToEndDoesNotEndIt) {
  Faulty model("");
  ASSERT_THAT(model.load(), IsEmpty());
  const pid_t pid = *processes().begin();
  EXPECT_EQ(::getpgid(pid), pid);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) EXPECT_EQ(::kill(pid, signal), 0);
  EXPECT_THAT(model.run(1), IsEmpty());
  EXPECT_EQ(processes(), std::set<pid_t>{pid});
}

struct Fault {
  const char* what;
  const char* said;
};
const Fault ends[] = {{"crash", "signal 11 (SIGSEGV)"},
                      {"abort", "signal 6 (SIGABRT)"},
                      {"exit", "it ended with status 7"},
                      {"nonsense", "what it answered is no answer"},
                      {"allocate", "of memory, and may have 400.0 MiB"}};

TEST(Apart, WhatEndsItBeforeItRunsIsTheReason) {
  for (const auto& [call, doing] :
       {std::pair("read", "reading it"), std::pair("shapes", "finding shapes"),
        std::pair("compile", "compiling it"), std::pair("request", "making a request")})
    for (const Fault& fault : ends) {
      Faulty model(std::string(call) + " " + fault.what + "\n");
      EXPECT_THAT(model.load(),
                  AllOf(HasSubstr(std::string("its process was ") + doing), HasSubstr(fault.said)))
          << call << " " << fault.what;
      model.drop();
      EXPECT_THAT(processes(), IsEmpty());
    }
}

TEST(Apart, WhatHangsBeforeItRunsIsEnded) {
  ApartOptions options = options_for_tests();
  options.load = options.shapes = 500ms;
  for (const char* fault : {"read hang", "read loop", "shapes hang", "compile loop", "request hang"}) {
    Faulty model(std::string(fault) + "\n", options);
    EXPECT_THAT(model.load(), HasSubstr("it did not come back from")) << fault;
  }
}

TEST(Apart, ErrorsPassAsTheyAre) {
  for (const char* call : {"read", "shapes", "compile", "request"})
    EXPECT_EQ(Faulty(std::string(call) + " unsupported\n").load(), "unsupported") << call;
  EXPECT_EQ(Faulty("read chatter\n").load(), std::string(longest_text, 'c'));
  Faulty model("run 13 division\n");
  ASSERT_THAT(model.load(), IsEmpty());
  EXPECT_EQ(model.run(13), "division");
  EXPECT_THAT(model.run(1), IsEmpty());
}

TEST(Apart, ShapesThatCannotBeAreNoAnswer) {
  for (const char* what : {"impossible", "many"})
    EXPECT_THAT(Faulty(std::string("shapes ") + what + "\n").load(), HasSubstr("no answer")) << what;
}

TEST(Apart, WhatEndsItInARunIsThatRunsError) {
  for (const Fault& fault : ends) {
    Faulty model(std::string("run 13 ") + fault.what + "\n");
    ASSERT_THAT(model.load(), IsEmpty());
    EXPECT_THAT(model.run(1), IsEmpty());
    EXPECT_THAT(model.run(13), AllOf(HasSubstr("in a run"), HasSubstr(fault.said))) << fault.what;
    model.await_restart();
    EXPECT_THAT(model.run(1), IsEmpty()) << fault.what;
    EXPECT_EQ(processes().size(), 1U);
  }
}

TEST(Apart, WhatHangsInARunIsEnded) {
  ApartOptions options = options_for_tests();
  options.runs = {.least = 100ms, .first = 100ms};
  for (const char* fault : {"hang", "loop"}) {
    Faulty model(std::string("run 13 ") + fault + "\n", options);
    ASSERT_THAT(model.load(), IsEmpty());
    EXPECT_THAT(model.run(13), HasSubstr("it did not come back from a run within 100 ms")) << fault;
    model.await_restart();
    EXPECT_THAT(model.run(1), IsEmpty());
  }
}

TEST(Apart, ARunThatIsGivenUpEndsAtOnce) {
  for (const char* fault : {"hang", "loop"}) {
    Faulty model(std::string("run 13 ") + fault + "\n");  // a run may take a minute
    ASSERT_THAT(model.load(), IsEmpty());
    auto ran = std::async(std::launch::async, [&] { return model.run(13); });
    while (!model.hangs()) std::this_thread::yield();
    model.give_up();
    EXPECT_THAT(ran.get(), HasSubstr("it was ended: its run was given up")) << fault;
    model.await_restart();
    EXPECT_THAT(model.run(1), IsEmpty());
  }
}

// What is told, line by line.
class Lines {
 public:
  std::function<void(const std::string&)> tell() {
    return [this](const std::string& line) {
      const std::lock_guard lock(mutex_);
      lines_.push_back(line);
    };
  }
  // Waits for so many.
  std::vector<std::string> first(std::size_t count) const {
    for (;; std::this_thread::yield()) {
      const std::lock_guard lock(mutex_);
      if (lines_.size() >= count) return lines_;
    }
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::string> lines_;
};

TEST(Apart, WhatBecomesOfAProcessIsTold) {
  const struct {
    const char* fault;
    const char* said;
  } rows[] = {{"crash", "it ended with signal 11 (SIGSEGV)"},
              {"exit", "it ended with status 7"},
              {"hang", "it did not come back from a run within 100 ms"},
              {"allocate", "of memory, and may have 400.0 MiB"}};
  for (const auto& row : rows) {
    Lines lines;
    ApartOptions options = options_for_tests();
    options.tell = lines.tell();
    if (row.fault == std::string("hang")) options.runs = {.least = 100ms, .first = 100ms};
    Faulty model(std::string("run 13 ") + row.fault + "\n", options);
    ASSERT_THAT(model.load(), IsEmpty());
    const std::string pid = std::to_string(*processes().begin());
    EXPECT_NE(model.run(13), "");
    const auto told = lines.first(2);
    const std::string name = fs::path(CARILLON_SECOND_HOST).filename().string();
    EXPECT_THAT(told[0],
                AllOf(HasSubstr("model.xml': the process that runs it (" + name + " " + pid + ") is gone"),
                      HasSubstr(row.said), HasSubstr("it is started again in 1 ms")));
    EXPECT_THAT(told[1], HasSubstr("model.xml': it runs again"));
  }
}

TEST(Apart, WhatIsNotStartedAgainIsToldToo) {
  Lines lines;
  ApartOptions options = options_for_tests();
  options.restarts.most = 1;
  options.tell = lines.tell();
  Faulty model("", options);
  ASSERT_THAT(model.load(), IsEmpty());
  model.write("compile crash\n");
  ::kill(*processes().begin(), SIGKILL);
  const auto told = lines.first(2);
  EXPECT_THAT(told[0], HasSubstr("signal 9 (SIGKILL), as the system does where memory runs out"));
  EXPECT_THAT(told[1],
              AllOf(HasSubstr("it could not be started again: "), HasSubstr("SIGSEGV"),
                    HasSubstr("not started again, as it ended too often, until the model is loaded")));
}

TEST(Apart, WhatIsToldAgainAndAgainIsLeftOut) {
  Lines lines;
  ApartOptions options = options_for_tests();
  options.restarts = {.most = 1000, .window = 10min, .pause = 0ms};
  options.lines = {.most = 3, .window = 10min};
  options.tell = lines.tell();
  Faulty model("run 13 exit\n", options);
  ASSERT_THAT(model.load(), IsEmpty());
  for (int i = 0; i < 5; ++i) {
    EXPECT_THAT(model.run(13), HasSubstr("status 7"));
    model.await_restart();
  }
  EXPECT_EQ(lines.first(3).size(), 3U);
}

TEST(Apart, WhoEndsTooOftenIsNotStartedAgain) {
  Faulty model("run 13 abort\n");
  ASSERT_THAT(model.load(), IsEmpty());
  for (int i = 0; i < 3; ++i) {
    EXPECT_THAT(model.run(13), HasSubstr("SIGABRT"));
    model.await_restart();
  }
  EXPECT_THAT(model.run(13), HasSubstr("SIGABRT"));
  EXPECT_THAT(model.await_end(), HasSubstr("the last time: it ended with signal 6 (SIGABRT)"));
  EXPECT_THAT(model.run(1), HasSubstr("not started again"));
  EXPECT_THAT(processes(), IsEmpty());
}

TEST(Apart, WhatCannotBeCompiledAgainIsOver) {
  Faulty model("");
  ASSERT_THAT(model.load(), IsEmpty());
  model.write("compile crash\n");
  ::kill(*processes().begin(), SIGKILL);
  EXPECT_THAT(model.await_end(), HasSubstr("its process was compiling it when it ended with signal 11"));
}

TEST(Apart, KilledUnderLoadEveryRunIsAnswered) {
  ApartOptions options = options_for_tests();
  options.restarts.most = 1000;
  options.restarts.pause = 0ms;
  Faulty model("", options);
  ASSERT_THAT(model.load(), IsEmpty());
  std::atomic<bool> over{false};
  std::atomic<int> fine{0}, failed{0};
  std::thread load([&] {
    while (!over) ++(model.run(1).empty() ? fine : failed);
  });
  for (int kills = 0; kills < 5; ++kills) {
    const int before = fine;
    while (fine == before) std::this_thread::yield();
    for (const pid_t pid : processes()) ::kill(pid, SIGKILL);
    const int then = failed;
    while (failed == then) std::this_thread::yield();
  }
  const int before = fine;
  while (fine == before) std::this_thread::yield();
  over = true;
  load.join();
  EXPECT_THAT(model.run(1), IsEmpty());
}

TEST(Apart, RestartsLeakNothing) {
  ApartOptions options = options_for_tests();
  options.restarts.most = 1000;
  options.restarts.pause = 0ms;
  Faulty model("run 13 exit\n", options);
  ASSERT_THAT(model.load(), IsEmpty());
  const auto once = [&] {
    EXPECT_THAT(model.run(13), HasSubstr("status 7"));
    model.await_restart();
    EXPECT_THAT(model.run(1), IsEmpty());
  };
  once();
  const std::size_t before = descriptors();
  for (int i = 0; i < 100; ++i) once();
  EXPECT_EQ(descriptors(), before);
  EXPECT_EQ(processes().size(), 1U);
}

TEST(Apart, LoadingIsEndedAtOnce) {
  for (const char* fault : {"read hang\n", "shapes hang\n", "compile loop\n"}) {
    Faulty model(fault);
    auto loaded = std::async(std::launch::async, [&] { return model.load(); });
    while (!model.hangs()) std::this_thread::yield();
    model.runtime().end_loading();
    EXPECT_THAT(loaded.get(), HasSubstr("the server is stopping"));
    EXPECT_THAT(model.read(), HasSubstr("the server is stopping"));
  }
}

TEST(Apart, WithoutItsProgramTheReasonIsSaid) {
  ApartOptions options = options_for_tests();
  options.process.program = "/nowhere/carillon-openvino";
  const auto made = make_apart_runtime(options, std::make_shared<Starter>());
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::unavailable);
  EXPECT_THAT(made.error().message, HasSubstr("/nowhere/carillon-openvino cannot be started"));
  options = options_for_tests();
  options.process.module = "/nowhere/module.so";
  EXPECT_THAT(make_apart_runtime(options, std::make_shared<Starter>()).error().message,
              HasSubstr("the module /nowhere/module.so cannot be loaded"));
}

}  // namespace
}  // namespace carillon::engine::second

#endif
