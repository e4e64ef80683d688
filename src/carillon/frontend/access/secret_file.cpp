#include "carillon/frontend/access/secret_file.h"

#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "carillon/frontend/net/descriptor.h"

namespace carillon::frontend {

Result<std::string> read_secret_file(const std::string& file, const std::string& option, bool secret,
                                     const Log& log) {
  const std::string where = option + " " + file;
  const auto failed = [&] {
    const int error = errno;
    return fail(error == ENOENT ? ErrorCode::not_found : ErrorCode::invalid_argument,
                where + ": " + std::generic_category().message(error));
  };
  // Without waiting: of a pipe nobody may ever write into the other end.
  const Descriptor opened(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!opened.open()) return failed();
  struct stat status {};
  if (fstat(opened.number(), &status) != 0) return failed();
  if (!S_ISREG(status.st_mode)) return invalid(where + ": this is not a file");
  std::string text;
  char piece[4096];
  for (;;) {
    const ssize_t n = ::read(opened.number(), piece, sizeof piece);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed();
    if (n == 0) break;
    text.append(piece, static_cast<std::size_t>(n));
    if (text.size() > longest_secret_file)
      return invalid(where + ": the file has more than " + std::to_string(longest_secret_file) + " bytes");
  }
  if (secret && (status.st_mode & (S_IROTH | S_IWOTH)) != 0 && log)
    log(where + ": everybody on this machine may read or write this file; 'chmod 600' keeps it secret");
  return text;
}

}  // namespace carillon::frontend
