// /v1/messages/batches over real sockets and a scripted engine.
#include <gmock/gmock.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <thread>

#include "server/test_server.h"

namespace espalier::server {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;

constexpr std::string_view kPath = "/v1/messages/batches";

struct MessageBatchesTest : ServerTest {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / fmt::format("espalier_messages_{}", ::getpid());
  void SetUp() override {
    ServerTest::SetUp();
    std::filesystem::remove_all(folder);
    config_.storage.storage_path = folder.string();
  }
  void TearDown() override {
    server_.reset();
    std::filesystem::remove_all(folder);
  }
  static std::string one(std::string_view custom_id, std::string_view more = "") {
    return fmt::format(R"({{"custom_id":"{}","params":{{"model":"m","max_tokens":20,)"
                       R"("messages":[{{"role":"user","content":"x"}}]{}}}}})",
                       custom_id, more);
  }
  static std::string body(const std::vector<std::string>& requests) {
    return fmt::format(R"({{"requests":[{}]}})", fmt::join(requests, ","));
  }
  json::object object(const Answer& answer, int status = 200) {
    EXPECT_EQ(answer.status, status) << answer.body;
    return json::parse(answer.body).as_object();
  }
  std::string create(const std::vector<std::string>& requests) {
    return std::string(object(post(kPath, body(requests))).at("id").as_string().c_str());
  }
  std::string path(const std::string& id, std::string_view more = "") {
    return fmt::format("{}/{}{}", kPath, id, more);
  }
  json::object wait_end(const std::string& id, const net::Headers& headers = {}) {
    json::object got;
    for (int i = 0; i < 1000; ++i) {
      got = object(call("GET", path(id), "", headers));
      if (got.at("processing_status") == "ended") return got;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ADD_FAILURE() << "never ended: " << json::serialize(got);
    return got;
  }
  std::map<std::string, json::object> results(const std::string& id) {
    const Answer answer = call("GET", path(id, "/results"));
    EXPECT_EQ(answer.status, 200) << answer.body;
    std::map<std::string, json::object> by_id;
    std::istringstream in(answer.body);
    for (std::string line; std::getline(in, line);) {
      const json::object o = json::parse(line).as_object();
      EXPECT_TRUE(
          by_id.emplace(o.at("custom_id").as_string().c_str(), o.at("result").as_object()).second);
    }
    return by_id;
  }
  size_t num_files() { return object(call("GET", "/v1/files")).at("data").as_array().size(); }
};

TEST_F(MessageBatchesTest, EndWithAResultForEachRequest) {
  start();
  const json::object made =
      object(post(kPath, body({one("a"), one("b", R"(,"temperature":"hot")"), one("c")})));
  EXPECT_EQ(made.at("type"), "message_batch");
  EXPECT_EQ(made.at("processing_status"), "in_progress");
  EXPECT_EQ(json::serialize(made.at("request_counts")),
            R"({"processing":3,"succeeded":0,"errored":0,"canceled":0,"expired":0})");
  EXPECT_TRUE(made.at("results_url").is_null());
  EXPECT_TRUE(made.at("ended_at").is_null());
  const std::string id(made.at("id").as_string().c_str());
  EXPECT_THAT(id, ::testing::MatchesRegex("msgbatch_[0-9a-f]+"));
  const json::object ended = wait_end(id, {{"X-Forwarded-Proto", "https"}});
  EXPECT_EQ(json::serialize(ended.at("request_counts")),
            R"({"processing":0,"succeeded":2,"errored":1,"canceled":0,"expired":0})");
  EXPECT_EQ(ended.at("results_url"),
            fmt::format("https://127.0.0.1:{}{}", server_->port(), path(id, "/results")).c_str());
  EXPECT_THAT(std::string(ended.at("ended_at").as_string().c_str()),
              ::testing::ContainsRegex("^20..-..-..T..:..:..Z$"));
  const auto answers = results(id);
  ASSERT_EQ(answers.size(), 3u);
  EXPECT_EQ(answers.at("a").at("type"), "succeeded");
  EXPECT_EQ(answers.at("a").at("message").at("content").at(0).at("text"), "Hi there.");
  EXPECT_EQ(answers.at("b").at("type"), "errored");
  EXPECT_EQ(answers.at("b").at("error").at("error").at("type"), "invalid_request_error");
  EXPECT_EQ(num_files(), 0u);  // requests and results are no files of the client
  EXPECT_TRUE(object(call("GET", "/v1/batches")).at("data").as_array().empty());
}

TEST_F(MessageBatchesTest, AreListedFromEitherEndAndDeleted) {
  start();
  std::vector<std::string> ids;
  for (int i = 0; i < 3; ++i) wait_end(ids.emplace_back(create({one("a")})));
  const auto list = [&](const std::string& query) {
    std::string out;
    const json::object page = object(call("GET", fmt::format("{}?{}", kPath, query)));
    for (const json::value& batch : page.at("data").as_array())
      for (size_t i = 0; i < ids.size(); ++i)
        if (batch.at("id") == ids[i].c_str()) out += std::to_string(i);
    return out + (page.at("has_more").as_bool() ? "+" : "");
  };
  EXPECT_EQ(list(""), "210");
  EXPECT_EQ(list("limit=2"), "21+");
  EXPECT_EQ(list("limit=1&after_id=" + ids[2]), "1+");
  EXPECT_EQ(list("after_id=" + ids[1]), "0");
  EXPECT_EQ(list("before_id=" + ids[0]), "21");
  EXPECT_EQ(list("limit=1&before_id=" + ids[0]), "1+");
  const auto stored = [&] {
    const std::filesystem::directory_iterator all(folder / "files");
    return std::distance(begin(all), end(all));
  };
  EXPECT_EQ(stored(), 6);
  const json::object deleted = object(call("DELETE", path(ids[1])));
  EXPECT_EQ(json::serialize(deleted),
            fmt::format(R"({{"id":"{}","type":"message_batch_deleted"}})", ids[1]));
  EXPECT_EQ(list(""), "20");
  EXPECT_EQ(stored(), 4);
  EXPECT_EQ(call("GET", path(ids[1])).status, 404);
  EXPECT_EQ(call("GET", path(ids[1], "/results")).status, 404);
}

TEST_F(MessageBatchesTest, WhatIsWrongIsSaidInAnthropicsShape) {
  start();
  const auto said = [&](std::string_view text) {
    const Answer answer = post(kPath, text);
    EXPECT_EQ(answer.status, 400) << text;
    EXPECT_THAT(answer.body, HasSubstr(R"({"type":"error","error":{"type":"invalid_request)"));
    return answer.body;
  };
  EXPECT_THAT(said("{}"), HasSubstr("requests"));
  EXPECT_THAT(said("[1"), HasSubstr("JSON"));
  EXPECT_THAT(said(R"({"requests":[]})"), HasSubstr("a list of 1 to 50000 requests"));
  EXPECT_THAT(said(R"({"requests":[3]})"), HasSubstr("requests[0] must be an object"));
  EXPECT_THAT(said(body({one("a"), one("a")})), HasSubstr("requests[1].custom_id"));
  EXPECT_THAT(said(body({one("a b")})), HasSubstr("1 to 64 letters"));
  EXPECT_THAT(said(body({one(std::string(65, 'a'))})), HasSubstr("1 to 64 letters"));
  EXPECT_THAT(said(R"({"requests":[{"custom_id":"a"}]})"), HasSubstr("requests[0].params"));
  EXPECT_THAT(said(body({one("a", R"(,"stream":true)")})), HasSubstr("params.stream"));
  for (const char* id : {"none", "msgbatch_0", "batch_0"}) {
    EXPECT_EQ(call("GET", path(id)).status, 404) << id;
    EXPECT_EQ(call("DELETE", path(id)).status, 404) << id;
    EXPECT_EQ(call("GET", path(id, "/results")).status, 404) << id;
    EXPECT_EQ(post(path(id, "/cancel"), "").status, 404) << id;
    EXPECT_EQ(call("GET", fmt::format("{}?after_id={}", kPath, id)).status, 404) << id;
  }
  EXPECT_EQ(call("GET", fmt::format("{}?limit=1001", kPath)).status, 400);
  EXPECT_EQ(call("GET", fmt::format("{}?after_id=a&before_id=b", kPath)).status, 400);
  EXPECT_TRUE(engine_.submitted().empty());
}

TEST_F(MessageBatchesTest, CanceledRequestsHaveAResultOfTheirOwn) {
  engine_.set_script({.hold = true, .hold_after = 2});
  start();
  const std::string id = create({one("a"), one("b"), one("c")});
  ASSERT_TRUE(engine_.wait_for([&] { return engine_.num_running() > 0; }));
  EXPECT_EQ(call("GET", path(id, "/results")).status, 400);
  EXPECT_EQ(call("DELETE", path(id)).status, 400);
  const json::object canceling = object(post(path(id, "/cancel"), ""));
  EXPECT_EQ(canceling.at("processing_status"), "canceling");
  EXPECT_FALSE(canceling.at("cancel_initiated_at").is_null());
  const json::object ended = wait_end(id);
  EXPECT_EQ(json::serialize(ended.at("request_counts")),
            R"({"processing":0,"succeeded":0,"errored":0,"canceled":3,"expired":0})");
  const auto answers = results(id);
  ASSERT_EQ(answers.size(), 3u);
  for (const auto& [custom_id, result] : answers) EXPECT_EQ(result.at("type"), "canceled");
  EXPECT_TRUE(engine_.wait_for([&] { return engine_.num_running() == 0; }));
  const Answer again = post(path(id, "/cancel"), "");
  EXPECT_EQ(again.status, 400);
  EXPECT_THAT(again.body, HasSubstr("has ended"));
}

TEST_F(MessageBatchesTest, GoOnInANewServer) {
  engine_.set_script({.hold = true});
  start();
  const std::string id = create({one("a"), one("b")});
  ASSERT_TRUE(engine_.wait_for([&] { return engine_.num_running() > 0; }));
  server_.reset();
  engine_.set_script({});
  start();
  wait_end(id);
  EXPECT_EQ(results(id).at("b").at("type"), "succeeded");
}

TEST_F(MessageBatchesTest, AKeySeesItsOwnAlone) {
  const std::filesystem::path keys = folder.string() + ".json";
  std::ofstream(keys) << R"([{"name":"one","key":"sk-1"},{"name":"two","key":"sk-2"}])";
  config_.access.api_keys_file = keys.string();
  start();
  const net::Headers own = {{"x-api-key", "sk-1"}}, other = {{"x-api-key", "sk-2"}};
  const std::string id(
      object(call("POST", kPath, body({one("a")}), own)).at("id").as_string().c_str());
  wait_end(id, own);
  EXPECT_EQ(engine_.submitted().back().tenant, "one");
  for (const std::string& hidden : {path(id), path(id, "/results")}) {
    EXPECT_EQ(call("GET", hidden, "", own).status, 200);
    EXPECT_EQ(call("GET", hidden, "", other).status, 404);
  }
  EXPECT_TRUE(object(call("GET", kPath, "", other)).at("data").as_array().empty());
  EXPECT_EQ(call("DELETE", path(id), "", other).status, 404);
  EXPECT_EQ(call("DELETE", path(id), "", own).status, 200);
  std::filesystem::remove(keys);
}

TEST_F(MessageBatchesTest, AreRefusedWithoutAFolder) {
  config_.storage.storage_path.clear();
  start();
  const Answer answer = post(kPath, body({one("a")}));
  EXPECT_THAT(answer.body, HasSubstr(R"({"type":"error")"));
  EXPECT_THAT(answer.body, HasSubstr("--storage-path"));
}

}  // namespace
}  // namespace espalier::server
