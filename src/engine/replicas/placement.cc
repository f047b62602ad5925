#include "engine/replicas/placement.h"

#include "engine/requests/registry.h"

namespace espalier {
namespace {

using Outcome = ReplicaChoice::Outcome;

Outcome outcome_of(const FinishReason& finish) {
  if (finish.status.code() == StatusCode::kInternal) return Outcome::kFailed;
  const bool is_answer =
      finish.type == FinishReason::Type::kStop || finish.type == FinishReason::Type::kLength;
  return is_answer ? Outcome::kAnswered : Outcome::kNeither;
}

// Text and ids of one prompt have different keys: a conversation is expected to keep to one form.
PrefixKey key_of(const GenerateRequest& request) {
  const uint64_t name_space = name_space_hash(request.lora + '\n' + request.extra_key);
  return request.input_ids.empty() ? text_key(request.text, name_space)
                                   : token_key(request.input_ids, name_space);
}

}  // namespace

int32_t ReplicaPlacement::replica_of_session(std::string_view id) const {
  return static_cast<int32_t>(name_space_hash(id) % static_cast<uint64_t>(choice_.num_replicas()));
}

int32_t ReplicaPlacement::stated_replica(const GenerateRequest& request) const {
  if (request.session) return replica_of_session(request.session->id);
  if (joined_.empty() || request.extra_key.empty()) return -1;
  const auto found = joined_.find(request.extra_key);
  return found == joined_.end() ? -1 : found->second;
}

Result<int32_t> ReplicaPlacement::place(const GenerateRequest& request, int32_t num_samples) {
  // The prompt is hashed before the lock is taken.
  const PrefixKey key =
      choice_.method() == LoadBalance::kCacheAware ? key_of(request) : PrefixKey();
  std::lock_guard lock(mutex_);
  if (in_flight_.contains(request.rid)) return fail(rid_in_use_error(request.rid));
  const int32_t stated = stated_replica(request);
  const int32_t replica = stated >= 0 ? stated : choice_.choose(key);
  choice_.begin(replica, key, num_samples);
  in_flight_.emplace(request.rid, InFlight{replica, num_samples});
  return replica;
}

void ReplicaPlacement::withdraw(const std::string& rid) {
  std::lock_guard lock(mutex_);
  const auto found = in_flight_.find(rid);
  choice_.end(found->second.replica, found->second.num_samples, Outcome::kNeither);
  in_flight_.erase(found);
}

void ReplicaPlacement::on_end(const std::string& rid, const FinishReason& finish) {
  std::lock_guard lock(mutex_);
  const auto found = in_flight_.find(rid);
  choice_.end(found->second.replica, 1, outcome_of(finish));
  if (--found->second.num_samples == 0) in_flight_.erase(found);
}

int32_t ReplicaPlacement::replica_of(std::string_view rid) const {
  std::lock_guard lock(mutex_);
  const auto found = in_flight_.find(std::string(rid));
  return found == in_flight_.end() ? -1 : found->second.replica;
}

int32_t ReplicaPlacement::choose_for_join(const JoinRequest& request) {
  const GenerateRequest like{.input_ids = request.prefix, .extra_key = request.extra_key};
  const PrefixKey key = key_of(like);
  std::lock_guard lock(mutex_);
  const int32_t stated = stated_replica(like);
  return stated >= 0 ? stated : choice_.choose(key);
}

void ReplicaPlacement::on_joined(int32_t replica, const JoinedPrompt& joined) {
  std::lock_guard lock(mutex_);
  if (!joined_.insert_or_assign(joined.extra_key, replica).second) return;
  joined_order_.push_back(joined.extra_key);
  if (joined_order_.size() <= kJoinsMax) return;
  joined_.erase(joined_order_.front());
  joined_order_.pop_front();
}

void ReplicaPlacement::forget_prefixes() {
  std::lock_guard lock(mutex_);
  choice_.forget_prefixes();
}

}  // namespace espalier
