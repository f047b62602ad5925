// Answers of /v1/responses that clients may fetch, continue and delete by their id.
//
// Thread-safe. Bytes are bounded by an account; where it is full the answers that were used least
// recently are given up. An answer that was not used for the time to live is gone.
#pragma once

#include <boost/json/array.hpp>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/clock.h"
#include "base/memory_account.h"

namespace espalier::server {

struct StoredResponse {
  std::string body;                 // the response object, as JSON
  std::string input;                // the request's input items, a JSON array
  boost::json::array messages;      // the conversation so far with the answer, as a chat has it
  bool background = false;          // it ran without its client
  std::vector<std::string> events;  // of its stream, where they are kept: by sequence number
};

class ResponseStore {
 public:
  ResponseStore(std::shared_ptr<MemoryAccount> account, Duration time_to_live)
      : account_(std::move(account)), time_to_live_(time_to_live) {}

  // False where it is too large to be kept at all. `now`: of the steady clock.
  bool put(const std::string& id, StoredResponse response, TimePoint now);
  // Null: there is none of this id, or no longer.
  std::shared_ptr<const StoredResponse> get(const std::string& id, TimePoint now);
  bool erase(const std::string& id);
  // Keeps the events of an answer that is there; without memory for them it stays without.
  void keep_events(const std::string& id, std::vector<std::string> events);

  // Memory of what becomes an answer. resize() gives up answers for it; false: in vain.
  MemoryCharge make_charge() const { return MemoryCharge(account_); }
  bool resize(MemoryCharge& charge, int64_t bytes);

 private:
  struct Entry {
    std::string id;
    std::shared_ptr<const StoredResponse> response;
    TimePoint used;
    MemoryCharge charge;
  };
  using Entries = std::list<Entry>;  // the least recently used first

  bool make_room(MemoryCharge& charge, int64_t bytes);
  void drop(Entries::iterator entry);
  void drop_expired(TimePoint now);

  const std::shared_ptr<MemoryAccount> account_;
  const Duration time_to_live_;
  std::mutex mutex_;
  Entries entries_;
  std::unordered_map<std::string, Entries::iterator> by_id_;
};

}  // namespace espalier::server
