// Compiles grammars beside the scheduler, each once: equal sources share one compiled grammar, also
// while it is being made.
#pragma once

#include <condition_variable>
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

// Thread-safe. Its thread is parked while nothing is to be compiled.
class GrammarCompiler {
 public:
  using Compiled = Result<std::shared_ptr<grammar::CompiledGrammar>>;
  using Done = std::function<void(Compiled)>;

  // The vocabulary's bytes are copied when the first grammar comes; until then it outlives the
  // call.
  explicit GrammarCompiler(VocabView vocab);
  ~GrammarCompiler();  // what waits is dropped, what runs is finished

  // Calls `done` at once when the grammar is known, else on the compiler's thread.
  void compile(const grammar::GrammarSpec& spec, Done done);

 private:
  static constexpr size_t kKept = 256;  // compiled grammars; the longest unused goes first

  struct Entry {
    std::string key;
    std::shared_ptr<grammar::CompiledGrammar> grammar;  // shared with the requests that use it
  };
  struct Job {
    grammar::GrammarSpec spec;
    std::vector<Done> waiting;
  };
  void work();
  void keep(const std::string& key, std::shared_ptr<grammar::CompiledGrammar> grammar);

  const VocabView vocab_;
  std::shared_ptr<const grammar::TokenTrie> trie_;  // the thread's; shared by all grammars
  std::mutex mutex_;
  std::condition_variable changed_;
  bool stopping_ = false;
  std::list<Entry> kept_;  // the most recently used first
  std::unordered_map<std::string, std::list<Entry>::iterator> index_;
  std::unordered_map<std::string, Job> jobs_;  // waiting or running, by key
  std::deque<std::string> queue_;
  std::thread thread_;
};

}  // namespace espalier
