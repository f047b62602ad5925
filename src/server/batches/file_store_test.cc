// Files and batches on a real disk, in folders of their own.
#include "server/batches/file_store.h"

#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <fstream>

#include "server/batches/batch_store.h"

namespace espalier::server {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct FileStoreTest : ::testing::Test {
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / fmt::format("espalier_files_{}", ::getpid());
  std::unique_ptr<FileStore> files;

  void SetUp() override {
    std::filesystem::remove_all(folder);
    reopen();
  }
  void TearDown() override {
    files.reset();
    std::filesystem::remove_all(folder);
  }
  void reopen(int64_t max_bytes = 1000) {
    files.reset();
    auto opened = FileStore::open(folder, max_bytes);
    ASSERT_TRUE(opened) << opened.error().message();
    files = std::move(*opened);
  }
  std::string add(std::string name, std::string_view content) {
    auto kept = files->add({.filename = std::move(name), .purpose = "batch"}, content);
    EXPECT_TRUE(kept) << kept.error().message();
    return kept ? kept->id : "";
  }
  std::vector<std::string> names(const ListPage<FileRecord>& page) {
    std::vector<std::string> out;
    for (const FileRecord& record : page.records) out.push_back(record.filename);
    return out;
  }
};

TEST_F(FileStoreTest, KeepsAFileThroughARestartUntilItIsDeleted) {
  const std::string content("a\0b\n", 4);
  const std::string id = add("x.jsonl", content);
  reopen();
  const auto record = files->get(id);
  ASSERT_TRUE(record);
  EXPECT_EQ(record->filename, "x.jsonl");
  EXPECT_EQ(record->bytes, 4);
  const auto mapped = files->content(id);
  ASSERT_TRUE(mapped);
  EXPECT_TRUE(files->erase(id).ok());
  EXPECT_EQ(mapped->text(), content);  // who reads it goes on
  EXPECT_EQ(files->get(id).error().code(), StatusCode::kNotFound);
  EXPECT_EQ(files->erase(id).code(), StatusCode::kNotFound);
  EXPECT_TRUE(std::filesystem::is_empty(folder / "files"));
}

TEST_F(FileStoreTest, ListsPageByPageInBothOrders) {
  for (const char* name : {"a", "b", "c"}) add(name, "x");
  const auto newest = files->list("", {.limit = 2});
  ASSERT_TRUE(newest);
  EXPECT_THAT(names(*newest), ElementsAre("c", "b"));
  EXPECT_TRUE(newest->has_more);
  const auto rest = files->list("", {.after = newest->records[1].id, .limit = 2});
  EXPECT_THAT(names(*rest), ElementsAre("a"));
  EXPECT_FALSE(rest->has_more);
  EXPECT_THAT(names(*files->list("batch", {.ascending = true})), ElementsAre("a", "b", "c"));
  EXPECT_TRUE(files->list("vision", {})->records.empty());
  EXPECT_EQ(files->list("", {.after = "file-none"}).error().code(), StatusCode::kNotFound);
}

TEST_F(FileStoreTest, BoundsAllContentsTogether) {
  add("a", std::string(600, 'x'));
  const auto refused = files->add({.filename = "b", .purpose = "batch"}, std::string(500, 'x'));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.error().message(), HasSubstr("1000 bytes"));
  EXPECT_EQ(files->num_bytes(), 600);
  EXPECT_EQ(files->list("", {})->records.size(), 1u);
}

// A limit on the size of files stands for a full disk: the write fails part of the way.
TEST_F(FileStoreTest, AFullDiskKeepsNothingOfAFile) {
  reopen(1 << 30);
  add("a", "kept");
  rlimit before{};
  ::getrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{256 << 10, before.rlim_max};
  ::setrlimit(RLIMIT_FSIZE, &small);
  const auto refused = files->add({.filename = "b", .purpose = "batch"}, std::string(1 << 20, 'x'));
  ::setrlimit(RLIMIT_FSIZE, &before);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.error().message(), HasSubstr("full"));
  reopen(1 << 30);
  EXPECT_EQ(files->list("", {})->records.size(), 1u);
}

TEST_F(FileStoreTest, DeletesWhatHasExpiredAndContentsWithoutARecord) {
  const auto gone =
      files->add({.filename = "x", .purpose = "batch", .expires_at = unix_now() - 1}, "content");
  ASSERT_TRUE(gone);
  EXPECT_EQ(files->get(gone->id).error().code(), StatusCode::kNotFound);
  EXPECT_TRUE(files->list("", {})->records.empty());
  ASSERT_TRUE(files->delete_expired().ok());
  EXPECT_TRUE(std::filesystem::is_empty(folder / "files"));
  std::ofstream(folder / "files" / "file-of-a-killed-process") << "part of an upload";
  reopen();
  EXPECT_TRUE(std::filesystem::is_empty(folder / "files"));
}

TEST_F(FileStoreTest, OneServerUsesAFolder) {
  const auto second = FileStore::open(folder, 1000);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(second.error().message(), HasSubstr("another server"));
  EXPECT_FALSE(FileStore::open("/proc/none", 1000));
}

TEST_F(FileStoreTest, BatchesAndTheirResultsSurviveARestart) {
  auto batches = std::make_unique<BatchStore>(*files);
  Batch made{.status = "in_progress", .endpoint = "/v1/completions", .metadata = R"({"k":"v"})"};
  made.num_total = 3;
  const auto added = batches->add(made);
  ASSERT_TRUE(added);
  ASSERT_TRUE(batches->add_result(added->id, 2, false, R"({"c":3})").ok());
  ASSERT_TRUE(batches->add_result(added->id, 0, false, R"({"c":1})").ok());
  ASSERT_TRUE(batches->add_result(added->id, 1, true, R"({"c":2})").ok());
  batches.reset();
  reopen();
  batches = std::make_unique<BatchStore>(*files);
  const auto unfinished = batches->unfinished();
  ASSERT_TRUE(unfinished);
  ASSERT_EQ(unfinished->size(), 1u);
  Batch batch = unfinished->front();
  EXPECT_EQ(batch.num_completed, 2);
  EXPECT_EQ(batch.num_failed, 1);
  EXPECT_EQ(batch.metadata, R"({"k":"v"})");
  EXPECT_THAT(*batches->lines_done(batch.id), ElementsAre(0, 1, 2));
  batch.output_file_id = "file-out";
  batch.error_file_id = "file-err";
  batch.status = "completed";
  ASSERT_TRUE(batches->finish(batch).ok());
  EXPECT_EQ(files->content("file-out")->text(), "{\"c\":1}\n{\"c\":3}\n");
  EXPECT_EQ(files->content("file-err")->text(), "{\"c\":2}\n");
  EXPECT_TRUE(batches->unfinished()->empty());
  EXPECT_EQ(batches->get(batch.id)->num_completed, 2);
  EXPECT_TRUE(batches->lines_done(batch.id)->empty());
}

}  // namespace
}  // namespace espalier::server
