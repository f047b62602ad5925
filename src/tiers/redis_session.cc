#include "tiers/redis_session.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace espalier {
namespace {

// Of each wait; deadlines of exchanges are shorter.
constexpr Duration kWaitMax = std::chrono::seconds(60);
// Names that one look-up sends at once, so that a prefix that is not there costs little.
constexpr size_t kLookUpBatch = 256;
// Bytes of commands that are collected before they are sent; larger values are sent from where they
// lie.
constexpr size_t kSendBytes = 64 << 10;

// Pages that are asked for, or sent, ahead of the replies on a connection: large ones fill the
// server's buffers for nothing. With pages of 1 MiB Redis 7.0 takes a third, and gives two thirds,
// of the rate when 16 are ahead (redis-benchmark -P).
constexpr size_t kAheadBytes = 256 << 10;
constexpr size_t kAheadMax = 64;
constexpr size_t kCommandsMin = 8;  // that are sent together, unless the connection would idle

size_t depth_of(size_t page_bytes) {
  return std::clamp(kAheadBytes / page_bytes, size_t{1}, kAheadMax);
}

template <typename Bytes>
std::string hex(const Bytes& bytes) {
  std::string text;
  for (const uint8_t byte : bytes) fmt::format_to(std::back_inserter(text), "{:02x}", byte);
  return text;
}

// What an operator can do about a refusal.
std::string_view advice_for(std::string_view error) {
  if (error.starts_with("NOAUTH") || error.starts_with("WRONGPASS") ||
      error.starts_with("ERR AUTH"))
    return ": give a user and password that the server knows";
  if (error.starts_with("NOPERM"))
    return ": the user needs get, set, exists, expire, unlink, scan, ping and select";
  if (error.starts_with("MOVED") || error.starts_with("CROSSSLOT"))
    return ": this is a cluster; give a server that is none, or a proxy of the cluster";
  if (error.starts_with("OOM")) return ": raise its maxmemory, or set maxmemory-policy allkeys-lru";
  if (error.starts_with("READONLY")) return ": this is a replica; give the primary's address";
  return "";
}

Status refused(std::string_view command, std::string_view error_text) {
  return error(StatusCode::kFailedPrecondition, "the Redis server refuses {} ({}){}", command,
               error_text.substr(0, 200), advice_for(error_text));
}

Status unexpected(std::string_view command) {
  return error(StatusCode::kDataLoss, "the answer to {} is none of Redis", command);
}

}  // namespace

Result<std::unique_ptr<RedisSession>> RedisSession::create(const RedisServer& server,
                                                           const ScopeDigest& scope) {
  std::unique_ptr<RedisSession> session(new RedisSession(server, scope));
  if (server.is_tls) {
    ESP_ASSIGN_OR_RETURN(session->target_.tls, net::read_client_tls(server.tls_files));
  }
  return session;
}

RedisSession::RedisSession(const RedisServer& server, const ScopeDigest& scope)
    : server_(server), key_begin_(server.key_prefix + hex(scope) + ":") {
  target_.host = server.host;
  target_.port = server.port;
  target_.connect_timeout = server.connect_timeout;
}

std::string RedisSession::key_of(const PageName& name) const {
  return key_begin_ + hex(name.bytes);
}

Status RedisSession::closed_on_failure(Status status) {
  out_.clear();
  if (!status.ok()) stream_.close();
  return status;
}

Status RedisSession::open() {
  stream_.set_deadline(SteadyClock().now() + server_.connect_timeout);
  ESP_RETURN_IF_ERROR(stream_.connect(target_));
  return closed_on_failure(greet());
}

Status RedisSession::greet() {
  if (!server_.password.empty()) {
    if (server_.user.empty()) {
      append_resp_command(out_, {"AUTH", server_.password});
    } else {
      append_resp_command(out_, {"AUTH", server_.user, server_.password});
    }
    ESP_RETURN_IF_ERROR(send());
    ESP_RETURN_IF_ERROR(expect_ok("AUTH"));
  }
  if (server_.database != 0) {
    append_resp_command(out_, {"SELECT", fmt::format("{}", server_.database)});
    ESP_RETURN_IF_ERROR(send());
    ESP_RETURN_IF_ERROR(expect_ok("SELECT"));
  }
  append_resp_command(out_, {"PING"});
  ESP_RETURN_IF_ERROR(send());
  return expect_ok("PING");
}

Status RedisSession::send() {
  const Status status = stream_.write_all(out_, kWaitMax);
  out_.clear();
  return status;
}

