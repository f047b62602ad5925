#include "server/tracing/request_recorder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <boost/json.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/rng.h"
#include "server/test_server.h"
#include "server/tracing/redact.h"

namespace espalier::server {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

class LogFolder {
 public:
  LogFolder() {
    std::string name = (fs::temp_directory_path() / "espalier_log_XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~LogFolder() { fs::remove_all(path_); }
  std::string file() const { return (path_ / "requests.jsonl").string(); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  return lines;
}

std::string redacted(std::string_view body) {
  boost::json::value value = boost::json::parse(body);
  redact(value);
  return boost::json::serialize(value);
}

TEST(Redact, LeavesTheShapeAndNoText) {
  EXPECT_EQ(
      redacted(R"({"text":"secret","sampling_params":{"temperature":0.5,"stop":["se","cret"],)"
               R"("stop_token_ids":[1,2]},"stream":true,"model":"m-1"})"),
      R"({"text":{"$bytes":6},"sampling_params":{"temperature":5E-1,"stop":[{"$bytes":2},)"
      R"({"$bytes":4}],"stop_token_ids":[1,2]},"stream":true,"model":"m-1"})");
  EXPECT_EQ(redacted(R"({"input_ids":[[1,2,3],[4]],"prompt":[5,6]})"),
            R"({"input_ids":[{"$ids":3},{"$ids":1}],"prompt":{"$ids":2}})");
  EXPECT_EQ(redacted(R"({"input_ids":[7,8.0,null]})"), R"({"input_ids":{"$ids":3}})");
  EXPECT_EQ(redacted(R"({"x":{"properties":{"ssn":{"type":"string"}}}})"),
            R"({"x":{"properties":{"$json":25}}})");
  EXPECT_EQ(redacted(R"({"messages":[{"role":"user","content":[{"type":"text","text":"secret"},)"
                     R"({"type":"image_url","image_url":{"url":"secret"}}]}]})"),
            R"({"messages":[{"role":"user","content":[{"type":"text","text":{"$bytes":6}},)"
            R"({"type":"image_url","image_url":{"$json":16}}]}]})");
  EXPECT_EQ(redacted(R"({"tools":[{"secret":1}],"metadata":{"secret":1},"tool_choice":"auto"})"),
            R"({"tools":{"$json":14},"metadata":{"$json":12},"tool_choice":{"$json":6}})");
  EXPECT_EQ(redacted(R"({"model":"two words, and more","role":""})"),
            R"({"model":{"$bytes":19},"role":""})");
}

// Bodies of random shape hold the word at random places of values; no line may have it.
TEST(Redact, RandomBodiesKeepNoText) {
  Rng rng(20260802);
  const std::vector<std::string> keys = {"text",    "prompt", "messages", "content", "input",
                                         "tools",   "model",  "role",     "system",  "json_schema",
                                         "unknown", "stop",   "images",   "type"};
  const std::function<boost::json::value(int)> draw = [&](int depth) -> boost::json::value {
    const uint64_t kind = rng.below(depth > 0 ? 6 : 3);
    if (kind == 0) return "a secret, in a sentence";
    if (kind == 1) return static_cast<int64_t>(rng.below(100));
    if (kind == 2) return nullptr;
    if (kind == 3) return boost::json::array{static_cast<int64_t>(rng.below(9)), 7};
    if (kind == 4) return boost::json::array{draw(depth - 1), draw(depth - 1)};
    boost::json::object object;
    for (int i = 0; i < 3; ++i) object[keys[rng.below(keys.size())]] = draw(depth - 1);
    return object;
  };
  for (int i = 0; i < 2000; ++i) {
    const std::string body = boost::json::serialize(boost::json::object{{"text", draw(5)}});
    const std::string out = redacted(body);
    ASSERT_THAT(out, Not(HasSubstr("secret"))) << body;
    ASSERT_EQ(redacted(out).find("secret"), std::string::npos);
  }
}

TEST(RequestRecorder, RotatesAndCounts) {
  const LogFolder folder;
  {
    auto recorder = RequestRecorder::start({.path = folder.file(), .max_bytes = 2000}).value();
    for (int i = 0; i < 40; ++i) {
      RecordTicket ticket =
          recorder->begin("/generate", R"({"text":"secret"})", std::chrono::steady_clock::now());
      ASSERT_TRUE(ticket);
      ticket.end(200);
      ticket.end(500);  // the first counts
    }
  }
  const auto now = lines_of(folder.file()), before = lines_of(folder.file() + ".1");
  EXPECT_GT(now.size(), 0u);
  EXPECT_GT(before.size(), 2u);
  for (const auto* lines : {&now, &before})
    for (const std::string& line : *lines) {
      const boost::json::value value = boost::json::parse(line);
      EXPECT_EQ(value.at("status").as_int64(), 200);
      EXPECT_EQ(boost::json::serialize(value.at("body")), R"({"text":{"$bytes":6}})");
    }
  EXPECT_LE(fs::file_size(folder.file()), 2000u);
  struct stat file {};
  ASSERT_EQ(::stat(folder.file().c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600u);
}

// The limit of a file's size stands for a full disk.
TEST(RequestRecorder, AFullDiskLeavesWholeLines) {
  const LogFolder folder;
  std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  auto recorder = RequestRecorder::start({.path = folder.file()}).value();
  const rlimit small{.rlim_cur = 1000, .rlim_max = before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  for (int i = 0; i < 20; ++i)
    (void)recorder->begin("/generate", "{}", std::chrono::steady_clock::now());
  while (recorder->counts().written + recorder->counts().dropped < 20) std::this_thread::yield();
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &before), 0);
  const RecordCounts counts = recorder->counts();
  EXPECT_GT(counts.written, 0);
  EXPECT_GT(counts.dropped, 0);
  (void)recorder->begin("/generate", "{}", std::chrono::steady_clock::now());
  recorder.reset();
  const auto lines = lines_of(folder.file());
  EXPECT_EQ(std::ssize(lines), counts.written + 1);
  for (const std::string& line : lines) EXPECT_TRUE(boost::json::parse(line).is_object());
}

TEST(RequestRecorder, TooManyBytesAreLeftOut) {
  const LogFolder folder;
  auto recorder = RequestRecorder::start({.path = folder.file()}).value();
  EXPECT_FALSE(recorder->begin("/generate", std::string(RequestRecorder::kBodyBytesMax + 1, 'x'),
                               std::chrono::steady_clock::now()));
  EXPECT_EQ(recorder->counts().dropped, 1);
  {
    const RecordTicket ticket =
        recorder->begin("/generate", std::string(1000, 'x'), std::chrono::steady_clock::now());
    EXPECT_TRUE(ticket);
  }
  recorder.reset();
  const boost::json::value line = boost::json::parse(lines_of(folder.file()).at(0));
  EXPECT_EQ(boost::json::serialize(line.at("body")), R"({"$bytes":1000})") << "it is no JSON";
}

TEST(RequestRecorder, RefusesWhatIsNoFile) {
  const LogFolder folder;
  for (const std::string& path : {folder.path().string(), (folder.path() / "none" / "x").string(),
                                  std::string("/dev/null")}) {
    const Status status = RequestRecorder::check(path);
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("--request-log"));
  }
}

class RequestLogServerTest : public ServerTest {
 protected:
  RequestLogServerTest() { config_.telemetry.request_log = folder_.file(); }
  // All requests have been written when the server is gone.
  std::vector<boost::json::value> stop() {
    server_.reset();
    std::vector<boost::json::value> out;
    for (const std::string& line : lines_of(folder_.file()))
      out.push_back(boost::json::parse(line));
    // A line is written when its request has gone, which may be behind that of a later one.
    std::ranges::stable_sort(out, {}, [](const boost::json::value& line) {
      return line.at("offset_s").to_number<double>();
    });
    return out;
  }
  const LogFolder folder_;
};

TEST_F(RequestLogServerTest, EachRequestIsALine) {
  start();
  ASSERT_EQ(post("/generate", R"({"text":"secret","sampling_params":{"n":2}})").status, 200);
  ASSERT_EQ(post("/v1/completions", R"({"prompt":["secret","a"],"max_tokens":3})").status, 200);
  ASSERT_EQ(post("/generate", R"({"text":7})").status, 400);
  ASSERT_EQ(post("/generate", "{").status, 400);
  ASSERT_FALSE(stream("/generate", R"({"text":"secret","stream":true})").empty());
  ASSERT_EQ(call("GET", "/health").status, 200);
  const auto lines = stop();
  ASSERT_EQ(lines.size(), 5u);
  const auto field = [&](size_t i, const char* name) {
    return boost::json::serialize(lines[i].at(name));
  };
  EXPECT_EQ(field(0, "route"), R"("/generate")");
  EXPECT_EQ(field(0, "samples"), "2");
  EXPECT_EQ(field(0, "prompt_tokens"), "7");
  EXPECT_EQ(field(0, "cached_tokens"), "3");
  EXPECT_EQ(field(0, "completion_tokens"), "20");
  EXPECT_EQ(field(0, "finish_reasons"), R"(["stop","stop"])");
  EXPECT_EQ(field(0, "status"), "200");
  EXPECT_EQ(field(1, "prompt_tokens"), "9");
  EXPECT_EQ(field(1, "completion_tokens"), "6");
  EXPECT_EQ(field(2, "status"), "400");
  EXPECT_EQ(field(3, "status"), "400");
  EXPECT_EQ(field(3, "body"), R"({"$bytes":1})");
  EXPECT_EQ(field(4, "stream"), "true");
  for (const boost::json::value& line : lines)
    EXPECT_THAT(boost::json::serialize(line), Not(HasSubstr("secret")));
  EXPECT_LE(lines[0].at("ttft_s").to_number<double>(), lines[0].at("e2e_s").to_number<double>());
}

TEST_F(RequestLogServerTest, PromptsAreKeptWhereThatIsSet) {
  config_.telemetry.request_log_prompts = true;
  start();
  ASSERT_EQ(post("/generate", "{\n\"text\":\"secret\"}").status, 200);
  EXPECT_THAT(call("GET", "/metrics").body, HasSubstr("espalier:request_log_dropped_total 0"));
  const auto lines = stop();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(boost::json::serialize(lines[0].at("body")), R"({"text":"secret"})");
}

TEST_F(RequestLogServerTest, AClientThatLeftIsA499) {
  engine_.set_script({.hold = true, .hold_after = 1});
  start();
  {
    net::HttpClient left = client();
    (void)left.post_stream("/generate", R"({"text":"a","stream":true})",
                           [](std::string_view) { return false; });
  }
  ASSERT_TRUE(engine_.wait_for([&] { return engine_.num_running() == 0; }));
  const auto lines = stop();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].at("status").as_int64(), 499);
}

}  // namespace
}  // namespace espalier::server
