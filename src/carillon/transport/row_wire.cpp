#include "carillon/transport/row_wire.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include <boost/asio/post.hpp>
#include <boost/asio/ssl/error.hpp>
#include <openssl/bio.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <sys/socket.h>

#include "carillon/base/assert.h"
#include "carillon/transport/tls.h"

namespace carillon::transport::rows {
namespace {

namespace asio = boost::asio;
using boost::system::error_code;

constexpr std::size_t longest_record = SSL3_RT_MAX_PLAIN_LENGTH;
constexpr unsigned char handshake_record = 22;  // RFC 8446, section 5.1: the first byte of whoever speaks TLS

// Asio takes no std::span as buffers.
template <typename Buffer>
struct BufferSequence {
  using value_type = Buffer;
  using const_iterator = const Buffer*;
  const_iterator begin() const { return buffers.data(); }
  const_iterator end() const { return buffers.data() + buffers.size(); }
  std::span<const Buffer> buffers;
};

// OpenSSL's own BIO of a socket raises SIGPIPE.
int descriptor_of(BIO* bio) {
  return static_cast<int>(reinterpret_cast<std::intptr_t>(BIO_get_data(bio)));
}
int bio_write(BIO* bio, const char* data, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t count = ::send(descriptor_of(bio), data, static_cast<std::size_t>(size), MSG_NOSIGNAL);
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) BIO_set_retry_write(bio);
  return static_cast<int>(count);
}
int bio_read(BIO* bio, char* data, int size) {
  BIO_clear_retry_flags(bio);
  const ssize_t count = ::recv(descriptor_of(bio), data, static_cast<std::size_t>(size), 0);
  if (count < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) BIO_set_retry_read(bio);
  return static_cast<int>(count);
}
long bio_control(BIO*, int command, long, void*) {
  return command == BIO_CTRL_FLUSH ? 1 : 0;
}
BIO* bio_of_socket(int descriptor) {
  static BIO_METHOD* const method = [] {
    BIO_METHOD* made = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "carillon socket");
    BIO_meth_set_write(made, bio_write);
    BIO_meth_set_read(made, bio_read);
    BIO_meth_set_ctrl(made, bio_control);
    return made;
  }();
  BIO* const bio = BIO_new(method);
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptor)));
  BIO_set_init(bio, 1);
  return bio;
}

bool is_alert(int reason) {
  return reason >= SSL_AD_REASON_OFFSET;  // ssl.h: 1000 and the number of an alert that the peer sent
}

}  // namespace

Error error_of(const error_code& error) {
  if (error == asio::error::eof) return {ErrorCode::unavailable, "closed by the peer"};
  if (error.category() != asio::error::get_ssl_category()) return {ErrorCode::unavailable, error.message()};
  const int reason = ERR_GET_REASON(static_cast<unsigned long>(error.value()));
  if (reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_PACKET_LENGTH_TOO_LONG)
    return {ErrorCode::invalid_argument,
            "it does not speak TLS: start all members with --cluster-cert, or none"};
  if (is_alert(reason))
    return {ErrorCode::invalid_argument,
            "it refuses this process's certificate (--cluster-cert): " + error.message()};
  return {ErrorCode::unavailable, "TLS: " + error.message()};
}

Wire::Wire(Socket socket) : socket_(std::move(socket)) {}

void Wire::greet(std::shared_ptr<SSL_CTX> context, bool accepts, Known then) {
  const Kept connection(SSL_new(context.get()), SSL_free);
  CARILLON_ASSERT(connection != nullptr);
  BIO* const bio = bio_of_socket(socket_.native_handle());
  SSL_set_bio(connection.get(), bio, bio);
  SSL_set_read_ahead(connection.get(), 1);
  {
    const std::lock_guard lock(mutex_);
    ssl_ = connection;
    drained_ = true;
    broken_ = {};
    reads_after_ = Socket::wait_read, writes_after_ = Socket::wait_write;
    if (record_ == nullptr) record_ = std::make_unique_for_overwrite<std::byte[]>(longest_record);
  }
  if (!accepts) {
    SSL_set_connect_state(connection.get());
    return shake(connection, std::move(then));
  }
  SSL_set_accept_state(connection.get());
  socket_.async_wait(Socket::wait_read, [this, connection, then = std::move(then)](const error_code& error) {
    if (error || connection != ssl_) return;
    unsigned char first = handshake_record;
    (void)::recv(socket_.native_handle(), &first, 1, MSG_PEEK);
    if (first == handshake_record) return shake(connection, then);
    ssl_.reset();
    then(invalid("this frontend speaks TLS alone: the worker needs --cluster-cert"));
  });
}

