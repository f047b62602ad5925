// What a tenant's request costs: what its body states, and what its answer does.
#include "router/tenant_call.h"

#include <gtest/gtest.h>

#include "base/rng.h"
#include "router/error_bodies.h"

namespace espalier::router {
namespace {

RequestCost cost_of(std::string_view body, std::vector<std::string_view> fields = {
                                               "text", "input_ids", "prompt", "messages"}) {
  return request_cost(read_facts(body, fields));
}

TEST(RequestCost, CountsWhatABodyMayTake) {
  EXPECT_EQ(cost_of("{}").answer_tokens, 16);
  EXPECT_EQ(cost_of(R"({"max_tokens":7})").answer_tokens, 7);
  EXPECT_EQ(cost_of(R"({"max_completion_tokens":7.0,"n":3})").answer_tokens, 21);
  EXPECT_EQ(cost_of(R"({"max_output_tokens":5})").answer_tokens, 5);
  EXPECT_EQ(cost_of(R"({"sampling_params":{"max_new_tokens":9,"n":2}})").answer_tokens, 18);
  EXPECT_EQ(cost_of(R"({"options":{"num_predict":-1}})").answer_tokens, 16);
  EXPECT_EQ(cost_of(R"({"max_tokens":5,"max_tokens":900})").answer_tokens, 900);
  EXPECT_EQ(cost_of(R"({"max_tokens":5,"max_tokens":1})").answer_tokens, 5) << "no cheaper again";
  EXPECT_EQ(cost_of(R"({"other":{"max_tokens":9},"max_tokens":1})").answer_tokens, 1);
  EXPECT_EQ(cost_of(R"({"max_tokens":9223372036854775807,"n":9223372036854775807})").answer_tokens,
            (int64_t{1} << 31) * 1024);
  std::string many = R"({"max_tokens":9223372036854775807,"n":1024,"prompt":[)";
  for (int i = 0; i < (1 << 20) + 9; ++i) many += R"("",)";
  EXPECT_GT(cost_of(many + R"(""]})").answer_tokens, 0) << "no overflow";
  const RequestCost two = cost_of(R"({"prompt":["abc","defg"],"max_tokens":5})");
  EXPECT_EQ(two.answer_tokens, 10);
  EXPECT_EQ(two.prompt_tokens, 2);
  EXPECT_TRUE(two.has_several_prompts);
  EXPECT_EQ(cost_of(R"({"input_ids":[[1,2],[3]],"max_tokens":1})").answer_tokens, 2);
  EXPECT_EQ(cost_of(R"({"input_ids":[1,2,3]})").prompt_tokens, 3);
  const RequestCost chat = cost_of(R"({"messages":[{"content":["a"]},{"content":"b"}]})");
  EXPECT_FALSE(chat.has_several_prompts);
  EXPECT_EQ(cost_of(R"({"priority":3})").priority, 3);
  EXPECT_EQ(cost_of(R"({"priority":[1,9]})").priority, 9);
  EXPECT_EQ(cost_of(R"({"priority":-4})").priority, 0);
}

struct UsageCase {
  std::string_view type, answer;
  int64_t prompt, tokens;
};

constexpr std::string_view kEvents = "text/event-stream", kJson = "application/json";
const UsageCase kCases[] = {
    {kJson, R"({"usage":{"prompt_tokens":12,"total_tokens":99,"completion_tokens": 345}})", 12,
     345},
    {kJson,
     R"([{"meta_info":{"prompt_tokens":5,"completion_tokens":3}},)"
     R"({"meta_info":{"prompt_tokens":7,"completion_tokens":4}}])",
     12, 7},
    {kJson,
     R"({"usage":{"cache_creation_input_tokens":1,"cache_read_input_tokens":20,)"
     R"("input_tokens":3,"output_tokens":4,"output_tokens_details":{"reasoning_tokens":2}}})",
     24, 4},
    {kJson, R"({"prompt_eval_count":8,"eval_count":9})", 8, 9},
    {kJson, R"({"text":"\"completion_tokens\":5, \"prompt_tokens\": 6"})", -1, -1},
    {kJson, R"({"completion_tokens":"x","prompt_tokens":-3})", -1, -1},
    {kEvents,
     "data: {\"c\":1}\n\ndata: {\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":40}}\n\n"
     "data: [DONE]\n\n",
     2, 40},
    {kEvents, "data: {\"c\":1}\n\ndata: {\"c\":2}\n\ndata: [DONE]\n\n", -1, 3},
    {kEvents,
     "data: {\"completion_tokens\":1}\n\ndata: {\"completion_tokens\":1}\n\n"
     "data: {\"completion_tokens\":2}\n\n",
     -1, 3},
    // Running totals of two samples, of which one has ended.
    {kEvents,
     "data: {\"meta_info\":{\"prompt_tokens\":4,\"completion_tokens\":30},\"index\":0}\n\n"
     "data: {\"meta_info\":{\"prompt_tokens\":4,\"completion_tokens\":50},\"index\":1}\n\n"
     "data: {\"meta_info\":{\"prompt_tokens\":4,\"completion_tokens\":60},\"index\":1}\n\n",
     4, 90},
    // Usage of all choices behind each one's index is a total of all.
    {kEvents,
     "data: {\"choices\":[{\"index\":0}],\"usage\":{\"completion_tokens\":7}}\n\n"
     "data: {\"choices\":[{\"index\":1}],\"usage\":{\"completion_tokens\":9}}\n\n",
     -1, 9},
    {"application/x-ndjson", "{\"m\":1}\n{\"prompt_eval_count\":3,\"eval_count\":6}\n", 3, 6},
};

