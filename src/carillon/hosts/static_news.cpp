#include "carillon/hosts/static_news.h"

namespace carillon::hosts {

std::vector<cluster::CoordinatorNews> news_of(const cluster::StaticCluster& cluster) {
  std::vector<cluster::CoordinatorNews> news;
  for (const cluster::Member& member : cluster.members) {
    news.emplace_back(cluster::MemberSeen{member});
    if (member.role == cluster::Role::scheduler)
      news.emplace_back(
          cluster::EpochSeen{{.epoch = cluster::Epoch{1, member.id, member.incarnation}, .revision = 1}});
  }
  news.emplace_back(cluster::CoordinatorBack{});
  return news;
}

}  // namespace carillon::hosts
