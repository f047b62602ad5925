#include "tiers/s3_session.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "tiers/test_pages.h"
#include "tiers/test_s3.h"

namespace espalier {
namespace {

TimePoint patience() { return SteadyClock().now() + std::chrono::seconds(30); }

std::string problem_of_open(const S3Server& server) {
  const auto session = S3Session::create(server, digest_of_scope("a scope"), 1000, 2);
  return session ? (*session)->open().message() : session.error().message();
}

// Variables of the environment that are put back at the end.
class Environment {
 public:
  explicit Environment(std::map<std::string, std::string> values) {
    for (const char* name :
         {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION",
          "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}) {
      const char* const before = std::getenv(name);
      if (before != nullptr) before_[name] = before;
      ::unsetenv(name);
      names_.emplace_back(name);
    }
    for (const auto& [name, value] : values) ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~Environment() {
    for (const std::string& name : names_) ::unsetenv(name.c_str());
    for (const auto& [name, value] : before_) ::setenv(name.c_str(), value.c_str(), 1);
  }

 private:
  std::vector<std::string> names_;
  std::map<std::string, std::string> before_;
};

TEST(S3Server, TakesWhatIsEmptyFromTheEnvironment) {
  const Environment environment({{"AWS_ACCESS_KEY_ID", "ID"},
                                 {"AWS_SECRET_ACCESS_KEY", "SECRET"},
                                 {"AWS_SESSION_TOKEN", "TOKEN"},
                                 {"AWS_DEFAULT_REGION", "eu-west-3"}});
  S3Server server;
  server.bucket = "cache";
  const S3Server whole = server.resolved().value();
  EXPECT_EQ(whole.access_key_id + whole.secret_access_key + whole.session_token, "IDSECRETTOKEN");
  EXPECT_EQ(whole.endpoint, "https://s3.eu-west-3.amazonaws.com");
  EXPECT_EQ(whole.shown_url(), "s3://cache/espalier/kv/ at https://s3.eu-west-3.amazonaws.com");
  server.access_key_id = "MINE";
  EXPECT_NE(server.resolved().error().message().find("access_key_id and secret_access_key"),
            std::string::npos)
      << "a key is not mixed with half of another";
  server.secret_access_key = "TOO";
  server.region = "moon";
  EXPECT_EQ(server.resolved().value().session_token, "");
  EXPECT_EQ(server.resolved().value().endpoint, "https://s3.moon.amazonaws.com");
  ::setenv("AWS_ENDPOINT_URL", "http://minio:9000", 1);
  EXPECT_EQ(server.resolved().value().endpoint, "http://minio:9000");
}

TEST(S3Server, NamesWhatIsWrong) {
  const Environment environment({});
  const auto problem = [](auto change) {
    S3Server server;
    server.bucket = "cache";
    server.access_key_id = "ID";
    server.secret_access_key = "hidden";
    change(server);
    const auto resolved = server.resolved();
    const std::string text = resolved ? "" : resolved.error().message();
    EXPECT_EQ(text.find("hidden"), std::string::npos);
    return text;
  };
  EXPECT_EQ(problem([](S3Server&) {}), "");
  EXPECT_NE(problem([](S3Server& s) { s.bucket = ""; }).find("bucket"), std::string::npos);
  EXPECT_NE(problem([](S3Server& s) { s.bucket = "a/b"; }).find("bucket"), std::string::npos);
  EXPECT_NE(problem([](S3Server& s) { s.key_prefix = "a b"; }).find("key_prefix"),
            std::string::npos);
  EXPECT_NE(problem([](S3Server& s) { s.access_key_id = ""; }).find("AWS_ACCESS_KEY_ID"),
            std::string::npos);
  EXPECT_NE(problem([](S3Server& s) { s.session_token = "a\r\nb"; }).find("session_token"),
            std::string::npos);
  for (const char* endpoint : {"minio:9000", "ftp://a", "http://a/b", "http://me:hidden@a"})
    EXPECT_NE(problem([&](S3Server& s) { s.endpoint = endpoint; }).find("endpoint"),
              std::string::npos)
        << endpoint;
}

TEST(S3Session, SignsWhatItSends) {
  TestS3 s3;
  EXPECT_EQ(problem_of_open(s3.server()), "");
  S3Server server = s3.server();
  server.session_token = "a-token";
  EXPECT_EQ(problem_of_open(server), "");
  server.secret_access_key += "x";
  EXPECT_NE(problem_of_open(server).find("the key may be wrong"), std::string::npos)
      << problem_of_open(server);
  server = s3.server();
  server.region = "moon";
  EXPECT_NE(problem_of_open(server).find("403"), std::string::npos);
  server = s3.server();
  server.bucket = "other";
  EXPECT_NE(problem_of_open(server).find("make the bucket"), std::string::npos)
      << problem_of_open(server);
}

TEST(S3Session, StoresReadsAndErases) {
  TestS3 s3;
  constexpr size_t kBytes = 100;
  const auto session =
      S3Session::create(s3.server(), digest_of_scope("a scope"), kBytes, 3).value();
  ASSERT_TRUE(session->open().ok());
  const std::vector<PageName> names = test_page_names(0, 20);
  const std::vector<std::byte> bytes(kBytes, std::byte{7});
  std::vector<SealedPage> pages;
  for (const PageName& name : names) pages.push_back({name, bytes});
  std::vector<bool> taken(20);
  std::string refusal;
  ASSERT_TRUE(session->write(pages, patience(), taken, refusal).ok());
  EXPECT_EQ(std::ranges::count(taken, true), 20);
  EXPECT_EQ(s3.objects().size(), 20u);
  const std::string first = s3.objects().begin()->first;
  EXPECT_TRUE(first.starts_with("espalier/kv/"));
  const std::string folder = first.substr(0, first.rfind('/') + 1);
  EXPECT_EQ(session->look_up(test_page_names(0, 30), patience()).value(), 20u);
  EXPECT_EQ(session->look_up(test_page_names(5, 3), patience()).value(), 3u);
  EXPECT_EQ(session->look_up(names, SteadyClock().now() - std::chrono::seconds(1)).error().code(),
            StatusCode::kDeadlineExceeded);
  EXPECT_FALSE(session->is_usable());
  ASSERT_TRUE(session->open().ok());
  ASSERT_TRUE(session->erase(test_page_names(3, 1), patience()).ok());
  ASSERT_TRUE(session->erase(test_page_names(3, 1), patience()).ok()) << "one that is absent";
  EXPECT_EQ(session->look_up(names, patience()).value(), 3u);
  s3.set_object("espalier/kv/another", "stays");
  ASSERT_TRUE(session->clear(patience()).ok());
  EXPECT_EQ(s3.objects().size(), 1u);
  s3.set_object(folder + "a b", "is no page");
  EXPECT_EQ(session->clear(patience()).code(), StatusCode::kDataLoss);
  EXPECT_EQ(s3.objects().size(), 2u);
  session->interrupt();
  EXPECT_EQ(session->look_up(names, patience()).error().code(), StatusCode::kAborted);
}

// A store that takes no pages is no failure; one that gives none is.
TEST(S3Session, StatesRefusals) {
  TestS3 s3;
  const auto session = S3Session::create(s3.server(), digest_of_scope("a scope"), 10, 2).value();
  ASSERT_TRUE(session->open().ok());
  const std::vector<std::byte> bytes(10);
  const SealedPage page{test_page_name(1), bytes};
  std::vector<bool> taken(1);
  std::string refusal;
  s3.refuse("PUT", 503, "SlowDown");
  ASSERT_TRUE(session->write({&page, 1}, patience(), taken, refusal).ok());
  EXPECT_FALSE(taken[0]);
  EXPECT_NE(refusal.find("503 SlowDown"), std::string::npos) << refusal;
  s3.refuse("HEAD", 403, "AccessDenied");
  EXPECT_NE(session->look_up({&page.name, 1}, patience()).error().message().find("403"),
            std::string::npos);
  EXPECT_FALSE(session->is_usable());
}

}  // namespace
}  // namespace espalier
