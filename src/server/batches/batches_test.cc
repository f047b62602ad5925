// /v1/files and /v1/batches over real sockets and a scripted engine; the runner alone through
// restarts, full queues and the end of its time.
#include "server/batches/batches.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <set>

#include "base/rng.h"
#include "server/test_server.h"

namespace espalier::server {
namespace {

namespace json = boost::json;
using ::testing::HasSubstr;

std::filesystem::path fresh_folder(std::string_view name) {
  const auto folder = std::filesystem::temp_directory_path() /
                      fmt::format("espalier_batches_{}_{}", name, ::getpid());
  std::filesystem::remove_all(folder);
  return folder;
}

std::string line_of(std::string_view custom_id, std::string_view body) {
  return fmt::format(
      R"({{"custom_id":"{}","method":"POST","url":"/v1/chat/completions","body":{}}})", custom_id,
      body);
}

constexpr const char* kBody = R"({"messages":[{"role":"user","content":"x"}]})";

struct BatchesTest : ServerTest {
  const std::filesystem::path folder = fresh_folder("server");
  void SetUp() override {
    ServerTest::SetUp();
    config_.storage_path = folder.string();
  }
  void TearDown() override {
    server_.reset();
    std::filesystem::remove_all(folder);
  }

  Answer upload(std::string_view content, std::string_view purpose = "batch") {
    const std::string body = fmt::format(
        "--XX\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\n{}\r\n--XX\r\n"
        "Content-Disposition: form-data; name=\"file\"; filename=\"in.jsonl\"\r\n\r\n{}\r\n--XX--",
        purpose, content);
    return call("POST", "/v1/files", body, {{"Content-Type", "multipart/form-data; boundary=XX"}});
  }
  json::object object(const Answer& answer, int status = 200) {
    EXPECT_EQ(answer.status, status) << answer.body;
    return json::parse(answer.body).as_object();
  }
  std::string text(const json::value& value) { return {value.as_string().c_str()}; }
  // The id of a batch over these lines.
  std::string create(std::string_view lines) {
    const std::string file = text(object(upload(lines)).at("id"));
    return text(
        object(
            post(
                "/v1/batches",
                fmt::format(
                    R"({{"input_file_id":"{}","endpoint":"/v1/chat/completions","completion_window":"24h",)"
                    R"("metadata":{{"k":"v"}}}})",
                    file)))
            .at("id"));
  }
  json::object wait_for(const std::string& batch, std::string_view status) {
    json::object got;
    for (int i = 0; i < 1000; ++i) {
      got = object(call("GET", "/v1/batches/" + batch));
      if (text(got.at("status")) == status) return got;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ADD_FAILURE() << "never " << status << ": " << json::serialize(got);
    return got;
  }
  std::string content(const json::value& file) {
    return call("GET", "/v1/files/" + text(file) + "/content").body;
  }
};

TEST_F(BatchesTest, FilesAreUploadedListedReadAndDeleted) {
  start();
  const std::string large(3 << 20, 'x');
  const json::object file = object(upload(large, "user_data"));
  const std::string id = text(file.at("id"));
  EXPECT_EQ(file.at("object"), "file");
  EXPECT_EQ(file.at("filename"), "in.jsonl");
  EXPECT_EQ(file.at("bytes"), 3 << 20);
  EXPECT_EQ(content(id.c_str()), large);
  EXPECT_EQ(object(call("GET", "/v1/files/" + id)), file);
  const json::object list = object(call("GET", "/v1/files?purpose=user_data&limit=1&order=asc"));
  EXPECT_EQ(list.at("data").at(0), file);
  EXPECT_EQ(list.at("has_more"), false);
  EXPECT_EQ(object(call("DELETE", "/v1/files/" + id)).at("deleted"), true);
  EXPECT_EQ(call("GET", "/v1/files/" + id).status, 404);
  EXPECT_EQ(call("GET", "/v1/files/" + id + "/content").status, 404);
}

TEST_F(BatchesTest, WhatIsWrongWithAFileIsSaid) {
  start();
  EXPECT_THAT(post("/v1/files", "{}").body, HasSubstr("multipart/form-data"));
  EXPECT_THAT(upload("x", "music").body, HasSubstr("purpose is 'music'"));
  EXPECT_THAT(call("GET", "/v1/files?limit=0").body, HasSubstr("limit is '0'"));
  EXPECT_THAT(call("GET", "/v1/files?order=up").body, HasSubstr("order is 'up'"));
  EXPECT_EQ(call("GET", "/v1/files/none").status, 404);
  const Answer batch =
      post("/v1/batches", R"({"input_file_id":"none","endpoint":"/v1/responses"})");
  EXPECT_EQ(batch.status, 404);
  EXPECT_THAT(batch.body, HasSubstr("input_file_id"));
  EXPECT_THAT(post("/v1/batches", R"({"input_file_id":"f","endpoint":"/v1/none"})").body,
              HasSubstr("endpoint is"));
  EXPECT_THAT(post("/v1/batches",
                   R"({"input_file_id":"f","endpoint":"/generate","completion_window":"soon"})")
                  .body,
              HasSubstr("completion_window is"));
}

TEST_F(BatchesTest, AreRefusedWithoutAFolder) {
  config_.storage_path.clear();
  start();
  for (const char* path : {"/v1/files", "/v1/batches"}) {
    const Answer answer = call("GET", path);
    EXPECT_EQ(answer.status, 400);
    EXPECT_THAT(answer.body, HasSubstr("--storage-path"));
  }
}

TEST_F(BatchesTest, ABatchEndsWithItsResultsInTheOrderOfItsLines) {
  start();
  std::string lines;
  for (int i = 0; i < 40; ++i) lines += line_of(fmt::format("line {}", i), kBody) + "\n";
  lines += "\n" + line_of("bad", R"({"messages":[],"temperature":"hot"})");
  const json::object ended = wait_for(create(lines), "completed");
  EXPECT_EQ(json::serialize(ended.at("request_counts")),
            R"({"total":41,"completed":40,"failed":1})");
  EXPECT_EQ(ended.at("metadata").at("k"), "v");
  const std::string output = content(ended.at("output_file_id"));
  std::istringstream in(output);
  int number = 0;
  for (std::string line; std::getline(in, line); ++number) {
    const json::value record = json::parse(line);
    EXPECT_EQ(record.at("custom_id"), fmt::format("line {}", number).c_str());
    EXPECT_EQ(record.at("response").at("status_code"), 200);
    EXPECT_EQ(record.at("response").at("body").at("choices").at(0).at("message").at("content"),
              "Hi there.");
  }
  EXPECT_EQ(number, 40);
  const json::value bad = json::parse(content(ended.at("error_file_id")));
  EXPECT_EQ(bad.at("custom_id"), "bad");
  EXPECT_EQ(bad.at("response").at("status_code"), 400);
  const json::object list = object(call("GET", "/v1/batches?limit=1"));
  EXPECT_EQ(list.at("data").at(0), ended);
}

TEST_F(BatchesTest, AnInputWithAWrongLineIsRefusedWhole) {
  start();
  const json::object failed =
      wait_for(create(line_of("a", kBody) + "\nno json\n" + line_of("a", kBody) + "\n" +
                      line_of("b", R"({"stream":true})")),
               "failed");
  const json::array& errors = failed.at("errors").at("data").as_array();
  ASSERT_EQ(errors.size(), 3u);
  EXPECT_EQ(errors[0].at("line"), 2);
  EXPECT_EQ(errors[0].at("code"), "invalid_json_line");
  EXPECT_EQ(errors[1].at("code"), "duplicate_custom_id");
  EXPECT_EQ(errors[2].at("param"), "stream");
  EXPECT_TRUE(engine_.submitted().empty());
}

TEST_F(BatchesTest, ACancelledBatchKeepsWhatItHasAndFreesTheEngine) {
  engine_.set_script({.hold = true, .hold_after = 2});
  start();
  const std::string id = create(line_of("a", kBody) + "\n" + line_of("b", kBody));
  ASSERT_TRUE(engine_.wait_for([&] { return engine_.num_running() > 0; }));
  const json::object cancelling = object(post("/v1/batches/" + id + "/cancel", ""));
  EXPECT_EQ(cancelling.at("status"), "cancelling");
  const json::object ended = wait_for(id, "cancelled");
  EXPECT_TRUE(ended.at("output_file_id").is_null());
  EXPECT_TRUE(engine_.wait_for([&] { return engine_.num_running() == 0; }));
  const Answer again = post("/v1/batches/" + id + "/cancel", "");
  EXPECT_EQ(again.status, 400);
  EXPECT_THAT(again.body, HasSubstr("is cancelled"));
}

TEST_F(BatchesTest, ANewServerGoesOnWithABatch) {
  engine_.set_script({.hold = true});
  start();
  const std::string id = create(line_of("a", kBody) + "\n" + line_of("b", kBody));
  ASSERT_TRUE(engine_.wait_for([&] { return engine_.num_running() > 0; }));
  server_.reset();
  EXPECT_TRUE(engine_.wait_for([&] { return engine_.num_running() == 0; }));
  engine_.set_script({});
  start();
  const json::object ended = wait_for(id, "completed");
  EXPECT_EQ(ended.at("request_counts").at("completed"), 2);
}

// The runner with calls that the test answers.
struct RunnerTest : ::testing::Test {
  const std::filesystem::path folder = fresh_folder("runner");
  std::unique_ptr<FileStore> files;
  std::unique_ptr<BatchStore> store;
  std::unique_ptr<BatchRunner> runner;
  std::atomic<bool> busy{false};
  std::atomic<int> num_calls{0};
  std::function<void(const std::string& body, const net::ResponsePtr&)> answer =
      [](const std::string& body, const net::ResponsePtr& response) {
        response->send(net::HttpResponse::json(200, body));
      };

