// A server of several models over scripted engines, from outside.
#include "server/served_models/served_models.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <thread>

#include "server/routes.h"
#include "server/served_models/dispatch.h"
#include "server/test_server.h"

namespace espalier::server {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;

class ServedModelsTest : public ServerTest {
 protected:
  // What a test sees and sets of a model.
  struct Seen {
    std::atomic<int> num_loads{0};
    std::atomic<ScriptedEngine*> engine{nullptr};  // the last one
    std::atomic<bool> is_broken{false};
    ScriptedEngine::Script script;
  };

  ServedModel add(const std::string& name, const std::string& reply) {
    auto seen = std::make_shared<Seen>();
    seen->script.reply = reply;
    seen_[name] = seen;
    ServedModel model;
    model.name = name;
    model.keep_alive = std::nullopt;
    model.answers.chat_template = kTestTemplate;
    model.start = [seen]() -> Result<std::unique_ptr<Engine>> {
      if (seen->is_broken) return fail(error(StatusCode::kNotFound, "config.json is missing"));
      auto engine = std::make_unique<ScriptedEngine>();
      engine->set_script(seen->script);
      ++seen->num_loads;
      seen->engine = engine.get();
      return std::unique_ptr<Engine>(std::move(engine));
    };
    return model;
  }

  void start(std::vector<ServedModel> models) {
    models_.models = std::move(models);
    models_.free_bytes = [] { return int64_t{1} << 40; };
    auto server = Server::create(config_, models_);
    ASSERT_TRUE(server) << server.error().to_string();
    server_ = std::move(*server);
    const Status started = server_->start();
    ASSERT_TRUE(started.ok()) << started.to_string();
  }

  std::string models_json() const { return call("GET", "/v1/models").body; }
  bool wait_for_models(const std::string& text) const {
    for (int i = 0; i < 5000; ++i) {
      if (models_json().find(text) != std::string::npos) return true;
      std::this_thread::sleep_for(milliseconds(1));
    }
    return false;
  }

