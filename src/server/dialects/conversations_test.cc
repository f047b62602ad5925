// Conversations over real sockets and a scripted engine.
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
using ::testing::Not;

const std::string kAll = "/v1/conversations";

struct ConversationsTest : ServerTest {
  boost::json::value json(std::string_view method, const std::string& path,
                          std::string_view body = "") {
    const Answer answer = call(method, path, body);
    EXPECT_EQ(answer.status, 200) << answer.body;
    return boost::json::parse(answer.body);
  }
  std::string make(std::string_view body = "{}") {
    return kAll + "/" + std::string(json("POST", kAll, body).at("id").as_string());
  }
  static std::string id_of(const std::string& path) { return path.substr(kAll.size() + 1); }
  // "type text" of each item.
  std::vector<std::string> items(const std::string& path, const std::string& query = "?order=asc") {
    std::vector<std::string> found;
    const boost::json::value list = json("GET", path + "/items" + query);
    for (const auto& item : list.at("data").as_array()) {
      std::string text(item.at("type").as_string());
      if (const auto* content = item.as_object().if_contains("content"))
        text += " " + std::string(content->at(0).at("text").as_string());
      found.push_back(text);
    }
    return found;
  }
  Answer respond(const std::string& path, const std::string& fields) {
    return post("/v1/responses", R"({"conversation":")" + id_of(path) + "\"," + fields + "}");
  }
};

constexpr const char* kTwoItems =
    R"({"items":[{"role":"user","content":"One"},{"role":"assistant","content":"Two"}]})";

TEST_F(ConversationsTest, OneIsMadeChangedAndDeleted) {
  start();
  const boost::json::value made = json("POST", kAll, R"({"metadata":{"k":"v"}})");
  const std::string path = kAll + "/" + std::string(made.at("id").as_string());
  EXPECT_EQ(made.at("object"), "conversation");
  EXPECT_EQ(json("GET", path), made);
  EXPECT_EQ(json("POST", path, R"({"metadata":{"x":"y"}})").at("metadata").at("x"), "y");
  EXPECT_EQ(json("GET", path).at("metadata").as_object().size(), 1u);
  EXPECT_TRUE(json("POST", path, R"({"metadata":null})").at("metadata").as_object().empty());
  EXPECT_THAT(post(path, R"({"metadata":{"x":1}})").body, HasSubstr("metadata.x must be a string"));
  EXPECT_EQ(json("DELETE", path).at("deleted"), true);
  for (const char* method : {"GET", "DELETE"}) EXPECT_EQ(call(method, path).status, 404);
  EXPECT_EQ(post(path, "{}").status, 404);
  EXPECT_EQ(call("GET", path + "/items").status, 404);
  EXPECT_EQ(post(path + "/items", R"({"items":[]})").status, 404);
  EXPECT_EQ(respond(path, R"("input":"x")").status, 404);
}

TEST_F(ConversationsTest, ItemsAreAddedFetchedListedAndDeleted) {
  start();
  const std::string path = make(kTwoItems);
  EXPECT_THAT(items(path), ElementsAre("message One", "message Two"));
  EXPECT_THAT(items(path, ""), ElementsAre("message Two", "message One"));
  const boost::json::value added = json(
      "POST", path + "/items",
      R"({"items":[{"type":"function_call","id":"mine","call_id":"c","name":"f","arguments":"{}"},)"
      R"({"type":"function_call_output","id":"mine","call_id":"c","output":"3"}]})");
  EXPECT_EQ(added.at("first_id"), "mine");
  const std::string other(added.at("last_id").as_string());
  EXPECT_TRUE(other.starts_with("fco_")) << other;  // for the id was taken
  EXPECT_EQ(json("GET", path + "/items/" + other).at("output"), "3");
  EXPECT_THAT(items(path, "?order=asc&limit=2&after=mine"), ElementsAre("function_call_output"));
  EXPECT_EQ(json("GET", path + "/items?limit=1").at("has_more"), true);
  EXPECT_EQ(json("DELETE", path + "/items/mine").at("id").as_string().c_str(), id_of(path));
  EXPECT_THAT(items(path), ElementsAre("message One", "message Two", "function_call_output"));
  for (const char* method : {"GET", "DELETE"})
    EXPECT_EQ(call(method, path + "/items/mine").status, 404);
  EXPECT_EQ(call("GET", path + "/items?after=none").status, 404);
}

