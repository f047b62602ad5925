// /v1/files and /v1/batches over real sockets and a scripted engine; the runner alone through
// restarts, full queues and the end of its time.
#include "server/batches/batches.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <deque>
#include <fstream>
#include <map>
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
    config_.storage.storage_path = folder.string();
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
  config_.storage.storage_path.clear();
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

// Two tenants and an administrator.
struct OwnedBatchesTest : BatchesTest {
  const std::filesystem::path keys =
      std::filesystem::temp_directory_path() / fmt::format("espalier_batches_{}.json", ::getpid());
  void SetUp() override {
    BatchesTest::SetUp();
    write_keys(R"({"name":"one","key":"sk-1","requests_per_minute":6000,"max_priority":0})");
    config_.access.api_keys_file = keys.string();
    config_.access.admin_api_key = "sk-admin";
  }
  void TearDown() override {
    BatchesTest::TearDown();
    std::filesystem::remove(keys);
  }
  void write_keys(std::string_view one) const {
    std::ofstream(keys) << "[" << one << R"(,{"name":"two","key":"sk-2"}])";
  }
  Answer as(const std::string& key, std::string_view method, std::string_view path,
            std::string_view body = {}, std::string_view type = "application/json") {
    return call(method, path, body,
                {{"Authorization", "Bearer " + key}, {"Content-Type", std::string(type)}});
  }
  std::string upload_as(const std::string& key, std::string_view content) {
    const std::string body = fmt::format(
        "--XX\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--XX\r\n"
        "Content-Disposition: form-data; name=\"file\"; filename=\"in\"\r\n\r\n{}\r\n--XX--",
        content);
    return text(
        object(as(key, "POST", "/v1/files", body, "multipart/form-data; boundary=XX")).at("id"));
  }
  std::string body_for(const std::string& file) {
    return fmt::format(R"({{"input_file_id":"{}","endpoint":"/v1/chat/completions"}})", file);
  }
  json::object wait_as(const std::string& key, const std::string& batch, std::string_view status) {
    json::object got;
    for (int i = 0; i < 1000; ++i) {
      got = object(as(key, "GET", "/v1/batches/" + batch));
      if (text(got.at("status")) == status) return got;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ADD_FAILURE() << "never " << status << ": " << json::serialize(got);
    return got;
  }
  size_t count_as(const std::string& key, std::string_view path) {
    return object(as(key, "GET", path)).at("data").as_array().size();
  }
};

TEST_F(OwnedBatchesTest, AKeySeesItsOwnFilesAndBatchesAloneAndAnAdministratorAll) {
  start();
  const std::string file = upload_as("sk-1", line_of("a", kBody));
  const Answer stolen = as("sk-2", "POST", "/v1/batches", body_for(file));
  EXPECT_EQ(stolen.status, 404);
  EXPECT_THAT(stolen.body, HasSubstr("there is no file"));
  const std::string batch =
      text(object(as("sk-1", "POST", "/v1/batches", body_for(file))).at("id"));
  const json::object ended = wait_as("sk-1", batch, "completed");
  const std::string output = text(ended.at("output_file_id"));
  for (const std::string& path :
       {"/v1/files/" + file, "/v1/files/" + output, "/v1/files/" + output + "/content",
        "/v1/batches/" + batch, "/v1/files?after=" + file, "/v1/batches?after=" + batch}) {
    EXPECT_EQ(as("sk-1", "GET", path).status, 200) << path;
    EXPECT_EQ(as("sk-2", "GET", path).status, 404) << path;
    EXPECT_EQ(as("sk-admin", "GET", path).status, 200) << path;
  }
  for (const char* path : {"/v1/files", "/v1/batches"}) {
    EXPECT_GE(count_as("sk-1", path), 1u);
    EXPECT_EQ(count_as("sk-2", path), 0u);
    EXPECT_EQ(count_as("sk-admin", path), count_as("sk-1", path));
  }
  EXPECT_EQ(as("sk-2", "POST", "/v1/batches/" + batch + "/cancel").status, 404);
  EXPECT_EQ(as("sk-2", "DELETE", "/v1/files/" + file).status, 404);
  EXPECT_EQ(as("sk-1", "DELETE", "/v1/files/" + output).status, 200);
  EXPECT_EQ(as("sk-admin", "DELETE", "/v1/files/" + file).status, 200);
}

TEST_F(OwnedBatchesTest, LinesRunAsTheirTenantWithinItsCeiling) {
  start();
  const std::string file = upload_as(
      "sk-1", line_of("a", kBody) + "\n" +
                  line_of("b", R"({"messages":[{"role":"user","content":"x"}],"priority":3})"));
  const std::string batch =
      text(object(as("sk-1", "POST", "/v1/batches", body_for(file))).at("id"));
  const json::object ended = wait_as("sk-1", batch, "completed");
  ASSERT_EQ(engine_.submitted().size(), 1u);
  EXPECT_EQ(engine_.submitted().back().tenant, "one");
  EXPECT_EQ(engine_.submitted().back().extra_key, "one");
  EXPECT_THAT(as("sk-1", "GET", "/v1/files/" + text(ended.at("error_file_id")) + "/content").body,
              HasSubstr("the most that this key may state is 0"));
  const Answer next = as("sk-1", "POST", "/v1/completions", R"({"prompt":"x","max_tokens":2})");
  EXPECT_EQ(next.header("x-ratelimit-limit-requests"), "6000");
  EXPECT_THAT(call("GET", "/metrics").body, HasSubstr(R"(tenant="one"} 0)"));
}

TEST_F(OwnedBatchesTest, LinesBeyondTheLimitsWaitInsteadOfFailing) {
  write_keys(R"({"name":"one","key":"sk-1","requests_per_minute":120})");
  start();
  for (int i = 0; i < 118; ++i) as("sk-1", "POST", "/v1/completions", R"({"prompt":"x"})");
  std::string lines;
  for (int i = 0; i < 6; ++i) lines += line_of(fmt::format("{}", i), kBody) + "\n";
  const std::string batch =
      text(object(as("sk-1", "POST", "/v1/batches", body_for(upload_as("sk-1", lines)))).at("id"));
  const json::object ended = wait_as("sk-1", batch, "completed");
  EXPECT_EQ(json::serialize(ended.at("request_counts")), R"({"total":6,"completed":6,"failed":0})");
  EXPECT_THAT(call("GET", "/metrics").body, HasSubstr(R"(tenant="one"} 0)"));
}

TEST_F(OwnedBatchesTest, WithSharesALineWaitsForItsOwnTenantsClientsAlone) {
  engine_.set_fair_share("tenant");
  engine_.set_num_waiting(5);  // of whomever
  engine_.set_script({.hold = true});
  start();
  std::thread client([&] { as("sk-1", "POST", "/v1/completions", R"({"prompt":"x"})"); });
  ASSERT_TRUE(engine_.wait_for([&] { return engine_.num_running() == 1; }));
  engine_.set_script({});
  const auto create_as = [&](const std::string& key) {
    const std::string file = upload_as(key, line_of("a", kBody));
    return text(object(as(key, "POST", "/v1/batches", body_for(file))).at("id"));
  };
  const std::string first = create_as("sk-1"), second = create_as("sk-2");
  wait_as("sk-2", second, "completed");
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(engine_.submitted().size(), 2u) << "a line begins before its tenant's client";
  wait_as("sk-1", first, "in_progress");
  engine_.abort("", Engine::AbortScope::kAll);
  client.join();
  wait_as("sk-1", first, "completed");
}

TEST_F(OwnedBatchesTest, LinesOfATenantThatIsGoneFail) {
  engine_.set_script({.hold = true});
  start();
  const std::string file = upload_as("sk-1", line_of("a", kBody));
  const std::string batch =
      text(object(as("sk-1", "POST", "/v1/batches", body_for(file))).at("id"));
  ASSERT_TRUE(engine_.wait_for([&] { return engine_.num_running() > 0; }));
  server_.reset();
  engine_.set_script({});
  write_keys(R"({"name":"other","key":"sk-3"})");
  start();
  EXPECT_EQ(as("sk-3", "GET", "/v1/batches/" + batch).status, 404);
  const json::object ended = wait_as("sk-admin", batch, "completed");
  const std::string errors = text(ended.at("error_file_id"));
  EXPECT_THAT(as("sk-admin", "GET", "/v1/files/" + errors + "/content").body,
              HasSubstr("no such tenant any more"));
}

// The runner with calls that the test answers.
struct RunnerTest : ::testing::Test {
  const std::filesystem::path folder = fresh_folder("runner");
  std::unique_ptr<FileStore> files;
  std::unique_ptr<BatchStore> store;
  std::unique_ptr<BatchRunner> runner;
  std::atomic<bool> busy{false};
  std::atomic<int> num_calls{0};
  std::function<void(const LineCall&, const net::ResponsePtr&)> answer =
      [](const LineCall& line, const net::ResponsePtr& response) {
        response->send(net::HttpResponse::json(200, line.body));
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
        BatchTarget{
            .call =
                [this](const LineCall& line, const net::ResponsePtr& response) {
                  ++num_calls;
                  answer(line, response);
                },
            .is_busy =
                [this](const std::string& owner) { return busy.load() && owner != "in front"; }},
        settings);
    runner->start();
  }
  std::string add(int num_lines, int64_t seconds = 3600, const std::string& owner = "") {
    std::string lines;
    for (int i = 0; i < num_lines; ++i)
      lines += line_of(std::to_string(i), fmt::format(R"({{"line":{}}})", i)) + "\n";
    const auto file = files->add({.filename = "in", .purpose = "batch"}, lines);
    Batch batch{.owner = owner, .status = "validating", .endpoint = "/v1/chat/completions"};
    batch.input_file_id = file->id;
    batch.metadata = "null";
    batch.times["expires_at"] = unix_now() + seconds;
    const auto added = store->add(batch);
    EXPECT_TRUE(added);
    runner->add(added->id, owner);
    return added->id;
  }
  Batch wait_end(const std::string& id) {
    for (int i = 0; i < 2000; ++i) {
      const auto batch = store->get(id, OwnerFilter::everyone());
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
  EXPECT_EQ(store->get(id, OwnerFilter::everyone())->status, "in_progress");
  busy = false;
  EXPECT_EQ(wait_end(id).num_completed, 3);
}

TEST_F(RunnerTest, RunsAtMostSoManyLinesAtOnceAndStatesTheirPriority) {
  std::mutex mutex;
  std::vector<net::ResponsePtr> open_calls;
  std::set<std::string> bodies;
  answer = [&](const LineCall& line, const net::ResponsePtr& response) {
    std::lock_guard lock(mutex);
    bodies.insert(line.body);
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
  runner->add(id, "");
  busy = false;
  EXPECT_EQ(wait_end(id).num_completed, 3);
  EXPECT_EQ(num_calls, 3);
}

TEST_F(RunnerTest, AFullQueueIsTriedAgain) {
  answer = [&](const LineCall& line, const net::ResponsePtr& response) {
    response->send(net::HttpResponse::json(num_calls % 3 == 0 ? 200 : 503, line.body));
  };
  open();
  const Batch ended = wait_end(add(10));
  EXPECT_EQ(ended.num_completed, 10);
  EXPECT_EQ(ended.num_failed, 0);
}

TEST_F(RunnerTest, ALineBeyondItsOwnersLimitsWaitsAsLongAsTheAnswerSays) {
  std::atomic<bool> limited{true};
  answer = [&](const LineCall& line, const net::ResponsePtr& response) {
    net::HttpResponse refused = net::HttpResponse::json(429, "{}");
    refused.headers.emplace_back("Retry-After", "1");
    const bool refuses = line.owner == "small" && limited;
    response->send(refuses ? refused : net::HttpResponse::json(200, line.body));
  };
  open();
  const std::string small = add(2, 3600, "small");
  EXPECT_EQ(wait_end(add(5, 3600, "large")).num_completed, 5);
  const int calls_before = num_calls;
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_EQ(num_calls, calls_before);
  EXPECT_LE(calls_before, 7);
  limited = false;
  const Batch ended = wait_end(small);
  EXPECT_EQ(ended.num_completed, 2);
  EXPECT_EQ(ended.num_failed, 0);
  EXPECT_EQ(files->get(ended.output_file_id, OwnerFilter::everyone())->owner, "small");
}

TEST_F(RunnerTest, AnOwnerBeginsWhileTheClientsOfOthersWait) {
  busy = true;
  open();
  const std::string other = add(3);
  EXPECT_EQ(wait_end(add(3, 3600, "in front")).num_completed, 3);
  EXPECT_EQ(num_calls, 3);
  busy = false;
  EXPECT_EQ(wait_end(other).num_completed, 3);
}

// However many batches one owner has, another one's first line is among the next to begin.
TEST_F(RunnerTest, OwnersTakeTurnsWhateverTheNumberOfTheirBatches) {
  std::mutex mutex;
  std::deque<std::pair<std::string, net::ResponsePtr>> open_calls;
  answer = [&](const LineCall& line, const net::ResponsePtr& response) {
    std::lock_guard lock(mutex);
    open_calls.emplace_back(line.owner, response);
  };
  const auto next_owner = [&] {
    for (int i = 0; i < 2000; ++i) {
      {
        std::lock_guard lock(mutex);
        if (!open_calls.empty()) {
          const auto [owner, response] = open_calls.front();
          open_calls.pop_front();
          response->send(net::HttpResponse::json(200, "{}"));
          return owner;
        }
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return std::string("no line begins");
  };
  open();
  std::vector<std::string> ids;
  for (int i = 0; i < 20; ++i) ids.push_back(add(4, 3600, "many"));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(next_owner(), "many");
  ids.push_back(add(8, 3600, "one"));
  std::map<std::string, int> counts;
  for (int i = 0; i < 20; ++i) ++counts[next_owner()];
  EXPECT_EQ(counts["one"], 8) << "half of the calls behind those that had begun";
  for (int i = 0; i < 48; ++i) next_owner();
  for (const std::string& id : ids) EXPECT_EQ(wait_end(id).status, "completed");
}

TEST_F(RunnerTest, TheEndOfTheWindowFailsWhatHasNotRun) {
  answer = [](const LineCall&, const net::ResponsePtr& response) {
    response->send(net::HttpResponse::json(503, "{}"));
  };
  open();
  const Batch ended = wait_end(add(3, 1));
  EXPECT_EQ(ended.status, "expired");
  EXPECT_EQ(ended.num_failed, 3);
  EXPECT_THAT(std::string(files->content(ended.error_file_id, OwnerFilter::everyone())->text()),
              HasSubstr("batch_expired"));
}

// Servers that stop at any moment: in the end each line has one result, and no file is left over.
TEST_F(RunnerTest, StopsAtAnyMomentLoseAndRepeatNothing) {
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE(seed);
    Rng rng(seed);
    std::atomic<int> until_pause{0};
    answer = [&](const LineCall& line, const net::ResponsePtr& response) {
      const std::string& body = line.body;
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
      std::istringstream in(
          std::string(files->content(ended.output_file_id, OwnerFilter::everyone())->text()));
      int number = 0;
      for (std::string line; std::getline(in, line); ++number)
        EXPECT_EQ(json::parse(line).at("response").at("body").at("line"), number);
      EXPECT_EQ(number, expected);
    }
    EXPECT_EQ(files->list("", {.limit = 100}, OwnerFilter::everyone())->records.size(),
              2 * ids.size());
    close();
    std::filesystem::remove_all(folder);
  }
}

}  // namespace
}  // namespace espalier::server