  ServedModels models_;
  std::map<std::string, std::shared_ptr<Seen>> seen_;
};

TEST_F(ServedModelsTest, RequestsGoToTheModelThatTheyName) {
  start({add("one", "I am one."), add("two", "I am two.")});
  EXPECT_THAT(post("/generate", R"({"text":"x"})").body, HasSubstr("I am one."));
  EXPECT_THAT(post("/generate", R"({"text":"x","model":"two"})").body, HasSubstr("I am two."));
  EXPECT_THAT(post("/generate?model=two", R"({"text":"x"})").body, HasSubstr("I am two."));
  const Answer chat =
      post("/v1/chat/completions", R"({"model":"two","messages":[{"role":"user","content":"x"}]})");
  EXPECT_THAT(chat.body, HasSubstr("I am two."));
  EXPECT_THAT(chat.body, HasSubstr(R"("model":"two")"));
  EXPECT_THAT(post("/v1/messages",
                   R"({"model":"two","max_tokens":20,"messages":[{"role":"user","content":"x"}]})")
                  .body,
              HasSubstr("I am two."));
  EXPECT_THAT(post("/api/generate", R"({"model":"two:latest","prompt":"x","stream":false})").body,
              HasSubstr("I am two."));
  EXPECT_EQ(seen_["one"]->num_loads, 1);
  EXPECT_EQ(seen_["two"]->num_loads, 1);
}

TEST_F(ServedModelsTest, UnknownModelIsNotFoundInItsDialect) {
  start({add("one", "1")});
  const Answer openai = post("/v1/completions", R"({"model":"three","prompt":"x"})");
  EXPECT_EQ(openai.status, 404);
  EXPECT_EQ(
      normalise(openai.body),
      normalise(
          R"({"error":{"message":"The model 'three' does not exist","type":"invalid_request_error","param":"model","code":"model_not_found"}})"));
  const Answer anthropic = post("/v1/messages", R"({"model":"three","messages":[]})");
  EXPECT_EQ(anthropic.status, 404);
  EXPECT_THAT(anthropic.body, HasSubstr("not_found_error"));
  const Answer ollama = post("/api/chat", R"({"model":"three"})");
  EXPECT_EQ(ollama.status, 404);
  EXPECT_THAT(ollama.body, HasSubstr(R"({"error":")"));
  EXPECT_EQ(call("GET", "/v1/models/three").status, 404);
  EXPECT_EQ(seen_["one"]->num_loads, 0) << "nothing was loaded for them";
}

TEST_F(ServedModelsTest, ListShowsStatesAndLoadsNothing) {
  ServedModel second = add("two", "2");
  second.aliases = {"deux"};
  second.preload = true;
  start({add("one", "1"), second});
  const std::string list = models_json();
  EXPECT_THAT(list, HasSubstr(R"("id":"one")"));
  EXPECT_THAT(list, HasSubstr(R"("state":"unloaded")"));
  EXPECT_THAT(list, HasSubstr(R"("state":"ready")"));
  EXPECT_THAT(call("GET", "/v1/models/deux").body, HasSubstr(R"("id":"two")"));
  EXPECT_EQ(call("GET", "/health").status, 200);
  EXPECT_THAT(call("GET", "/api/tags").body, HasSubstr(R"("name":"one")"));
  EXPECT_THAT(call("GET", "/api/ps").body, Not(HasSubstr(R"("name":"one")")));
  EXPECT_THAT(call("GET", "/v1/models", {}, {{"anthropic-version", "2023-06-01"}}).body,
              HasSubstr(R"("last_id":"two")"));
  EXPECT_EQ(call("GET", "/v1/loads").status, 200);
  EXPECT_EQ(seen_["one"]->num_loads, 0);
  EXPECT_EQ(seen_["two"]->num_loads, 1);
}

TEST_F(ServedModelsTest, RoutesThatLookOrRefuseLoadNothing) {
  start({add("one", "1"), add("two", "2")});
  for (const char* path : {"/cache_tree", "/cache_tree/1", "/props", "/requests", "/slots"}) {
    const Answer answer = call("GET", std::string(path) + "?model=two");
    EXPECT_EQ(answer.status, 503) << path;
    EXPECT_THAT(answer.body, HasSubstr("the model 'two' is not loaded")) << path;
  }
  EXPECT_EQ(call("GET", "/health_generate").status, 200);
  int num_refused = 0;
  for (const Route& route : routes()) {
    if (route.status != 501) continue;
    ++num_refused;
    EXPECT_EQ(call(route.methods.front(), route.pattern, "{}").status, 501) << route.pattern;
  }
  EXPECT_GT(num_refused, 20);
  EXPECT_EQ(seen_["one"]->num_loads, 0);
  EXPECT_EQ(seen_["two"]->num_loads, 0);
  EXPECT_EQ(post("/generate", R"({"text":"x","model":"two"})").status, 200);
  EXPECT_EQ(call("GET", "/props?model=two").status, 200);
}

TEST_F(ServedModelsTest, ProfileOutlivesItsRequestAndKeepsItsModel) {
  const std::string folder =
      (std::filesystem::temp_directory_path() / "espalier_profiles_XXXXXX").string();
  std::string made = folder;
  ASSERT_NE(::mkdtemp(made.data()), nullptr);
  config_.telemetry.profile_dir = made;
  ServedModel two = add("two", "2");
  two.keep_alive = milliseconds(1);
  start({add("one", "1"), two});
  EXPECT_EQ(post("/start_profile?model=two", "").status, 200);
  EXPECT_EQ(post("/generate", R"({"text":"x"})").status, 200);  // another step of the registry
  std::this_thread::sleep_for(milliseconds(20));                // many times keep_alive
  const Answer stopped = post("/stop_profile?model=two", "");
  EXPECT_EQ(stopped.status, 200) << stopped.body;
  EXPECT_THAT(stopped.body, HasSubstr(made));
  EXPECT_EQ(seen_["two"]->num_loads, 1);
  EXPECT_TRUE(wait_for_models(R"("id":"two")"));
  std::filesystem::remove_all(made);
}

TEST_F(ServedModelsTest, MetricsHaveALabelForEachModelAndEachNameOnce) {
  start({add("one", "1"), add("two", "2")});
  post("/generate", R"({"text":"x"})");
  post("/generate", R"({"text":"x","model":"two"})");
  const std::string text = call("GET", "/metrics").body;
  EXPECT_THAT(text, HasSubstr(R"(sglang:num_requests_total{model_name="one"})"));
  EXPECT_THAT(text, HasSubstr(R"(sglang:num_requests_total{model_name="two"})"));
  EXPECT_THAT(text, HasSubstr(R"(espalier:model_ready{model_name="two"} 1)"));
  EXPECT_THAT(text, HasSubstr("espalier:http_connections 1"));
  const std::string type = "# TYPE sglang:num_requests_total ";
  const size_t first = text.find(type);
  ASSERT_NE(first, std::string::npos);
  EXPECT_EQ(text.find(type, first + 1), std::string::npos);
}

TEST_F(ServedModelsTest, IdleModelIsUnloadedAndLoadedAgain) {
  ServedModel one = add("one", "I am one.");
  one.keep_alive = milliseconds(20);
  start({one});
  EXPECT_EQ(post("/generate", R"({"text":"x"})").status, 200);
  EXPECT_TRUE(wait_for_models(R"("state":"unloaded")"));
  EXPECT_THAT(post("/generate", R"({"text":"x"})").body, HasSubstr("I am one."));
  EXPECT_EQ(seen_["one"]->num_loads, 2);
}

TEST_F(ServedModelsTest, AbortReachesTheModelThatHasTheRequest) {
  ServedModel two = add("two", "2");
  seen_["two"]->script.hold = true;
  two.keep_alive = milliseconds(1);
  start({add("one", "1"), two});
  std::thread client([&] {
    const Answer answer = post("/generate", R"({"text":"x","model":"two","rid":"kept"})");
    EXPECT_THAT(answer.body, HasSubstr("abort"));
  });
  EXPECT_TRUE(wait_for_models(R"("state":"ready")"));
  ScriptedEngine& engine = *seen_["two"]->engine;
  EXPECT_TRUE(engine.wait_for([&] { return engine.num_running() == 1; }));
  EXPECT_EQ(post("/abort_request", R"({"rid":"kept"})").status, 200);
  client.join();
  EXPECT_TRUE(wait_for_models(R"("id":"two")"));
}

TEST_F(ServedModelsTest, RequestInProgressKeepsItsModel) {
  ServedModel one = add("one", "1");
  one.estimated_bytes = 100;
  seen_["one"]->script.hold = true;
  ServedModel two = add("two", "2");
  two.estimated_bytes = 100;
  models_.memory_limit = 150;
  models_.load_timeout = milliseconds(50);
  start({one, two});
  std::thread client([&] { post("/generate", R"({"text":"x","rid":"kept"})"); });
  EXPECT_TRUE(wait_for_models(R"("state":"ready")"));
  ScriptedEngine& engine = *seen_["one"]->engine;
  EXPECT_TRUE(engine.wait_for([&] { return engine.num_running() == 1; }));
  const Answer refused = post("/generate", R"({"text":"x","model":"two"})");
  EXPECT_EQ(refused.status, 503) << refused.body;
  EXPECT_THAT(refused.body, HasSubstr("'two'"));
  EXPECT_THAT(refused.body, HasSubstr("memory_limit"));
  post("/abort_request", R"({"rid":"kept"})");
  client.join();
}

TEST_F(ServedModelsTest, FailedLoadIsAnsweredAndRetried) {
  start({add("one", "1"), add("two", "I am two.")});
  seen_["two"]->is_broken = true;
  const Answer broken = post("/v1/completions", R"({"model":"two","prompt":"x"})");
  EXPECT_EQ(broken.status, 503);
  EXPECT_THAT(broken.body, HasSubstr("config.json is missing"));
  EXPECT_THAT(models_json(), HasSubstr("config.json is missing"));
  EXPECT_EQ(post("/generate", R"({"text":"x"})").status, 200) << "the other one serves";
  seen_["two"]->is_broken = false;
  EXPECT_THAT(post("/v1/completions", R"({"model":"two","prompt":"x"})").body,
              HasSubstr("I am two."));
}

TEST_F(ServedModelsTest, LargeBodiesFindTheirModelToo) {
  start({add("one", "1"), add("two", "I am two.")});
  const std::string padding(32 << 10, ' ');
  EXPECT_THAT(post("/generate", R"({"text":"x",)" + padding + R"("model":"two"})").body,
              HasSubstr("I am two."));
}

TEST_F(ServedModelsTest, TokensAndSettingsAreThoseOfTheModel) {
  start({add("one", "1"), add("two", "2")});
  EXPECT_THAT(post("/tokenize", R"({"model":"two","prompt":"ab"})").body,
              HasSubstr(R"("count":3)"));
  EXPECT_EQ(seen_["one"]->num_loads, 0);
  EXPECT_THAT(call("GET", "/server_info?model=two").body,
              HasSubstr(R"("served_model_name":"two")"));
  EXPECT_EQ(post("/flush_cache?model=two", "").status, 200);
  for (const char* route : {"/pause_generation", "/continue_generation"})  // they reach an engine
    EXPECT_THAT(post(route, R"({"model":"two"})").body, HasSubstr("this engine cannot be paused"));
  EXPECT_EQ(seen_["one"]->num_loads, 0);
}

TEST_F(ServedModelsTest, RoutesWithoutModelAreRoutes) {
  int num_without = 0;
  for (const Route& route : routes()) num_without += needs_no_model(route.pattern) ? 1 : 0;
  EXPECT_GT(num_without, 20);
  EXPECT_LT(num_without, static_cast<int>(routes().size()) / 2);
  EXPECT_FALSE(needs_no_model("/v1/chat/completions"));
  EXPECT_FALSE(needs_no_model("/v1/responses"));
  EXPECT_FALSE(needs_no_model("/generate"));
  EXPECT_TRUE(needs_no_model("/v1/chat/completions/{id}"));
}

}  // namespace
}  // namespace espalier::server
