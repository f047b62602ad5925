// Launch lines written for SGLang: every flag that its server has is a setting, is accepted without
// effect, or is refused with advice.
#include "apps/sglang_flags.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "apps/config.h"

namespace espalier::apps {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Rule = SglangFlag::Rule;

class SglangFlags : public testing::Test {
 protected:
  SglangFlags() {
    add_server_settings(table_, config_);
    add_engine_settings(table_, config_);
  }
  Result<SglangArguments> take(const std::vector<std::string>& args) {
    return take_sglang_flags(args, table_);
  }

  AppConfig config_;
  SettingTable table_;
};

// tests/compat/upstream/server_flags.txt names the flags of SGLang 0.5.23, one a line.
TEST_F(SglangFlags, EveryFlagOfSglangIsKnown) {
  std::ifstream file("tests/compat/upstream/server_flags.txt");
  ASSERT_TRUE(file.is_open());
  int count = 0;
  for (std::string name; std::getline(file, name); ++count) {
    const bool setting = table_.find(name) != nullptr || name == "config";
    EXPECT_NE(setting, find_sglang_flag(name) != nullptr)
        << "--" << name << (setting ? " is a setting and stands in the table too" : " is unknown");
  }
  EXPECT_GE(count, 559);
}

TEST_F(SglangFlags, NamesAreUniqueAndReasonsStated) {
  const std::vector<SglangFlag> flags = sglang_flags();
  for (size_t i = 0; i < flags.size(); ++i) {
    EXPECT_FALSE(flags[i].reason.empty()) << flags[i].name;
    EXPECT_TRUE(i == 0 || flags[i].name != flags[i - 1].name) << flags[i].name;
    EXPECT_TRUE(flags[i].rule != Rule::kOnlyValue || flags[i].takes_value) << flags[i].name;
  }
}

TEST_F(SglangFlags, WhatAsksForNothingNewIsTakenOutWithANote) {
  const auto taken = take({"--model-path", "m", "--dcp-size", "1", "--trust-remote-code",
                           "--attention-backend=flashinfer", "--port", "7", "--cuda-graph-bs", "1",
                           "2", "4", "--skip-server-warmup"});
  ASSERT_TRUE(taken.has_value()) << taken.error().message();
  EXPECT_THAT(taken->rest, ElementsAre("--model-path", "m", "--port", "7"));
  ASSERT_EQ(taken->notes.size(), 5u);
  EXPECT_THAT(taken->notes[0], HasSubstr("--dcp-size 1 has no effect"));
  EXPECT_THAT(taken->notes[2], HasSubstr("--attention-backend has no effect"));
}

TEST_F(SglangFlags, WhatAsksForMoreIsRefusedWithAdvice) {
  const auto two = take({"--dcp-size", "2"});
  ASSERT_FALSE(two.has_value());
  EXPECT_THAT(std::string(two.error().message()),
              HasSubstr("--dcp-size is '2', but only '1' is supported: --tp-size, --pp-size"));
  const auto adapters = take({"--uno-lora-path", "x"});
  ASSERT_FALSE(adapters.has_value());
  EXPECT_THAT(std::string(adapters.error().message()), HasSubstr("merge it"));
  EXPECT_FALSE(take({"--encoder-urls", "http://x"}).has_value());
  const auto log = take({"--log-requests-target", "stdout"});
  ASSERT_FALSE(log.has_value());
  EXPECT_THAT(std::string(log.error().message()), HasSubstr("start with 2>FILE"));
}

TEST_F(SglangFlags, AValueThatIsMissingIsAnError) {
  const auto none = take({"--dcp-size", "--port", "7"});
  ASSERT_FALSE(none.has_value());
  EXPECT_THAT(std::string(none.error().message()), HasSubstr("--dcp-size needs a value"));
  EXPECT_TRUE(take({"--offload-group-size", "-1"}).has_value());  // a number is no flag
}

TEST_F(SglangFlags, ABeginningOfOneFlagStandsForIt) {
  const auto taken = take({"--max-running", "7", "--attention-ba", "triton", "--random_s=3",
                           "--prot", "1", "--port", "2"});
  ASSERT_TRUE(taken.has_value()) << taken.error().message();
  EXPECT_THAT(taken->rest, ElementsAre("--max-running-requests", "7", "--random-seed=3", "--prot",
                                       "1", "--port", "2"));
  EXPECT_THAT(taken->notes[0], HasSubstr("--max-running is taken for --max-running-requests"));
  EXPECT_THAT(taken->notes[2], HasSubstr("--attention-backend has no effect"));
  const auto several = take({"--cuda-graph-b", "8"});
  ASSERT_FALSE(several.has_value());
  EXPECT_THAT(std::string(several.error().message()),
              HasSubstr("--cuda-graph-b may be the beginning of --cuda-graph-backend-decode, --"));
}

TEST_F(SglangFlags, OtherWordsStayWhereTheyAre) {
  const auto taken = take({"--no-such-flag", "word", "--", "--pp", "9"});
  ASSERT_TRUE(taken.has_value());
  EXPECT_THAT(taken->rest, ElementsAre("--no-such-flag", "word", "--", "--pp", "9"));
  EXPECT_THAT(taken->notes, IsEmpty());
}

// The names that SGLang has for values which settings of Espalier know by another name.
TEST_F(SglangFlags, ValuesOfSglangAreUnderstood) {
  const auto set = [this](const char* name, const char* value) {
    return table_.find(name)->set(value);
  };
  EXPECT_TRUE(set("dtype", "half").ok());
  EXPECT_EQ(config_.engine.model.dtype, "bfloat16");
  EXPECT_TRUE(set("dtype", "float").ok());
  EXPECT_EQ(config_.engine.model.dtype, "float32");
  EXPECT_TRUE(set("kv-cache-dtype", "bf16").ok());
  EXPECT_EQ(config_.engine.cache.kv_cache_dtype, "bfloat16");
  EXPECT_TRUE(set("kv-cache-dtype", "fp8_e4m3").ok());
  EXPECT_EQ(config_.engine.cache.kv_cache_dtype, "fp8_e4m3");
  EXPECT_TRUE(set("grammar-backend", "xgrammar").ok());
  EXPECT_EQ(config_.engine.grammar.grammar_backend, "espalier");
  EXPECT_TRUE(set("load-format", "safetensors").ok());
  EXPECT_TRUE(set("enable-priority-scheduling", "true").ok());
  EXPECT_EQ(config_.engine.schedule.schedule_policy, "priority");
  EXPECT_TRUE(set("disable-decode-cuda-graph", "true").ok());
  EXPECT_TRUE(config_.engine.compute.disable_cuda_graph);
  EXPECT_FALSE(set("grammar-backend", "other").ok());
  EXPECT_FALSE(set("load-format", "pt").ok());
}

TEST_F(SglangFlags, PageIsCurrent) {
  const std::string path = "docs/sglang_flags.md";
  if (std::getenv("ESPALIER_WRITE_DOCS") != nullptr) std::ofstream(path) << sglang_flags_markdown();
  std::stringstream there;
  there << std::ifstream(path).rdbuf();
  EXPECT_EQ(there.str(), sglang_flags_markdown())
      << "make it anew: ESPALIER_WRITE_DOCS=1 build/release/apps_test";
}

}  // namespace
}  // namespace espalier::apps
