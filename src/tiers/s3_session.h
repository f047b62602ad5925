// Connections to a store of S3's objects (HTTP/1.1, over TCP or TLS). A page is an object: the
// header and bytes of a slot on disk (disk_format.h), under the key PREFIX SCOPE "/" NAME, the last
// two in hexadecimal digits. So pages of several models, layouts and tenants share a bucket.
//
// An object is a request of its own, so a session has several connections, each with one request on
// its way, and takes the answers in the order of the pages.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "net/client.h"
#include "tiers/disk_format.h"
#include "tiers/remote_session.h"
#include "tiers/s3_server.h"
#include "tiers/sigv4.h"

namespace espalier {

class S3Session final : public RemoteSession {
 public:
  // `page_bytes`: with the header; larger objects are no pages. REQUIRES S3Server::resolved().
  // kInvalidArgument where the endpoint or the file of certificates cannot be used.
  static Result<std::unique_ptr<S3Session>> create(const S3Server& server, const ScopeDigest& scope,
                                                   size_t page_bytes, size_t num_connections);

  Status open() override;
  void close() override;
  // A connection that the server has closed meanwhile is replaced by the next request.
  bool is_usable() const override { return is_open_; }
  void interrupt() override;
  Result<size_t> look_up(std::span<const PageName> names, TimePoint deadline) override;
  Status read(std::span<const PageName> names, TimePoint deadline, Receiver& receiver) override;
  Status write(std::span<const SealedPage> pages, TimePoint deadline, std::vector<bool>& taken,
               std::string& refusal) override;
  Status erase(std::span<const PageName> names, TimePoint deadline) override;
  Status clear(TimePoint deadline) override;

 private:
  using Answer = net::HttpResponse;
  // What is requested; the path is behind the bucket's.
  struct Request {
    std::string_view method;
    std::string path = "";
    std::string query = "";
    std::string_view body = {};
  };
  S3Session(const S3Server& server, const ScopeDigest& scope) : server_(server), scope_(scope) {}

  std::string path_of(const PageName& name) const;
  Status start(net::HttpClient& client, const Request& request, TimePoint deadline) const;
  Result<Answer> ask(const Request& request, TimePoint deadline);
  // Sends `count` requests, as many at a time as there are connections, and takes the answers in
  // their order.
  using MakeRequest = std::function<Request(size_t index)>;
  using TakeAnswer = std::function<Status(size_t index, const Answer& answer)>;
  Status ask_all(size_t count, const MakeRequest& make, TimePoint deadline, const TakeAnswer& take);
  Status closed_on_failure(Status status);
  Status erase_paths(std::span<const std::string> paths, TimePoint deadline);
  Status erase_all(TimePoint deadline);

  const S3Server server_;
  const ScopeDigest scope_;
  std::string bucket_path_;  // "/BUCKET"
  std::string host_;         // as the header has it
  bool signs_body_ = false;  // of requests without TLS
  std::vector<net::HttpClient> clients_;
  bool is_open_ = false;
};

}  // namespace espalier
