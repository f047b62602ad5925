// Profiles over HTTP: who may record one, where its trace is written, and what is in it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <boost/json.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "server/test_server.h"
#include "server/tracing/profile_folder.h"

namespace espalier::server {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using ::testing::HasSubstr;

// A folder that is gone with the test.
class ProfileRoot {
 public:
  ProfileRoot() {
    std::string name = (fs::temp_directory_path() / "espalier_profile_XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~ProfileRoot() { fs::remove_all(path_); }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

std::string read_text(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(ProfileFolder, TracesStayInside) {
  const ProfileRoot outer;
  const fs::path root = outer.path() / "profiles";
  const auto path_of = [&](const std::string& folder, const std::string& prefix = "",
                           const std::string& id = "7") {
    return new_trace_path(root, folder, prefix, id);
  };
  EXPECT_EQ(path_of("").value(), root / "7-TP-0.trace.json");
  EXPECT_EQ(path_of("a/b", "run").value(), root / "a/b" / "run-7-TP-0.trace.json");
  EXPECT_EQ(path_of((root / "a").string()).value(), root / "a" / "7-TP-0.trace.json");
  EXPECT_EQ(path_of("a/../b").value(), root / "b" / "7-TP-0.trace.json");
  fs::create_directory(outer.path() / "other");
  fs::create_directory_symlink(outer.path() / "other", root / "out");
  for (const std::string& folder :
       {std::string(".."), std::string("/tmp"), std::string("a/../../other"), std::string("out"),
        std::string("out/x"), (outer.path() / "profiles2").string(), std::string("a\0b", 3)}) {
    const auto refused = path_of(folder);
    ASSERT_FALSE(refused) << folder;
    EXPECT_EQ(refused.error().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(refused.error().message(), HasSubstr("inside --profile-dir alone"));
  }
  EXPECT_TRUE(fs::is_empty(outer.path() / "other"));
  EXPECT_FALSE(fs::exists(outer.path() / "profiles2"));
  for (const char* name : {"../x", "a/b", ".x", "x y", "x\n"}) {
    EXPECT_FALSE(path_of("", name)) << name;
    EXPECT_FALSE(path_of("", "", name)) << name;
  }
  EXPECT_FALSE(path_of("", "", ""));
}

StepProfile sample_profile() {
  const TimePoint start{1s};
  StepProfile p{.begin = start, .end = start + 1ms};
  p.turns = {{start, start + 10us}, {start + 10us, start + 30us}};
  p.phases = {{LoopPhase::kInbox, start, start + 1us},
              {LoopPhase::kSchedule, start + 1us, start + 10us},
              {LoopPhase::kInbox, start + 10us, start + 30us}};
  p.steps = {{.step = 4,
              .entries = 2,
              .tokens = 9,
              .draft_tokens = 7,
              .accepted_draft_tokens = 3,
              .graph_use = GraphUse::kRecorded,
              .launched = start + 2us,
              .begin = start + 3us,
              .end = start + 3us + 1234ns}};
  p.samples = {{.rid = "a\"b", .index = 1, .has_ended = true}, {.rid = "c"}};
  RequestStats& stats = p.samples[0].stats;
  stats.prompt_tokens = 7;
  stats.arrived = start - 5us;
  stats.scheduled = start + 1us;
  stats.first_token = start + 5us;
  stats.finished = start + 9us;
  p.samples[1].stats.arrived = start + 3us;
  return p;
}

TEST(ProfileFolder, WritesATraceOnce) {
  const ProfileRoot root;
  const fs::path path = new_trace_path(root.path(), "", "", "x").value();
  ASSERT_TRUE(write_trace_file(path, sample_profile(), "model").ok());
  struct stat file {};
  ASSERT_EQ(::stat(path.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0600u);
  EXPECT_THAT(new_trace_path(root.path(), "", "", "x").error().message(),
              HasSubstr("give another profile_id"));
  const boost::json::value trace = boost::json::parse(read_text(path));
  std::vector<std::string> lines;
  for (const auto& event : trace.at("traceEvents").as_array()) {
    if (event.at("ph").as_string() == "M") continue;
    std::string line(event.at("ph").as_string());
    line += " " + std::string(event.at("name").as_string());
    line += fmt::format(" {}", event.at("ts").to_number<double>());
    if (event.as_object().contains("dur"))
      line += fmt::format("+{}", event.at("dur").to_number<double>());
    lines.push_back(line);
    if (event.at("name").as_string() != "step") continue;
    EXPECT_EQ(event.at("args").at("draft_tokens").as_int64(), 7);
    EXPECT_EQ(event.at("args").at("accepted_draft_tokens").as_int64(), 3);
    EXPECT_EQ(event.at("args").at("graph").as_string(), "recorded");
  }
  EXPECT_THAT(lines, ::testing::ElementsAre(
                         "X turn 0+10", "X inbox 0+1", "X schedule 1+9", "X turn 10+20",
                         "X inbox 10+20", "X step 3+1.234", "b request 0", "b queue 0", "e queue 1",
                         "b prefill 1", "e prefill 5", "b decode 5", "e decode 9", "e request 9",
                         "b request 3", "b queue 3", "e queue 1000", "e request 1000"));
  EXPECT_EQ(std::distance(fs::directory_iterator(root.path()), fs::directory_iterator()), 1);
}

TEST(ProfileFolder, AFailedWriteLeavesNothing) {
  const ProfileRoot root;
  int calls = 0;
  const Status status = write_trace(sample_profile(), "model", [&](std::string_view) -> Status {
    ++calls;
    return error(StatusCode::kUnavailable, "no space");
  });
  EXPECT_EQ(status.code(), StatusCode::kUnavailable);
  EXPECT_EQ(calls, 1);
  const fs::path gone = root.path() / "gone" / "x";
  EXPECT_FALSE(write_trace_file(gone, sample_profile(), "model").ok());
}

class ProfileRoutesTest : public ServerTest {
 protected:
  ProfileRoutesTest() { config_.telemetry.profile_dir = root_.path().string(); }
  const ProfileRoot root_;
};

TEST_F(ProfileRoutesTest, RecordsAndWrites) {
  start();
  EXPECT_THAT(post("/stop_profile", "").body, HasSubstr("Profiling is not in progress."));
  Answer answer = post("/start_profile", R"({"profile_id":"one","activities":["CPU","GPU"],)"
                                         R"("num_steps":5,"with_stack":true})");
  EXPECT_EQ(answer.status, 200) << answer.body;
  EXPECT_EQ(answer.body, "Start profiling.\n");
  answer = post("/start_profile", "");
  EXPECT_EQ(answer.status, 400);
  EXPECT_THAT(answer.body, HasSubstr("Profiling is already in progress."));
  answer = post("/stop_profile", "{}");
  EXPECT_EQ(answer.status, 200);
  const fs::path path = fs::canonical(root_.path()) / "one-TP-0.trace.json";
  EXPECT_THAT(answer.body, HasSubstr(path.string()));
  EXPECT_TRUE(boost::json::parse(read_text(path)).is_object());
  EXPECT_EQ(post("/stop_profile", "").status, 400);
  EXPECT_EQ(post("/start_profile", "null").status, 200);
}

TEST_F(ProfileRoutesTest, RefusesWhatItCannotDo) {
  start();
  for (const auto& [body, part] : {
           std::pair(R"({"output_dir":"/etc"})", "inside --profile-dir alone"),
           {R"({"profile_id":"../x"})", "profile_id is"},
           {R"({"num_steps":0})", "num_steps is 0"},
           {R"({"num_steps":"x"})", "num_steps"},
           {R"({"start_step":-1})", "start_step is -1"},
           {R"({"activities":["MEM"]})", "activities has"},
           {R"({"profile_by_stage":true})", "profile_by_stage"},
           {R"([])", "object"},
           {"{", ""},
       }) {
    const Answer answer = post("/start_profile", body);
    EXPECT_EQ(answer.status, 400) << body << answer.body;
    EXPECT_THAT(answer.body, HasSubstr(part));
  }
  EXPECT_EQ(post("/stop_profile", "").status, 400) << "none has begun";
}

TEST_F(ProfileRoutesTest, WithoutAFolderThereAreNone) {
  config_.telemetry.profile_dir.clear();
  start();
  const Answer answer = post("/start_profile", "");
  EXPECT_EQ(answer.status, 501);
  EXPECT_THAT(answer.body, HasSubstr("--profile-dir"));
}

// A page makes a browser GET a picture of any address, and POST with its origin stated.
TEST_F(ProfileRoutesTest, WithoutAKeyForeignPagesMayNot) {
  start();
  for (const char* path : {"/start_profile", "/stop_profile"}) {
    EXPECT_EQ(call("GET", path).status, 403) << path;
    EXPECT_EQ(call("POST", path, "", {{"Origin", "https://evil.example"}}).status, 403) << path;
    EXPECT_EQ(call("POST", path, "", {{"Origin", "null"}}).status, 403) << path;
  }
  EXPECT_EQ(post("/start_profile", "").status, 200);
}

TEST_F(ProfileRoutesTest, WithAKeyTheAdministratorsOpensIt) {
  config_.access.api_key = "user";
  config_.access.admin_api_key = "admin";
  start();
  EXPECT_EQ(call("GET", "/start_profile").status, 401);
  EXPECT_EQ(call("POST", "/start_profile", "", {{"Authorization", "Bearer user"}}).status, 403);
  EXPECT_EQ(call("GET", "/start_profile", "", {{"Authorization", "Bearer admin"}}).status, 200);
  EXPECT_EQ(call("GET", "/stop_profile", "", {{"Authorization", "Bearer admin"}}).status, 200);
}

}  // namespace
}  // namespace espalier::server
