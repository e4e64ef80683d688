// carillon-ENGINE MODULE SERVER: an engine of others in a process of its own. The server starts it, with a
// socket to itself; it is of no use to people.

#include <array>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include <dlfcn.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "carillon/engine/second/host.h"
#include "carillon/engine/second/host_setup.h"
#include "carillon/engine/second/messages.h"

namespace {

using namespace carillon::engine::second;

// Ends with the server, whatever the model does: the system says so where it was killed, and the socket's
// end where the thread that started this one is gone before it.
void end_with_the_server(pid_t server) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != server) ::_exit(0);
  std::thread([] {
    pollfd end{.fd = control_socket, .events = POLLRDHUP, .revents = 0};
    while (::poll(&end, 1, -1) < 0) {
    }
    ::_exit(0);
  }).detach();
}

// Where memory runs out the system is to end this process, and not the server.
void be_the_first_to_go() {
  std::ofstream("/proc/self/oom_score_adj") << 1000;
}

// The server's drain is over before this process may go, whoever tells the whole group to. No core dumps:
// they are as large as the model, and a restart waits for them.
void heed_no_signals() {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGPIPE, SIGUSR1, SIGUSR2})
    std::signal(signal, SIG_IGN);
  const rlimit none{0, 0};
  ::setrlimit(RLIMIT_CORE, &none);
}

std::unique_ptr<Runtime> load(const char* module, std::string& error) {
  void* const library = ::dlopen(module, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    error = std::string("the module ") + module + " cannot be loaded: " + ::dlerror();
    return nullptr;
  }
  const auto make = reinterpret_cast<EntryPoint>(::dlsym(library, entry_point));
  if (make == nullptr) {
    error = std::string(module) + " is not a module of this program";
    return nullptr;
  }
  std::unique_ptr<Runtime> made;
  error = make(made);
  if (!error.empty()) made = nullptr;
  return made;
}

}  // namespace

int main(int argc, char** argv) {
  struct stat socket{};
  pid_t server = 0;
  if (argc != 3 || ::fstat(control_socket, &socket) != 0 || !S_ISSOCK(socket.st_mode) ||
      std::from_chars(argv[2], argv[2] + std::strlen(argv[2]), server).ec != std::errc{}) {
    std::fprintf(stderr, "%s is started by 'carillon serve', for a model that another engine runs\n",
                 argc > 0 ? argv[0] : "this program");
    return 2;
  }
  heed_no_signals();
  end_with_the_server(server);
  be_the_first_to_go();
  set_up_process();
  std::string error;
  auto runtime = load(argv[1], error);
  // What the libraries do at exit is of no use, and may hang.
  ::_exit(serve_model(control_socket, std::move(runtime), error));
}
