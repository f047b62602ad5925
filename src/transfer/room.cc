#include "transfer/room.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <utility>

namespace espalier::transfer {

namespace {

// What they take until they are sent.
int64_t bytes_of(const InputLogprobs& all) {
  size_t bytes = 0;
  for (const TokenLogprobs& one : all.logprobs)
    bytes += sizeof(one) + sizeof(one.top[0]) * (one.top.size() + one.wanted.size());
  return static_cast<int64_t>(bytes);
}

int64_t bytes_that_wait(const Room::Item& item) {
  if (const auto* const pages = std::get_if<Room::Pages>(&item)) return std::ssize(pages->bytes);
  const auto* const logprobs = std::get_if<InputLogprobs>(&item);
  return logprobs != nullptr ? bytes_of(*logprobs) : 0;
}

}  // namespace

Room::Room(const Prompt& prompt, MemoryCharge pages, MemoryCharge logprobs)
    : prompt_(prompt), charge_(std::move(pages)), logprob_charge_(std::move(logprobs)) {}

void Room::push(Item item) {
  num_bytes_ += bytes_that_wait(item);
  items_.push_back(std::move(item));
  changed_.notify_all();
}

void Room::fail_for_memory(const char* what) {
  is_ended_ = true;
  push(Failure{StatusCode::kResourceExhausted,
               fmt::format("the prefill server has no memory for more {} on their way: try again "
                           "later",
                           what)});
}

// Pages of forced tokens come on top of what was charged at first.
bool Room::reserve(uint64_t num_pages) {
  const auto bytes = static_cast<int64_t>(num_pages * prompt_.page_bytes);
  return bytes <= charge_.bytes() || charge_.resize(bytes);
}

void Room::add_pages(uint32_t first, uint32_t end, const FillPages& fill) {
  const std::lock_guard lock(mutex_);
  if (is_ended_ || is_closed_) return;
  const auto most = std::max<uint32_t>(
      1, static_cast<uint32_t>(kPagesFrameBytes / std::max<uint64_t>(prompt_.page_bytes, 1)));
  for (uint32_t at = std::max(first, first_wanted_); at < end;) {
    const uint32_t count = std::min(most, end - at);
    Pages pages{.first = at};
    bool fits = reserve(at + count);
    try {
      if (fits) pages.bytes.resize(count * prompt_.page_bytes);
    } catch (const std::bad_alloc&) {
      fits = false;
    }
    if (!fits) return fail_for_memory("pages");
    if (!fill(at, pages.bytes)) {
      is_ended_ = true;
      return push(
          Failure{StatusCode::kInternal, "the prefill server could not read the computed pages"});
    }
    push(std::move(pages));
    at += count;
  }
}

void Room::add_staged(uint32_t first, std::unique_ptr<StagedPages> pages) {
  const std::lock_guard lock(mutex_);
  if (is_ended_ || is_closed_) return;
  const auto count = static_cast<uint32_t>(pages->num_pages());
  const uint32_t skipped = std::clamp(first_wanted_, first, first + count) - first;
  if (skipped < count) push(Staged{first, skipped, std::move(pages)});
}

uint32_t Room::first_wanted() const {
  const std::lock_guard lock(mutex_);
  return first_wanted_;
}

void Room::add_logprobs(InputLogprobs logprobs) {
  const std::lock_guard lock(mutex_);
  if (is_ended_ || is_closed_) return;
  if (!logprob_charge_.resize(logprob_charge_.bytes() + bytes_of(logprobs)))
    return fail_for_memory("log-probabilities");
  push(std::move(logprobs));
}

void Room::end(FirstToken first) {
  const std::lock_guard lock(mutex_);
  if (is_closed_ || std::exchange(is_ended_, true)) return;
  ended_at_ = SteadyClock().now();
  push(std::move(first));
}

TimePoint Room::ended_at() const {
  const std::lock_guard lock(mutex_);
  return ended_at_;
}

void Room::end(Status why) {
  const std::lock_guard lock(mutex_);
  if (is_closed_ || std::exchange(is_ended_, true)) return;
  items_.clear();  // pages without a first token are of no use
  num_bytes_ = 0;
  charge_.release();
  logprob_charge_.release();
  has_failed_ = true;
  push(Failure{why.code(), why.message()});
}

void Room::skip_pages(uint32_t num_cached) {
  const std::lock_guard lock(mutex_);
  first_wanted_ = num_cached;
  for (Item& item : items_) {
    if (auto* const staged = std::get_if<Staged>(&item); staged != nullptr)
      staged->num_skipped = std::max(num_cached, staged->first) - staged->first;
    auto* const pages = std::get_if<Pages>(&item);
    if (pages == nullptr || pages->first >= num_cached) continue;
    const size_t skipped =
        std::min<size_t>((num_cached - pages->first) * prompt_.page_bytes, pages->bytes.size());
    pages->bytes.erase(pages->bytes.begin(),
                       pages->bytes.begin() + static_cast<std::ptrdiff_t>(skipped));
    pages->first = num_cached;
    num_bytes_ -= static_cast<int64_t>(skipped);
  }
  std::erase_if(items_, [](const Item& item) {
    if (const auto* const staged = std::get_if<Staged>(&item))
      return staged->num_skipped >= static_cast<uint32_t>(staged->pages->num_pages());
    const auto* const pages = std::get_if<Pages>(&item);
    return pages != nullptr && pages->bytes.empty();
  });
}

std::optional<Room::Item> Room::next(Duration timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [&] { return !items_.empty() || is_closed_; });
  if (is_closed_)
    return Failure{StatusCode::kUnavailable,
                   "the prefill server closed the room: it is stopping, or the prompt waited too "
                   "long"};
  if (items_.empty()) return std::nullopt;
  Item item = std::move(items_.front());
  items_.pop_front();
  num_bytes_ -= bytes_that_wait(item);
  if (const auto* const logprobs = std::get_if<InputLogprobs>(&item))
    (void)logprob_charge_.resize(logprob_charge_.bytes() - bytes_of(*logprobs));
  return item;
}

