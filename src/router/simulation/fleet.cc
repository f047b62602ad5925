#include "router/simulation/fleet.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <queue>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/rng.h"
#include "router/dispatcher.h"

namespace espalier::router {

namespace {

constexpr double kRetryAfterSeconds = 0.05;  // where no worker can take a request
constexpr int kRetriesMax = 200;

// Prompts are simulated in units, so a key's hash is mixed from units instead of bytes.
PrefixKey prompt_key(const std::vector<int32_t>& units) {
  PrefixKey key(units.size());
  uint64_t chain = 0;
  for (size_t i = 0; i < units.size(); ++i)
    key[i] = chain = mix64(chain ^ static_cast<uint32_t>(units[i]));
  return key;
}

class EventClock final : public Clock {
 public:
  TimePoint now() const override { return now_; }
  void set(TimePoint now) { now_ = now; }

 private:
  TimePoint now_{};
};

struct Event {
  enum class Kind : uint8_t {
    kArrival,   // a conversation begins
    kTurn,      // a request of a conversation is sent, or sent again
    kDelivery,  // a request reaches its worker
    kWorker,    // a worker's next change
    kDeath,
    kRestart,
    kSecond,  // health checks and samples
  };
  TimePoint at{};
  uint64_t number = 0;  // equal times in the order of their making
  Kind kind = Kind::kArrival;
  uint32_t index = 0;    // of a conversation, a request or a worker
  uint64_t version = 0;  // of a worker's next change: an earlier plan means nothing

  bool operator>(const Event& other) const {
    return at != other.at ? at > other.at : number > other.number;
  }
};

struct Conversation {
  uint64_t id = 0;
  uint32_t system = 0;
  size_t num_units = 0;  // behind the system prompt, that were sent and answered
  int32_t turns_left = 0;
  size_t user_units = 0, answer_units = 0;  // of the turn under way
  int retries = 0;
  std::vector<WorkerSlot> tried;  // that failed this turn
  TimePoint sent{};
};

// A request under way.
struct Flight {
  uint32_t conversation = 0;
  Lease lease;
  std::unique_ptr<SimRequest> request;  // until it is delivered
};

struct FleetWorker {
  explicit FleetWorker(const WorkerSpeed& speed) : worker(speed) {}
  SimWorker worker;
  uint64_t version = 0;  // of its plan
  bool is_up = true;
  bool has_died = false;
  double busy_before = 0, load_before = 0;  // when measuring began
};

// Objects by index; those that are done are used again.
template <typename T>
class Pool {
 public:
  uint32_t take() {
    if (free_.empty()) {
      items_.emplace_back();
      return static_cast<uint32_t>(items_.size() - 1);
    }
    const uint32_t index = free_.back();
    free_.pop_back();
    return index;
  }
  void give_back(uint32_t index) {
    items_[index] = T{};
    free_.push_back(index);
  }
  T& operator[](uint32_t index) { return items_[index]; }

 private:
  std::vector<T> items_;
  std::vector<uint32_t> free_;
};

class Fleet {
 public:
  explicit Fleet(const FleetOptions& options)
      : options_(options),
        rng_(options.seed),
        systems_(static_cast<size_t>(options.num_system_prompts)) {}

  Status begin();
  FleetResult run();

 private:
  using Kind = Event::Kind;

  void plan(Kind kind, double seconds, uint32_t index, uint64_t version = 0) {
    plan_at(kind, clock_.now() + Duration(static_cast<int64_t>(seconds * 1e9)), index, version);
  }
  void plan_at(Kind kind, TimePoint at, uint32_t index, uint64_t version) {
    events_.push({at, num_events_++, kind, index, version});
  }
  void plan_worker(uint32_t index);

  void on_arrival();
  void on_turn(uint32_t conversation);
  void on_delivery(uint32_t flight);
  void on_worker(uint32_t worker, uint64_t version);
  void on_death(uint32_t worker);
  void on_restart(uint32_t worker);
  void on_second();

  void begin_turn(Conversation& conversation);
  void end_turn(uint32_t flight);
  void fail_flight(uint32_t flight, bool had_begun);
  void finish_conversation(uint32_t conversation);
  void count_ideal(const Conversation& conversation);
  std::unique_ptr<SimRequest> request_of(const Conversation& conversation) const;
  void begin_measuring();
  void measure_loads();

  double exponential(double mean) { return -mean * std::log(1 - rng_.uniform()); }
  size_t draw_units(int64_t tokens_mean) {
    const double tokens = exponential(static_cast<double>(tokens_mean));
    return std::max<size_t>(1, static_cast<size_t>(tokens / kTokensPerUnit));
  }
  uint32_t draw_system();

