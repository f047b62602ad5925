// Conversations that the engine remembers by their tokens: a request of a session brings only what
// is new, and continues what an earlier one of the session has read and said, token for token. So
// its prefix is exactly what the cache has; a session holds no pages itself.
//
// Each request of a session is a node of a tree: a root, or a child of the request that it
// continues.
#pragma once

#include <cstdint>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "engine/requests/registry.h"
#include "engine/requests/request.h"

namespace espalier {

// Thread-safe. Bounded: by the number of sessions, by the memory that all of them hold, and each by
// the capacity that it was opened with. A session that was idle for its timeout is gone when it is
// next requested, or counted.
class SessionTable {
 public:
  struct Config {
    size_t num_sessions_max = 4096;
    // Memory of all sessions, beyond which no session is opened and none continued. Requests that
    // run may exceed it by their output.
    int64_t num_bytes_max = int64_t{64} << 20;
    // A session's capacity counts the bytes of its tokens' texts; a token without any counts one.
    // Borrowed; may be empty.
    std::span<const std::string_view> token_bytes;
    // What the tokenizer puts before every text: dropped from what continues something.
    std::vector<TokenId> leading;
  };
  // `clock` outlives the table.
  SessionTable(Config config, const Clock& clock) : config_(std::move(config)), clock_(clock) {}

  // Returns the id (a new one where options.id is empty). kInvalidArgument for options out of
  // range, kAlreadyExists for an id that is open, kResourceExhausted when there are too many or
  // they hold too much memory.
  Result<std::string> open(const SessionOptions& options);
  // Running requests of it go on to their end. kInvalidArgument when it is not open.
  Status close(std::string_view id);

  // The whole prompt of a request with these parameters that brings `ids`.
  Result<std::vector<TokenId>> prompt(const SessionParams& params, std::vector<TokenId> ids);

  struct Started {
    std::vector<TokenId> prompt_ids;  // the history and what is new
    std::vector<RequestId> replaced;  // they run and are dropped: abort them
  };
  // A request of the session begins with `ids` as what is new. kInvalidArgument (unknown session or
  // rid, offset out of range, over capacity, a rid used before), kFailedPrecondition (what it would
  // continue runs still), kResourceExhausted (the sessions hold too much memory).
  Result<Started> start(const SessionParams& params, const std::string& rid, RequestId request,
                        std::vector<TokenId> ids);
  void append(RequestId request, TokenId token);  // an output token
  // Its end. Not `kept`: it was refused, and the session is as before. Unknown ones are no error.
  void finish(RequestId request, bool kept);

  int32_t num_open();
  int64_t num_bytes() const;  // of memory, of all sessions
  void check_invariants() const;

 private:
  struct Node {
    std::string session, rid;
    RequestId parent = 0;      // 0: none
    size_t num_kept = 0;       // of the parent's tokens
    std::vector<TokenId> ids;  // its own: what was new, then its output
    size_t num_input = 0;      // of ids
    std::vector<RequestId> children;
    bool running = true;
  };
  struct Session {
    SessionOptions options;
    std::unordered_map<std::string, RequestId> by_rid;
    RequestId last = 0;  // started; 0: none that is left
    int64_t num_bytes = 0;
    int32_t num_running = 0;
    TimePoint used{};
  };
  // What a request continues.
  struct Base {
    RequestId parent = 0;
    std::vector<TokenId> tokens;
  };

  Result<Session*> find(std::string_view id);
  Result<Base> base_of(const Session& session, const SessionParams& params) const;
  void drop_leading(const Base& base, std::vector<TokenId>& ids) const;
  std::vector<TokenId> tokens_of(RequestId request) const;
  int64_t bytes_of(std::span<const TokenId> ids) const;  // of text
  Status check_memory(int64_t num_bytes);                // that are to be added
  static int64_t memory_of(const Node& node);
  static int64_t memory_of(const SessionOptions& options);
  std::vector<RequestId> subtrees(const Session& session, RequestId parent) const;
  void remove(Session& session, RequestId request);
  bool expired(const Session& session) const;
  void erase(const std::string& id);
  void sweep();

  const Config config_;
  const Clock& clock_;
  mutable std::mutex mutex_;
  std::unordered_map<std::string, Session> sessions_;
  std::unordered_map<RequestId, Node> nodes_;  // of all sessions
  int64_t num_bytes_ = 0;                      // of memory
};

}  // namespace espalier
