#include "engine/constrained/grammar_compiler.h"

#include <algorithm>
#include <new>
#include <string_view>
#include <utility>

#include "base/clock.h"
#include "base/memory_reserve.h"
#include "base/thread.h"

namespace espalier {
namespace {

// The request's field that a grammar of this kind comes in.
std::string_view field_of(grammar::GrammarSpec::Kind kind) {
  using Kind = grammar::GrammarSpec::Kind;
  switch (kind) {
    case Kind::kJsonSchema:
      return "json_schema";
    case Kind::kRegex:
      return "regex";
    case Kind::kEbnf:
      return "ebnf";
    case Kind::kStructuralTag:
      return "structural_tag";
    default:
      return "choices";
  }
}

}  // namespace

Status as_request_error(const grammar::GrammarSpec& spec, const Status& status) {
  const std::string_view field = field_of(spec.kind);
  const bool named = status.message().find(field) != std::string::npos;
  const bool too_large = status.code() == StatusCode::kResourceExhausted;
  const Status wrong = too_large ? invalid_argument("{}", status.message()) : status;
  return named ? wrong : wrong.with_context(field);
}

GrammarCompiler::GrammarCompiler(VocabView vocab, int32_t num_threads,
                                 const grammar::GrammarLimits& limits, int64_t kept_bytes_max)
    : vocab_(std::move(vocab)),
      limits_(limits),
      kept_bytes_max_(static_cast<size_t>(kept_bytes_max)) {
  for (int32_t i = 0; i < num_threads; ++i) threads_.emplace_back([this] { work(); });
}

GrammarCompiler::~GrammarCompiler() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    for (auto& [key, job] : jobs_) job->cancelled = true;
  }
  changed_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void GrammarCompiler::compile(const grammar::GrammarSpec& spec, Ticket ticket, Done done) {
  const std::string key = key_of(spec);
  std::list<Entry> dropped;  // destroyed without the lock
  std::unique_lock lock(mutex_);
  ++stats_.requests;
  if (Compiled grammar = known(key, dropped); *grammar != nullptr) {
    ++stats_.cache_hits;
    drop_unused(dropped);
    lock.unlock();
    done(std::move(grammar));
    return;
  }
  std::unique_ptr<Job>& job = jobs_[key];
  const bool added = job == nullptr;
  if (added) job = std::make_unique<Job>();
  job->waiting.push_back({ticket, std::move(done)});
  job->cancelled = false;  // what was given up and has not noticed is wanted again
  if (!added) return;
  job->spec = spec;
  queue_.push_back(key);
  lock.unlock();
  changed_.notify_one();
}

void GrammarCompiler::cancel(Ticket ticket) {
  std::vector<Waiting> dropped;  // destroyed without the lock
  std::lock_guard lock(mutex_);
  for (auto it = jobs_.begin(); it != jobs_.end(); ++it) {
    std::vector<Waiting>& waiting = it->second->waiting;
    const auto found = std::find_if(waiting.begin(), waiting.end(),
                                    [&](const Waiting& w) { return w.ticket == ticket; });
    if (found == waiting.end()) continue;
    dropped.push_back(std::move(*found));
    waiting.erase(found);
    if (!waiting.empty()) return;
    ++stats_.cancelled;
    if (it->second->running) {
      it->second->cancelled = true;
    } else {
      std::erase(queue_, it->first);
      jobs_.erase(it);
    }
    return;
  }
}

GrammarCompilerStats GrammarCompiler::stats() const {
  std::lock_guard lock(mutex_);
  GrammarCompilerStats s = stats_;
  s.waiting = static_cast<int32_t>(jobs_.size());
  s.kept = std::ssize(kept_);
  for (const Entry& entry : kept_) s.kept_bytes += static_cast<int64_t>(entry.grammar->num_bytes());
  return s;
}

