#include "carillon/controller/directory.h"

#include <algorithm>
#include <charconv>
#include <tuple>
#include <utility>

namespace carillon::controller {
namespace {

using View = std::shared_ptr<const ModelView>;

constexpr std::size_t listed_at_most = 20;  // names in an error text
constexpr std::size_t shown_at_most = 100;  // characters of a client's text in an error

std::string shown(std::string_view text) {
  if (text.size() <= shown_at_most) return std::string(text);
  return std::string(text.substr(0, shown_at_most)) + "...";
}

std::string list(const std::vector<std::string>& names) {
  std::string out;
  for (std::size_t i = 0; i < names.size() && i < listed_at_most; ++i) out += (i == 0 ? "" : ", ") + names[i];
  if (names.size() > listed_at_most) out += " and " + std::to_string(names.size() - listed_at_most) + " more";
  return out;
}

bool before(const View& a, const View& b) {
  return std::tie(a->name, a->version) < std::tie(b->name, b->version);
}

}  // namespace

void Directory::put(ModelView view) {
  auto shared = std::make_shared<const ModelView>(std::move(view));
  const std::lock_guard lock(mutex_);
  const auto at = std::ranges::lower_bound(views_, shared, before);
  if (at != views_.end() && !before(shared, *at))
    *at = std::move(shared);
  else
    views_.insert(at, std::move(shared));
}

void Directory::close(std::string reason) {
  const std::lock_guard lock(mutex_);
  closed_ = std::move(reason);
}

void Directory::open() {
  const std::lock_guard lock(mutex_);
  closed_.reset();
}

View Directory::seen(const View& view) const {
  if (!closed_ || !view->ready) return view;
  auto out = std::make_shared<ModelView>(*view);
  out->ready = false;
  out->reason = *closed_;
  return out;
}

std::vector<ModelView> Directory::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<ModelView> out;
  out.reserve(views_.size());
  for (const View& view : views_) out.push_back(*seen(view));
  return out;
}

ModelCounts Directory::counts() const {
  const std::lock_guard lock(mutex_);
  ModelCounts out;
  for (const View& view : views_) {
    if (view->ready) {
      ++out.ready;
    } else if (!view->left_out) {
      if (out.broken++ == 0) out.a_broken_one = view->name;
    }
  }
  return out;
}

Result<std::shared_ptr<const ModelView>> Directory::find(std::string_view model,
                                                         std::string_view version) const {
  std::int64_t wanted = 0;
  if (!version.empty()) {
    const auto [end, error] = std::from_chars(version.data(), version.data() + version.size(), wanted);
    if (error != std::errc{} || end != version.data() + version.size() || wanted <= 0)
      return invalid("version '" + shown(version) + "' of model '" + shown(model) +
                     "' is not a positive integer");
  }
  const std::lock_guard lock(mutex_);
  const auto [first, last] = std::ranges::equal_range(views_, model, {}, &ModelView::name);
  if (first == last) {
    std::vector<std::string> names;
    for (const View& view : views_)
      if (names.empty() || names.back() != view->name) names.push_back(view->name);
    return fail(ErrorCode::not_found, "model '" + shown(model) + "' is not in the repository; " +
                                          (names.empty() ? "it is empty" : "there is: " + list(names)));
  }
  if (version.empty()) {
    for (auto at = last; at != first;)
      if ((*--at)->ready) return seen(*at);
    return *(last - 1);
  }
  for (auto at = first; at != last; ++at)
    if ((*at)->version == wanted) return seen(*at);
  std::vector<std::string> versions;
  for (auto at = first; at != last; ++at) versions.push_back(std::to_string((*at)->version));
  return fail(ErrorCode::not_found, "model '" + shown(model) + "' has no version " + shown(version) +
                                        "; there is: " + list(versions));
}

}  // namespace carillon::controller
