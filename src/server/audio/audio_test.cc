// Transcriptions over HTTP, by a small Whisper model whose answers transformers has given.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <boost/json.hpp>
#include <fstream>
#include <sstream>

#include "engine/engine.h"
#include "engine/nodes/node_part.h"
#include "media/drawn_sound.h"
#include "net/client.h"
#include "server/server.h"

namespace espalier::server {
namespace {

namespace json = boost::json;
using testing::HasSubstr;

const std::string kModel = "tests/golden/speech/multilingual";

std::string text_of_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

// Of 16 bits, one channel.
std::string wav_of(const std::vector<int16_t>& samples, int32_t rate = 16'000) {
  std::string out = "RIFF????WAVEfmt ";
  const auto put = [&](uint32_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
  };
  put(16, 4), put(1, 2), put(1, 2), put(static_cast<uint32_t>(rate), 4);
  put(static_cast<uint32_t>(rate) * 2, 4), put(2, 2), put(16, 2);
  out += "data";
  put(static_cast<uint32_t>(samples.size() * 2), 4);
  for (const int16_t sample : samples) put(static_cast<uint16_t>(sample), 2);
  return out;
}

class AudioTest : public testing::Test {
 protected:
  void SetUp() override { start(kModel); }

  void start(const std::string& model) {
    server_.reset();
    engine_.reset();
    EngineConfig config;
    config.model.model_path = model;
    config.model.dtype = "float32";
    config.compute.num_threads = 1;
    config.compute.device = "cpu";
    config.schedule.max_running_requests = 4;
    config.audio.max_audio_seconds = 30;
    config.audio.max_audio_bytes = 2 << 20;
    auto engine = Engine::create(config);
    ASSERT_TRUE(engine) << engine.error().message();
    engine_ = std::move(*engine);
    ServerConfig served;
    served.port = 0;
    auto server = Server::create(served, *engine_);
    ASSERT_TRUE(server) << server.error().message();
    server_ = std::move(*server);
    ASSERT_TRUE(server_->start().ok());
  }

  struct Answer {
    int status = 0;
    std::string body;
    json::value parsed() const { return json::parse(body); }
  };

  Answer call(std::string_view method, const std::string& path, const std::string& body,
              const net::Headers& headers = {}) {
    net::HttpClientConfig config;
    config.headers = headers;
    config.read_timeout = std::chrono::seconds(60);
    auto client =
        net::HttpClient::create(fmt::format("http://127.0.0.1:{}", server_->port()), config);
    EXPECT_TRUE(client);
    const auto response = client->request(method, path, body);
    if (!response) {
      ADD_FAILURE() << response.error().message();
      return {};
    }
    return {response->status, response->body};
  }