// A stream's messages come whole; another answer in any parts.
TEST(UsageReader, ReadsEachDialectHoweverItIsCut) {
  for (uint64_t seed = 1; seed <= 200; ++seed) {
    Rng rng(seed);
    for (const UsageCase& c : kCases) {
      SCOPED_TRACE(fmt::format("seed {} {}", seed, c.answer));
      UsageReader reader;
      reader.begin(c.type);
      std::string_view rest = c.answer;
      while (!rest.empty()) {
        size_t size = 1 + rng.below(rest.size());
        if (c.type != kJson)
          size = std::max<size_t>(num_whole_bytes(c.type, rest.substr(0, size)), 0);
        if (size == 0) size = rest.size();
        reader.add(rest.substr(0, size));
        rest.remove_prefix(size);
      }
      EXPECT_EQ(reader.prompt_tokens().value_or(-1), c.prompt);
      EXPECT_EQ(reader.answer_tokens().value_or(-1), c.tokens);
    }
  }
}

TEST(UsageReader, SamplesOfOnePromptRepeatIt) {
  UsageReader reader;
  reader.begin(kJson, false);
  reader.add(
      R"([{"prompt_tokens":5,"completion_tokens":3},{"prompt_tokens":5,"completion_tokens":4}])");
  EXPECT_EQ(reader.prompt_tokens(), 5);
  EXPECT_EQ(reader.answer_tokens(), 7);
}

TEST(UsageReader, ALongMessageIsNotOneToken) {
  UsageReader reader;
  reader.begin(kEvents);
  reader.add("data: " + std::string(8192, 'a') + "\n\n");
  EXPECT_GT(reader.answer_tokens().value_or(0), 1000);
}

class TenantCallTest : public testing::Test {
 protected:
  // What is left of 1,000 tokens a minute after a call that reserves 300 of them.
  int64_t remaining_after(const std::function<void(TenantCall&)>& answer) {
    const auto tenant =
        std::make_shared<Tenant>("t", TenantLimits{.tokens_per_minute = 1000}, now_);
    {
      TenantCall call(tenant, {.prompt_tokens = 100, .answer_tokens = 200}, true);
      EXPECT_FALSE(call.admit(ErrorStyle::kOpenAi, now_));
      answer(call);
    }
    return 1000 - tenant->counts().tokens;
  }
  void begin(TenantCall& call, int status, std::string_view type) {
    net::Headers headers;
    call.on_head(status, type, headers, now_);
  }

  const TimePoint now_ = std::chrono::steady_clock::now();
};

TEST_F(TenantCallTest, ChargesWhatWasUsed) {
  EXPECT_EQ(remaining_after([&](TenantCall& call) {
              begin(call, 200, kJson);
              call.on_bytes(R"({"prompt_tokens":10,"completion_tokens":20})");
              call.on_end();
            }),
            970);
  EXPECT_EQ(remaining_after([&](TenantCall& call) {
              begin(call, 200, kJson);
              call.on_bytes(R"({"prompt_tokens":10})");
              call.on_end();
            }),
            990)
      << "an embedding";
  EXPECT_EQ(remaining_after([&](TenantCall& call) { begin(call, 400, kJson); }), 1000);
  EXPECT_EQ(remaining_after([&](TenantCall& call) { call.on_refused(); }), 1000);
}

TEST_F(TenantCallTest, ClientsThatLeavePayForWhatIsKnown) {
  EXPECT_EQ(remaining_after([](TenantCall&) {}), 700);
  EXPECT_EQ(remaining_after([&](TenantCall& call) {
              begin(call, 200, kEvents);
              call.on_bytes("data: 1\n\ndata: 2\n\n");
            }),
            898);
}

}  // namespace
}  // namespace espalier::router