// With TLS being greeted nobody else uses the wire.
void Wire::shake(const Kept& connection, Known then) {
  ERR_clear_error();
  errno = 0;
  Socket::wait_type wants = Socket::wait_read;
  const int done = SSL_do_handshake(connection.get());
  if (done == 1) {
    drained_ = false;  // what the peer said next may have come with the end of its greeting
    const std::unique_ptr<X509, decltype(&X509_free)> peer(SSL_get1_peer_certificate(connection.get()),
                                                           X509_free);
    return then(peer != nullptr ? identity_of(*peer) : invalid("the peer has no certificate"));
  }
  const error_code error = error_after(done, wants);
  if (would_block(error)) {
    socket_.async_wait(wants, [this, connection, then = std::move(then)](const error_code& failed) {
      if (!failed && connection == ssl_) shake(connection, then);
    });
    return;
  }
  const long verified = SSL_get_verify_result(connection.get());
  ssl_.reset();
  if (verified != X509_V_OK)
    return then(
        invalid(std::string("its certificate is not believed: ") + X509_verify_cert_error_string(verified)));
  then(std::unexpected(error_of(error)));
}

error_code Wire::error_after(int result, Socket::wait_type& wants) {
  const int system = errno;
  switch (SSL_get_error(ssl_.get(), result)) {
    case SSL_ERROR_WANT_READ:
      wants = Socket::wait_read;
      return asio::error::would_block;
    case SSL_ERROR_WANT_WRITE:
      wants = Socket::wait_write;
      return asio::error::would_block;
    case SSL_ERROR_ZERO_RETURN:
      return asio::error::eof;
    case SSL_ERROR_SSL: {
      const unsigned long error = ERR_get_error();
      ERR_clear_error();
      if (ERR_GET_REASON(error) == SSL_R_UNEXPECTED_EOF_WHILE_READING) return asio::error::eof;
      return {static_cast<int>(error), asio::error::get_ssl_category()};
    }
    default:
      if (system == 0) return asio::error::eof;
      return {system, boost::system::system_category()};
  }
}

std::size_t Wire::read_some(std::span<const asio::mutable_buffer> into, error_code& error) {
  const std::lock_guard lock(mutex_);
  if (ssl_ == nullptr) return socket_.read_some(BufferSequence<asio::mutable_buffer>{into}, error);
  error = broken_;
  if (error) return 0;
  std::size_t sum = 0;
  for (const asio::mutable_buffer& buffer : into)
    for (std::size_t at = 0; at < buffer.size();) {
      std::size_t count = 0;
      ERR_clear_error();
      errno = 0;
      const int done =
          SSL_read_ex(ssl_.get(), static_cast<char*>(buffer.data()) + at, buffer.size() - at, &count);
      if (done != 1) {
        const error_code why = error_after(done, reads_after_);
        drained_ = would_block(why);
        if (!drained_) broken_ = why;
        if (sum == 0) error = why;
        return sum;
      }
      at += count;
      sum += count;
    }
  drained_ = false;
  return sum;
}

std::size_t Wire::write_some(std::span<const asio::const_buffer> from, error_code& error) {
  const std::lock_guard lock(mutex_);
  if (ssl_ == nullptr) return socket_.write_some(BufferSequence<asio::const_buffer>{from}, error);
  error = {};
  std::size_t sum = 0;
  for (std::size_t i = 0, at = 0; i < from.size();) {
    const auto left_of = [&](std::size_t buffer) { return from[buffer].size() - (buffer == i ? at : 0); };
    const char* data = static_cast<const char*>(from[i].data()) + at;
    std::size_t size = std::min(left_of(i), longest_record);
    if (size < longest_record && i + 1 < from.size()) {
      size = 0;
      for (std::size_t next = i; next < from.size() && size < longest_record; ++next) {
        const std::size_t part = std::min(left_of(next), longest_record - size);
        std::memcpy(record_.get() + size, static_cast<const char*>(from[next].data()) + (next == i ? at : 0),
                    part);
        size += part;
      }
      data = reinterpret_cast<const char*>(record_.get());
    }
    std::size_t count = 0;
    if (size > 0) {
      ERR_clear_error();
      errno = 0;
      const int done = SSL_write_ex(ssl_.get(), data, size, &count);
      if (done != 1) {
        const error_code why = error_after(done, writes_after_);
        if (sum == 0) error = why;
        return sum;
      }
    }
    sum += count;
    for (at += count; i < from.size() && at >= from[i].size(); ++i) at -= from[i].size();
  }
  return sum;
}

void Wire::wait_read(Then then) {
  std::unique_lock lock(mutex_);
  if (ssl_ != nullptr && !drained_) {
    lock.unlock();
    return asio::post(socket_.get_executor(), [then = std::move(then)] { then({}); });
  }
  const auto wants = ssl_ != nullptr ? reads_after_ : Socket::wait_read;
  lock.unlock();
  socket_.async_wait(wants, std::move(then));
}

void Wire::wait_write(Then then) {
  std::unique_lock lock(mutex_);
  const auto wants = ssl_ != nullptr ? writes_after_ : Socket::wait_write;
  lock.unlock();
  socket_.async_wait(wants, std::move(then));
}

void Wire::shutdown() {
  const std::lock_guard lock(mutex_);
  if (ssl_ != nullptr && (SSL_get_shutdown(ssl_.get()) & SSL_SENT_SHUTDOWN) == 0) {
    ERR_clear_error();
    (void)SSL_shutdown(ssl_.get());
  }
  error_code error;
  socket_.shutdown(Socket::shutdown_send, error);
}

void Wire::close() {
  const std::lock_guard lock(mutex_);
  ssl_.reset();
  error_code error;
  socket_.close(error);
}

}  // namespace carillon::transport::rows
