#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "carillon/base/result.h"
#include "carillon/base/time.h"
#include "carillon/cli/load/access.h"
#include "carillon/cli/load/address.h"

namespace carillon::cli {

struct InputSpec {
  std::string name;
  std::string datatype;             // KServe's name
  std::vector<std::int64_t> shape;  // with the rows of one request
  std::vector<std::byte> data;
};

// What is sent for one model, again and again.
struct Template {
  std::string model;
  std::string application;     // sent as a request parameter; empty: none
  std::uint32_t priority = 0;  // likewise; 0: none
  std::int64_t length = 0;     // of inputs that vary; 0: none does
  std::vector<InputSpec> inputs;
};

// What the server says of a model's inputs: the first dimension is -1 where it batches.
struct Metadata {
  struct Input {
    std::string name, datatype;
    std::vector<std::int64_t> shape;
  };
  std::vector<Input> inputs;
  std::optional<double> slo_ms;  // its config's: the deadline of requests that name none
};

struct Reply {
  enum class Kind : std::uint8_t { result, refused, error } kind{};
  std::string error;
};

// A client that can have any number of requests under way. send() never waits for an answer.
class Client {
 public:
  virtual ~Client() = default;  // gives up what is still open, without calling back

  // Blocks. Errors: no server there, no such model.
  virtual Result<Metadata> metadata(const std::string& model) = 0;
  // `timeout`: sent as the request parameter, in microseconds, unless zero. `on_reply` is called once, from a
  // thread of the client. Thread-safe. `what` must outlive the call.
  virtual void send(const Template& what, Duration timeout, std::function<void(Reply)> on_reply) = 0;
};

// `connections`: the most connections that an HTTP client opens; beyond it requests wait for one, which their
// latency shows. gRPC shares a few.
std::unique_ptr<Client> make_http_client(const Address& address, const Access& access, int connections);
std::unique_ptr<Client> make_grpc_client(const Address& address, const Access& access);

// A number written out, and nothing else; none where it is not one.
std::optional<double> number_in(const std::string& text);

// Seeded input data of so many elements: small values, so that any model can take them (token ids, masks),
// and short words of letters for BYTES, each with its length before it as the protocol has them.
Result<std::vector<std::byte>> make_data(const std::string& datatype, std::int64_t elements,
                                         std::uint64_t seed);

}  // namespace carillon::cli
