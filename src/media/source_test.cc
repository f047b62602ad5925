#include "media/source.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/base64.h"

namespace espalier {
namespace {

using testing::HasSubstr;

Status error_of(std::string_view source, const MediaSourceLimits& limits = {}) {
  const auto bytes = read_media_source(source, limits);
  return bytes ? Status() : bytes.error();
}

TEST(MediaSource, DataUrlsAndBareDigits) {
  const std::string digits = encode_base64("picture");
  EXPECT_EQ(read_media_source("data:image/png;base64," + digits, {}).value(), "picture");
  EXPECT_EQ(read_media_source("data:;base64," + digits, {}).value(), "picture");
  EXPECT_EQ(read_media_source(digits, {}).value(), "picture");
}

TEST(MediaSource, RefusesWhatIsNoBase64) {
  for (const char* source : {"", "data:", "data:image/png,abc", "data:image/png;base64,",
                             "data:image/png;base64,a*b=", "no digits", "AAAAA"}) {
    EXPECT_EQ(error_of(source).code(), StatusCode::kInvalidArgument) << source;
  }
  // What a client sent comes back shortened.
  EXPECT_LT(error_of(std::string(100'000, '*')).message().size(), 300u);
}

TEST(MediaSource, LimitHoldsBeforeDecoding) {
  const std::string digits = encode_base64(std::string(100, 'x'));
  EXPECT_TRUE(error_of(digits, {.bytes_max = 100, .local_folder = {}}).ok());
  EXPECT_THAT(error_of(digits, {.bytes_max = 99, .local_folder = {}}).message(),
              HasSubstr("above the limit of 99 bytes"));
  EXPECT_THAT(error_of(digits, {.bytes_max = 1, .local_folder = {}}).message(),
              HasSubstr("above the limit of 1 bytes"));
}

TEST(MediaSource, NothingIsFetched) {
  for (const char* source : {"http://10.0.0.1/x.png", "https://example.com/x.png"}) {
    const Status status = error_of(source);
    EXPECT_EQ(status.code(), StatusCode::kUnimplemented);
    EXPECT_THAT(status.message(), HasSubstr("base64"));
  }
}

class LocalFiles : public testing::Test {
 protected:
  void SetUp() override {
    root_ = std::filesystem::temp_directory_path() /
            ("espalier_media_" + std::to_string(::getpid()) + "_" +
             testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::remove_all(root_);
    std::filesystem::create_directories(root_ / "open" / "below");
    write("open/below/cat.png", "a cat");
    write("secret.png", "a secret");
    std::filesystem::create_directories(root_ / "open2");
    write("open2/other.png", "elsewhere");
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void write(const std::string& name, const std::string& text) {
    std::ofstream(root_ / name) << text;
  }
  std::string url(const std::string& name) const { return "file://" + (root_ / name).string(); }
  MediaSourceLimits limits() const { return {.local_folder = root_ / "open"}; }

  std::filesystem::path root_;
};

TEST_F(LocalFiles, AreReadBelowTheFolder) {
  EXPECT_EQ(read_media_source(url("open/below/cat.png"), limits()).value(), "a cat");
  EXPECT_EQ(read_media_source(url("open/../open/below/cat.png"), limits()).value(), "a cat");
  MediaSourceLimits small = limits();
  small.bytes_max = 4;
  EXPECT_THAT(error_of(url("open/below/cat.png"), small).message(), HasSubstr("above the limit"));
}

TEST_F(LocalFiles, AreRefusedElsewhereAndWithoutAFolder) {
  EXPECT_THAT(error_of(url("open/below/cat.png")).message(),
              HasSubstr("--allowed-local-media-path"));
  std::filesystem::create_symlink(root_ / "secret.png", root_ / "open" / "link.png");
  for (const char* name : {"secret.png", "open/../secret.png", "open/link.png", "open/absent.png",
                           "open2/other.png", "open"}) {
    const Status status = error_of(url(name), limits());
    EXPECT_EQ(status.code(), StatusCode::kPermissionDenied) << name << ": " << status.message();
  }
}

TEST_F(LocalFiles, MustBeRegular) {
  EXPECT_EQ(error_of(url("open/below"), limits()).code(), StatusCode::kInvalidArgument);
  ASSERT_EQ(::mkfifo((root_ / "open" / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(error_of(url("open/pipe"), limits()).code(), StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace espalier