// One whose states are used up, by all the texts that it has had, is made anew.
std::shared_ptr<grammar::CompiledGrammar> GrammarCompiler::known(const std::string& key,
                                                                 std::list<Entry>& dropped) {
  const auto it = index_.find(key);
  if (it == index_.end()) return nullptr;
  if (it->second->grammar->exhausted()) {
    dropped.splice(dropped.end(), kept_, it->second);
    index_.erase(it);
    return nullptr;
  }
  kept_.splice(kept_.begin(), kept_, it->second);
  return it->second->grammar;
}

// Keeps what was used last, within the bounds; grammars grow with the texts that they have had.
void GrammarCompiler::drop_unused(std::list<Entry>& dropped) {
  size_t bytes = 0, num_kept = 0;
  auto it = kept_.begin();
  for (; it != kept_.end() && num_kept < kKept; ++it, ++num_kept) {
    bytes += it->grammar->num_bytes();
    if (num_kept > 0 && bytes > kept_bytes_max_) break;
  }
  for (auto unused = it; unused != kept_.end(); ++unused) index_.erase(unused->key);
  dropped.splice(dropped.end(), kept_, it, kept_.end());
}

std::shared_ptr<const grammar::TokenTrie> GrammarCompiler::trie() {
  std::call_once(trie_made_,
                 [this] { trie_ = std::make_shared<const grammar::TokenTrie>(vocab_); });
  return trie_;
}

void GrammarCompiler::work() {
  set_thread_name("grammar");
  give_way();
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (stopping_) return;
    const std::string key = std::move(queue_.front());
    queue_.pop_front();
    Job& job = *jobs_.at(key);
    job.running = true;
    lock.unlock();
    std::list<Entry> dropped;
    std::shared_ptr<grammar::CompiledGrammar> made = run(key, job);
    if (made != nullptr) {
      build_ahead(*made);
      made.reset();
      const std::lock_guard growth(mutex_);
      drop_unused(dropped);
    }
    dropped.clear();  // without the lock: freeing a grammar takes time
    lock.lock();
  }
}

// No request waits for these rules and masks, so the work stops as soon as a grammar is queued.
// What memory is short for is made when a text reaches it.
void GrammarCompiler::build_ahead(grammar::CompiledGrammar& made) {
  const auto stop = [this] {
    const std::lock_guard lock(mutex_);
    return stopping_ || !queue_.empty();
  };
  try {
    made.build_ahead(stop);
    made.make_masks_ahead(stop);
  } catch (const std::bad_alloc&) {
  }
}

GrammarCompiler::Compiled GrammarCompiler::compile_source(const grammar::GrammarSpec& spec,
                                                          const grammar::GrammarLimits& limits) {
  try {
    Compiled made = grammar::compile_grammar(spec, trie(), limits);
    if (!made) return fail(as_request_error(spec, made.error()));
    return made;
  } catch (const std::bad_alloc&) {
    return fail(error(StatusCode::kUnavailable,
                      "there is no memory to compile the grammar: try again later"));
  }
}

std::shared_ptr<grammar::CompiledGrammar> GrammarCompiler::run(const std::string& key, Job& job) {
  const SteadyClock clock;
  Compiled made;
  std::list<Entry> dropped;
  for (;;) {
    const TimePoint start = clock.now();
    grammar::GrammarLimits limits = limits_;
    limits.cancelled = &job.cancelled;
    made = compile_source(job.spec, limits);
    std::unique_lock lock(mutex_);
    stats_.compile_seconds += to_seconds(clock.now() - start);
    // Given up, and wanted again before that was noticed: once more.
    const bool given_up = !made && made.error().code() == StatusCode::kAborted;
    if (given_up && !job.waiting.empty() && !stopping_) continue;
    ++(made ? stats_.compiled : stats_.failed);
    if (made) {
      kept_.push_front({key, *made});
      index_[key] = kept_.begin();
      drop_unused(dropped);
    }
    const auto node = jobs_.extract(key);
    lock.unlock();
    const MemoryReserveScope reserve;  // the answer is passed on even when memory is short
    for (const Waiting& waiting : node.mapped()->waiting) waiting.done(made);
    return made ? *made : nullptr;
  }
}

}  // namespace espalier
