#include "carillon/profile/kernel_table.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace carillon::profile {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;

constexpr const char* two_models = R"({"device": "d", "units": 60, "models": {
  "b": {"aliases": ["b-imagenet", "bb"], "source": "somewhere", "latency_us": 4824.5, "kernels": [
    {"name": "first", "blocks": 64, "round_us": [14, 15.5, 13]},
    {"name": "second", "blocks": 1, "round_us": [0.001], "repeat": 2}]},
  "a": {"latency_us": 10, "kernels": [{"name": "only", "blocks": 1000000, "round_us": [1e7]}]}}})";

// `two_models` with the first `old` in it replaced.
std::string changed(std::string_view old, std::string_view now) {
  std::string text = two_models;
  const auto at = text.find(old);
  EXPECT_NE(at, std::string::npos) << old;
  return text.replace(at, old.size(), now);
}

std::string times(std::size_t count, std::string_view what) {
  std::string text;
  for (std::size_t i = 0; i < count; ++i) text += what;
  return text;
}

TEST(KernelTable, IsRead) {
  const auto table = parse_kernel_table(two_models, "t.json");
  ASSERT_TRUE(table) << table.error().message;
  EXPECT_EQ(table->device, "d");
  EXPECT_EQ(table->units, 60);
  ASSERT_EQ(table->models.size(), 2u);
  EXPECT_EQ(table->models[0].names, std::vector<std::string>{"a"});
  const ModelKernels* b = table->find("b-imagenet");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b, table->find("b"));
  EXPECT_EQ(b, table->find("bb"));
  EXPECT_EQ(table->find("c"), nullptr);
  EXPECT_EQ(table->find(""), nullptr);
  EXPECT_EQ(b->names, (std::vector<std::string>{"b", "b-imagenet", "bb"}));
  EXPECT_EQ(b->source, "somewhere");
  EXPECT_EQ(b->latency, 4'824'500ns);
  ASSERT_EQ(b->kernels.size(), 3u);
  EXPECT_EQ(b->kernels[0].name, "first");
  EXPECT_EQ(b->kernels[0].blocks, 64);
  EXPECT_EQ(b->kernels[0].rounds, (std::vector<Duration>{14us, 15'500ns, 13us}))
      << "as measured, not made to rise";
  EXPECT_EQ(b->kernels[2].name, "second");
  EXPECT_EQ(b->kernels[2].rounds, std::vector<Duration>{1ns});
  EXPECT_EQ(table->find("a")->kernels[0].rounds, std::vector<Duration>{10s});
}

TEST(KernelTable, SaysWhatIsWrongAndWhere) {
  const struct {
    const char *old, *now, *words;
  } rows[] = {
      {"\"device\": \"d\"", "\"gpu\": \"d\"", "document: has no \"device\""},
      {"\"d\"", "7", "device: is 7, but should be a string"},
      {"60", "0", "units: is 0, but should be a whole number in 1..1024"},
      {"60", "1025", "units: is 1025"},
      {"60", "60.5", "units: is 60.5"},
      {"60", "\"60\"", "units: is \"60\""},
      {"60", "1e300", "units: is 1e+300"},
      {"\"units\": 60, ", "", "document: has no \"units\""},
      {"[\"b-imagenet\", \"bb\"]", "\"bb\"", "models.b.aliases: is string, but should be an array"},
      {"\"bb\"", "3", "models.b.aliases[1]: is 3, but should be a string"},
      {"\"bb\"", "\"\"", "models.b.aliases[1]: is a name of 0 bytes, but should have 1..200"},
      {"\"bb\"", "\"a\"", "is 'a', as 'a' is called already, but names should differ"},
      {"\"bb\"", "\"b\"", "models.b.aliases[1]: is 'b', as 'b' is called already"},
      {"\"bb\"", "\"b-imagenet\"", "models.b.aliases[1]: is 'b-imagenet', as 'b' is called already"},
      {"\"a\": {", "\"b\": {", "has \"b\" twice in one object"},
      {"\"a\": {", "\"\": {", "models.: is a name of 0 bytes"},
      {"\"somewhere\"", "null", "models.b.source: is null"},
      {"4824.5", "0", "models.b.latency_us: is 0, but should be microseconds in 0.001..1e+09"},
      {"4824.5", "-1", "models.b.latency_us: is -1"},
      {"4824.5", "1.1e9", "models.b.latency_us: is 1100000000.0"},
      {"4824.5", "1e999", "number overflow"},
      {"4824.5", "NaN", "not a JSON document"},
      {"\"latency_us\": 4824.5, ", "", "models.b: has no \"latency_us\""},
      {"{\"latency_us\": 10", "{\"latency_us\": 10, \"latency_us\": 20",
       "has \"latency_us\" twice in one object"},
      {"[{\"name\": \"only\", \"blocks\": 1000000, \"round_us\": [1e7]}]", "[]",
       "models.a.kernels: is empty, but should hold 1..100000 kernels"},
      {"[{\"name\": \"only\", \"blocks\": 1000000, \"round_us\": [1e7]}]", "[3]",
       "models.a.kernels[0]: is number, but should be an object"},
      {"[{\"name\": \"only\", \"blocks\": 1000000, \"round_us\": [1e7]}]", "{}",
       "models.a.kernels: is object, but should be an array"},
      {"\"name\": \"first\", ", "", "models.b.kernels[0]: has no \"name\""},
      {"\"first\"", "\"\"", "models.b.kernels[0].name: is a name of 0 bytes"},
      {"\"blocks\": 64", "\"blocks\": 0",
       "models.b.kernels[0].blocks: is 0, but should be a whole number in 1..1000000"},
      {"\"blocks\": 64", "\"blocks\": -3", "models.b.kernels[0].blocks: is -3"},
      {"1000000", "1000001", "models.a.kernels[0].blocks: is 1000001"},
      {"\"blocks\": 64", "\"blocks\": 18446744073709551615",
       "models.b.kernels[0].blocks: is 18446744073709551615"},
      {"\"blocks\": 64, ", "", "models.b.kernels[0]: has no \"blocks\""},
      {", \"round_us\": [0.001]", "", "models.b.kernels[1]: has no \"round_us\""},
      {"[14, 15.5, 13]", "[]", "models.b.kernels[0].round_us: is empty, but should hold 1..64 times"},
      {"[14, 15.5, 13]", "14", "models.b.kernels[0].round_us: is number, but should be an array"},
      {"15.5", "0", "models.b.kernels[0].round_us[1]: is 0, but should be microseconds in 0.001..1e+07"},
      {"15.5", "-2", "models.b.kernels[0].round_us[1]: is -2"},
      {"15.5", "null", "models.b.kernels[0].round_us[1]: is null"},
      {"15.5", "[15]", "models.b.kernels[0].round_us[1]: is [15]"},
      {"1e7", "1.1e7", "models.a.kernels[0].round_us[0]: is 11000000.0"},
      {"\"repeat\": 2", "\"repeat\": 0",
       "models.b.kernels[1].repeat: is 0, but should be a whole number in 1..100000"},
      {"\"repeat\": 2", "\"repeat\": 1e9", "models.b.kernels[1].repeat: is 1000000000.0"},
      {"\"repeat\": 2", "\"repeat\": 100000",
       "models.b.kernels: has more than 100000 kernels, of which models.b.kernels[1] is 100000"},
  };
  for (const auto& [old, now, words] : rows) {
    const auto table = parse_kernel_table(changed(old, now), "t.json");
    ASSERT_FALSE(table) << old << " -> " << now;
    EXPECT_EQ(table.error().code, ErrorCode::invalid_argument);
    EXPECT_THAT(table.error().message, AllOf(StartsWith("t.json: "), HasSubstr(words)));
  }
  for (const char* text : {"", "[]", "{}", "3", "null", "{\"device\": \"d\", \"units\": 1, \"models\": {}}",
                           "{\"device\": \"d\", \"units\": 1, \"models\": {\"a\": 1}}"})
    EXPECT_FALSE(parse_kernel_table(text, "t.json")) << text;
}

TEST(KernelTable, ASizeIsNotTrusted) {
  const std::string quote = "\"";
  const struct {
    std::string text, words;
  } rows[] = {
      {times(1'000'000, "["), "more than 16 deep"},
      {times(1'000'000, "{\"a\":"), "more than 16 deep"},
      {times(1, "[") + times(5'000'001, "0,") + "0]", "has more than 5000000 values"},
      {times(1, "{\"device\": \"") + times(1'000'000, "x"), "not a JSON document"},
      {changed("\"bb\"", times(64, "\"x\", ") + "\"y\""),
       "models.b.aliases: has 66 names, but may have at most 64"},
      {changed("\"bb\"", quote + times(201, "x") + quote), "models.b.aliases[1]: is a name of 201 bytes"},
      {changed("\"a\":", quote + times(100'000, "x") + "\":"), "xxx...: is a name of 100000 bytes"},
      {changed("14, ", times(63, "14, ")),
       "models.b.kernels[0].round_us: has 65 times, but may have at most 64"},
  };
  for (const auto& [text, words] : rows) {
    const auto table = parse_kernel_table(text, "t.json");
    ASSERT_FALSE(table) << words;
    EXPECT_THAT(table.error().message, HasSubstr(words));
    EXPECT_LT(table.error().message.size(), 500u);
  }
  EXPECT_TRUE(parse_kernel_table(changed("14, ", times(62, "14, ")), "t.json"));
  // Short texts that ask for more kernels than all of a table may have.
  const auto many = [](int models, int kernels) {
    std::string text = R"({"device": "d", "units": 1, "models": {)";
    for (int i = 0; i < models; ++i)
      text += (i == 0 ? "\"m" : ",\"m") + std::to_string(i) +
              R"(": {"latency_us": 1, "kernels": [{"name": "k", "blocks": 1, "round_us": [1], "repeat": )" +
              std::to_string(kernels) + "}]}";
    return parse_kernel_table(text + "}}", "t.json");
  };
  EXPECT_TRUE(many(2, 100'000));
  EXPECT_THAT(many(3, 100'000).error().message, HasSubstr("models.m2.kernels: are more than 200000 kernels"));
  EXPECT_TRUE(many(256, 1));
  EXPECT_THAT(many(257, 1).error().message, HasSubstr("models: has 257 models, but may have at most 256"));
}

TEST(KernelTable, Files) {
  const auto none = read_kernel_table("/nowhere/t.json");
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, ErrorCode::not_found);
  EXPECT_THAT(none.error().message, HasSubstr("/nowhere/t.json: no such file"));
  EXPECT_THAT(read_kernel_table("/").error().message, HasSubstr("directory"));
  const std::string large = testing::TempDir() + "large.json";
  std::ofstream(large) << " ";
  std::filesystem::resize_file(large, (64U << 20) + 1);  // sparse
  EXPECT_THAT(read_kernel_table(large).error().message, HasSubstr("at most 64 MiB"));
  std::filesystem::remove(large);
}

// Numbers of kernels as in table 1 of REEF's paper, where that has the model; units of time spent in the
// kernels as its authors' files have them.
TEST(KernelTable, TheOneThatIsPublished) {
  const auto table = read_kernel_table(CARILLON_SOURCE_DIR "/profiles/mi50_kernels.json");
  ASSERT_TRUE(table) << table.error().message;
  EXPECT_EQ(table->units, 60);
  const struct {
    const char *name, *called;
    std::size_t kernels;
    Duration latency;
    int fewest_blocks, most_blocks;
  } rows[] = {
      {"alexnet", "alexnet", 13, 8'851us, 1, 5408},
      {"densenet201", "densenet201-imagenet", 207, 3'743us, 1, 1000},
      {"distilbert", "distilbert", 205, 5'426us, 2, 720},
      {"inceptionv3", "inceptionv3-imagenet", 146, 8'273us, 1, 2738},
      {"mobilenet", "mobilenet", 31, 1'188us, 1, 1000},
      {"resnet", "resnet", 330, 10'958us, 1, 1000},
      {"resnet152", "resnet152-imagenet", 207, 13'233us, 1, 1000},
      {"resnet18", "resnet18", 57, 2'189us, 1, 1000},
      {"vgg19", "vgg19-imagenet", 71, 4'824us, 1, 1000},
  };
  ASSERT_EQ(table->models.size(), std::size(rows));
  for (const auto& row : rows) {
    const ModelKernels* model = table->find(row.called);
    ASSERT_NE(model, nullptr) << row.called;
    EXPECT_EQ(model->names.front(), row.name);
    EXPECT_EQ(model->kernels.size(), row.kernels) << row.name;
    EXPECT_EQ(model->latency, row.latency) << row.name;
    const auto [fewest, most] = std::ranges::minmax_element(model->kernels, {}, &KernelEntry::blocks);
    EXPECT_EQ(fewest->blocks, row.fewest_blocks) << row.name;
    EXPECT_EQ(most->blocks, row.most_blocks) << row.name;
    EXPECT_THAT(model->source, HasSubstr("github.com/SJTU-IPADS/reef, commit 58dabe0")) << row.name;
  }
  const KernelEntry& last = table->find("vgg19")->kernels.back();
  EXPECT_EQ(last.name, "tvmgen_default_fused_nn_softmax_kernel0");
  EXPECT_EQ(last.rounds, std::vector<Duration>{26us});
  // The program's own is the same.
  const KernelTable own = mi50_kernel_table();
  EXPECT_EQ(own.device, table->device);
  EXPECT_EQ(own.models.size(), table->models.size());
  EXPECT_EQ(own.find("vgg19")->kernels.size(), 71u);
}

}  // namespace
}  // namespace carillon::profile