TEST_F(ConversationsTest, WrongItemsAreNamedAndNotKept) {
  start();
  const std::string path = make();
  EXPECT_THAT(post(path + "/items", "{}").body, HasSubstr("items is missing"));
  EXPECT_THAT(post(path + "/items", R"({"items":3})").body, HasSubstr("items must be a list"));
  EXPECT_THAT(
      post(path + "/items", R"({"items":[{"role":"user","content":"x"},{"role":"no"}]})").body,
      HasSubstr("items[1].role must be"));
  EXPECT_THAT(post(kAll, R"({"items":[{"type":"web_search_call"}]})").body,
              HasSubstr("items[0].type is"));
  EXPECT_THAT(items(path), IsEmpty());
}

// Its items stand in front of the input; input and answer become items, streamed or whole, and also
// of a response that is not stored.
TEST_F(ConversationsTest, AResponseContinuesAndExtendsIt) {
  start();
  const std::string path = make(kTwoItems);
  const Answer answer = respond(path, R"("input":"Three","store":false,"instructions":"Brief.")");
  ASSERT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(boost::json::parse(answer.body).at("conversation").at("id").as_string().c_str(),
            id_of(path));
  EXPECT_THAT(engine_.submitted().back().text,
              HasSubstr("<|system|>Brief.<|user|>One<|assistant|>Two<|user|>Three<|assistant|>"));
  const std::vector<std::string> events =
      stream("/v1/responses", R"({"input":[{"role":"user","content":"Four"}],"stream":true,)"
                              R"("conversation":{"id":")" +
                                  id_of(path) + "\"}}");
  EXPECT_THAT(events.back(), HasSubstr("response.completed"));
  EXPECT_THAT(engine_.submitted().back().text, HasSubstr("<|user|>Three<|assistant|>Hi there."));
  EXPECT_THAT(engine_.submitted().back().text, Not(HasSubstr("Brief.")));
  EXPECT_THAT(items(path), ElementsAre("message One", "message Two", "message Three",
                                       "message Hi there.", "message Four", "message Hi there."));
  const auto count = [&](const std::string& fields) {
    return json("POST", "/v1/responses/input_tokens", R"({"input":"Five")" + fields + "}")
        .at("input_tokens")
        .as_int64();
  };
  EXPECT_GT(count(R"(,"conversation":")" + id_of(path) + "\""), count("") + 30);
  EXPECT_EQ(items(path).size(), 6u);
}

TEST_F(ConversationsTest, AFailedResponseAddsNothing) {
  engine_.set_script(
      {.error = error(StatusCode::kInternal, "the device is gone"), .error_after = 2});
  start();
  const std::string path = make(kTwoItems);
  EXPECT_EQ(respond(path, R"("input":"x")").status, 500);
  EXPECT_EQ(items(path).size(), 2u);
}

TEST_F(ConversationsTest, MemoryIsBounded) {
  config_.storage.max_responses_bytes = 4000;
  start();
  const std::string path = make();
  const std::string large(3000, 'x');
  const Answer full =
      post(path + "/items", R"({"items":[{"role":"user","content":")" + large + "\"}]}");
  EXPECT_EQ(full.status, 503);
  EXPECT_THAT(full.body, HasSubstr("--max-responses-bytes"));
}

TEST_F(ConversationsTest, AKeySeesItsOwnAlone) {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() /
      ("espalier_conversations_" + std::to_string(getpid()) + ".json");
  std::ofstream(file) << R"([{"name":"one","key":"sk-1"},{"name":"two","key":"sk-2"}])";
  config_.access.api_keys_file = file.string();
  start();
  const auto with = [&](const char* key, const char* method, const std::string& path,
                        const std::string& body = "") {
    return call(method, path, body, {{"Authorization", std::string("Bearer ") + key}});
  };
  const Answer made = with("sk-1", "POST", kAll, "{}");
  ASSERT_EQ(made.status, 200) << made.body;
  const std::string id(boost::json::parse(made.body).at("id").as_string());
  const std::string path = kAll + "/" + id;
  EXPECT_EQ(with("sk-1", "GET", path).status, 200);
  EXPECT_EQ(with("sk-2", "GET", path).status, 404);
  EXPECT_EQ(with("sk-2", "POST", path, "{}").status, 404);
  EXPECT_EQ(with("sk-2", "GET", path + "/items").status, 404);
  EXPECT_EQ(with("sk-2", "DELETE", path).status, 404);
  const std::string body = R"({"input":"x","conversation":")" + id + "\"}";
  EXPECT_EQ(with("sk-2", "POST", "/v1/responses", body).status, 404);
  EXPECT_EQ(with("sk-1", "POST", "/v1/responses", body).status, 200);
  std::filesystem::remove(file);
}

}  // namespace
}  // namespace espalier::server
