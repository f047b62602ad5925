#include "engine/requests/sessions.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <random>

#include "base/check.h"

namespace espalier {

namespace {

// Of a table's entry: its node, its share of the buckets, and the allocators' headers.
constexpr int64_t kEntryOverhead = 96;

constexpr double kTimeoutMax = 1e9;  // seconds

std::string make_id() {
  std::random_device device;  // session ids must not be predictable
  return fmt::format("{:08x}{:08x}{:08x}{:08x}", device(), device(), device(), device());
}

Status not_open(std::string_view id) {
  return invalid_argument(
      "session_id: session '{}' is not open: open it with /open_session first (it may have been "
      "closed, or "
      "have timed out)",
      id);
}

// A streaming session has one line of requests, and each appends to the last, as in SGLang.
Status check_appends(const SessionOptions& session, const SessionParams& params) {
  const char* field = nullptr;
  if (params.replace) {
    field = "replace";
  } else if (params.drop_previous_output) {
    field = "drop_previous_output";
  } else if (params.offset != 0) {
    field = "offset";
  }
  if (field == nullptr) return {};
  return invalid_argument(
      "session_params.{}: Streaming sessions do not support {}, and session '{}' is one: leave the "
      "field out, or open a session without streaming",
      field, field, session.id);
}

}  // namespace

Result<std::string> SessionTable::open(const SessionOptions& options) {
  if (options.capacity < 1)
    return fail(invalid_argument(
        "capacity_of_str_len is {}, but must be at least 1: the bytes of text that the session may "
        "hold",
        options.capacity));
  if (!(options.timeout_seconds >= 0 && options.timeout_seconds <= kTimeoutMax))
    return fail(invalid_argument("timeout is {}, but must be seconds from 0 (none) to {}",
                                 options.timeout_seconds, kTimeoutMax));
  std::lock_guard lock(mutex_);
  sweep();
  const std::string id = options.id.empty() ? make_id() : options.id;
  if (sessions_.contains(id))
    return fail(error(StatusCode::kAlreadyExists,
                      "session_id: session '{}' is open already: close it, or choose another id",
                      id));
  if (sessions_.size() >= config_.num_sessions_max)
    return fail(error(StatusCode::kResourceExhausted,
                      "{} sessions are open, which is as many as there may be: close some, or open "
                      "them with a timeout",
                      sessions_.size()));
  SessionOptions own = options;
  own.id = id;
  const int64_t num_bytes = memory_of(own);
  if (Status status = check_memory(num_bytes); !status.ok()) return fail(std::move(status));
  num_bytes_ += num_bytes;
  Session& session = sessions_[id];
  session.options = std::move(own);
  session.used = clock_.now();
  return id;
}

Status SessionTable::close(std::string_view id) {
  std::lock_guard lock(mutex_);
  const auto session = find(id);
  if (!session) return session.error();
  erase(std::string(id));
  return {};
}

Result<SessionTable::Session*> SessionTable::find(std::string_view id) {
  const auto it = sessions_.find(std::string(id));
  if (it == sessions_.end()) return fail(not_open(id));
  if (expired(it->second)) {
    erase(it->first);
    return fail(not_open(id));
  }
  return &it->second;
}

bool SessionTable::expired(const Session& session) const {
  return session.options.timeout_seconds > 0 && session.num_running == 0 &&
         to_seconds(clock_.now() - session.used) > session.options.timeout_seconds;
}

// Of one request after the other, from the first on.
std::vector<TokenId> SessionTable::tokens_of(RequestId request) const {
  std::vector<const Node*> path;
  for (; request != 0; request = path.back()->parent) path.push_back(&nodes_.at(request));
  std::vector<TokenId> tokens;
  for (auto node = path.rbegin(); node != path.rend(); ++node) {
    tokens.resize((*node)->num_kept);
    tokens.insert(tokens.end(), (*node)->ids.begin(), (*node)->ids.end());
  }
  return tokens;
}

Result<SessionTable::Base> SessionTable::base_of(const Session& session,
                                                 const SessionParams& params) const {
  if (session.options.streaming) ESP_RETURN_IF_ERROR(check_appends(session.options, params));
  Base base;
  if (!params.rid.empty()) {
    const auto it = session.by_rid.find(params.rid);
    if (it == session.by_rid.end())
      return fail(invalid_argument("session '{}' has no request '{}' to continue",
                                   session.options.id, params.rid));
    base.parent = it->second;
  } else if (session.options.streaming) {
    base.parent = session.last;
  }
  if (base.parent != 0) {
    const Node& parent = nodes_.at(base.parent);
    if (parent.running && !params.replace)
      return fail(error(StatusCode::kFailedPrecondition,
                        "request '{}' of session '{}' still runs: wait for its end, or replace it",
                        parent.rid, session.options.id));
    base.tokens = tokens_of(base.parent);
    if (params.drop_previous_output) base.tokens.resize(parent.num_kept + parent.num_input);
  }
  // As a slice in Python: 0 keeps all tokens, a negative offset counts from their end.
  const auto length = static_cast<int64_t>(base.tokens.size());
  if (params.offset > length)
    return fail(invalid_argument(
        "session_params.offset is {}, but the session has {} tokens: give 0 (all of them) to {}, "
        "or a negative offset that counts from their end",
        params.offset, length, length));
  const int64_t kept =
      params.offset < 0 ? std::max<int64_t>(0, length + params.offset) : params.offset;
  if (params.offset != 0) base.tokens.resize(static_cast<size_t>(kept));
  return base;
}

// What begins every text begins a conversation once.
void SessionTable::drop_leading(const Base& base, std::vector<TokenId>& ids) const {
  const std::vector<TokenId>& leading = config_.leading;
  if (base.parent == 0 || ids.size() < leading.size() ||
      !std::equal(leading.begin(), leading.end(), ids.begin()))
    return;
  ids.erase(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(leading.size()));
}

Result<std::vector<TokenId>> SessionTable::prompt(const SessionParams& params,
                                                  std::vector<TokenId> ids) {
  std::lock_guard lock(mutex_);
  ESP_ASSIGN_OR_RETURN(Session* const session, find(params.id));
  ESP_ASSIGN_OR_RETURN(Base base, base_of(*session, params));
  drop_leading(base, ids);
  base.tokens.insert(base.tokens.end(), ids.begin(), ids.end());
  return std::move(base.tokens);
}

Result<SessionTable::Started> SessionTable::start(const SessionParams& params,
                                                  const std::string& rid, RequestId request,
                                                  std::vector<TokenId> ids) {
  std::lock_guard lock(mutex_);
  ESP_ASSIGN_OR_RETURN(Session* const session, find(params.id));
  ESP_ASSIGN_OR_RETURN(Base base, base_of(*session, params));
  std::vector<RequestId> dropped;
  if (params.replace) dropped = subtrees(*session, base.parent);
  const auto found = session->by_rid.find(rid);
  if (found != session->by_rid.end() && std::ranges::count(dropped, found->second) == 0)
    return fail(invalid_argument("session '{}' has had a request '{}' before: choose another rid",
                                 session->options.id, rid));
  drop_leading(base, ids);
  int64_t num_bytes = session->num_bytes + bytes_of(ids);
  for (const RequestId request_dropped : dropped)
    num_bytes -= bytes_of(nodes_.at(request_dropped).ids);
  if (num_bytes > session->options.capacity)
    return fail(invalid_argument(
        "session '{}' would hold {} bytes of text, but was opened for {}: open one with a larger "
        "capacity_of_str_len, or replace earlier requests",
        session->options.id, num_bytes, session->options.capacity));

  Node node{.session = session->options.id,
            .rid = rid,
            .parent = base.parent,
            .num_kept = base.tokens.size(),
            .ids = std::move(ids)};
  node.num_input = node.ids.size();
  ESP_RETURN_IF_ERROR(check_memory(memory_of(node)));

  Started started;
  for (auto it = dropped.rbegin(); it != dropped.rend(); ++it) {
    if (nodes_.at(*it).running) {
      started.replaced.push_back(*it);
      --session->num_running;
    }
    remove(*session, *it);
  }
  if (params.replace && base.parent != 0 && nodes_.at(base.parent).running)
    started.replaced.push_back(base.parent);
  started.prompt_ids = std::move(base.tokens);
  started.prompt_ids.insert(started.prompt_ids.end(), node.ids.begin(), node.ids.end());
  if (base.parent != 0) nodes_.at(base.parent).children.push_back(request);
  session->num_bytes += bytes_of(node.ids);
  num_bytes_ += memory_of(node);
  nodes_.emplace(request, std::move(node));
  session->by_rid.emplace(rid, request);
  session->last = request;
  ++session->num_running;
  session->used = clock_.now();
  return started;
}

void SessionTable::append(RequestId request, TokenId token) {
  std::lock_guard lock(mutex_);
  const auto it = nodes_.find(request);
  if (it == nodes_.end() || !it->second.running) return;
  num_bytes_ -= memory_of(it->second);
  it->second.ids.push_back(token);
  num_bytes_ += memory_of(it->second);
  sessions_.at(it->second.session).num_bytes += bytes_of({&token, 1});
}

void SessionTable::finish(RequestId request, bool kept) {
  std::lock_guard lock(mutex_);
  const auto it = nodes_.find(request);
  if (it == nodes_.end() || !it->second.running) return;
  Session& session = sessions_.at(it->second.session);
  it->second.running = false;
  --session.num_running;
  session.used = clock_.now();
  if (kept || !it->second.children.empty()) return;
  const RequestId parent = it->second.parent;
  remove(session, request);
  if (session.last == 0) session.last = parent;
}

// All that continue `parent` (0: all there is), parents before their children.
std::vector<RequestId> SessionTable::subtrees(const Session& session, RequestId parent) const {
  std::vector<RequestId> order;
  if (parent != 0) order = nodes_.at(parent).children;
  for (const auto& [rid, request] : session.by_rid)
    if (parent == 0 && nodes_.at(request).parent == 0) order.push_back(request);
  for (size_t i = 0; i < order.size(); ++i) {
    const std::vector<RequestId>& children = nodes_.at(order[i]).children;
    order.insert(order.end(), children.begin(), children.end());
  }
  return order;
}

// A node without children.
void SessionTable::remove(Session& session, RequestId request) {
  const auto it = nodes_.find(request);
  Node& node = it->second;
  if (node.parent != 0) std::erase(nodes_.at(node.parent).children, request);
  session.num_bytes -= bytes_of(node.ids);
  num_bytes_ -= memory_of(node);
  session.by_rid.erase(node.rid);
  if (session.last == request) session.last = 0;
  nodes_.erase(it);
}

int64_t SessionTable::bytes_of(std::span<const TokenId> ids) const {
  int64_t sum = 0;
  for (const TokenId id : ids) {
    const auto index = static_cast<size_t>(id);  // a negative one is beyond all
    const size_t bytes = index < config_.token_bytes.size() ? config_.token_bytes[index].size() : 0;
    sum += std::max<int64_t>(1, static_cast<int64_t>(bytes));
  }
  return sum;
}

void SessionTable::erase(const std::string& id) {
  const auto it = sessions_.find(id);
  for (const auto& [rid, request] : it->second.by_rid) {
    const auto node = nodes_.find(request);
    num_bytes_ -= memory_of(node->second);
    nodes_.erase(node);
  }
  num_bytes_ -= memory_of(it->second.options);
  sessions_.erase(it);
}

void SessionTable::sweep() {
  std::vector<std::string> gone;
  for (const auto& [id, session] : sessions_)
    if (expired(session)) gone.push_back(id);
  for (const std::string& id : gone) erase(id);
}

Status SessionTable::check_memory(int64_t num_bytes) {
  if (num_bytes_ + num_bytes > config_.num_bytes_max) sweep();
  if (num_bytes_ + num_bytes <= config_.num_bytes_max) return {};
  return error(StatusCode::kResourceExhausted,
               "the open sessions hold {} bytes of memory, and {} are allowed "
               "(--max-session-bytes): close some, or open them with a timeout",
               num_bytes_, config_.num_bytes_max);
}

// With its entries in by_rid and in its parent's children.
int64_t SessionTable::memory_of(const Node& node) {
  return static_cast<int64_t>(sizeof(Node) + node.session.size() + 2 * node.rid.size() +
                              node.ids.capacity() * sizeof(TokenId) + sizeof(RequestId)) +
         2 * kEntryOverhead;
}

int64_t SessionTable::memory_of(const SessionOptions& options) {
  return static_cast<int64_t>(sizeof(Session) + 2 * options.id.size()) + kEntryOverhead;
}

int64_t SessionTable::num_bytes() const {
  std::lock_guard lock(mutex_);
  return num_bytes_;
}

int32_t SessionTable::num_open() {
  std::lock_guard lock(mutex_);
  sweep();
  return static_cast<int32_t>(sessions_.size());
}

void SessionTable::check_invariants() const {
  std::lock_guard lock(mutex_);
  size_t num_nodes = 0;
  int64_t memory = 0;
  for (const auto& [id, session] : sessions_) {
    int64_t num_bytes = 0;
    int32_t num_running = 0;
    memory += memory_of(session.options);
    for (const auto& [rid, request] : session.by_rid) {
      const Node& node = nodes_.at(request);
      ESP_CHECK(node.session == id && node.rid == rid && node.num_input <= node.ids.size());
      if (node.parent != 0)
        ESP_CHECK(std::ranges::count(nodes_.at(node.parent).children, request) == 1);
      for (const RequestId child : node.children) ESP_CHECK(nodes_.at(child).parent == request);
      num_bytes += bytes_of(node.ids);
      memory += memory_of(node);
      num_running += node.running ? 1 : 0;
    }
    ESP_CHECK(num_bytes == session.num_bytes && num_running == session.num_running);
    ESP_CHECK(session.last == 0 || nodes_.at(session.last).session == id);
    num_nodes += session.by_rid.size();
  }
  ESP_CHECK(num_nodes == nodes_.size(), "a session has left nodes behind");
  ESP_CHECK(memory == num_bytes_, "sessions take {} bytes, {} counted", memory, num_bytes_);
}

}  // namespace espalier