  struct System {
    size_t num_units = 0;
    bool seen = false;
    double probability_up_to = 0;
  };

  const FleetOptions options_;
  Rng rng_;
  EventClock clock_;
  std::unique_ptr<Dispatcher> dispatcher_;
  std::vector<std::unique_ptr<FleetWorker>> workers_;
  std::vector<uint64_t> generations_;  // of the dispatcher's workers, by slot
  std::vector<System> systems_;
  Pool<Conversation> conversations_;
  Pool<Flight> flights_;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  uint64_t num_events_ = 0;
  int64_t num_begun_ = 0, num_open_ = 0;
  double arrivals_per_second_ = 0;
  bool measuring_ = false;
  TimePoint measured_from_{};
  std::vector<float> ttfts_;
  std::vector<double> spreads_;
  double in_flight_sum_ = 0;
  FleetResult result_;
};

Status check(const FleetOptions& o) {
  if (o.num_workers < 1 || o.num_workers > static_cast<int32_t>(kMaxWorkers))
    return invalid_argument("workers is {}, but must be between 1 and {}", o.num_workers,
                            kMaxWorkers);
  if (o.num_conversations < 1) return invalid_argument("conversations must be at least 1");
  if (!(o.turns_mean >= 1)) return invalid_argument("turns must be at least 1 on average");
  if (!(o.requests_per_worker_second > 0))
    return invalid_argument("the rate of requests must be above 0");
  if (o.num_system_prompts < 1 || o.system_tokens_min < kTokensPerUnit ||
      o.system_tokens_max < o.system_tokens_min)
    return invalid_argument("system prompts: at least one, of at least {} tokens", kTokensPerUnit);
  if (o.user_tokens_mean < 1 || o.answer_tokens_mean < 1)
    return invalid_argument("messages must have tokens");
  return {};
}

Status Fleet::begin() {
  PolicyOptions policy = options_.policy;
  policy.seed = options_.seed;
  WorkerTableOptions table;
  table.slow_start = std::chrono::seconds(5);
  ESP_ASSIGN_OR_RETURN(dispatcher_, Dispatcher::create(policy, table, clock_));
  for (int32_t i = 0; i < options_.num_workers; ++i) {
    ESP_ASSIGN_OR_RETURN(
        const WorkerSlot slot,
        dispatcher_->add_worker(fmt::format("http://worker-{}:1", i), {"10.0.0.1", 1}));
    ESP_CHECK(slot == i, "slots are given in order");
    workers_.push_back(std::make_unique<FleetWorker>(options_.speed));
  }
  for (const WorkerInfo& worker : dispatcher_->workers()) {
    generations_.push_back(worker.generation);
    dispatcher_->report_check(worker.slot, worker.generation, true);
  }
  clock_.set(TimePoint(std::chrono::seconds(10)));  // slow starts are over
  double total = 0;
  for (size_t i = 0; i < systems_.size(); ++i) {
    const int64_t tokens = rng_.between(options_.system_tokens_min, options_.system_tokens_max);
    systems_[i].num_units = static_cast<size_t>(tokens / kTokensPerUnit);
    systems_[i].probability_up_to = total += 1 / static_cast<double>(i + 1);
  }
  for (System& system : systems_) system.probability_up_to /= total;
  arrivals_per_second_ =
      options_.requests_per_worker_second * options_.num_workers / options_.turns_mean;
  plan(Kind::kArrival, 0, 0);
  plan(Kind::kSecond, options_.health_check_seconds, 0);
  if (options_.failures_per_worker_hour > 0)
    for (uint32_t i = 0; i < workers_.size(); ++i)
      plan(Kind::kDeath, exponential(3600 / options_.failures_per_worker_hour), i);
  return {};
}

uint32_t Fleet::draw_system() {
  const auto at =
      std::ranges::lower_bound(systems_, rng_.uniform(), {}, &System::probability_up_to);
  return static_cast<uint32_t>(
      std::min<size_t>(static_cast<size_t>(at - systems_.begin()), systems_.size() - 1));
}

void Fleet::plan_worker(uint32_t index) {
  FleetWorker& state = *workers_[index];
  ++state.version;
  if (const auto next = state.worker.next_event())
    plan_at(Kind::kWorker, *next, index, state.version);
}

void Fleet::on_arrival() {
  const uint32_t index = conversations_.take();
  Conversation& conversation = conversations_[index];
  conversation.id = static_cast<uint64_t>(num_begun_++);
  conversation.system = draw_system();
  conversation.turns_left = 1;
  while (rng_.uniform() >= 1 / options_.turns_mean) ++conversation.turns_left;
  ++num_open_;
  begin_turn(conversation);
  plan(Kind::kTurn, 0, index);
  if (num_begun_ < options_.num_conversations)
    plan(Kind::kArrival, exponential(1 / arrivals_per_second_), 0);
  if (num_begun_ ==
      static_cast<int64_t>(options_.warm_up * static_cast<double>(options_.num_conversations)) + 1)
    begin_measuring();
  // What comes later, while no conversation begins, is not the load that was asked for.
  if (num_begun_ == options_.num_conversations) measure_loads();
}

void Fleet::begin_turn(Conversation& conversation) {
  conversation.user_units = draw_units(options_.user_tokens_mean);
  conversation.answer_units = draw_units(options_.answer_tokens_mean);
  conversation.retries = 0;
  conversation.tried.clear();
  conversation.sent = clock_.now();
}

// The units of a conversation are functions of its number, so that they need no memory.
std::unique_ptr<SimRequest> Fleet::request_of(const Conversation& conversation) const {
  const auto unit = [](uint64_t stream, uint64_t i) {
    return static_cast<int32_t>(mix64(stream << 24 ^ i) & 0x7fffffff);
  };
  auto request = std::make_unique<SimRequest>();
  const size_t system_units = systems_[conversation.system].num_units;
  const size_t own = conversation.num_units + conversation.user_units;
  request->prompt.reserve(system_units + own);
  for (size_t i = 0; i < system_units; ++i)
    request->prompt.push_back(unit(2 * conversation.system + 1, i));
  for (size_t i = 0; i < own; ++i) request->prompt.push_back(unit(2 * conversation.id, i));
  for (size_t i = 0; i < conversation.answer_units; ++i)
    request->answer.push_back(unit(2 * conversation.id, own + i));
  return request;
}

void Fleet::count_ideal(const Conversation& conversation) {
  System& system = systems_[conversation.system];
  if (std::exchange(system.seen, true))
    result_.ideal_units += static_cast<int64_t>(system.num_units + conversation.num_units);
}

void Fleet::on_turn(uint32_t index) {
  Conversation& conversation = conversations_[index];
  std::unique_ptr<SimRequest> request = request_of(conversation);
  RoutedRequest routed;
  routed.key = prompt_key(request->prompt);
  routed.num_tokens = static_cast<int64_t>(request->prompt.size()) * kTokensPerUnit;
  Result<Lease> lease = dispatcher_->assign(routed, conversation.tried);
  if (!lease) {
    if (++conversation.retries <= kRetriesMax) return plan(Kind::kTurn, kRetryAfterSeconds, index);
    ++result_.lost;
    return finish_conversation(index);
  }
  result_.digest = mix64(result_.digest ^ lease->slot());
  const uint32_t flight = flights_.take();
  request->id = flight;
  flights_[flight] = {index, std::move(*lease), std::move(request)};
  plan(Kind::kDelivery, options_.network_seconds * rng_.uniform(), flight);
}

void Fleet::on_delivery(uint32_t index) {
  Flight& flight = flights_[index];
  const uint32_t slot = flight.lease.slot();
  FleetWorker& state = *workers_[slot];
  if (!state.is_up) return fail_flight(index, false);  // its connection is refused
  state.worker.receive(std::move(flight.request), clock_.now());
  plan_worker(slot);
}

void Fleet::fail_flight(uint32_t index, bool had_begun) {
  Flight& flight = flights_[index];
  ++(had_begun ? result_.cut : result_.retried);
  flight.lease.end(WorkerOutcome::kFailure);
  const uint32_t conversation = flight.conversation;
  conversations_[conversation].tried.push_back(flight.lease.slot());
  flights_.give_back(index);
  plan(Kind::kTurn, 0, conversation);
}

void Fleet::on_worker(uint32_t index, uint64_t version) {
  FleetWorker& state = *workers_[index];
  if (version != state.version) return;
  SimWorker::Progress progress = state.worker.advance(clock_.now());
  if (progress.begun != nullptr && measuring_)
    ttfts_.push_back(static_cast<float>(
        to_seconds(clock_.now() - conversations_[flights_[progress.begun->id].conversation].sent)));
  if (progress.ended != nullptr) {
    ++result_.requests;
    result_.prompt_units += static_cast<int64_t>(progress.ended->prompt.size());
    result_.cached_units += progress.ended->num_cached;
    count_ideal(conversations_[flights_[progress.ended->id].conversation]);
    end_turn(progress.ended->id);
  }
  plan_worker(index);
}

void Fleet::end_turn(uint32_t index) {
  Flight& flight = flights_[index];
  flight.lease.end(WorkerOutcome::kSuccess);
  const uint32_t number = flight.conversation;
  flights_.give_back(index);
  Conversation& conversation = conversations_[number];
  conversation.num_units += conversation.user_units + conversation.answer_units;
  if (--conversation.turns_left == 0) return finish_conversation(number);
  const double think = exponential(options_.think_seconds_mean);
  begin_turn(conversation);
  conversation.sent = clock_.now() + Duration(static_cast<int64_t>(think * 1e9));
  plan(Kind::kTurn, think, number);
}

void Fleet::finish_conversation(uint32_t index) {
  conversations_.give_back(index);
  --num_open_;
}

void Fleet::on_death(uint32_t index) {
  FleetWorker& state = *workers_[index];
  state.is_up = false;
  state.has_died = true;
  ++state.version;
  ++result_.failures;
  for (const auto& request : state.worker.die(clock_.now()))
    fail_flight(request->id, request->has_begun);
  plan(Kind::kRestart, options_.restart_seconds, index);
}

void Fleet::on_restart(uint32_t index) {
  workers_[index]->is_up = true;
  plan(Kind::kDeath, exponential(3600 / options_.failures_per_worker_hour), index);
}

void Fleet::on_second() {
  if (options_.progress) options_.progress(num_begun_);
  double most = 0, sum = 0;
  for (uint32_t i = 0; i < workers_.size(); ++i) {
    const FleetWorker& state = *workers_[i];
    // A worker that is up and has always been is healthy; its checks change nothing.
    if (state.has_died)
      dispatcher_->report_check(static_cast<WorkerSlot>(i), generations_[i], state.is_up);
    const auto n = static_cast<double>(state.worker.num_requests());
    most = std::max(most, n);
    sum += n;
  }
  const double mean = sum / static_cast<double>(workers_.size());
  if (measuring_ && mean > 0) {
    spreads_.push_back(most / mean);
    in_flight_sum_ += mean;
  }
  if (num_open_ > 0 || num_begun_ < options_.num_conversations)
    plan(Kind::kSecond, options_.health_check_seconds, 0);
}

void Fleet::begin_measuring() {
  measuring_ = true;
  measured_from_ = clock_.now();
  for (const auto& state : workers_) {
    state->busy_before = state->worker.busy_seconds();
    state->load_before = state->worker.request_seconds();
  }
}

void Fleet::measure_loads() {
  double most = 0, sum = 0, busy = 0;
  int64_t count = 0;
  for (const auto& state : workers_) {
    busy += state->worker.busy_seconds() - state->busy_before;
    if (state->has_died) continue;
    const double load = state->worker.request_seconds() - state->load_before;
    most = std::max(most, load);
    sum += load;
    ++count;
  }
  const double seconds = to_seconds(clock_.now() - measured_from_);
  if (count > 0 && sum > 0) result_.load_max_over_mean = most * static_cast<double>(count) / sum;
  if (seconds > 0) result_.utilisation = busy / seconds / static_cast<double>(workers_.size());
  if (!spreads_.empty()) {
    result_.in_flight_mean = in_flight_sum_ / static_cast<double>(spreads_.size());
    std::ranges::nth_element(spreads_,
                             spreads_.begin() + static_cast<int64_t>(spreads_.size() / 2));
    result_.in_flight_max_over_mean = spreads_[spreads_.size() / 2];
  }
  if (const auto tree = dispatcher_->tree_stats()) result_.tree_nodes = tree->num_nodes;
  measuring_ = false;
}

FleetResult Fleet::run() {
  const TimePoint begun = clock_.now();
  while (!events_.empty() && (num_open_ > 0 || num_begun_ < options_.num_conversations)) {
    const Event event = events_.top();
    events_.pop();
    clock_.set(event.at);
    switch (event.kind) {
      case Kind::kArrival:
        on_arrival();
        break;
      case Kind::kTurn:
        on_turn(event.index);
        break;
      case Kind::kDelivery:
        on_delivery(event.index);
        break;
      case Kind::kWorker:
        on_worker(event.index, event.version);
        break;
      case Kind::kDeath:
        on_death(event.index);
        break;
      case Kind::kRestart:
        on_restart(event.index);
        break;
      case Kind::kSecond:
        on_second();
        break;
    }
  }
  std::ranges::sort(ttfts_);
  if (!ttfts_.empty()) {
    result_.ttft_p50 = ttfts_[ttfts_.size() / 2];
    result_.ttft_p99 = ttfts_[ttfts_.size() * 99 / 100];
  }
  result_.simulated_seconds = to_seconds(clock_.now() - begun);
  dispatcher_->check_invariants();
  return result_;
}

}  // namespace

Result<FleetResult> simulate_fleet(const FleetOptions& options) {
  ESP_RETURN_IF_ERROR(check(options));
  Fleet fleet(options);
  ESP_RETURN_IF_ERROR(fleet.begin());
  return fleet.run();
}

}  // namespace espalier::router