Result<RespLine> RedisSession::next_line() {
  while (true) {
    ESP_ASSIGN_OR_RETURN(const std::optional<RespLine> line, parse_resp_line(stream_.buffered()));
    if (line) {
      if (line->type == RespType::kError) error_ = line->text;
      RespLine found = *line;
      found.text = found.type == RespType::kError ? std::string_view(error_) : std::string_view();
      stream_.consume(found.size);
      return found;
    }
    ESP_ASSIGN_OR_RETURN(const bool more, stream_.read_more(kWaitMax));
    if (!more) return fail(Status(StatusCode::kUnavailable, "the server closed the connection"));
  }
}

Status RedisSession::expect_ok(std::string_view command) {
  ESP_ASSIGN_OR_RETURN(const RespLine line, next_line());
  if (line.type == RespType::kError) return refused(command, line.text);
  return line.type == RespType::kSimple ? Status() : unexpected(command);
}

Result<int64_t> RedisSession::next_number() {
  ESP_ASSIGN_OR_RETURN(const RespLine line, next_line());
  if (line.type == RespType::kError) return fail(refused("a command on keys", line.text));
  if (line.type != RespType::kNumber) return fail(unexpected("a command on keys"));
  return line.number;
}

Result<std::string> RedisSession::next_string() {
  constexpr int64_t kKeyMax = 1 << 16;
  ESP_ASSIGN_OR_RETURN(const RespLine line, next_line());
  if (line.type == RespType::kError) return fail(refused("SCAN", line.text));
  if (line.type != RespType::kString || line.number < 0 || line.number > kKeyMax)
    return fail(unexpected("SCAN"));
  std::string text(static_cast<size_t>(line.number) + 2, '\0');
  ESP_RETURN_IF_ERROR(stream_.read_exactly(text, kWaitMax));
  text.resize(text.size() - 2);
  return text;
}

Result<size_t> RedisSession::look_up(std::span<const PageName> names, TimePoint deadline) {
  stream_.set_deadline(deadline);
  const TimePoint now = SteadyClock().now();
  Result<size_t> count = count_leading(names, now + (deadline - now) / 2);
  if (!count) return fail(closed_on_failure(count.error()));
  return count;
}

// With a time to live the look-up renews it: what is looked up is about to be used.
// Names that are not asked for by `last_start` count as absent, so that a long prefix is no
// timeout.
Result<size_t> RedisSession::count_leading(std::span<const PageName> names, TimePoint last_start) {
  const std::string ttl = fmt::format("{}", server_.ttl_seconds);
  for (size_t first = 0; first < names.size(); first += kLookUpBatch) {
    if (first > 0 && SteadyClock().now() > last_start) return first;
    const auto batch = names.subspan(first, std::min(kLookUpBatch, names.size() - first));
    for (const PageName& name : batch) {
      if (server_.ttl_seconds > 0) {
        append_resp_command(out_, {"EXPIRE", key_of(name), ttl});
      } else {
        append_resp_command(out_, {"EXISTS", key_of(name)});
      }
    }
    ESP_RETURN_IF_ERROR(send());
    size_t num_leading = 0;
    for (size_t i = 0; i < batch.size(); ++i) {
      ESP_ASSIGN_OR_RETURN(const int64_t number, next_number());
      if (number == 1 && num_leading == i) ++num_leading;
    }
    if (num_leading < batch.size()) return first + num_leading;
  }
  return names.size();
}

Status RedisSession::read(std::span<const PageName> names, TimePoint deadline, Receiver& receiver) {
  stream_.set_deadline(deadline);
  return closed_on_failure(read_pages(names, receiver));
}

// Commands are ahead of replies by depth_of() pages. They are few bytes each, so that they never
// wait for the replies to be read.
Status RedisSession::read_pages(std::span<const PageName> names, Receiver& receiver) {
  size_t num_sent = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    const size_t until = std::min(names.size(), i + depth_of(receiver.page_bytes()));
    if (num_sent == i || until - num_sent >= kCommandsMin) {
      for (; num_sent < until; ++num_sent)
        append_resp_command(out_, {"GET", key_of(names[num_sent])});
      ESP_RETURN_IF_ERROR(send());
    }
    ESP_RETURN_IF_ERROR(read_page(receiver, i));
  }
  return {};
}

// A value that is too short is read and no page; one that is longer ends the connection.
Status RedisSession::read_page(Receiver& receiver, size_t index) {
  using Outcome = Receiver::Outcome;
  ESP_ASSIGN_OR_RETURN(const RespLine line, next_line());
  if (line.type == RespType::kError) return refused("GET", line.text);
  if (line.type != RespType::kString) return unexpected("GET");
  if (line.number < 0) {
    receiver.received(index, Outcome::kAbsent);
    return {};
  }
  const std::span<std::byte> buffer = receiver.buffer();
  const auto size = static_cast<size_t>(line.number);
  if (size > buffer.size())
    return error(StatusCode::kDataLoss,
                 "a value under a key of ours has {} bytes, but a page has {}: another program "
                 "uses the same key prefix",
                 size, buffer.size());
  const std::span<char> bytes(reinterpret_cast<char*>(buffer.data()), size);
  ESP_RETURN_IF_ERROR(stream_.read_exactly(bytes, kWaitMax));
  char end[2];
  ESP_RETURN_IF_ERROR(stream_.read_exactly(end, kWaitMax));
  if (end[0] != '\r' || end[1] != '\n') return unexpected("GET");
  receiver.received(index, size == buffer.size() ? Outcome::kFound : Outcome::kWrongSize);
  return {};
}