  using FormFields = std::vector<std::pair<std::string, std::string>>;
  Answer send(const std::string& file, const FormFields& fields,
              const std::string& path = "/v1/audio/transcriptions") {
    std::string body;
    for (const auto& [name, value] : fields) {
      body += fmt::format("--XX\r\nContent-Disposition: form-data; name=\"{}\"\r\n\r\n{}\r\n", name,
                          value);
    }
    body += fmt::format(
        "--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a.wav\"\r\n\r\n{}\r\n"
        "--XX--",
        file);
    return call("POST", path, body, {{"Content-Type", "multipart/form-data; boundary=XX"}});
  }

  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Server> server_;
};

json::array golden_cases() {
  return json::parse(text_of_file(kModel + "/cases.json")).at("cases").as_array();
}

TEST_F(AudioTest, TextEqualsTransformers) {
  for (const json::value& each : golden_cases()) {
    const json::object& tested = each.as_object();
    const bool translate = tested.contains("translate");
    AudioTest::FormFields fields = {{"model", "whisper"}};
    if (tested.contains("language") && !translate)
      fields.emplace_back("language", std::string(tested.at("language").as_string()));
    if (tested.contains("prompt"))
      fields.emplace_back("prompt", std::string(tested.at("prompt").as_string()));
    if (tested.at("timestamps").as_bool()) fields.emplace_back("response_format", "verbose_json");
    const std::string file = wav_of(test::drawn_sound(tested.at("samples").to_number<int64_t>()));
    // A translation's language is detected, so its text is another one than the golden's.
    const Answer answer =
        send(file, fields, translate ? "/v1/audio/translations" : "/v1/audio/transcriptions");
    ASSERT_EQ(answer.status, 200) << answer.body;
    if (translate) continue;
    EXPECT_EQ(answer.parsed().at("text"), tested.at("text"));
    if (!tested.at("timestamps").as_bool()) continue;
    const json::array segments = answer.parsed().at("segments").as_array();
    ASSERT_EQ(segments.size(), tested.at("segments").as_array().size());
    for (size_t i = 0; i < segments.size(); ++i) {
      EXPECT_NEAR(segments[i].at("end").to_number<double>(),
                  tested.at("segments").at(i).at("end").to_number<double>(), 1e-6);
    }
  }
}

TEST_F(AudioTest, AStreamsDeltasAreItsText) {
  const Answer whole = send(wav_of(test::drawn_sound(32'000)), {{"language", "en"}});
  ASSERT_EQ(whole.status, 200) << whole.body;
  const Answer streamed =
      send(wav_of(test::drawn_sound(32'000)), {{"language", "en"}, {"stream", "true"}});
  ASSERT_EQ(streamed.status, 200);
  std::string text, last;
  size_t events = 0;
  std::istringstream lines(streamed.body);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("data: {")) continue;
    const json::value event = json::parse(line.substr(6));
    last = std::string(event.at("type").as_string());
    if (last == "transcript.text.delta") text += event.at("delta").as_string();
    if (last == "transcript.text.done") {
      EXPECT_EQ(event.at("text").as_string(), text);
    }
    ++events;
  }
  EXPECT_GT(events, 10u);
  EXPECT_EQ(last, "transcript.text.done");
  EXPECT_EQ(text, whole.parsed().at("text").as_string());
  EXPECT_THAT(streamed.body, HasSubstr("data: [DONE]"));
}

TEST_F(AudioTest, OtherRatesAndFormatsAreRead) {
  const Answer fast = send(wav_of(test::drawn_sound(40'000), 44'100), {{"language", "en"}});
  EXPECT_EQ(fast.status, 200) << fast.body;
  for (const char* format : {"text", "srt", "vtt"}) {
    const Answer answer =
        send(wav_of(test::drawn_sound(32'000)), {{"language", "fr"}, {"response_format", format}});
    EXPECT_EQ(answer.status, 200);
    EXPECT_EQ(answer.body.find("-->") != std::string::npos, std::string(format) != "text");
  }
}

TEST_F(AudioTest, FormsThatAreWrongAreRefused) {
  const std::string sound = wav_of(test::drawn_sound(1000));
  const std::vector<std::pair<FormFields, const char*>> refused = {
      {{{"response_format", "xml"}}, "json, text, srt, verbose_json or vtt"},
      {{{"temperature", "2"}}, "from 0 to 1"},
      {{{"temperature", "warm"}}, "from 0 to 1"},
      {{{"language", "xx"}}, "ISO 639-1"},
      {{{"timestamp_granularities[]", "word"}}, "send 'segment'"},
      {{{"prompt", std::string(16'385, 'a')}}, "prompt has 16385 bytes"},
      {{{"stream", "maybe"}}, "true or false"},
      {{{"stream", "true"}, {"response_format", "srt"}}, "stream goes with"},
      {{{"beam_size", "5"}}, "field 'beam_size'"},
      {{{"include[]", "logprobs"}}, "include is not supported"}};
  for (const auto& [fields, reason] : refused) {
    const Answer answer = send(sound, fields);
    EXPECT_EQ(answer.status, 400) << reason;
    EXPECT_THAT(answer.body, HasSubstr(reason));
  }
  EXPECT_EQ(send(sound, {{"language", "en"}}, "/v1/audio/translations").status, 400);
  EXPECT_EQ(call("POST", "/v1/audio/transcriptions", "{}").status, 415);
  const Answer no_file =
      call("POST", "/v1/audio/transcriptions",
           "--XX\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nm\r\n--XX--",
           {{"Content-Type", "multipart/form-data; boundary=XX"}});
  EXPECT_EQ(no_file.status, 400);
  EXPECT_THAT(no_file.body, HasSubstr("file is missing"));
}

TEST_F(AudioTest, FilesThatAreWrongAreRefused) {
  EXPECT_EQ(send("", {}).status, 400);
  const Answer picture = send("\x89PNG\r\n\x1a\n...", {});
  EXPECT_EQ(picture.status, 415);
  EXPECT_THAT(picture.body, HasSubstr("send WAV, FLAC, Ogg"));
  std::string cut = wav_of(test::drawn_sound(1000));
  cut.resize(cut.size() - 100);
  const Answer damaged = send(cut, {});
  EXPECT_EQ(damaged.status, 400);
  EXPECT_THAT(damaged.body, HasSubstr("send the whole file"));
  const Answer long_one = send(wav_of(std::vector<int16_t>(8000 * 31), 8000), {});
  EXPECT_EQ(long_one.status, 413);
  EXPECT_THAT(long_one.body, HasSubstr("--max-audio-seconds"));
  const Answer large = send(wav_of(std::vector<int16_t>(1'100'000), 48'000), {});
  EXPECT_EQ(large.status, 413);
  EXPECT_THAT(large.body, HasSubstr("--max-audio-bytes"));
}

TEST_F(AudioTest, TextsAreRefusedWithAdvice) {
  const std::vector<std::pair<std::string, std::string>> calls = {
      {"/v1/chat/completions", R"({"messages":[{"role":"user","content":"hi"}]})"},
      {"/v1/completions", R"({"prompt":"hi"})"},
      {"/generate", R"({"text":"hi"})"},
      {"/v1/responses", R"({"input":"hi"})"},
      {"/v1/messages", R"({"max_tokens":5,"messages":[{"role":"user","content":"hi"}]})"}};
  for (const auto& [path, body] : calls) {
    const Answer answer = call("POST", path, body);
    EXPECT_EQ(answer.status, 400) << path << answer.body;
    EXPECT_THAT(answer.body, HasSubstr("/v1/audio/transcriptions")) << path;
  }
}

TEST_F(AudioTest, SaysWhatItServes) {
  const json::value info = call("GET", "/server_info", "").parsed();
  EXPECT_EQ(info.at("speech").at("languages"), json::parse(R"(["en","de","fr"])"));
  EXPECT_EQ(info.at("max_audio_seconds").to_number<double>(), 30);
  const json::value model = call("GET", "/model_info", "").parsed();
  EXPECT_EQ(model.at("has_audio_understanding"), true);
  EXPECT_EQ(model.at("is_generation"), false);
  EXPECT_EQ(model.at("model_type"), "whisper");
  EXPECT_EQ(call("GET", "/v1/models", "").parsed().at("data").at(0).at("max_model_len"), 64);
  EXPECT_EQ(call("GET", "/health_generate", "").status, 200);
  EXPECT_EQ(call("GET", "/metrics", "").status, 200);
  EXPECT_THAT(call("GET", "/openapi.json", "").body, HasSubstr("multipart/form-data"));
}

TEST_F(AudioTest, AnEnglishModelDoesNotTranslate) {
  start("tests/golden/speech/english");
  const std::string sound = wav_of(test::drawn_sound(24'000));
  EXPECT_EQ(send(sound, {}).status, 200);
  EXPECT_EQ(send(sound, {}, "/v1/audio/translations").status, 400);
}

TEST(AudioEngine, RefusesSettingsOfOtherModels) {
  const auto start_with = [](const std::function<void(EngineConfig&)>& change) {
    EngineConfig config;
    config.model.model_path = kModel;
    change(config);
    const auto engine = Engine::create(config);
    return engine ? std::string() : engine.error().message();
  };
  EXPECT_THAT(start_with([](EngineConfig& c) { c.compute.tp_size = 2; }), HasSubstr("--tp-size"));
  EXPECT_THAT(start_with([](EngineConfig& c) { c.compute.dp_size = 2; }), HasSubstr("--dp-size"));
  EXPECT_THAT(start_with([](EngineConfig& c) { c.compute.ep_size = 2; }), HasSubstr("--ep-size"));
  EXPECT_THAT(start_with([](EngineConfig& c) { c.disaggregation.disaggregation_mode = "prefill"; }),
              HasSubstr("--disaggregation-mode"));
  EngineConfig of_nodes;
  of_nodes.model.model_path = kModel;
  EXPECT_THAT(check_node_settings(of_nodes, {.nnodes = 2}).message(), HasSubstr("--nnodes"));
  EXPECT_THAT(start_with([](EngineConfig& c) { c.compute.device = "cuda:99"; }),
              HasSubstr("--device cpu"));
  EXPECT_THAT(start_with([](EngineConfig& c) { c.model.dtype = "q8_0"; }), HasSubstr("bfloat16"));
  EXPECT_THAT(start_with([](EngineConfig& c) { c.audio.max_audio_seconds = 0; }),
              HasSubstr("max_audio_seconds"));
}

}  // namespace
}  // namespace espalier::server
