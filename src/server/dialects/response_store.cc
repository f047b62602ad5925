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
  if (!make_room(key.owner, charge, bytes)) return false;
  Owned& owned = by_owner_[key.owner];
  owned.entries.push_back({key, std::make_shared<const StoredResponse>(std::move(response)),
                           next_number_++, now, std::move(charge)});
  owned.bytes += bytes;
  by_key_[key] = std::prev(owned.entries.end());
  return true;
}

std::shared_ptr<const StoredResponse> ResponseStore::get(const StoredKey& key, TimePoint now) {
  std::lock_guard lock(mutex_);
  drop_expired(now);
  const auto known = by_key_.find(key);
  if (known == by_key_.end()) return nullptr;
  known->second->used = now;
  Entries& entries = by_owner_[key.owner].entries;
  entries.splice(entries.end(), entries, known->second);
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
  if (!make_room(key.owner, charge, bytes)) return false;
  const auto left = by_key_.find(key);  // making room may have given it up
  if (left == by_key_.end()) return false;
  left->second->response = std::make_shared<const StoredResponse>(std::move(whole));
  by_owner_[key.owner].bytes += bytes - left->second->charge.bytes();
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

bool ResponseStore::resize(const std::string& owner, MemoryCharge& charge, int64_t bytes) {
  std::lock_guard lock(mutex_);
  return make_room(owner, charge, bytes);
}

bool ResponseStore::make_room(const std::string& owner, MemoryCharge& charge, int64_t bytes) {
  if (bytes > account_->limit()) return false;
  while (!charge.resize(bytes)) {
    const Owned* most = nullptr;
    const auto own = by_owner_.find(owner);
    int64_t most_bytes = bytes + (own == by_owner_.end() ? 0 : own->second.bytes);
    if (own != by_owner_.end()) most = &own->second;
    for (const auto& [other, owned] : by_owner_) {
      if (other == owner || owned.bytes <= most_bytes) continue;
      most = &owned;
      most_bytes = owned.bytes;
    }
    if (most == nullptr) return false;
    drop(by_key_.at(most->entries.front().key));
  }
  return true;
}

void ResponseStore::drop(Entries::iterator entry) {
  const auto owned = by_owner_.find(entry->key.owner);
  owned->second.bytes -= entry->charge.bytes();
  by_key_.erase(entry->key);
  owned->second.entries.erase(entry);
  if (owned->second.entries.empty()) by_owner_.erase(owned);
}

void ResponseStore::drop_expired(TimePoint now) {
  for (auto next = by_owner_.begin(); next != by_owner_.end();) {
    Owned& owned = (next++)->second;  // dropping its last answer removes it
    for (size_t left = owned.entries.size();
         left > 0 && now - owned.entries.front().used > time_to_live_; --left)
      drop(owned.entries.begin());
  }
}

}  // namespace espalier::server
