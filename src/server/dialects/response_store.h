// Answers of /v1/responses and /v1/chat/completions, and conversations, that clients may fetch,
// continue, change and delete by their id. Each belongs to the tenant whose key made it: no other
// finds it.
//
// Thread-safe. Bytes are bounded by an account. Where it is full, the owner that would hold the
// most gives up the answers that were used least recently, so that nobody loses answers to an owner
// that stores more. An answer that was not used for the time to live is gone.
#pragma once

#include <boost/json/array.hpp>
#include <boost/json/object.hpp>
#include <compare>
#include <cstdint>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/memory_account.h"

namespace espalier::server {

struct StoredKey {
  enum class Kind { kResponse, kChat, kConversation } kind = Kind::kResponse;
  std::string owner;  // the tenant's name; empty without --api-keys-file
  std::string id;
  auto operator<=>(const StoredKey&) const = default;
};

struct StoredResponse {
  std::string body;   // the response object, chat completion or conversation, as JSON
  std::string input;  // of a response: the request's input items, a JSON array
  // Of a response the conversation so far with the answer, as a chat has it; of a chat completion
  // the request's messages. Of a conversation its items, each with its id.
  boost::json::array messages;
  bool background = false;          // it ran without its client
  std::vector<std::string> events;  // of its stream, where they are kept: by sequence number
  std::string model = {};           // of a chat completion: lists filter by it
  // Of a chat completion and a conversation; `body` lacks it, for it may change.
  boost::json::object metadata = {};
};

class ResponseStore {
 public:
  ResponseStore(std::shared_ptr<MemoryAccount> account, Duration time_to_live)
      : account_(std::move(account)), time_to_live_(time_to_live) {}

  // False where it is too large to be kept beside what others hold. `now`: of the steady clock.
  bool put(const StoredKey& key, StoredResponse response, TimePoint now);
  // Null: there is none of this key, or no longer.
  std::shared_ptr<const StoredResponse> get(const StoredKey& key, TimePoint now);
  bool erase(const StoredKey& key);
  // Changes an answer that is there. Without memory for the change it stays as it was: false.
  bool change(const StoredKey& key, const std::function<void(StoredResponse&)>& edit);

  struct Listed {
    std::string id;
    std::shared_ptr<const StoredResponse> response;
  };
  // The answers of a kind and an owner, the oldest first. This is no use of them.
  std::vector<Listed> list(StoredKey::Kind kind, std::string_view owner, TimePoint now);

  // Memory of what becomes an answer of an owner. resize() gives up answers for it; false: in vain.
  MemoryCharge make_charge() const { return MemoryCharge(account_); }
  bool resize(const std::string& owner, MemoryCharge& charge, int64_t bytes);

 private:
  struct Entry {
    StoredKey key;
    std::shared_ptr<const StoredResponse> response;
    uint64_t number;  // in the order of creation
    TimePoint used;
    MemoryCharge charge;
  };
  using Entries = std::list<Entry>;
  struct Owned {
    Entries entries;  // the least recently used first
    int64_t bytes = 0;
  };

  bool make_room(const std::string& owner, MemoryCharge& charge, int64_t bytes);
  void drop(Entries::iterator entry);
  void drop_expired(TimePoint now);

  const std::shared_ptr<MemoryAccount> account_;
  const Duration time_to_live_;
  std::mutex mutex_;
  std::map<std::string, Owned> by_owner_;
  std::map<StoredKey, Entries::iterator> by_key_;
  uint64_t next_number_ = 0;
};

}  // namespace espalier::server
