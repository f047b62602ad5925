#include "server/dialects/response_store.h"

#include <boost/json/serialize.hpp>

namespace espalier::server {
namespace {

// Parsed messages take a few times the bytes of their text.
int64_t bytes_of(const StoredResponse& response) {
  const auto text = static_cast<int64_t>(boost::json::serialize(response.messages).size());
  int64_t events = 0;
  for (const std::string& event : response.events) events += std::ssize(event) + 64;
  const auto metadata = static_cast<int64_t>(boost::json::serialize(response.metadata).size());
  return static_cast<int64_t>(response.body.size() + response.input.size() +
                              response.model.size()) +
         4 * (text + metadata) + events + 512;
}

}  // namespace

bool ResponseStore::put(const StoredKey& key, StoredResponse response, TimePoint now) {
  const int64_t bytes = bytes_of(response);
  std::lock_guard lock(mutex_);
  drop_expired(now);
  if (const auto known = by_key_.find(key); known != by_key_.end()) drop(known->second);
  MemoryCharge charge(account_);
  if (!make_room(charge, bytes)) return false;
  entries_.push_back({key, std::make_shared<const StoredResponse>(std::move(response)),
                      next_number_++, now, std::move(charge)});
  by_key_[key] = std::prev(entries_.end());
  return true;
}

std::shared_ptr<const StoredResponse> ResponseStore::get(const StoredKey& key, TimePoint now) {
  std::lock_guard lock(mutex_);
  drop_expired(now);
  const auto known = by_key_.find(key);
  if (known == by_key_.end()) return nullptr;
  known->second->used = now;
  entries_.splice(entries_.end(), entries_, known->second);
  return known->second->response;
}

bool ResponseStore::erase(const StoredKey& key) {
  std::lock_guard lock(mutex_);
  const auto known = by_key_.find(key);
  if (known == by_key_.end()) return false;
  drop(known->second);
  return true;
}

bool ResponseStore::change(const StoredKey& key, const std::function<void(StoredResponse&)>& edit) {
  std::lock_guard lock(mutex_);
  const auto known = by_key_.find(key);
  if (known == by_key_.end()) return false;
  StoredResponse whole = *known->second->response;
  edit(whole);
  const int64_t bytes = bytes_of(whole);
  MemoryCharge charge(account_);
  if (!make_room(charge, bytes)) return false;
  const auto left = by_key_.find(key);  // making room may have given it up
  if (left == by_key_.end()) return false;
  left->second->response = std::make_shared<const StoredResponse>(std::move(whole));
  left->second->charge = std::move(charge);
  return true;
}

std::vector<ResponseStore::Listed> ResponseStore::list(StoredKey::Kind kind, std::string_view owner,
                                                       TimePoint now) {
  std::map<uint64_t, Listed> in_order;
  {
    std::lock_guard lock(mutex_);
    drop_expired(now);
    for (auto it = by_key_.lower_bound({kind, std::string(owner), ""});
         it != by_key_.end() && it->first.kind == kind && it->first.owner == owner; ++it)
      in_order[it->second->number] = {it->first.id, it->second->response};
  }
  std::vector<Listed> all;
  for (auto& [number, listed] : in_order) all.push_back(std::move(listed));
  return all;
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
  by_key_.erase(entry->key);
  entries_.erase(entry);
}

void ResponseStore::drop_expired(TimePoint now) {
  while (!entries_.empty() && now - entries_.front().used > time_to_live_) drop(entries_.begin());
}

}  // namespace espalier::server
