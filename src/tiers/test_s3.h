// For tests: a store of S3's objects in this process, which takes requests that are signed rightly.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "net/http_server.h"
#include "tiers/remote_page_store.h"
#include "tiers/s3_session.h"

namespace espalier {

// On a free port of 127.0.0.1, with one bucket, "cache". Thread-safe.
class TestS3 {
 public:
  TestS3() {
    net::Router router;
    for (const char* method : {"GET", "PUT", "DELETE"})
      for (const char* pattern : {"/{bucket}", "/{bucket}/{key*}"})
        EXPECT_TRUE(router
                        .add(method, pattern,
                             [this](net::HttpRequest&& request, const net::ResponsePtr& response) {
                               response->send(answer(request));
                             })
                        .ok());
    auto started = net::HttpServer::start({}, std::move(router));
    EXPECT_TRUE(started) << started.error().to_string();
    http_ = std::move(*started);
  }

  int port() const { return http_->port(); }
  S3Server server() const {
    S3Server server;
    server.endpoint = "http://127.0.0.1:" + std::to_string(port());
    server.bucket = "cache";
    server.region = "eu-test-1";
    server.access_key_id = "TESTKEY";
    server.secret_access_key = "a/secret+of=tests";
    server.num_connections = 6;
    server.connect_timeout = std::chrono::seconds(30);
    return server;
  }
  // Every request of the method is refused from now on; 0: none.
  void refuse(const std::string& method, int status, const std::string& code = "") {
    const std::lock_guard lock(mutex_);
    refused_method_ = method;
    refused_status_ = status;
    refused_code_ = code;
  }
  std::map<std::string, std::string> objects() const {
    const std::lock_guard lock(mutex_);
    return objects_;
  }
  void set_object(const std::string& key, std::string bytes) {
    const std::lock_guard lock(mutex_);
    objects_[key] = std::move(bytes);
  }

 private:
  static net::HttpResponse problem(int status, const std::string& code) {
    return net::HttpResponse::text(status, "<Error><Code>" + code + "</Code></Error>");
  }
  bool is_signed(const net::HttpRequest& request) const {
    const std::string* const given = request.header("Authorization");
    const std::string* const hash = request.header("x-amz-content-sha256");
    const std::string* const time = request.header("x-amz-date");
    const std::string* const host = request.header("host");
    if (given == nullptr || hash == nullptr || time == nullptr || host == nullptr) return false;
    if (*hash != hex_sha256(request.body)) return false;
    SigV4Request as_sent{
        .method = request.method,
        .path = request.path,
        .query = request.query,
        .headers = {{"host", *host}, {"x-amz-content-sha256", *hash}, {"x-amz-date", *time}},
        .body_hash = *hash};
    if (const std::string* const token = request.header("x-amz-security-token"))
      as_sent.headers.emplace_back("x-amz-security-token", *token);
    const SigV4Key key{"TESTKEY", "a/secret+of=tests", "eu-test-1", "s3"};
    return *given == sigv4_authorization(key, std::move(as_sent), *time);
  }
  net::HttpResponse list(const net::HttpRequest& request) const {
    constexpr size_t kListed = 7;  // so that lists are cut
    const std::string prefix = request.query_param("prefix").value_or("");
    std::string xml = "<ListBucketResult>";
    size_t count = 0;
    for (auto at = objects_.lower_bound(prefix);
         at != objects_.end() && at->first.starts_with(prefix) && count < kListed; ++at, ++count)
      xml += "<Contents><Key>" + at->first + "</Key><Size>1</Size></Contents>";
    return net::HttpResponse::text(200, xml + "</ListBucketResult>");
  }
  net::HttpResponse answer(const net::HttpRequest& request) {
    const std::lock_guard lock(mutex_);
    if (!is_signed(request)) return problem(403, "SignatureDoesNotMatch");
    if (refused_status_ != 0 && request.method == refused_method_)
      return problem(refused_status_, refused_code_);
    if (request.param("bucket") != "cache") return problem(404, "NoSuchBucket");
    const std::string key(request.param("key"));
    if (key.empty()) return list(request);
    if (request.method == "PUT") {
      objects_[key] = request.body;
      return net::HttpResponse::text(200, "");
    }
    const auto found = objects_.find(key);
    if (request.method == "DELETE") {
      if (found != objects_.end()) objects_.erase(found);
      return {.status = 204, .headers = {}, .body = ""};
    }
    if (found == objects_.end()) return problem(404, "NoSuchKey");
    return net::HttpResponse::text(200, found->second);
  }

  mutable std::mutex mutex_;  // of what follows
  std::map<std::string, std::string> objects_;
  std::string refused_method_, refused_code_;
  int refused_status_ = 0;
  std::unique_ptr<net::HttpServer> http_;  // last: its threads use all of the above
};

inline std::unique_ptr<RemotePageStore> open_s3_store(RemotePageStoreConfig config,
                                                      const S3Server& server) {
  config.kind = "s3";
  auto store = RemotePageStore::open(config, [&]() -> Result<std::unique_ptr<RemoteSession>> {
    return S3Session::create(server, digest_of_scope(config.scope),
                             static_cast<size_t>(config.page_bytes + kSlotHeaderBytes),
                             static_cast<size_t>(server.num_connections) / 2);
  });
  EXPECT_TRUE(store) << store.error().to_string();
  return store ? std::move(*store) : nullptr;
}

}  // namespace espalier
