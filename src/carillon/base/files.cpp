#include "carillon/base/files.h"

#include <cerrno>
#include <iterator>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

#include "carillon/base/descriptor.h"

namespace carillon {
namespace {

std::unexpected<Error> unreadable(std::string_view what, const std::filesystem::path& file, int error) {
  const bool nothing = error == ENOENT || error == ENOTDIR;
  return fail(nothing ? ErrorCode::not_found : ErrorCode::invalid_argument,
              "cannot read " + std::string(what) + " '" + file.string() +
                  "': " + std::generic_category().message(error));
}

}  // namespace

Result<std::ifstream> open_to_read(std::string_view what, const std::filesystem::path& file) {
  // /dev/zero never ends.
  std::error_code ignored;
  if (std::filesystem::is_character_file(file, ignored) && file != "/dev/stdin" && file != "/dev/null")
    return invalid("cannot read " + std::string(what) + " '" + file.string() + "': it is a device");
  errno = 0;
  std::ifstream in(file, std::ios::binary);
  // A folder opens; only reading it fails.
  if (in) in.peek();
  if (!in.is_open() || in.bad()) return unreadable(what, file, errno);
  in.clear();  // an empty file is at its end already
  return in;
}

Result<std::string> read_file(std::string_view what, const std::filesystem::path& file) {
  auto in = open_to_read(what, file);
  if (!in) return std::unexpected(std::move(in.error()));
  std::string text;
  char piece[1 << 16];
  errno = 0;
  while (in->read(piece, sizeof piece) || in->gcount() > 0)
    text.append(piece, static_cast<std::size_t>(in->gcount()));
  if (in->bad()) return unreadable(what, file, errno);
  return text;
}

Result<> write_file(const std::filesystem::path& file, std::string_view text) {
  const auto failed = [&] {
    return fail(ErrorCode::internal,
                "cannot write '" + file.string() + "': " + std::generic_category().message(errno));
  };
  Descriptor out(::open(file.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
  if (!out.open()) return failed();
  while (!text.empty()) {
    const ssize_t n = ::write(out.number(), text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return failed();
    text.remove_prefix(static_cast<std::size_t>(n));
  }
  if (::close(out.release()) != 0) return failed();
  return {};
}

}  // namespace carillon
