#pragma once

namespace carillon::frontend {

// How gRPC's connections are kept alive and end, under the names of Triton's options (--grpc-...). Times are
// in milliseconds, from 0 to 2^31 - 1.
//
// Triton's own defaults let a client ping every 5 minutes, and end the connection of one that pings more
// often. Ours let clients ping 10 times a second, with and without calls: a ping costs as little as a frame
// of any other kind. Those that come within half of that time are strikes, since a client's clock and the way
// here bring every other ping a little early. The 11th strike ends the connection.
struct GrpcKeepalive {
  int time_ms = 7'200'000;           // idle for so long, a connection is pinged
  int timeout_ms = 20'000;           // and ended where no answer comes for so long
  bool permit_without_calls = true;  // pings from either side, on connections without a call
  int max_pings_without_data = 2;    // that the server sends in a row; 0: any number
  // What clients may do: pings that come sooner after another are strikes, which data sent to the client
  // makes good; a client with more strikes gets GOAWAY with ENHANCE_YOUR_CALM. 0 strikes: any number.
  int min_recv_ping_interval_without_data_ms = 50;
  int max_ping_strikes = 10;
  int max_connection_age_ms = 0;        // then it gets GOAWAY, and calls go on; 0: never
  int max_connection_age_grace_ms = 0;  // then its calls are ended, too; 0: never
};

}  // namespace carillon::frontend
