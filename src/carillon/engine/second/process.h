#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <sys/types.h>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/engine/second/messages.h"

namespace carillon::engine::second {

std::int32_t nice_of_this_thread();

// A thread that starts processes. The system tells a process that its parent is gone when the thread ends
// that started it, so this one lives as long as they are wanted. It has the priority of whoever makes it.
class Starter {
 public:
  Starter();
  ~Starter();
  Starter(const Starter&) = delete;
  Starter& operator=(const Starter&) = delete;
  // Runs `task` there, and waits for its end. From any thread.
  void run(const std::function<void()>& task);
  int nice() const { return nice_; }  // its priority, as setpriority() has it

 private:
  int nice_ = 0;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::function<void()>> tasks_;
  bool ended_ = false;
  std::thread thread_;
};

struct ProcessOptions {
  std::filesystem::path program;  // carillon-openvino, say
  std::filesystem::path module;
  std::optional<Bytes> memory;  // that it may have, resident; nothing: 7/8 of what there is at its start
};

// A process of the second engine, from its start to its end. Safe from any thread.
class Process {
 public:
  // It has no descriptors but /dev/null, standard error and its socket. The error says what the system has
  // against it.
  static Result<std::shared_ptr<Process>> start(const ProcessOptions& options, Starter& starter);
  ~Process();  // it is ended, and gone
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // One question at a time. Waits for the answer for `at_most` of time in which the process could work
  // (HangLimit); a process that answers too late, or what is
  // no answer, is ended. `descriptor` goes with the question. False where the process is not there any more:
  // end() says why. `taking`: what it does, for texts, such as "compiling".
  bool ask(Ask kind, std::span<const std::byte> question, std::vector<std::byte>& answer, Duration at_most,
           const std::string& taking, int descriptor = -1);

  // Whether whoever waits for it should go on: false, and the process ended, where it has more memory than it
  // may have.
  bool within_memory();

  // Ends it. The first reason is what end() says; "" where the process itself gave none.
  void kill(const std::string& reason);
  // How it ended, after that was seen: "it ended with signal 11 (SIGSEGV)", "it was ended: ...". Waits for a
  // process that is just ending; one that does not is ended.
  std::string end();
  bool ended() const { return ended_; }

  std::uint64_t resident() const;  // bytes, now; 0 where it has ended
  pid_t pid() const { return pid_; }
  int descriptor() const { return pidfd_; }  // readable once it has ended

 private:
  Process(pid_t pid, int pidfd, int control, Bytes memory)
      : pid_(pid), pidfd_(pidfd), control_(control), memory_(memory) {}

  const pid_t pid_;
  const int pidfd_;
  const int control_;
  const Bytes memory_;
  std::mutex asking_;
  std::atomic<bool> ended_{false};
  std::mutex mutex_;  // of what follows
  std::string killed_for_;
  std::string how_;
};

}  // namespace carillon::engine::second
