#include "server/dialects/background_responses.h"

#include <algorithm>
#include <future>
#include <utility>

namespace espalier::server {
namespace {

constexpr int64_t kRunBytes = 4 << 10;  // of a run without events
constexpr int64_t kEventBytes = 64;     // of an event besides its text

}  // namespace

BackgroundRun::BackgroundRun(StoredKey key, bool keeps_events, ResponseStore& store,
                             MemoryCharge charge, EndCallback end)
    : key_(std::move(key)),
      keeps_events_(keeps_events),
      store_(store),
      charge_(std::move(charge)),
      end_(std::move(end)) {}

void BackgroundRun::attach(std::weak_ptr<DetachedCall> call,
                           std::weak_ptr<BackgroundSource> source) {
  call_ = std::move(call);
  source_ = std::move(source);
}

// An event ends with a blank line, and holds none.
void BackgroundRun::on_bytes(std::string bytes) {
  if (!keeps_events_ || end_ == nullptr) return;
  for (std::string_view rest = bytes; !rest.empty();) {
    const size_t end = std::min(rest.find("\n\n"), rest.size() - 2) + 2;
    const std::string_view event = rest.substr(0, end);
    rest.remove_prefix(end);
    if (!events_lost_ &&
        !store_.resize(key_.owner, charge_, charge_.bytes() + std::ssize(event) + kEventBytes)) {
      events_lost_ = true;
      events_.clear();
    }
    if (!events_lost_) events_.emplace_back(event);
  }
  std::erase_if(clients_, [](const net::ResponsePtr& client) { return client->closed(); });
  for (const net::ResponsePtr& client : clients_) client->write(bytes);
}

void BackgroundRun::on_end(net::HttpResponse) { end(); }

void BackgroundRun::end() {
  if (end_ == nullptr) return;
  charge_.release();
  if (keeps_events_ && !events_lost_)
    store_.change(key_, [this](StoredResponse& stored) { stored.events = std::move(events_); });
  for (const net::ResponsePtr& client : clients_) client->finish();
  clients_.clear();
  std::exchange(end_, nullptr)(*this);
}

std::string BackgroundRun::snapshot() const {
  const auto source = source_.lock();
  return source != nullptr && end_ != nullptr ? source->snapshot() : "";
}

void BackgroundRun::cancel() {
  const auto source = source_.lock();
  if (source == nullptr || end_ == nullptr) return;
  source->store_cancelled();
  if (const auto call = call_.lock()) call->cancel();
  end();
}

bool BackgroundRun::subscribe(const net::ResponsePtr& client, size_t from) {
  if (!keeps_events_ || events_lost_) return false;
  client->start_stream(200, net::event_stream_headers());
  for (size_t i = from; i < events_.size(); ++i) client->write(events_[i]);
  clients_.push_back(client);
  return true;
}

BackgroundResponses::Prepared BackgroundResponses::prepare(const StoredKey& key, bool keeps_events,
                                                           int64_t request_bytes) {
  MemoryCharge charge = store_.make_charge();
  if (!store_.resize(key.owner, charge, kRunBytes + request_bytes)) return {};
  const auto forget = [this](const BackgroundRun& run) {
    std::lock_guard lock(mutex_);
    runs_.erase(run.key());
  };
  const auto run =
      std::make_shared<BackgroundRun>(key, keeps_events, store_, std::move(charge), forget);
  return {run, std::make_shared<DetachedCall>(thread_, run)};
}

void BackgroundResponses::add(const Prepared& prepared, std::weak_ptr<BackgroundSource> source) {
  prepared.run->attach(prepared.call, std::move(source));
  std::lock_guard lock(mutex_);
  runs_[prepared.run->key()] = prepared.run;
}

void BackgroundResponses::with(StoredKey key, std::function<void(BackgroundRun*)> task) {
  thread_->post([this, key = std::move(key), task = std::move(task)] {
    std::shared_ptr<BackgroundRun> run;
    {
      std::lock_guard lock(mutex_);
      if (const auto found = runs_.find(key); found != runs_.end()) run = found->second;
    }
    task(run.get());
  });
}

// The runs are cancelled while the thread still runs, since their ends run on it.
void BackgroundResponses::stop() {
  if (std::exchange(stopped_, true)) return;
  std::promise<void> cancelled;
  thread_->post([this, &cancelled] {
    std::vector<std::shared_ptr<BackgroundRun>> runs;
    {
      std::lock_guard lock(mutex_);
      for (const auto& [key, run] : runs_) runs.push_back(run);
    }
    for (const auto& run : runs) run->cancel();
    thread_->post([&cancelled] { cancelled.set_value(); });  // behind what the calls have posted
  });
  cancelled.get_future().wait();
  thread_->stop();
}

}  // namespace espalier::server