  void TearDown() override {
    close();
    std::filesystem::remove_all(folder);
  }
  void close() {
    runner.reset();
    store.reset();
    files.reset();
  }
  void open(BatchSettings settings = {.max_calls = 4, .retry = std::chrono::milliseconds(1)}) {
    close();
    auto opened = FileStore::open(folder, 1 << 30);
    ASSERT_TRUE(opened) << opened.error().message();
    files = std::move(*opened);
    store = std::make_unique<BatchStore>(*files);
    runner = std::make_unique<BatchRunner>(
        *files, *store,
        BatchTarget{.call =
                        [this](const std::string&, std::string body, net::ResponsePtr response) {
                          ++num_calls;
                          answer(body, response);
                        },
                    .is_busy = [this] { return busy.load(); }},
        settings);
    runner->start();
  }
  std::string add(int num_lines, int64_t seconds = 3600) {
    std::string lines;
    for (int i = 0; i < num_lines; ++i)
      lines += line_of(std::to_string(i), fmt::format(R"({{"line":{}}})", i)) + "\n";
    const auto file = files->add({.filename = "in", .purpose = "batch"}, lines);
    Batch batch{.status = "validating", .endpoint = "/v1/chat/completions"};
    batch.input_file_id = file->id;
    batch.metadata = "null";
    batch.times["expires_at"] = unix_now() + seconds;
    const auto added = store->add(batch);
    EXPECT_TRUE(added);
    runner->add(added->id);
    return added->id;
  }
  Batch wait_end(const std::string& id) {
    for (int i = 0; i < 2000; ++i) {
      const auto batch = store->get(id);
      if (batch && batch->ended()) return *batch;
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    ADD_FAILURE() << "batch " << id << " never ends";
    return {};
  }
};

TEST_F(RunnerTest, BeginsNoLineWhileRequestsOfClientsWait) {
  busy = true;
  open();
  const std::string id = add(3);
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_EQ(num_calls, 0);
  EXPECT_EQ(store->get(id)->status, "in_progress");
  busy = false;
  EXPECT_EQ(wait_end(id).num_completed, 3);
}

TEST_F(RunnerTest, RunsAtMostSoManyLinesAtOnceAndStatesTheirPriority) {
  std::mutex mutex;
  std::vector<net::ResponsePtr> open_calls;
  std::set<std::string> bodies;
  answer = [&](const std::string& body, const net::ResponsePtr& response) {
    std::lock_guard lock(mutex);
    bodies.insert(body);
    open_calls.push_back(response);
  };
  open({.max_calls = 2, .priority = -7, .retry = std::chrono::milliseconds(1)});
  const std::string id = add(5);
  for (int i = 0; i < 1000 && num_calls < 2; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(num_calls, 2);
  for (int done = 0; done < 5;) {
    std::vector<net::ResponsePtr> now;
    {
      std::lock_guard lock(mutex);
      now.swap(open_calls);
    }
    for (const auto& call : now) call->send(net::HttpResponse::json(200, "{}"));
    done += static_cast<int>(now.size());
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  EXPECT_EQ(wait_end(id).num_completed, 5);
  EXPECT_EQ(bodies.size(), 5u);
  EXPECT_THAT(*bodies.begin(), HasSubstr(R"("priority":-7)"));
}

// As a client's batch is that comes while a server starts.
TEST_F(RunnerTest, ABatchThatIsAddedTwiceRunsOnce) {
  busy = true;
  open();
  const std::string id = add(3);
  runner->add(id);
  busy = false;
  EXPECT_EQ(wait_end(id).num_completed, 3);
  EXPECT_EQ(num_calls, 3);
}

TEST_F(RunnerTest, AFullQueueIsTriedAgain) {
  answer = [&](const std::string& body, const net::ResponsePtr& response) {
    response->send(net::HttpResponse::json(num_calls % 3 == 0 ? 200 : 503, body));
  };
  open();
  const Batch ended = wait_end(add(10));
  EXPECT_EQ(ended.num_completed, 10);
  EXPECT_EQ(ended.num_failed, 0);
}

TEST_F(RunnerTest, TheEndOfTheWindowFailsWhatHasNotRun) {
  answer = [](const std::string&, const net::ResponsePtr& response) {
    response->send(net::HttpResponse::json(503, "{}"));
  };
  open();
  const Batch ended = wait_end(add(3, 1));
  EXPECT_EQ(ended.status, "expired");
  EXPECT_EQ(ended.num_failed, 3);
  EXPECT_THAT(std::string(files->content(ended.error_file_id)->text()), HasSubstr("batch_expired"));
}

// Servers that stop at any moment: in the end each line has one result, and no file is left over.
TEST_F(RunnerTest, StopsAtAnyMomentLoseAndRepeatNothing) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    std::atomic<int> until_pause{0};
    answer = [&](const std::string& body, const net::ResponsePtr& response) {
      if (until_pause-- > 0)
        response->send(net::HttpResponse::json(200, body));
      else
        response->post_after(std::chrono::milliseconds(2), [response, body] {
          response->send(net::HttpResponse::json(200, body));
        });
    };
    open();
    std::vector<std::string> ids{add(30), add(7)};
    for (int stops = 0; stops < 6; ++stops) {
      until_pause = static_cast<int>(rng.below(8));
      std::this_thread::sleep_for(std::chrono::microseconds(rng.below(12'000)));
      open();
    }
    until_pause = 1000;
    for (size_t i = 0; i < ids.size(); ++i) {
      const Batch ended = wait_end(ids[i]);
      const int expected = i == 0 ? 30 : 7;
      EXPECT_EQ(ended.status, "completed");
      EXPECT_EQ(ended.num_completed, expected);
      std::istringstream in(std::string(files->content(ended.output_file_id)->text()));
      int number = 0;
      for (std::string line; std::getline(in, line); ++number)
        EXPECT_EQ(json::parse(line).at("response").at("body").at("line"), number);
      EXPECT_EQ(number, expected);
    }
    EXPECT_EQ(files->list("", {.limit = 100})->records.size(), 2 * ids.size());
    close();
    std::filesystem::remove_all(folder);
  }
}

}  // namespace
}  // namespace espalier::server
