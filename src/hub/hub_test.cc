#include "hub/hub.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>

#include "hub/cache.h"
#include "hub/checksum.h"
#include "hub/selection.h"
#include "hub/session.h"

namespace espalier::hub {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

namespace fs = std::filesystem;

const std::string kCommit(40, 'a');

class TempHub : public ::testing::Test {
 protected:
  TempHub() : path_(fs::temp_directory_path() / ("espalier_hub_" + std::to_string(::getpid()))) {
    fs::remove_all(path_);
  }
  ~TempHub() override { fs::remove_all(path_); }

  void put(const RepoCache& cache, const std::string& path, const std::string& etag,
           const std::string& content) {
    ASSERT_TRUE(cache.create().ok());
    std::ofstream(cache.blob(etag)) << content;
    ASSERT_TRUE(cache.link(kCommit, path, etag).ok());
  }

  const fs::path path_;
};

TEST(ReferenceTest, NamesOfTheHubAreRecognisedAndPathsAreNot) {
  const auto plain = HubReference::parse("meta-llama/Llama-3.2-1B");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->repo, "meta-llama/Llama-3.2-1B");
  EXPECT_EQ(plain->revision, "main");
  EXPECT_EQ(plain->file, "");
  EXPECT_EQ(HubReference::parse("org/name:Q4_K_M")->file, "Q4_K_M");
  EXPECT_EQ(HubReference::parse("org/name:sub/a.gguf")->file, "sub/a.gguf");
  for (const char* path : {"name", "/org/name", "./name", "../name", "a/b/c", "org/", "org/name:",
                           "org/na me", "org/a..b", "org/a--b", "-org/name", "org/name."})
    EXPECT_FALSE(HubReference::parse(path)) << path;
}

TEST(ChecksumTest, KnowsBothSumsOfAHub) {
  struct Case {
    const char* etag;
    bool matches;
  };
  for (const Case& c : {
           Case{"2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824", true},
           Case{"2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9825", false},
           Case{"b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0", true},  // git hash-object
           Case{"b6fc4c620b67d95f953a5c1c1230aaab5db5a1b1", false},
           Case{"something-else", true},
       }) {
    Checksum sum(c.etag, 5);
    sum.add("he");
    sum.add("llo");
    EXPECT_EQ(sum.matches(), c.matches) << c.etag;
  }
}

TEST(SelectionTest, TakesWhatAModelNeedsAndNoMore) {
  const auto chosen =
      select_files({"README.md", "config.json", "model.safetensors", "pytorch_model.bin",
                    "tokenizer.json", "tokenizer.model", "chat_template.jinja",
                    "original/params.json", "flax_model.msgpack", "pytorch_model.bin.index.json"},
                   "");
  ASSERT_TRUE(chosen) << chosen.error().message();
  EXPECT_THAT(chosen->small, ElementsAre("config.json", "tokenizer.json", "tokenizer.model",
                                         "chat_template.jinja"));
  EXPECT_THAT(chosen->weights, ElementsAre("model.safetensors"));
  EXPECT_FALSE(chosen->has_index());
}

TEST(SelectionTest, AnIndexNamesTheShards) {
  const auto chosen =
      select_files({"config.json", "model.safetensors.index.json", "x.safetensors"}, "");
  ASSERT_TRUE(chosen);
  EXPECT_TRUE(chosen->has_index());
  EXPECT_THAT(chosen->weights, IsEmpty());
  const auto shards =
      shards_of(R"({"weight_map":{"b":"2.safetensors","a":"1.safetensors","c":"1.safetensors"}})");
  ASSERT_TRUE(shards);
  EXPECT_THAT(*shards, ElementsAre("1.safetensors", "2.safetensors"));
  EXPECT_EQ(shards_of("[]").error().code(), StatusCode::kDataLoss);
  EXPECT_EQ(shards_of("{").error().code(), StatusCode::kDataLoss);
}

