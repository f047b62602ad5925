// Files that are uploaded in parts: over real sockets, and the store alone on a real disk.
#include <gmock/gmock.h>
#include <unistd.h>

#include <boost/json.hpp>
#include <fstream>

#include "server/batches/upload_store.h"
#include "server/test_server.h"

namespace espalier::server {
namespace {

using ::testing::HasSubstr;

std::filesystem::path fresh_folder() {
  const auto folder =
      std::filesystem::temp_directory_path() / fmt::format("espalier_uploads_{}", ::getpid());
  std::filesystem::remove_all(folder);
  return folder;
}

size_t count_files(const std::filesystem::path& folder) {
  const auto begin = std::filesystem::directory_iterator(folder);
  return static_cast<size_t>(std::distance(begin, std::filesystem::directory_iterator()));
}

struct UploadsTest : ServerTest {
  const std::filesystem::path folder = fresh_folder();
  void SetUp() override {
    ServerTest::SetUp();
    config_.storage.storage_path = folder.string();
  }
  void TearDown() override {
    server_.reset();
    std::filesystem::remove_all(folder);
  }
  static net::Headers headers(const std::string& key) {
    return key.empty() ? net::Headers{} : net::Headers{{"Authorization", "Bearer " + key}};
  }
  Answer begin(int bytes, const std::string& more = "", const std::string& key = "") {
    return call("POST", "/v1/uploads",
                fmt::format(R"({{"bytes":{},"filename":"in.jsonl","purpose":"batch",)"
                            R"("mime_type":"text/jsonl"{}}})",
                            bytes, more),
                headers(key));
  }
  Answer send(const std::string& upload, std::string_view data, const std::string& key = "") {
    net::Headers all = headers(key);
    all.emplace_back("Content-Type", "multipart/form-data; boundary=XX");
    return call("POST", "/v1/uploads/" + upload + "/parts",
                fmt::format("--XX\r\nContent-Disposition: form-data; name=\"data\"; "
                            "filename=\"p\"\r\n\r\n{}\r\n--XX--",
                            data),
                all);
  }
  Answer complete(const std::string& upload, const std::vector<std::string>& parts,
                  const std::string& more = "", const std::string& key = "") {
    return call("POST", "/v1/uploads/" + upload + "/complete",
                fmt::format(R"({{"part_ids":["{}"]{}}})", fmt::join(parts, "\",\""), more),
                headers(key));
  }
  static std::string id_of(const Answer& answer) {
    EXPECT_EQ(answer.status, 200) << answer.body;
    return answer.status == 200 ? std::string(boost::json::parse(answer.body).at("id").as_string())
                                : "";
  }
};

constexpr const char* kMd5OfHello = "5d41402abc4b2a76b9719d911017c592";  // of "hello"

TEST_F(UploadsTest, PartsBecomeAFileInTheOrderOfTheCompletion) {
  start();
  const std::string upload =
      id_of(begin(5, R"(,"expires_after":{"anchor":"created_at","seconds":3600})"));
  const std::string end = id_of(send(upload, "llo")), head = id_of(send(upload, "he"));
  const std::string unused = id_of(send(upload, "sent twice"));
  EXPECT_EQ(count_files(folder / "uploads"), 3u);
  const Answer wrong = complete(upload, {end, head}, fmt::format(R"(,"md5":"{}")", kMd5OfHello));
  EXPECT_EQ(wrong.status, 400);
  EXPECT_THAT(wrong.body, HasSubstr("that of the parts in this order is"));
  const Answer done = complete(upload, {head, end}, R"(,"md5":"5D41402ABC4B2A76B9719D911017C592")");
  ASSERT_EQ(done.status, 200) << done.body;
  const boost::json::value got = boost::json::parse(done.body);
  EXPECT_EQ(got.at("status"), "completed");
  EXPECT_EQ(got.at("file").at("filename"), "in.jsonl");
  EXPECT_EQ(got.at("file").at("bytes"), 5);
  EXPECT_EQ(got.at("file").at("expires_at").as_int64() - got.at("file").at("created_at").as_int64(),
            3600);
  const std::string file(got.at("file").at("id").as_string());
  EXPECT_EQ(call("GET", "/v1/files/" + file + "/content").body, "hello");
  EXPECT_EQ(count_files(folder / "uploads"), 0u);
  EXPECT_THAT(send(upload, "more").body, HasSubstr("is completed"));
  EXPECT_THAT(complete(upload, {head, end}).body, HasSubstr("is completed"));
}

TEST_F(UploadsTest, WhatIsWrongWithThePartsIsNamed) {
  start();
  const std::string upload = id_of(begin(5)), other = id_of(begin(5));
  const std::string part = id_of(send(upload, "he"));
  EXPECT_THAT(complete(upload, {part}).body,
              HasSubstr("have 2 bytes, but the upload was made for 5"));
  EXPECT_THAT(complete(upload, {part, part}).body, HasSubstr("twice"));
  EXPECT_THAT(complete(other, {part}).body, HasSubstr("no part of this upload"));
  EXPECT_THAT(send(upload, "").body, HasSubstr("data is empty"));
  EXPECT_THAT(post("/v1/uploads/" + upload + "/parts", "x").body, HasSubstr("multipart/form-data"));
  EXPECT_THAT(post("/v1/uploads/" + upload + "/complete", "{}").body,
              HasSubstr("part_ids is missing"));
  EXPECT_THAT(begin(0).body, HasSubstr("bytes must be the length"));
  EXPECT_THAT(post("/v1/uploads", R"({"bytes":1,"filename":"f","purpose":"x"})").body,
              HasSubstr("purpose is 'x'"));
  EXPECT_THAT(post("/v1/uploads",
                   R"({"bytes":1,"purpose":"batch","filename":")" + std::string(2000, 'f') + "\"}")
                  .body,
              HasSubstr("filename has 2000 bytes; at most 1024 are kept"));
  EXPECT_EQ(send("upload_none", "x").status, 404);
}

TEST_F(UploadsTest, ACancelledUploadKeepsNothing) {
  start();
  const std::string upload = id_of(begin(5));
  const std::string part = id_of(send(upload, "hello"));
  const Answer cancelled = post("/v1/uploads/" + upload + "/cancel", "");
  EXPECT_EQ(boost::json::parse(cancelled.body).at("status"), "cancelled");
  EXPECT_EQ(count_files(folder / "uploads"), 0u);
  EXPECT_EQ(complete(upload, {part}).status, 400);
  EXPECT_EQ(post("/v1/uploads/" + upload + "/cancel", "").status, 400);
}

TEST_F(UploadsTest, PartsCountAsFilesDo) {
  config_.storage.max_storage_bytes = 1000;
  start();
  EXPECT_THAT(begin(1001).body, HasSubstr("--max-storage-bytes"));
  EXPECT_EQ(begin(1001).status, 400);  // whatever is deleted
  const std::string upload = id_of(begin(800));
  const std::string part = id_of(send(upload, std::string(800, 'x')));
  EXPECT_EQ(send(upload, std::string(201, 'y')).status, 503);
  EXPECT_THAT(begin(201).body, HasSubstr("--max-storage-bytes"));
  EXPECT_EQ(complete(upload, {part}).status, 200);  // not counted twice
  EXPECT_THAT(begin(201).body, HasSubstr("--max-storage-bytes"));
  id_of(begin(200));
}

TEST_F(UploadsTest, AKeySeesItsOwnAlone) {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / fmt::format("espalier_uploads_{}.json", ::getpid());
  std::ofstream(file) << R"([{"name":"one","key":"sk-1"},{"name":"two","key":"sk-2"}])";
  config_.access.api_keys_file = file.string();
  start();
  const std::string upload = id_of(begin(5, "", "sk-1"));
  const std::string part = id_of(send(upload, "hello", "sk-1"));
  EXPECT_EQ(send(upload, "hello", "sk-2").status, 404);
  EXPECT_EQ(complete(upload, {part}, "", "sk-2").status, 404);
  EXPECT_EQ(call("POST", "/v1/uploads/" + upload + "/cancel", "", headers("sk-2")).status, 404);
  const Answer done = complete(upload, {part}, "", "sk-1");
  const std::string made = boost::json::parse(done.body).at("file").at("id").as_string().c_str();
  EXPECT_EQ(call("GET", "/v1/files/" + made, "", headers("sk-1")).status, 200);
  EXPECT_EQ(call("GET", "/v1/files/" + made, "", headers("sk-2")).status, 404);
  std::filesystem::remove(file);
}

TEST_F(UploadsTest, AServerWithoutStorageRefusesThem) {
  config_.storage.storage_path.clear();
  start();
  EXPECT_EQ(begin(5).status, 400);
  EXPECT_THAT(begin(5).body, HasSubstr("--storage-path"));
}

struct UploadStoreTest : ::testing::Test {
  const std::filesystem::path folder = fresh_folder();
  std::unique_ptr<FileStore> files;
  std::unique_ptr<UploadStore> uploads;

