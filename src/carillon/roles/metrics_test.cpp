#include "carillon/roles/metrics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace carillon::roles {
namespace {

using cluster::Role;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(ClusterMetrics, OfAWorkerHaveItsRowsAndOneHistogramForEachRoleOfItsPeers) {
  ClusterFigures figures{.member = {.role = Role::worker,
                                    .epoch = 7,
                                    .leader_changes = 2,
                                    .beats = 90,
                                    .beats_missed = 3,
                                    .round_trips = {},
                                    .clocks = {{"f1", 40us}, {"s1", 1500us}}},
                         .unwanted = 4,
                         .rows = RowTimes{}};
  figures.member.round_trips[Role::scheduler].add(200us);
  figures.member.round_trips[Role::frontend].add(2ms);
  figures.rows->pulls.add(300us);
  figures.rows->pushes.add(20ms);
  figures.rows->pushes.add(10s);
  const std::string text = cluster_text(figures);
  for (const char* line : {
           "# TYPE carillon_cluster_epoch gauge\ncarillon_cluster_epoch 7\n",
           "# TYPE carillon_cluster_leader_changes_total counter\ncarillon_cluster_leader_changes_total 2\n",
           "\ncarillon_cluster_beats_total 90\n",
           "\ncarillon_cluster_beats_missed_total 3\n",
           "\ncarillon_cluster_clock_bound_seconds{peer=\"f1\"} 4e-05\n",
           "\ncarillon_cluster_clock_bound_seconds{peer=\"s1\"} 0.0015\n",
           "\ncarillon_cluster_round_trip_seconds_count{peer_role=\"scheduler\"} 1\n",
           "\ncarillon_cluster_round_trip_seconds_bucket{peer_role=\"scheduler\",le=\"0.0001\"} 0\n",
           "\ncarillon_cluster_round_trip_seconds_bucket{peer_role=\"scheduler\",le=\"0.00025\"} 1\n",
           "\ncarillon_cluster_round_trip_seconds_bucket{peer_role=\"frontend\",le=\"0.001\"} 0\n",
           "\ncarillon_cluster_rows_unwanted_total 4\n",
           "\ncarillon_cluster_row_pull_seconds_count 1\n",
           "\ncarillon_cluster_row_push_seconds_bucket{le=\"5\"} 1\n",
           "\ncarillon_cluster_row_push_seconds_bucket{le=\"+Inf\"} 2\n",
       })
    EXPECT_THAT(text, HasSubstr(line));
  for (const char* other : {"_leads", "_reoffered", "_doubled"}) EXPECT_THAT(text, Not(HasSubstr(other)));
}

TEST(ClusterMetrics, OfOtherRolesHaveWhatTheyCount) {
  const std::string spare = cluster_text({.member = {.role = Role::scheduler}, .reoffered = 5});
  EXPECT_THAT(spare, HasSubstr("\ncarillon_cluster_leads 0\n"));
  EXPECT_THAT(spare, HasSubstr("\ncarillon_cluster_rows_reoffered_total 5\n"));
  EXPECT_THAT(spare, Not(HasSubstr("_row_")));
  EXPECT_THAT(spare, Not(HasSubstr("_moving")));
  const std::string divides = cluster_text({.member = {.role = Role::scheduler}, .moving = 3});
  EXPECT_THAT(divides, HasSubstr("\ncarillon_models_moving 3\n"));
  const std::string frontend =
      cluster_text({.member = {.role = Role::frontend}, .reoffered = 0, .doubled = 6});
  EXPECT_THAT(frontend, HasSubstr("\ncarillon_cluster_rows_reoffered_total 0\n"));
  EXPECT_THAT(frontend, HasSubstr("\ncarillon_cluster_rows_doubled_total 6\n"));
  EXPECT_THAT(frontend, Not(HasSubstr("_unwanted")));
}

}  // namespace
}  // namespace carillon::roles