Status RedisSession::write(std::span<const SealedPage> pages, TimePoint deadline,
                           std::vector<bool>& taken, std::string& refusal) {
  stream_.set_deadline(deadline);
  return closed_on_failure(write_pages(pages, taken, refusal));
}

// Replies are a few bytes each: the server never waits for them to be read.
Status RedisSession::write_pages(std::span<const SealedPage> pages, std::vector<bool>& taken,
                                 std::string& refusal) {
  const std::string ttl = fmt::format("{}", server_.ttl_seconds);
  size_t num_sent = 0, num_answered = 0;
  for (const SealedPage& page : pages) {
    const std::string key = key_of(page.name);
    const bool expires = server_.ttl_seconds > 0;
    fmt::format_to(std::back_inserter(out_), "*{}\r\n$3\r\nSET\r\n${}\r\n{}\r\n${}\r\n",
                   expires ? 5 : 3, key.size(), key, page.bytes.size());
    const std::string_view value(reinterpret_cast<const char*>(page.bytes.data()),
                                 page.bytes.size());
    if (value.size() < kSendBytes) {
      out_ += value;
    } else {
      ESP_RETURN_IF_ERROR(send());
      ESP_RETURN_IF_ERROR(stream_.write_all(value, kWaitMax));
    }
    out_ += "\r\n";
    if (expires)
      fmt::format_to(std::back_inserter(out_), "$2\r\nEX\r\n${}\r\n{}\r\n", ttl.size(), ttl);
    if (++num_sent - num_answered < depth_of(page.bytes.size()) && num_sent < pages.size()) {
      if (out_.size() >= kSendBytes) ESP_RETURN_IF_ERROR(send());
      continue;
    }
    ESP_RETURN_IF_ERROR(send());
    for (; num_answered < num_sent; ++num_answered) {
      ESP_ASSIGN_OR_RETURN(const RespLine line, next_line());
      if (line.type == RespType::kError) {
        refusal = refused("SET", line.text).message();
      } else if (line.type != RespType::kSimple) {
        return unexpected("SET");
      }
      taken[num_answered] = line.type == RespType::kSimple;
    }
  }
  return {};
}

Status RedisSession::erase(std::span<const PageName> names, TimePoint deadline) {
  stream_.set_deadline(deadline);
  std::vector<std::string> keys;
  for (const PageName& name : names) keys.push_back(key_of(name));
  return closed_on_failure(erase_keys(keys));
}

Status RedisSession::erase_keys(std::span<const std::string> keys) {
  for (const std::string& key : keys) append_resp_command(out_, {"UNLINK", key});
  ESP_RETURN_IF_ERROR(send());
  for (size_t i = 0; i < keys.size(); ++i) {
    if (const Result<int64_t> number = next_number(); !number) return number.error();
  }
  return {};
}

Status RedisSession::clear(TimePoint deadline) {
  stream_.set_deadline(deadline);
  return closed_on_failure(clear_keys());
}

Status RedisSession::clear_keys() {
  constexpr int64_t kKeysAtOnceMax = 1 << 16;
  std::string cursor = "0";
  std::string pattern;
  for (const char c : key_begin_) {
    if (std::string_view("*?[]^\\").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  pattern += '*';
  do {
    append_resp_command(out_, {"SCAN", cursor, "MATCH", pattern, "COUNT", "1000"});
    ESP_RETURN_IF_ERROR(send());
    ESP_ASSIGN_OR_RETURN(const RespLine reply, next_line());
    if (reply.type == RespType::kError) return refused("SCAN", reply.text);
    if (reply.type != RespType::kArray || reply.number != 2) return unexpected("SCAN");
    ESP_ASSIGN_OR_RETURN(cursor, next_string());
    ESP_ASSIGN_OR_RETURN(const RespLine list, next_line());
    if (list.type != RespType::kArray || list.number < 0 || list.number > kKeysAtOnceMax)
      return unexpected("SCAN");
    std::vector<std::string> keys;
    for (int64_t i = 0; i < list.number; ++i) {
      ESP_ASSIGN_OR_RETURN(keys.emplace_back(), next_string());
    }
    ESP_RETURN_IF_ERROR(erase_keys(keys));
  } while (cursor != "0");
  return {};
}

}  // namespace espalier
