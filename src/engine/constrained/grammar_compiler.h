// Compiles grammars beside the scheduler, each once: equal sources share one compiled grammar, also
// while it is being made.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "grammar/grammar.h"
#include "seams/vocab_view.h"

namespace espalier {

// An error of compile_grammar() as the client's who sent the source: it names the field, and what
// is too large is the request's fault and stays too large, so it is not to be tried again. Pure.
Status as_request_error(const grammar::GrammarSpec& spec, const Status& status);

// Counters only grow, but for what waits or is kept now.
struct GrammarCompilerStats {
  int64_t requests = 0, cache_hits = 0, cancelled = 0, failed = 0;
  int64_t compiled = 0;
  double compile_seconds = 0;        // over all threads
  int32_t waiting = 0;               // in the queue or being compiled
  int64_t kept = 0, kept_bytes = 0;  // compiled grammars that are kept now, and what they hold
};

// Thread-safe. Its threads are parked while nothing is to be compiled.
class GrammarCompiler {
 public:
  using Compiled = Result<std::shared_ptr<grammar::CompiledGrammar>>;
  using Done = std::function<void(Compiled)>;
  using Ticket = uint64_t;  // the caller's name for what waits; 0: never cancelled

  // The vocabulary's bytes are copied when the first grammar comes; until then it outlives the
  // call. What begins to be compiled ends within its limits, with an error. Grammars that are kept
  // hold at most `kept_bytes_max` together, apart from the last one; the least recently used are
  // dropped first. The bound is checked whenever a request brings a grammar.
  GrammarCompiler(VocabView vocab, int32_t num_threads, const grammar::GrammarLimits& limits,
                  int64_t kept_bytes_max = int64_t{2} << 30);
  ~GrammarCompiler();  // what waits is dropped, what runs is cancelled

  // Calls `done` at once when the grammar is known, else on a thread of the compiler's.
  void compile(const grammar::GrammarSpec& spec, Ticket ticket, Done done);

  // Whoever waits under this ticket waits no more, and its `done` is not called (unless it is being
  // called). A grammar that nobody waits for is dropped, or no longer compiled.
  void cancel(Ticket ticket);

  GrammarCompilerStats stats() const;

 private:
  static constexpr size_t kKept = 256;  // compiled grammars; the least recently used goes first

  struct Entry {
    std::string key;
    std::shared_ptr<grammar::CompiledGrammar> grammar;  // shared with the requests that use it
  };
  struct Waiting {
    Ticket ticket;
    Done done;
  };
  struct Job {
    grammar::GrammarSpec spec;
    std::vector<Waiting> waiting;
    bool running = false;
    std::atomic<bool> cancelled{false};
  };
  void work();
  Compiled compile_source(const grammar::GrammarSpec& spec, const grammar::GrammarLimits& limits);
  // Returns the grammar, or null.
  std::shared_ptr<grammar::CompiledGrammar> run(const std::string& key, Job& job);
  void build_ahead(grammar::CompiledGrammar& made);
  std::shared_ptr<const grammar::TokenTrie> trie();
  std::shared_ptr<grammar::CompiledGrammar> known(const std::string& key,
                                                  std::list<Entry>& dropped);  // or null
  void drop_unused(std::list<Entry>& dropped);

  const VocabView vocab_;
  const grammar::GrammarLimits limits_;
  const size_t kept_bytes_max_;
  std::once_flag trie_made_;
  std::shared_ptr<const grammar::TokenTrie> trie_;  // shared by all grammars
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::list<Entry> kept_;  // the most recently used first
  std::unordered_map<std::string, std::list<Entry>::iterator> index_;
  // Waiting or running, by key. A job's address stays while it runs.
  std::unordered_map<std::string, std::unique_ptr<Job>> jobs_;
  std::deque<std::string> queue_;
  GrammarCompilerStats stats_;
  std::vector<std::thread> threads_;
};

}  // namespace espalier
