#include "carillon/roles/wanted_news.h"

#include <utility>

#include <fmt/format.h>

namespace carillon::roles {

void WantedNews::leads(bool own, std::string leader) {
  if (own != own_) counted_ = false;
  own_ = own;
  leader_ = std::move(leader);
}

void WantedNews::counted(std::vector<provision::WantedFigures> figures, TimePoint now) {
  if (!own_ || figures.empty()) return;
  counted_ = true;
  figures_ = std::move(figures);
  at_ = now;
}

void WantedNews::told(const std::string& by, std::vector<provision::WantedFigures> figures, TimePoint now) {
  if (own_ || figures.empty() || by != leader_) return;
  figures_ = std::move(figures);
  at_ = now;
}

Result<std::vector<provision::WantedFigures>> WantedNews::wanted(TimePoint now) const {
  if (!figures_.empty() && now <= saturating_add(at_, fresh_for)) return figures_;
  if (own_)
    return fail(
        ErrorCode::unavailable,
        "this scheduler leads, and has no number of devices yet: a worker's device must be there, and "
        "the load be counted for some seconds");
  if (leader_.empty()) return fail(ErrorCode::unavailable, "no scheduler is known to lead");
  if (figures_.empty())
    return fail(
        ErrorCode::unavailable,
        fmt::format("the scheduler '{}' leads, and has told this one no number of devices yet", leader_));
  return fail(ErrorCode::unavailable,
              fmt::format("the scheduler '{}' leads, and has told this one no number of devices for {:.0f} s",
                          leader_, to_seconds(now - at_)));
}

std::vector<provision::WantedFigures> WantedNews::own() const {
  return own_ && counted_ ? figures_ : std::vector<provision::WantedFigures>{};
}

}  // namespace carillon::roles
