#pragma once

#include <cstring>

#include <boost/asio/buffer.hpp>
#include <boost/beast/core/buffers_range.hpp>
#include <boost/beast/http/message.hpp>
#include <boost/optional.hpp>

#include "carillon/frontend/codec/padded_bytes.h"

namespace carillon::frontend {

// A body for Beast's parser, read into PaddedBytes.
struct PaddedBody {
  using value_type = PaddedBytes;

  class reader {
   public:
    template <bool is_request, typename Fields>
    reader(boost::beast::http::header<is_request, Fields>&, value_type& body) : body_(body) {}

    void init(const boost::optional<std::uint64_t>&, boost::system::error_code& error) { error = {}; }

    template <typename Buffers>
    std::size_t put(const Buffers& buffers, boost::system::error_code& error) {
      error = {};
      std::size_t taken = 0;
      for (const boost::asio::const_buffer piece : boost::beast::buffers_range_ref(buffers)) {
        const std::size_t had = body_.size();
        body_.resize(had + piece.size());
        std::memcpy(body_.data() + had, piece.data(), piece.size());
        taken += piece.size();
      }
      return taken;
    }

    void finish(boost::system::error_code& error) { error = {}; }

   private:
    value_type& body_;
  };
};

}  // namespace carillon::frontend
