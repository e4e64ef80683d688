#include "carillon/transport/row_frames.h"

#include <cstdint>
#include <limits>

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/evp.h>
#include <sys/socket.h>

#include "carillon/base/assert.h"

namespace carillon::transport::rows {

Hello hello_of(std::string_view cluster, std::uint32_t protocol) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  const int done = EVP_Digest(cluster.data(), cluster.size(), digest.data(), nullptr, EVP_sha256(), nullptr);
  CARILLON_ASSERT(done == 1);
  Hello hello{.protocol = protocol};
  std::memcpy(hello.cluster.data(), digest.data(), hello.cluster.size());
  return hello;
}

Result<std::vector<std::uint64_t>> take_sizes(std::span<const std::byte>& in, std::size_t count) {
  std::vector<std::uint64_t> sizes(count);
  std::uint64_t sum = 0;
  for (std::uint64_t& size : sizes) {
    size = take<std::uint64_t>(in);
    if (__builtin_add_overflow(sum, size, &sum) || sum > std::numeric_limits<std::int64_t>::max())
      return invalid("tensors of more bytes than can be counted");
  }
  return sizes;
}

void prepare(boost::asio::ip::tcp::socket& socket) {
  boost::system::error_code error;  // a socket that is broken is found out by its first use
  socket.non_blocking(true, error);
  const std::pair<int, int> tcp[] = {{TCP_NODELAY, 1},
                                     {TCP_KEEPIDLE, 1},
                                     {TCP_KEEPINTVL, 1},
                                     {TCP_KEEPCNT, 3},
                                     // While something waits to be sent, keepalive asks nothing.
                                     {TCP_USER_TIMEOUT, 3000},
                                     // What waits in the kernel cannot be overtaken by what is more urgent.
                                     {TCP_NOTSENT_LOWAT, 2 * static_cast<int>(longest_body)}};
  for (const auto& [name, value] : tcp)
    ::setsockopt(socket.native_handle(), IPPROTO_TCP, name, &value, sizeof(value));
  const int on = 1;
  ::setsockopt(socket.native_handle(), SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
}

}  // namespace carillon::transport::rows