  void SetUp() override { reopen(); }
  void TearDown() override {
    close();
    std::filesystem::remove_all(folder);
  }
  void close() {
    uploads.reset();
    files.reset();
  }
  void reopen() {
    close();
    auto opened = FileStore::open(folder, 1000);
    ASSERT_TRUE(opened) << opened.error().message();
    files = std::move(*opened);
    auto made = UploadStore::open(folder / "uploads", *files);
    ASSERT_TRUE(made) << made.error().message();
    uploads = std::move(*made);
  }
  Upload begin() {
    return uploads->create({.filename = "f", .purpose = "batch", .bytes = 5}).value();
  }
  void run(const std::string& statement) {
    ASSERT_TRUE(files->shared().database.run(statement).ok());
  }
};

TEST_F(UploadStoreTest, GoesOnAfterARestart) {
  const Upload upload = begin(), interrupted = begin(), ended = begin();
  const UploadPart head = uploads->add_part({}, upload.id, "he").value();
  const UploadPart whole = uploads->add_part({}, interrupted.id, "hello").value();
  run("UPDATE uploads SET status = 'completing' WHERE id = '" + interrupted.id + "'");
  ASSERT_TRUE(uploads->add_part({}, ended.id, "hello"));
  run("UPDATE uploads SET status = 'completed' WHERE id = '" + ended.id + "'");
  std::ofstream(folder / "uploads" / "part_unrecorded") << "x";
  reopen();
  EXPECT_EQ(count_files(folder / "uploads"), 2u);
  EXPECT_EQ(files->num_bytes(), 7);
  const UploadPart end = uploads->add_part({}, upload.id, "llo").value();
  const auto done = uploads->complete({}, upload.id, {head.id, end.id}, kMd5OfHello);
  ASSERT_TRUE(done) << done.error().message();
  EXPECT_EQ(files->content(done->file.id, OwnerFilter::everyone())->text(), "hello");
  EXPECT_TRUE(uploads->complete({}, interrupted.id, {whole.id}, ""));
}

TEST_F(UploadStoreTest, OneThatIsNotCompletedInTimeIsGivenUp) {
  const Upload upload = begin(), kept = begin();
  const UploadPart part = uploads->add_part({}, upload.id, "hello").value();
  EXPECT_EQ(upload.expires_at, upload.created_at + 3600);
  EXPECT_EQ(files->num_bytes(), 5);
  run("UPDATE uploads SET expires_at = 1000 WHERE id = '" + upload.id + "'");
  EXPECT_THAT(uploads->complete({}, upload.id, {part.id}, "").error().message(),
              HasSubstr("has expired"));
  ASSERT_TRUE(uploads->delete_expired().ok());
  EXPECT_EQ(files->num_bytes(), 0);
  EXPECT_EQ(count_files(folder / "uploads"), 0u);
  // It ended long ago by then, so that it is forgotten; the other one is still pending.
  EXPECT_EQ(uploads->cancel({}, upload.id).error().code(), StatusCode::kNotFound);
  EXPECT_TRUE(uploads->cancel({}, kept.id));
}

}  // namespace
}  // namespace espalier::server
