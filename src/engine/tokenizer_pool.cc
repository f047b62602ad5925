#include "engine/tokenizer_pool.h"

#include "base/thread.h"

namespace espalier {

TokenizerPool::TokenizerPool(const Tokenizer& tokenizer, int num_threads, size_t capacity)
    : tokenizer_(tokenizer), jobs_(capacity) {
  for (int i = 0; i < num_threads; ++i) threads_.emplace_back([this] { work(); });
}

TokenizerPool::~TokenizerPool() {
  jobs_.close();
  std::vector<Job> dropped;
  jobs_.drain(dropped);
  for (std::thread& thread : threads_) thread.join();
}

bool TokenizerPool::submit(std::string text, const EncodeOptions& options, Done done) {
  return jobs_.try_push({.text = std::move(text), .options = options, .done = std::move(done)});
}

void TokenizerPool::work() {
  set_thread_name("tokenizer");
  while (auto job = jobs_.pop()) job->done(tokenizer_.encode(job->text, job->options));
}

}  // namespace espalier