void Room::close() {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  items_.clear();
  num_bytes_ = 0;
  charge_.release();
  logprob_charge_.release();
  changed_.notify_all();
}

bool Room::has_failed() const {
  const std::lock_guard lock(mutex_);
  return has_failed_;
}

int64_t Room::num_bytes() const {
  const std::lock_guard lock(mutex_);
  return num_bytes_;
}

RoomTable::RoomTable(int64_t bytes_max, Duration timeout, const Clock& clock)
    : timeout_(timeout),
      clock_(clock),
      account_(std::make_shared<MemoryAccount>("pages to be sent", bytes_max)),
      logprob_account_(
          std::make_shared<MemoryAccount>("log-probabilities to be sent", kLogprobBytesMax)) {}

Result<std::shared_ptr<Room>> RoomTable::open(const RoomKey& key, const Room::Prompt& prompt,
                                              uint64_t num_pages) {
  const std::lock_guard lock(mutex_);
  if (is_closed_)
    return fail(error(StatusCode::kUnavailable, "the server is stopping: try another one"));
  const auto found = rooms_.find(key);
  const bool is_free =
      found == rooms_.end() || (!found->second.is_joined && found->second.room->has_failed());
  if (!is_free)
    return fail(error(StatusCode::kAlreadyExists,
                      "bootstrap_room {} is in use by another request: draw a number of 63 bits "
                      "for each request",
                      key.room));
  MemoryCharge charge(account_);
  if (!charge.resize(static_cast<int64_t>(num_pages * prompt.page_bytes)))
    return fail(error(StatusCode::kResourceExhausted,
                      "{} pages are reserved for prompts that wait, are computed or are sent, and "
                      "{} more do not fit: try again later, or add prefill servers",
                      account_->used() / static_cast<int64_t>(prompt.page_bytes), num_pages));
  auto room = std::make_shared<Room>(prompt, std::move(charge), MemoryCharge(logprob_account_));
  rooms_.insert_or_assign(key, Entry{room, clock_.now() + timeout_});
  opened_.notify_all();
  return room;
}

std::shared_ptr<Room> RoomTable::join(const RoomKey& key, Duration timeout) {
  std::unique_lock lock(mutex_);
  const auto found = [&] {
    const auto it = rooms_.find(key);
    return is_closed_ || (it != rooms_.end() && !it->second.is_joined);
  };
  if (!opened_.wait_for(lock, timeout, found) || is_closed_) return nullptr;
  Entry& entry = rooms_.at(key);
  entry.is_joined = true;
  return entry.room;
}

void RoomTable::end_failed(const RoomKey& key, const std::shared_ptr<Room>& room,
                           const Status& why) {
  room->end(why);
  const std::lock_guard lock(mutex_);
  const auto it = rooms_.find(key);
  if (it == rooms_.end() || it->second.room != room || it->second.is_joined) return;
  it->second.deadline = std::min(it->second.deadline, clock_.now() + kFailureKept);
  failures_.emplace_back(key, room);
  while (failures_.size() > kFailuresMax) {
    const auto& [oldest, failed] = failures_.front();
    const auto at = rooms_.find(oldest);
    if (at != rooms_.end() && at->second.room == failed && !at->second.is_joined) rooms_.erase(at);
    failures_.pop_front();
  }
  removed_.notify_all();
}

void RoomTable::remove(const RoomKey& key, const std::shared_ptr<Room>& room) {
  room->close();
  const std::lock_guard lock(mutex_);
  const auto it = rooms_.find(key);
  if (it != rooms_.end() && it->second.room == room) rooms_.erase(it);
  removed_.notify_all();
}

void RoomTable::wait_empty(Duration timeout) const {
  // A failed one is kept for its reader, which may be gone; removed_ is not notified of it.
  constexpr Duration kLook = std::chrono::milliseconds(50);
  const auto is_empty = [&] {
    return std::ranges::all_of(rooms_, [](const auto& at) {
      return !at.second.is_joined && at.second.room->has_failed();
    });
  };
  std::unique_lock lock(mutex_);
  for (Duration left = timeout; left > Duration::zero() && !is_empty(); left -= kLook)
    removed_.wait_for(lock, std::min(left, kLook), is_empty);
}

int RoomTable::close_late() {
  const std::lock_guard lock(mutex_);
  const TimePoint now = clock_.now();
  int num_late = 0;
  const size_t num_closed = std::erase_if(rooms_, [&](const auto& at) {
    const bool is_late = !at.second.is_joined && now >= at.second.deadline;
    if (!is_late) return false;
    num_late += at.second.room->has_failed() ? 0 : 1;
    at.second.room->close();
    return true;
  });
  std::erase_if(failures_, [&](const auto& failure) {
    const auto at = rooms_.find(failure.first);
    return at == rooms_.end() || at->second.room != failure.second;
  });
  if (num_closed > 0) removed_.notify_all();
  return num_late;
}

void RoomTable::close_all() {
  const std::lock_guard lock(mutex_);
  is_closed_ = true;
  for (const auto& [key, entry] : rooms_) entry.room->close();
  rooms_.clear();
  failures_.clear();
  opened_.notify_all();
  removed_.notify_all();
}

size_t RoomTable::num_rooms() const {
  const std::lock_guard lock(mutex_);
  return rooms_.size();
}

}  // namespace espalier::transfer
