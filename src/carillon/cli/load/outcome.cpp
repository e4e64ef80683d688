#include "carillon/cli/load/outcome.h"

namespace carillon::cli {

void Summary::add(const Answered& answered) {
  ++sent;
  switch (answered.outcome) {
    case Outcome::on_time:
      ++on_time;
      latencies.push_back(answered.latency());
      break;
    case Outcome::late:
      ++late;
      latencies.push_back(answered.latency());
      break;
    case Outcome::refused:
      ++refused;
      if (answered.latency() <= deadline) ++refused_in_time;
      refusal_latencies.push_back(answered.latency());
      break;
    case Outcome::failed:
      ++failed;
      break;
    case Outcome::unanswered:
      ++unanswered;
      break;
  }
}

}  // namespace carillon::cli
