// A connection to Redis or Valkey (RESP2, over TCP or TLS). A page is a string value: the header
// and bytes of a slot on disk (disk_format.h), under the key PREFIX SCOPE ":" NAME, the last two in
// hexadecimal digits. So pages of several models, layouts and tenants share a database.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "net/byte_stream.h"
#include "tiers/disk_format.h"
#include "tiers/redis_server.h"
#include "tiers/remote_session.h"
#include "tiers/resp.h"

namespace espalier {

class RedisSession final : public RemoteSession {
 public:
  // kInvalidArgument names the file of TLS that cannot be used.
  static Result<std::unique_ptr<RedisSession>> create(const RedisServer& server,
                                                      const ScopeDigest& scope);

  Status open() override;
  void close() override { stream_.close(); }
  bool is_usable() const override { return stream_.is_open() && !stream_.is_stale(); }
  void interrupt() override { stream_.interrupt(); }
  Result<size_t> look_up(std::span<const PageName> names, TimePoint deadline) override;
  Status read(std::span<const PageName> names, TimePoint deadline, Receiver& receiver) override;
  Status write(std::span<const SealedPage> pages, TimePoint deadline, std::vector<bool>& taken,
               std::string& refusal) override;
  Status erase(std::span<const PageName> names, TimePoint deadline) override;
  Status clear(TimePoint deadline) override;

 private:
  RedisSession(const RedisServer& server, const ScopeDigest& scope);
  std::string key_of(const PageName& name) const;
  Status greet();
  Result<size_t> count_leading(std::span<const PageName> names, TimePoint last_start);
  Status read_pages(std::span<const PageName> names, Receiver& receiver);
  Status read_page(Receiver& receiver, size_t index);
  Status write_pages(std::span<const SealedPage> pages, std::vector<bool>& taken,
                     std::string& refusal);
  Status erase_keys(std::span<const std::string> keys);
  Status clear_keys();
  Status closed_on_failure(Status status);
  Status send();
  Status expect_ok(std::string_view command);
  Result<RespLine> next_line();  // its text is valid until the next call
  Result<int64_t> next_number();
  Result<std::string> next_string();

  const RedisServer server_;
  const std::string key_begin_;  // of all keys: prefix and scope
  net::ByteStreamTarget target_;
  net::ByteStream stream_;
  std::string out_;    // commands that are not sent
  std::string error_;  // text of the last line that was an error
};

}  // namespace espalier