TEST(SelectionTest, AGgufIsChosenByNameOrQuantisation) {
  const std::vector<std::string> names = {"a-Q4_K_M.gguf",
                                          "a-Q4_K.gguf",
                                          "mmproj-a-F16.gguf",
                                          "a-Q8_0-00002-of-00002.gguf",
                                          "a-Q8_0-00001-of-00002.gguf",
                                          "a-IQ4_K.gguf",
                                          "README.md"};
  EXPECT_EQ(select_files(names, "q4_k_m")->gguf, "a-Q4_K_M.gguf");
  EXPECT_EQ(select_files(names, "Q4_K")->gguf, "a-Q4_K.gguf");
  EXPECT_EQ(select_files(names, "a-IQ4_K.gguf")->gguf, "a-IQ4_K.gguf");
  EXPECT_THAT(select_files(names, "Q8_0")->weights,
              ElementsAre("a-Q8_0-00001-of-00002.gguf", "a-Q8_0-00002-of-00002.gguf"));
  EXPECT_THAT(select_files(names, "").error().message(), HasSubstr("a-Q4_K_M.gguf, a-Q8_0.gguf"));
  EXPECT_THAT(select_files(names, "Q2_K").error().message(), HasSubstr("no GGUF 'Q2_K'"));
  EXPECT_EQ(select_files({"pytorch_model.bin", "config.json"}, "").error().code(),
            StatusCode::kNotFound);
}

TEST(UrlTest, EscapesWhatAPathMayNotHold) { EXPECT_EQ(url_path("a b/c#%.x"), "a%20b/c%23%25.x"); }

TEST_F(TempHub, TheCacheHasTheLayoutThatHuggingfaceHubKeeps) {
  const RepoCache cache(path_, "org/name");
  put(cache, "sub/config.json", "etag1", "{}");
  ASSERT_TRUE(cache.set_commit("refs/pr/1", kCommit).ok());
  EXPECT_EQ(fs::read_symlink(path_ / "models--org--name/snapshots" / kCommit / "sub/config.json"),
            "../../../blobs/etag1");
  EXPECT_EQ(cache.commit_of("refs/pr/1"), kCommit);
  EXPECT_EQ(cache.commit_of("main"), std::nullopt);
  EXPECT_EQ(cache.commit_of(kCommit), kCommit);
  EXPECT_THAT(cache.files(kCommit), ElementsAre("sub/config.json"));
  fs::remove(cache.blob("etag1"));
  EXPECT_THAT(cache.files(kCommit), IsEmpty());
}

TEST_F(TempHub, OfflineTheCacheServesAndSaysWhatItLacks) {
  const RepoCache cache(path_, "org/name");
  HubOptions options;
  options.cache = path_;
  options.offline = true;
  const HubReference reference = *HubReference::parse("org/name");
  EXPECT_THAT(fetch_model(reference, options).error().message(),
              AllOf(HasSubstr("holds nothing of org/name"), HasSubstr("HF_HUB_OFFLINE")));
  put(cache, "config.json", "etag1", "{}");
  put(cache, "model.safetensors.index.json", "etag2", R"({"weight_map":{"a":"1.safetensors"}})");
  ASSERT_TRUE(cache.set_commit("main", kCommit).ok());
  EXPECT_THAT(fetch_model(reference, options).error().message(), HasSubstr("no 1.safetensors"));
  put(cache, "1.safetensors", "etag3", "weights");
  EXPECT_EQ(fetch_model(reference, options).value(), cache.snapshot(kCommit));
  options.offline = false;  // a whole commit needs no hub
  options.endpoint = "http://127.0.0.1:9";
  EXPECT_TRUE(fetch_model({"org/name", kCommit, ""}, options));
}

TEST(EnvironmentTest, IsReadAsHuggingfaceHubReadsIt) {
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN",
                           "HUGGING_FACE_HUB_TOKEN", "HF_TOKEN_PATH", "TRANSFORMERS_OFFLINE"})
    ::unsetenv(name);
  ::setenv("HF_HOME", "/no/such/home", 1);
  ::setenv("HF_ENDPOINT", "http://mirror:8080/", 1);
  ::setenv("HF_HUB_OFFLINE", "1", 1);
  HubOptions options = HubOptions::from_environment();
  EXPECT_EQ(options.cache, "/no/such/home/hub");
  EXPECT_EQ(options.endpoint, "http://mirror:8080");
  EXPECT_TRUE(options.offline);
  EXPECT_EQ(options.token, "");
  ::setenv("HF_HUB_CACHE", "/elsewhere", 1);
  ::setenv("HF_TOKEN", "secret\n", 1);
  options = HubOptions::from_environment();
  EXPECT_EQ(options.cache, "/elsewhere");
  EXPECT_EQ(options.token, "secret");
}

}  // namespace
}  // namespace espalier::hub
