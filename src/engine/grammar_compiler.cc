#include "engine/grammar_compiler.h"

#include <utility>

#include "base/thread.h"

namespace espalier {
namespace {

std::string key_of(const grammar::GrammarSpec& spec) {
  std::string key;
  key += static_cast<char>('0' + static_cast<int>(spec.kind));
  key += static_cast<char>('0' + static_cast<int>(spec.whitespace));
  key += spec.source;
  for (const std::string& choice : spec.choices) {
    key += '\0';
    key += choice;
  }
  return key;
}

}  // namespace

GrammarCompiler::GrammarCompiler(VocabView vocab)
    : vocab_(std::move(vocab)), thread_([this] { work(); }) {}

GrammarCompiler::~GrammarCompiler() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_one();
  thread_.join();
}

void GrammarCompiler::compile(const grammar::GrammarSpec& spec, Done done) {
  const std::string key = key_of(spec);
  std::unique_lock lock(mutex_);
  if (const auto it = index_.find(key); it != index_.end()) {
    kept_.splice(kept_.begin(), kept_, it->second);
    Compiled grammar = it->second->grammar;
    lock.unlock();
    done(std::move(grammar));
    return;
  }
  const auto [it, added] = jobs_.try_emplace(key);
  it->second.waiting.push_back(std::move(done));
  if (!added) return;
  it->second.spec = spec;
  queue_.push_back(key);
  lock.unlock();
  changed_.notify_one();
}

void GrammarCompiler::keep(const std::string& key,
                           std::shared_ptr<grammar::CompiledGrammar> grammar) {
  kept_.push_front({key, std::move(grammar)});
  index_[key] = kept_.begin();
  if (kept_.size() <= kKept) return;
  index_.erase(kept_.back().key);
  kept_.pop_back();
}

void GrammarCompiler::work() {
  set_thread_name("grammar");
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (stopping_) return;
    const std::string key = std::move(queue_.front());
    queue_.pop_front();
    const grammar::GrammarSpec spec = jobs_.at(key).spec;
    lock.unlock();
    if (trie_ == nullptr) trie_ = std::make_shared<const grammar::TokenTrie>(vocab_);
    Compiled made = grammar::compile_grammar(spec, trie_);
    lock.lock();
    const auto job = jobs_.extract(key);
    if (made) keep(key, *made);
    lock.unlock();
    for (const Done& done : job.mapped().waiting) done(made);
    lock.lock();
  }
}

}  // namespace espalier
