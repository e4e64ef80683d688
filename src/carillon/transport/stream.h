#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/transport/codec.h"
#include "carillon/transport/desk.h"
#include "carillon/transport/messages.h"

namespace carillon::transport {

struct StreamLimits {
  FrameLimits frame{};
  // Messages that wait for a peer. One that lets more wait is given up.
  std::size_t waiting = 1U << 16;
  // How long a frame to a peer that opened the stream has, once the stream is to end. Then the peer is told
  // why.
  Duration linger = std::chrono::milliseconds{200};
};

// This host's end of a stream with another host. Thread-safe.
class Stream {
 public:
  virtual ~Stream() = default;
  virtual const Hello& peer() const = 0;
  // That both sides speak here: cluster::settle().
  virtual std::uint32_t protocol() const = 0;
  // Never waits. Messages arrive in order. What is sent while a frame is under way goes with the next.
  // `epoch`: in which the message was decided. It arrives with the message, whatever epoch this host obeys by
  // then. False: the message is lost, as the stream is over, or was ended because too many messages wait.
  bool send(std::uint64_t epoch, Message message) {
    if (!queue(epoch, std::move(message))) return false;
    flush();
    return true;
  }
  // send() in two steps, for several messages that go in one frame. What is queued may also go before
  // flush(), with what others send.
  virtual bool queue(std::uint64_t epoch, Message message) = 0;
  virtual void flush() = 0;
  // Ends it. StreamOwner::ended() follows. A peer that opened the stream is told why. What waits is lost.
  virtual void close(const Error& why) = 0;
  struct Counts {
    std::uint64_t frames_sent = 0, messages_sent = 0, frames_heard = 0;
  };
  virtual Counts counts() const = 0;
};

// Whoever has streams. All functions are called from gRPC's threads; those of one stream one at a time, in
// the order below. They may send, and must not wait.
class StreamOwner {
 public:
  virtual ~StreamOwner() = default;
  // A peer has said who it is, and both sides speak a version. An error refuses it, and is told to it.
  virtual Result<> greets(const Hello& peer) = 0;
  virtual void opened(const std::shared_ptr<Stream>& stream) = 0;
  virtual void heard(Stream& stream, Frame frame) = 0;
  // `why` names the peer, as far as it is known. The stream takes nothing more.
  virtual void ended(Stream& stream, const Error& why) = 0;
};

// Has each thread wait at the sockets of its own streams. Else gRPC has one thread of the process wait at
// all sockets and wake the right thread, which costs most frames a second wake. The price is a look at each
// socket of the thread for each frame. A frontend with many hundreds of gRPC clients may be better off
// without: GRPC_POLL_STRATEGY=epoll1 in the environment has its way. Once, before anything else of gRPC and
// before other threads.
void wait_at_own_sockets();

// Takes the streams that others open. Where the credentials are of TLS (tls.h), a peer's hello must be that
// of its certificate. So it is with a dialer's.
class StreamListener {
 public:
  // `address` as gRPC has it, such as 127.0.0.1:0; errors name it. `owner` and `desk` must outlive the
  // listener. Without a desk people who ask are told that this is not served here.
  static Result<std::unique_ptr<StreamListener>> open(const std::string& address,
                                                      std::shared_ptr<grpc::ServerCredentials> credentials,
                                                      Hello self, StreamOwner& owner,
                                                      const StreamLimits& limits = {}, Desk* desk = nullptr);
  // Ends all streams, and returns when their owner has heard of it.
  virtual ~StreamListener() = default;
  virtual int port() const = 0;
};

// Keeps a stream to one address: opens it, and opens it anew when it has ended. Pauses before that grow, up
// to `longest_pause`; after a stream that lasted longer than this they begin anew. (gRPC itself waits for 100
// ms at least where nobody listens.)
class StreamDialer {
 public:
  struct Options {
    Duration first_pause = std::chrono::milliseconds{5};
    Duration longest_pause = std::chrono::seconds{1};
    StreamLimits limits{};
  };
  // `owner` must outlive the dialer.
  static std::unique_ptr<StreamDialer> open(const std::string& address,
                                            std::shared_ptr<grpc::ChannelCredentials> credentials, Hello self,
                                            StreamOwner& owner, const Options& options);
  // Ends the stream, and returns when its owner has heard of it.
  virtual ~StreamDialer() = default;
  // Why the last try to open the stream, or the last stream, ended. Empty: it has not.
  virtual std::string last_error() const = 0;
  // Whether the peer has said who it is, and the stream stands.
  virtual bool is_open() const = 0;
};

}  // namespace carillon::transport
