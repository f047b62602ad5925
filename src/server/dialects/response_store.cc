#include "server/dialects/response_store.h"

#include <boost/json/serialize.hpp>

namespace espalier::server {
namespace {

// Parsed messages take a few times the bytes of their text.
int64_t bytes_of(const StoredResponse& response) {
  const auto text = static_cast<int64_t>(boost::json::serialize(response.messages).size());
  int64_t events = 0;
  for (const std::string& event : response.events) events += std::ssize(event) + 64;
  return static_cast<int64_t>(response.body.size() + response.input.size()) + 4 * text + events +
         512;
}

}  // namespace

bool ResponseStore::put(const std::string& id, StoredResponse response, TimePoint now) {
  const int64_t bytes = bytes_of(response);
  std::lock_guard lock(mutex_);
  drop_expired(now);
  if (const auto known = by_id_.find(id); known != by_id_.end()) drop(known->second);
  MemoryCharge charge(account_);
  if (!make_room(charge, bytes)) return false;
  entries_.push_back(
      {id, std::make_shared<const StoredResponse>(std::move(response)), now, std::move(charge)});
  by_id_[id] = std::prev(entries_.end());
  return true;
}

std::shared_ptr<const StoredResponse> ResponseStore::get(const std::string& id, TimePoint now) {
  std::lock_guard lock(mutex_);
  drop_expired(now);
  const auto known = by_id_.find(id);
  if (known == by_id_.end()) return nullptr;
  known->second->used = now;
  entries_.splice(entries_.end(), entries_, known->second);
  return known->second->response;
}

bool ResponseStore::erase(const std::string& id) {
  std::lock_guard lock(mutex_);
  const auto known = by_id_.find(id);
  if (known == by_id_.end()) return false;
  drop(known->second);
  return true;
}

void ResponseStore::keep_events(const std::string& id, std::vector<std::string> events) {
  std::lock_guard lock(mutex_);
  const auto known = by_id_.find(id);
  if (known == by_id_.end()) return;
  StoredResponse whole = *known->second->response;
  whole.events = std::move(events);
  const int64_t bytes = bytes_of(whole);
  MemoryCharge charge(account_);
  if (!make_room(charge, bytes) || !by_id_.contains(id)) return;
  known->second->response = std::make_shared<const StoredResponse>(std::move(whole));
  known->second->charge = std::move(charge);
}

bool ResponseStore::resize(MemoryCharge& charge, int64_t bytes) {
  std::lock_guard lock(mutex_);
  return make_room(charge, bytes);
}

bool ResponseStore::make_room(MemoryCharge& charge, int64_t bytes) {
  if (bytes > account_->limit()) return false;
  while (!charge.resize(bytes)) {
    if (entries_.empty()) return false;
    drop(entries_.begin());
  }
  return true;
}

void ResponseStore::drop(Entries::iterator entry) {
  by_id_.erase(entry->id);
  entries_.erase(entry);
}

void ResponseStore::drop_expired(TimePoint now) {
  while (!entries_.empty() && now - entries_.front().used > time_to_live_) drop(entries_.begin());
}

}  // namespace espalier::server
