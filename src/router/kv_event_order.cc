#include "router/kv_event_order.h"

#include <utility>

namespace espalier::router {

void KvEventOrder::begin(TimePoint now) { ask(now); }

void KvEventOrder::ask(TimePoint now) {
  if (!sink_.replay || replay_began_) return;
  replay_began_ = now;
  sink_.replay(next_);
}

// A batch that is not the next one shows that those between are lost.
void KvEventOrder::take(uint64_t number, std::string_view batch) {
  if (number < next_) return;
  if (number > next_) {
    ++num_lost_;
    sink_.clear();
  }
  next_ = number + 1;
  sink_.apply(batch);
}

void KvEventOrder::on_live(uint64_t number, std::string batch, TimePoint now) {
  const bool is_old = newest_live_ ? number <= *newest_live_ : !replay_began_ && number < next_;
  if (is_old) {  // of another process, which begins with 0
    waiting_.clear();
    replay_began_.reset();
    next_ = 0;
    sink_.clear();
  }
  newest_live_ = number;
  if (number > next_) ask(now);
  if (!replay_began_) return take(number, batch);
  waiting_.push_back({number, std::move(batch)});
  if (waiting_.size() > kWaitingMax) on_replay_end();
}

void KvEventOrder::on_replayed(uint64_t number, std::string_view batch) {
  if (replay_began_) take(number, batch);
}

void KvEventOrder::on_replay_end() {
  if (!replay_began_) return;
  replay_began_.reset();
  for (const Waiting& waiting : std::exchange(waiting_, {})) take(waiting.number, waiting.batch);
}

void KvEventOrder::tick(TimePoint now) {
  if (replay_began_ && now - *replay_began_ >= kReplayTimeout) on_replay_end();
}

}  // namespace espalier::router
