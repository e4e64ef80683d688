#include "carillon/cluster/coordinator/lease.h"

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace carillon::cluster::kubernetes {
namespace {

using ::testing::HasSubstr;

const LeasePlace place{.name_space = "default", .cluster = "box"};
const Member worker{.id = "w-1.a", .role = Role::worker, .address = "10.0.0.1:7000", .incarnation = 17};
const Epoch seventh{.number = 7, .leader = "s1", .nonce = ~std::uint64_t{0}, .key = "0123456789abcdef"};

TEST(Lease, OfAMemberIsReadAsItWasWritten) {
  const auto lease = lease_of(member_lease(place, worker, seventh, 5, 123, "now"));
  ASSERT_TRUE(lease) << lease.error().message;
  EXPECT_EQ(lease->name, "box.w-1.a");
  EXPECT_EQ(lease->cluster, "box");
  EXPECT_EQ(lease->revision, 123);
  EXPECT_EQ(lease->duration_s, 5);
  EXPECT_EQ(member_of(lease->member), worker);
  EXPECT_EQ(epoch_of(lease->epoch), seventh);
}

TEST(Lease, OfTheEpochIsReadAsItWasWritten) {
  const auto lease = lease_of(epoch_lease(place, seventh, 123, "now"));
  ASSERT_TRUE(lease) << lease.error().message;
  EXPECT_EQ(lease->name, "box");
  EXPECT_EQ(lease->transitions, 7);
  EXPECT_EQ(lease->holder, "s1");
  const auto stored = stored_epoch(*lease);
  ASSERT_TRUE(stored) << stored.error().message;
  EXPECT_EQ(stored->epoch, seventh);
  EXPECT_TRUE(stored->whole);
}

TEST(Lease, ThatIsToBeCreatedHasNoRevision) {
  EXPECT_FALSE(epoch_lease(place, seventh, 0, "now").contains("resourceVersion"));
}

TEST(Lease, EditedByHandSaysWhatItsSpecDoes) {
  Lease lease = *lease_of(epoch_lease(place, seventh, 123, "now"));
  lease.transitions = 9;
  auto stored = stored_epoch(lease);
  ASSERT_TRUE(stored);
  EXPECT_FALSE(stored->whole);
  EXPECT_EQ(stored->epoch.number, 9U);
  EXPECT_EQ(stored->epoch.nonce, seventh.nonce);  // the leader goes on with a higher number
  lease.holder = "s2";
  stored = stored_epoch(lease);
  ASSERT_TRUE(stored);
  EXPECT_EQ(stored->epoch, (Epoch{.number = 9, .leader = "s2", .nonce = 0}));  // nobody leads by that
  lease.holder = "no id";
  EXPECT_FALSE(stored_epoch(lease));
  lease.holder = "s2";
  lease.transitions.reset();
  EXPECT_FALSE(stored_epoch(lease));
  lease.transitions = -1;
  EXPECT_FALSE(stored_epoch(lease));
}

TEST(Lease, OfNoUseSaysWhy) {
  const std::string deep = std::string(50, '[') + std::string(50, ']');
  const struct {
    std::string text, why;
  } rows[] = {
      {"", "not a JSON document"},
      {"[]", "is called ''"},
      {"{}", "is called ''"},
      {R"({"metadata": {"name": "a/b"}})", "is called 'a/b'"},
      {R"({"metadata": {"name": "b"}})", "the resourceVersion ''"},
      {R"({"metadata": {"name": "b", "resourceVersion": 7}})", "the resourceVersion ''"},
      {R"({"metadata": {"name": "b", "resourceVersion": "7x"}})", "the resourceVersion '7x'"},
      {R"({"metadata": {"name": "b", "resourceVersion": "0"}})", "is no number"},
      {R"({"metadata": {"name": "b", "resourceVersion": "99999999999999999999"}})", "is no number"},
      {R"({"metadata": {"name": "b", "name": "b"}})", "twice in one object"},
      {deep, "deep in each other"},
  };
  for (const auto& [text, why] : rows) {
    const auto lease = lease_of(text);
    ASSERT_FALSE(lease) << text;
    EXPECT_THAT(lease.error().message, HasSubstr(why)) << text;
  }
  // Fields of another kind than they should be are none.
  const auto lease = lease_of(
      R"({"metadata": {"name": "b", "resourceVersion": "7", "labels": 3, "annotations": []}, "spec": "x"})");
  ASSERT_TRUE(lease) << lease.error().message;
  EXPECT_EQ(*lease, (Lease{.name = "b", .revision = 7}));
}

TEST(Lease, ListsAndEventsAreRead) {
  const std::string one = member_lease(place, worker, std::nullopt, 5, 123, "now");
  const auto list =
      lease_list_of(R"({"metadata": {"resourceVersion": "130", "continue": "x"}, "items": [)" + one + "]}");
  ASSERT_TRUE(list) << list.error().message;
  EXPECT_EQ(list->revision, 130);
  EXPECT_TRUE(list->more);
  ASSERT_EQ(list->items.size(), 1U);
  EXPECT_EQ(list->items[0].name, "box.w-1.a");
  EXPECT_TRUE(lease_list_of(R"({"metadata": {"resourceVersion": "130"}, "items": null})"));
  EXPECT_FALSE(lease_list_of(R"({"metadata": {"resourceVersion": "130"}, "items": 3})"));
  EXPECT_FALSE(lease_list_of(R"({"metadata": {"resourceVersion": "130"}, "items": [3]})"));

  using Kind = LeaseEvent::Kind;
  for (const auto& [type, kind] :
       {std::pair{"ADDED", Kind::put}, std::pair{"MODIFIED", Kind::put}, std::pair{"DELETED", Kind::deleted},
        std::pair{"BOOKMARK", Kind::bookmark}}) {
    const auto event = lease_event_of(std::string(R"({"type": ")") + type + R"(", "object": )" + one + "}");
    ASSERT_TRUE(event) << event.error().message;
    EXPECT_EQ(event->kind, kind);
    EXPECT_EQ(event->lease.revision, 123);
  }
  const auto error =
      lease_event_of(R"({"type": "ERROR", "object": {"code": 410, "message": "too \u001b[31mold"}})");
  ASSERT_TRUE(error);
  EXPECT_EQ(error->kind, Kind::error);
  EXPECT_EQ(error->code, 410);
  EXPECT_EQ(error->message, "too ?[31mold");
  for (const char* const text : {"", "{}", R"({"type": "SPLIT", "object": {}})", R"({"type": "ADDED"})"})
    EXPECT_FALSE(lease_event_of(text)) << text;
}

TEST(Lease, AStatusSaysWhatIsWrong) {
  const auto said = status_of(R"({"message": "no\nway", "details": {"kind": "namespaces"}})");
  EXPECT_EQ(said.message, "no?way");
  EXPECT_EQ(said.kind, "namespaces");
  EXPECT_EQ(status_of("<html>").message, "");
  EXPECT_LE(status_of("{\"message\": \"" + std::string(10'000, 'x') + "\"}").message.size(), 300U);
}

TEST(Lease, NamesAreDnsNames) {
  for (const char* const good : {"a", "0", "a-b", "front-7d9c"})
    EXPECT_TRUE(is_dns_name(good, false)) << good;
  for (const char* const bad : {"", "A", "a_b", "-a", "a-", "a.b", "a b"})
    EXPECT_FALSE(is_dns_name(bad, false)) << bad;
  EXPECT_TRUE(is_dns_name("a.b-c.d", true));
  for (const char* const bad : {"", ".", "a.", ".a", "a..b", "a.-b"})
    EXPECT_FALSE(is_dns_name(bad, true)) << bad;
  EXPECT_FALSE(is_dns_name(std::string(64, 'a'), false));
}

}  // namespace
}  // namespace carillon::cluster::kubernetes
