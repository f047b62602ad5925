// Stored chat completions over real sockets and a scripted engine.
#include <gmock/gmock.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>

#include "server/test_server.h"

namespace espalier::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr const char* kPath = "/v1/chat/completions";

struct StoredChatsTest : ServerTest {
  void store(const std::string& rid, const std::string& more = "", const std::string& key = "") {
    const Answer answer =
        call("POST", kPath,
             R"({"model":"m","store":true,"messages":[{"role":"user","content":"Hi"},)"
             R"({"role":"user","content":[{"type":"text","text":"you"}]}],"rid":")" +
                 rid + "\"" + more + "}",
             headers(key));
    EXPECT_EQ(answer.status, 200) << answer.body;
  }
  static net::Headers headers(const std::string& key) {
    return key.empty() ? net::Headers{} : net::Headers{{"Authorization", "Bearer " + key}};
  }
  boost::json::value get(const std::string& path, const std::string& key = "") {
    const Answer answer = call("GET", kPath + path, "", headers(key));
    EXPECT_EQ(answer.status, 200) << answer.body;
    return boost::json::parse(answer.body);
  }
  std::vector<std::string> ids(const std::string& path, const std::string& key = "") {
    std::vector<std::string> found;
    const boost::json::value list = get(path, key);
    for (const auto& item : list.at("data").as_array())
      found.emplace_back(item.at("id").as_string());
    return found;
  }
};

TEST_F(StoredChatsTest, OneIsFetchedChangedAndDeleted) {
  start();
  store("a", R"(,"metadata":{"k":"v"})");
  const boost::json::value got = get("/a");
  EXPECT_EQ(got.at("object"), "chat.completion");
  EXPECT_EQ(got.at("choices").at(0).at("message").at("content"), "Hi there.");
  EXPECT_EQ(boost::json::serialize(got.at("metadata")), R"({"k":"v"})");
  const Answer changed = post(std::string(kPath) + "/a", R"({"metadata":{"x":"y"}})");
  EXPECT_EQ(changed.status, 200) << changed.body;
  EXPECT_EQ(boost::json::serialize(get("/a").at("metadata")), R"({"x":"y"})");
  EXPECT_THAT(post(std::string(kPath) + "/a", R"({"metadata":{"x":1}})").body,
              HasSubstr("metadata.x must be a string"));
  EXPECT_THAT(call("DELETE", std::string(kPath) + "/a").body, HasSubstr("\"deleted\":true"));
  for (const char* method : {"GET", "DELETE"})
    EXPECT_EQ(call(method, std::string(kPath) + "/a").status, 404);
  EXPECT_EQ(post(std::string(kPath) + "/a", R"({"metadata":{}})").status, 404);
}

TEST_F(StoredChatsTest, AStreamIsStoredWhole) {
  start();
  EXPECT_THAT(stream(kPath, R"({"messages":[{"role":"user","content":"x"}],"rid":"s",)"
                            R"("store":true,"stream":true})"),
              ::testing::Contains(HasSubstr("[DONE]")));
  EXPECT_EQ(get("/s").at("choices").at(0).at("message").at("content"), "Hi there.");
}

TEST_F(StoredChatsTest, OnlyWhatAsksForItIsStored) {
  start();
  post(kPath, R"({"messages":[{"role":"user","content":"x"}],"metadata":{"n":1}})");
  EXPECT_THAT(ids(""), IsEmpty());
  EXPECT_THAT(post(kPath, R"({"messages":[{"role":"user","content":"x"}],"metadata":{"n":1},)"
                          R"("store":true})")
                  .body,
              HasSubstr("metadata.n must be a string"));
}

TEST_F(StoredChatsTest, ListsAreFilteredAndCutIntoPages) {
  start();
  store("a", R"(,"metadata":{"k":"1"})");
  store("b", R"(,"metadata":{"k":"2"},"model":"other")");
  store("c", R"(,"metadata":{"k":"1","l":"a b"})");
  EXPECT_THAT(ids(""), ElementsAre("a", "b", "c"));
  EXPECT_THAT(ids("?order=desc"), ElementsAre("c", "b", "a"));
  EXPECT_THAT(ids("?metadata[k]=1"), ElementsAre("a", "c"));
  EXPECT_THAT(ids("?metadata%5Bk%5D=1&metadata%5Bl%5D=a+b"), ElementsAre("c"));
  EXPECT_THAT(ids("?model=other"), ElementsAre("b"));
  EXPECT_THAT(ids("?after=a&limit=1"), ElementsAre("b"));
  EXPECT_EQ(get("?after=a&limit=1").at("has_more"), true);
  EXPECT_EQ(get("?after=b&limit=1").at("has_more"), false);
  EXPECT_EQ(call("GET", std::string(kPath) + "?after=none").status, 404);
  EXPECT_EQ(call("GET", std::string(kPath) + "?limit=0").status, 400);
}

TEST_F(StoredChatsTest, TheMessagesAreListed) {
  start();
  store("a");
  EXPECT_THAT(ids("/a/messages"), ElementsAre("a-0", "a-1"));
  const boost::json::value list = get("/a/messages");
  EXPECT_EQ(list.at("data").at(0).at("content"), "Hi");
  EXPECT_TRUE(list.at("data").at(1).at("content").is_null());
  EXPECT_EQ(list.at("data").at(1).at("content_parts").at(0).at("text"), "you");
  EXPECT_EQ(call("GET", std::string(kPath) + "/none/messages").status, 404);
}

// Answers belong to the key that made them, even where two clients choose the same id.
TEST_F(StoredChatsTest, AKeySeesItsOwnAlone) {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() /
      ("espalier_stored_chats_" + std::to_string(getpid()) + ".json");
  std::ofstream(file) << R"([{"name":"one","key":"sk-1"},{"name":"two","key":"sk-2"}])";
  config_.access.api_keys_file = file.string();
  start();
  store("a", "", "sk-1");
  store("a", R"(,"metadata":{"k":"two"})", "sk-2");
  store("b", "", "sk-2");
  EXPECT_THAT(ids("", "sk-1"), ElementsAre("a"));
  EXPECT_THAT(ids("", "sk-2"), ElementsAre("a", "b"));
  EXPECT_EQ(get("/a", "sk-1").at("metadata").as_object().size(), 0u);
  EXPECT_EQ(call("GET", std::string(kPath) + "/b", "", headers("sk-1")).status, 404);
  EXPECT_EQ(call("DELETE", std::string(kPath) + "/b", "", headers("sk-1")).status, 404);
  const auto respond = [&](const std::string& key, const std::string& body) {
    return call("POST", "/v1/responses", body, headers(key)).status;
  };
  EXPECT_EQ(respond("sk-1", R"({"input":"x","rid":"r"})"), 200);
  for (const char* path : {"/v1/responses/resp_r", "/v1/responses/resp_r/input_items"}) {
    EXPECT_EQ(call("GET", path, "", headers("sk-1")).status, 200);
    EXPECT_EQ(call("GET", path, "", headers("sk-2")).status, 404);
  }
  EXPECT_EQ(respond("sk-2", R"({"input":"y","previous_response_id":"resp_r"})"), 404);
  EXPECT_EQ(call("DELETE", "/v1/responses/resp_r", "", headers("sk-2")).status, 404);
  EXPECT_EQ(respond("sk-1", R"({"input":"y","previous_response_id":"resp_r"})"), 200);
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace espalier::server
